/*
 * config.json of classes that take the parts of others: what their files say in numbers for each
 * layer or in other words, what is taken where they say nothing, and what is refused.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "server/model/config.h"
#include "server/model/family.h"
#include "server/model/safetensors.h"
#include "server/model/textpart.h"

#define BASE                                                                                       \
    "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 3, "                   \
    "\"num_attention_heads\": 4, \"vocab_size\": 100, \"max_position_embeddings\": 1024"
#define GLM_EXPERTS                                                                                \
    ", \"n_routed_experts\": 8, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 8"
#define LLAMA4_EXPERTS ", \"num_local_experts\": 4, \"num_experts_per_tok\": 1"
#define HUNYUAN_MOE(more)                                                                          \
    "{\"architectures\": [\"HunYuanMoEV1ForCausalLM\"], " BASE ", \"num_experts\": 8" more "}"
#define MINIMAX(more)                                                                              \
    "{\"architectures\": [\"MiniMaxM2ForCausalLM\"], " BASE LLAMA4_EXPERTS more "}"
#define GLM_LITE(more)                                                                             \
    "{\"architectures\": [\"Glm4MoeLiteForCausalLM\"], " BASE GLM_EXPERTS more "}"
#define FALCON(more)                                                                               \
    "{\"architectures\": [\"FalconH1ForCausalLM\"], \"mamba_n_heads\": 8, " BASE more "}"

#define OF(class, more) "{\"architectures\": [\"" class "ForCausalLM\"], " BASE more "}"
#define AFMOE(more)                                                                                \
    OF("Afmoe", ", \"num_experts\": 8, \"num_experts_per_tok\": 2, "                               \
                "\"moe_intermediate_size\": 8" more)

static struct model_config read_ok(const char *text)
{
    struct model_config c = {0};
    struct ek_fault f = {0};
    if (config_parse(text, strlen(text), &c, &f) != 0)
        fail_msg("%s: %s", text, f.msg);
    return c;
}

#define HY3(more)                                                                                  \
    OF("HYV3", ", \"num_experts\": 8, \"num_experts_per_tok\": 2, \"expert_hidden_dim\": 24" more)

#define MELLUM(more)                                                                               \
    OF("Mellum", ", \"num_experts\": 8, \"num_experts_per_tok\": 2, "                              \
                 "\"moe_intermediate_size\": 24" more)

/* Classes of 2026 that say in keys of their own what others do. */
static void test_classes_of_2026(void **state)
{
    (void)state;
    struct model_config c = read_ok(HY3(", \"num_nextn_predict_layers\": 1"));
    assert_true(c.plain[0] && !c.plain[1] && c.extra_layers == 1 && c.qk_norm);
    assert_true(c.expert_intermediate == 24 && c.shared_intermediate == 24);
    assert_true(c.routing.normalise && c.routing.scale == 2.826f && c.rope.theta == 11158840);
    c = read_ok(HY3(", \"first_k_dense_replace\": 2, \"moe_intermediate_size\": 20, "
                    "\"num_shared_experts\": 2, \"route_norm\": false, \"qk_norm\": false, "
                    "\"router_scaling_factor\": 2.5"));
    assert_true(c.plain[0] && c.plain[1] && !c.plain[2] && !c.qk_norm);
    assert_true(c.expert_intermediate == 20 && c.shared_intermediate == 40);
    assert_true(!c.routing.normalise && c.routing.scale == 2.5f);
    c = read_ok(HY3(", \"mlp_layer_types\": [\"sparse\", \"dense\", \"sparse\"]"));
    assert_true(!c.plain[0] && c.plain[1] && !c.plain[2]);

    c = read_ok(OF("HyperCLOVAX", ", \"logits_scaling\": 0.25"));
    assert_true(c.logits_scale == 0.25f && c.attention_scale == 0.25f && c.post_norms);
    c = read_ok(OF("HyperCLOVAX", ", \"attention_multiplier\": 0.5, \"use_post_norm\": false"));
    assert_true(c.attention_scale == 0.5f && !c.post_norms);

    c = read_ok(OF("GraniteSWA", ", \"layer_rope_theta\": [0, 500, 500]"));
    assert_true(c.sinks && c.tied && c.window == 128 && c.local_rope);
    assert_true(!c.windowed[0] && c.windowed[1] && c.windowed[2]);
    assert_true(c.unrotated[0] && !c.unrotated[1] && c.rope_local.theta == 500);
    c = read_ok(OF("GraniteSWA", ", \"rope_theta\": 5000, \"layer_types\": [\"sliding_attention\", "
                                 "\"sliding_attention\", \"full_attention\"]"));
    assert_true(c.windowed[0] && !c.windowed[2] && !c.local_rope && c.rope.theta == 5000);

    c = read_ok(MELLUM(""));
    assert_true(c.window == 0 && c.routing.normalise && c.head_dim == 128);
    assert_true(c.rope.theta == 5e5 && c.rope_local.theta == 1e4);
    c = read_ok(MELLUM(", \"layer_types\": [\"sliding_attention\", \"full_attention\", "
                       "\"sliding_attention\"], \"mlp_layer_types\": [\"dense\", \"sparse\", "
                       "\"sparse\"]"));
    assert_true(c.window == 1024 && c.windowed[0] && !c.windowed[1] && c.plain[0] && !c.plain[1]);

    c = read_ok(OF("Youtu", ", \"kv_lora_rank\": 32"));
    assert_true(c.latent.rank == 32 && c.latent.q_rank == 0 && c.neighbours && c.tied);
    assert_true(c.experts == 0 && c.kv_heads == 1);
}

#define FACTORS "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"

/* What they are where the file says nothing, and a null that means another thing than that. */
static void test_classes_of_known_parts(void **state)
{
    struct model_config c = read_ok(OF("Helium", ", \"attention_bias\": true"));
    (void)state;
    assert_true(c.neighbours && c.qkv_bias && !c.o_bias && c.head_dim == 128);
    assert_true(c.rope.theta == 1e5 && c.rms_eps == 1e-8);

    c = read_ok(OF("Jais2", ", \"layer_norm_eps\": 0.001"));
    assert_true(c.norm_centred && c.norm_bias && c.qkv_bias && c.o_bias && c.mlp_bias);
    assert_true(c.rms_eps == 0.001);
    c = read_ok(OF("Jais2", ", \"attention_bias\": false, \"mlp_bias\": false"));
    assert_true(!c.qkv_bias && !c.o_bias && !c.mlp_bias && c.norm_bias);

    c = read_ok(OF("FlexOlmo", ", \"num_experts\": 8, \"num_experts_per_tok\": 2"));
    assert_true(c.experts == 8 && c.expert_intermediate == c.intermediate);
    assert_true(!c.routing.normalise && !c.plain[0] && c.rope.theta == 5e5);

    c = read_ok(OF("InternLM3", ", \"qkv_bias\": false, \"bias\": true"));
    assert_true(!c.qkv_bias && c.o_bias && c.mlp_bias && c.head_dim == 128);
    c = read_ok(OF("InternLM3", ", \"attention_bias\": true, \"mlp_bias\": true"));
    assert_true(!c.qkv_bias && !c.o_bias && !c.mlp_bias); /* keys of another class */
    c = read_ok(OF("IQuestCoder", ", \"attention_bias\": true, \"clip_qkv\": null, "
                                  "\"use_sliding_window\": false, \"sliding_window\": 8"));
    assert_true(c.qkv_bias && c.o_bias && c.window == 0);
    c = read_ok(OF("MiMo", ", \"attention_bias\": true"));
    assert_true(c.qkv_bias && !c.o_bias);
    c = read_ok(OF("AXK1", ", \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, "
                           "\"moe_intermediate_size\": 16"));
    assert_true(c.plain[0] && !c.plain[1] && c.routing.score == EK_SCORE_SIGMOID);
    c = read_ok(OF("Cohere2Moe", ", \"num_experts\": 8, \"num_experts_per_tok\": 2, "
                                 "\"first_k_dense_replace\": 1"));
    assert_true(c.plain[0] && !c.plain[1] && c.routing.normalise && c.shared_mean && c.tied);
    assert_true(!c.windowed[0] && !c.unrotated[0] && c.windowed[1] && c.norm_centred);

    c = read_ok(OF("MiniCPM3", ""));
    assert_true(c.latent.rank == 256 && c.latent.nope_dim == 64 && c.latent.rope_dim == 32);
    assert_true(c.latent.value_dim == c.hidden / c.q_heads && !c.neighbours && c.tied);
    assert_true(c.embed_scale == 12 && c.logits_scale == 256.0f / (float)c.hidden);
    assert_float_equal(c.residual_scale, 0.80829036, 1e-6); /* 1.4 / sqrt(3) */
    c = read_ok(OF("MiniCPM3", ", \"scale_depth\": null, \"dim_model_base\": null"));
    assert_true(c.residual_scale == 1 && c.logits_scale == 1);
    c = read_ok(OF("MiniCPM3", ", \"rope_scaling\": {\"type\": \"longrope\", "
                               "\"short_factor\": " FACTORS ", \"long_factor\": " FACTORS "}"));
    assert_true(c.rope.type == ROPE_LONGROPE && c.rope.dims == 32 && c.latent.q_rank == 768);
    /* made smaller, with a head_dim that stayed, which transformers does not read */
    c = read_ok(OF("MiniCPM3",
                   ", \"qk_rope_head_dim\": 4, \"head_dim\": 32, \"q_lora_rank\": null, "
                   "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 2], "
                   "\"long_factor\": [1, 2]}"));
    assert_true(c.rope.dims == 4 && c.latent.rope_dim == 4 && c.latent.q_rank == 0);
}

#define GEMMA3N(more)                                                                              \
    OF("Gemma3n", ", \"num_kv_shared_layers\": 1, \"layer_types\": [\"sliding_attention\", "       \
                  "\"full_attention\", \"sliding_attention\"]" more)

/* Streams beside each other, and gates that are 0 below a number of standard deviations. */
static void test_gemma3n(void **state)
{
    (void)state;
    struct model_config c = read_ok(GEMMA3N(""));
    assert_true(c.streams.count == 4 && c.streams.active == 0 && c.streams.scaled);
    assert_true(c.streams.laurel == 64 && c.kinds.input == 256 && c.kinds.shared == 1);
    assert_true(c.logit_softcap == 30 && c.attention_scale == 1 && c.window == 512);
    assert_true(!c.streams.sparse[0] && c.streams.input_rows == c.vocab);
    c = read_ok(GEMMA3N(", \"activation_sparsity_pattern\": [0.95, 0.5, 0.0], "
                        "\"altup_active_idx\": 1, \"altup_num_inputs\": 2, "
                        "\"vocab_size_per_layer_input\": 16, \"altup_correct_scale\": false"));
    assert_true(c.streams.sparse[0] && c.streams.sparse[1] && !c.streams.sparse[2]);
    assert_true(fabsf(c.streams.cut[0] - 1.644854f) < 1e-5f && fabsf(c.streams.cut[1]) < 1e-6f);
    assert_true(c.streams.active == 1 && c.streams.input_rows == 16 && !c.streams.scaled);
}

/* An indexer chooses among more tokens than are served. */
static void test_indexed(void **state)
{
#define DSA(of, more)                                                                              \
    OF(of, ", \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"q_lora_rank\": 16, "          \
           "\"moe_intermediate_size\": 24, \"kv_lora_rank\": 32" more)
    (void)state;
    struct model_config c = read_ok(DSA("DeepseekV32", ", \"index_topk\": 64"));
    assert_true(c.indexed && c.index_tokens == 64 && c.max_model_len == 64);
    assert_true(c.plain[0] && c.plain[2] && c.neighbours && c.routing.score == EK_SCORE_SIGMOID);
    c = read_ok(DSA("GlmMoeDsa", ", \"first_k_dense_replace\": 1"));
    assert_true(c.indexed && c.index_tokens == 0 && c.max_model_len < 2048);
    assert_true(c.plain[0] && !c.plain[1] && c.rms_eps == 1e-5);
}

/* Numbers for each layer, and what other files say where transformers writes a list. */
static void test_newer_spellings(void **state)
{
    (void)state;
    struct model_config c =
        read_ok(HUNYUAN_MOE(", \"moe_topk\": [3, 3, 3], \"moe_intermediate_size\": [20, 20, 20], "
                            "\"num_shared_expert\": [2, 2, 2], \"norm_topk_prob\": false"));
    assert_true(c.experts == 8 && c.experts_per_token == 3 && c.expert_intermediate == 20);
    assert_true(c.shared_intermediate == 2 * 96 && c.routing.normalise);
    c = read_ok(HUNYUAN_MOE(", \"moe_topk\": 2"));
    assert_true(c.experts_per_token == 2 && c.expert_intermediate == 96);

    c = read_ok(MINIMAX(", \"rotary_dim\": 64"));
    assert_true(c.head_dim == 128 && c.rope.dims == 64 && c.rope.theta == 5e6);
    assert_int_equal(read_ok(MINIMAX("")).rope.dims, 128);

    c = read_ok(GLM_LITE(""));
    assert_true(c.plain[0] && !c.plain[1] && !c.plain[2]);
    c = read_ok(GLM_LITE(", \"first_k_dense_replace\": 2"));
    assert_true(c.plain[0] && c.plain[1] && !c.plain[2]);
    c = read_ok(GLM_LITE(", \"mlp_layer_types\": [\"sparse\", \"sparse\", \"dense\"]"));
    assert_true(!c.plain[0] && !c.plain[1] && c.plain[2]);

    c = read_ok("{\"architectures\": [\"ExaoneMoEForCausalLM\"], " BASE
                ", \"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 8, "
                "\"sliding_window\": 128, \"sliding_window_pattern\": 2}");
    assert_true(c.windowed[0] && !c.windowed[1] && !c.unrotated[0] && c.unrotated[1]);
    assert_true(c.plain[0] && !c.plain[1] && c.shared_intermediate == 8);
    c = read_ok(
        FALCON(", \"mamba_d_ssm\": null, \"mamba_d_head\": \"auto\", \"key_multiplier\": 0.25"));
    assert_true(c.scan.head_dim == 16 && c.attention_scale == 0.0625f && c.scan.unnormed);
    assert_int_equal(read_ok(FALCON("")).scan.head_dim, 128);
    c = read_ok("{\"architectures\": [\"CwmForCausalLM\"], " BASE "}");
    assert_true(c.window == 8192 && !c.windowed[0] && c.windowed[1] && c.windowed[2]);
    c = read_ok("{\"architectures\": [\"Mistral4ForCausalLM\"], " BASE GLM_EXPERTS
                ", \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4.0, "
                "\"original_max_position_embeddings\": 32, \"partial_rotary_factor\": 0.5, "
                "\"llama_4_scaling_beta\": 0.1}}");
    assert_true(c.warm_every == 32 && c.warm == 0.1f && c.rope.dims == 64);
}

/* What is taken where their files say nothing. */
static void test_side_by_side(void **state)
{
    (void)state;
    struct model_config c = read_ok(OF("Cohere", ""));
    assert_true(c.norm_centred && !c.norm_bias && c.neighbours && c.tied && !c.qk_norm);
    assert_true(c.rms_eps == 1e-5 && c.rope.theta == 5e5 && c.logits_scale == 0.0625f);
    c = read_ok(
        OF("Cohere", ", \"layer_norm_eps\": 0.25, \"rms_norm_eps\": 0.5, \"logit_scale\": 2"));
    assert_true(c.rms_eps == 0.25 && c.logits_scale == 2);
    c = read_ok(OF("Cohere2", ", \"sliding_window_pattern\": 2"));
    assert_true(c.window == 4096 && c.windowed[0] && !c.windowed[1] && c.windowed[2]);
    assert_true(!c.unrotated[0] && c.unrotated[1] && !c.unrotated[2]);
    c = read_ok(OF("Cohere2", ", \"sliding_window\": null"));
    assert_true(c.window == 0 && c.unrotated[0] && c.unrotated[2]);

    c = read_ok(OF("Starcoder2", ""));
    assert_true(c.norm_centred && c.norm_bias && c.qkv_bias && c.o_bias && c.mlp_bias && c.tied);
    assert_true(c.act == EK_ACT_GELU_TANH && c.window == 0);
    c = read_ok(OF("Starcoder2", ", \"use_bias\": false, \"norm_epsilon\": 0.5"));
    assert_true(!c.qkv_bias && !c.mlp_bias && c.norm_bias && c.rms_eps == 0.5);
    c = read_ok(OF("Nemotron", ", \"norm_eps\": 0.5"));
    assert_true(c.norm_centred && c.norm_bias && c.norm_offset == 1 && c.rms_eps == 0.5);
    assert_int_equal(c.rope.dims, 8);
    c = read_ok(OF("Apertus", ""));
    assert_true(c.rope.theta == 12e6 && c.rms_eps == 1e-5 && !c.norm_centred);

    c = read_ok(AFMOE(", \"mup_enabled\": true, \"global_attn_every_n_layers\": 3"));
    assert_true(c.window == 1024 && c.windowed[1] && !c.windowed[2] && c.unrotated[2]);
    assert_true(c.head_dim == 128 && c.embed_scale == 8 && c.shared_intermediate == 16);
    assert_true(c.plain[0] && !c.plain[1] && c.routing.score == EK_SCORE_SIGMOID);
    c = read_ok(
        AFMOE(", \"num_dense_layers\": 0, \"num_shared_experts\": 1, \"route_scale\": 2.5"));
    assert_true(!c.plain[0] && c.shared_intermediate == 8 && c.routing.scale == 2.5f);
}

/* Those that many try first, as older files spell them and as newer ones do. */
static void test_small_models(void **state)
{
    (void)state;
    struct model_config c =
        read_ok(OF("GPTNeoX", ", \"rotary_emb_base\": 25000, \"rotary_pct\": 0.5"));
    assert_true(c.norm_centred && c.norm_bias && c.qkv_bias && c.o_bias && c.mlp_bias);
    assert_true(c.parallel && c.act == EK_ACT_GELU && c.rms_eps == 1e-5 && !c.tied);
    assert_true(c.rope.theta == 25000 && c.rope.dims == 8);
    c = read_ok(OF("GPTNeoX", ", \"attention_bias\": false, \"use_parallel_residual\": false, "
                              "\"rope_parameters\": {\"rope_theta\": 500, \"rope_type\": "
                              "\"default\", \"partial_rotary_factor\": 0.25}"));
    assert_true(!c.parallel && !c.qkv_bias && c.mlp_bias && c.rope.theta == 500);
    assert_int_equal(c.rope.dims, 4);
    c = read_ok(OF("Phi", ", \"layer_norm_eps\": 0.5"));
    assert_true(c.norm_centred && c.norm_bias && c.qkv_bias && c.o_bias && c.mlp_bias);
    assert_true(c.act == EK_ACT_GELU_TANH && c.rms_eps == 0.5 && !c.qk_norm);
    assert_int_equal(c.rope.dims, 8);
    c = read_ok(OF("Phi", ", \"qk_layernorm\": true, \"partial_rotary_factor\": 0.25"));
    assert_true(c.qk_norm && c.rope.dims == 4);
}

#define GPT2(more)                                                                                 \
    "{\"architectures\": [\"GPT2LMHeadModel\"], \"n_embd\": 64, \"n_layer\": 3, \"n_head\": 4, "   \
    "\"n_positions\": 128, \"vocab_size\": 100" more "}"
#define GPT(class, more)                                                                           \
    "{\"architectures\": [\"" class "ForCausalLM\"], \"n_embd\": 64, \"n_layer\": 3, \"n_head\": " \
                                    "4, "                                                          \
                                    "\"n_positions\": 128, \"vocab_size\": 100" more "}"
#define NEO(more)                                                                                  \
    "{\"architectures\": [\"GPTNeoForCausalLM\"], \"hidden_size\": 64, \"num_layers\": 3, "        \
    "\"num_heads\": 4, \"vocab_size\": 100, \"max_position_embeddings\": 128" more "}"

/* A vector for each position: by the keys of their files, and what they have where these are not
 * there or null. */
static void test_learned_positions(void **state)
{
    (void)state;
    struct model_config c = read_ok(GPT2(", \"n_inner\": null"));
    assert_true(c.hidden == 64 && c.intermediate == 256 && c.layers == 3 && c.kv_heads == 4);
    assert_true(c.max_model_len == 128 && c.tied && c.act == EK_ACT_GELU_TANH);
    assert_true(c.norm_centred && c.norm_bias && c.qkv_bias && c.o_bias && c.mlp_bias);
    assert_true(c.unrotated[0] && c.unrotated[2] && c.attention_scale <= 0 && c.layer_scale <= 0);
    c = read_ok(GPT2(", \"n_inner\": 40, \"scale_attn_weights\": false, \"activation_function\": "
                     "\"relu\", \"scale_attn_by_inverse_layer_idx\": true"));
    assert_true(c.intermediate == 40 && c.act == EK_ACT_RELU);
    assert_true(c.attention_scale == 1 && c.layer_scale == 1);
    c = read_ok(GPT("GPTBigCode", ""));
    assert_true(c.kv_heads == 1 && c.act == EK_ACT_GELU_TANH);
    c = read_ok(GPT("GPTBigCode", ", \"multi_query\": false, \"num_key_value_heads\": 1"));
    assert_int_equal(c.kv_heads, 4);
    c = read_ok(NEO(", \"attention_layers\": [\"global\", \"local\", \"global\"]"));
    assert_true(c.window == 256 && !c.windowed[0] && c.windowed[1] && c.attention_scale == 1);
    assert_true(!c.qkv_bias && c.o_bias && c.mlp_bias && c.intermediate == 256);
    c = read_ok(OF("OPT", ", \"ffn_dim\": 80, \"word_embed_proj_dim\": 64"));
    assert_true(c.intermediate == 80 && c.act == EK_ACT_RELU && c.embed_width == 0 && c.tied);
    assert_true(c.qkv_bias && !c.norm_bare && !c.post_norms_alone && !c.no_last_norm);
    c = read_ok(OF("OPT", ", \"do_layer_norm_before\": false, \"word_embed_proj_dim\": 24"));
    assert_true(c.post_norms_alone && c.no_last_norm && c.embed_width == 24);
    c = read_ok(OF("OPT", ", \"_remove_final_layer_norm\": true, \"enable_bias\": false, "
                          "\"layer_norm_elementwise_affine\": false"));
    assert_true(c.no_last_norm && !c.post_norms_alone && c.norm_bare && !c.qkv_bias && !c.o_bias);
}

/* Heads that turn in part or backwards, and those that share keys in groups. */
static void test_first_rotations(void **state)
{
    (void)state;
    struct model_config c = read_ok(GPT("GPTJ", ", \"rotary_dim\": 8"));
    assert_true(c.rope.dims == 8 && c.neighbours && c.mlp_bias && !c.qkv_bias && !c.tied);
    c = read_ok(GPT("CodeGen", ", \"rotary_dim\": 16"));
    assert_int_equal(c.rope.dims, 16);
    c = read_ok(OF("Falcon", ", \"num_kv_heads\": 4"));
    assert_true(c.kv_heads == 1 && c.parallel && !c.two_norms && c.tied && !c.qkv_bias);
    c = read_ok(OF("Falcon", ", \"num_kv_heads\": 2, \"new_decoder_architecture\": true"));
    assert_true(c.kv_heads == 2 && c.parallel && c.two_norms);
    c = read_ok(OF("Falcon", ", \"new_decoder_architecture\": true, \"num_kv_heads\": 2, "
                             "\"num_ln_in_parallel_attn\": 1"));
    assert_true(c.parallel && !c.two_norms);
    c = read_ok(OF("Falcon", ", \"parallel_attn\": false, \"multi_query\": false, \"bias\": true"));
    assert_true(!c.parallel && c.kv_heads == 4 && c.qkv_bias && c.mlp_bias);
    c = read_ok(OF("Persimmon", ""));
    assert_true(c.qk_norm && c.rope.dims == 8 && c.norm_bias && c.act == EK_ACT_RELU);
    c = read_ok(OF("Olmo", ", \"clip_qkv\": 8.0"));
    assert_true(c.norm_bare && c.norm_centred && c.clip == 8.0f && c.rms_eps == 1e-5);
    c = read_ok(OF("NanoChat", ""));
    assert_true(c.norm_bare && c.rope.backwards && c.logit_softcap == 15);
}

/* The text part of Kimi K2.5 is a DeepSeek-V3 by either name, that of Qwen3-VL's mixtures has its
 * experts transposed. */
static void test_text_parts(void **state)
{
    (void)state;
    static const char kimi[] =
        "{\"architectures\": [\"KimiK25ForConditionalGeneration\"], \"model_type\": \"kimi_k25\", "
        "\"vision_config\": {}, \"text_config\": {\"model_type\": \"kimi_k2\", " BASE GLM_EXPERTS
        ", \"kv_lora_rank\": 32, \"q_lora_rank\": 24, \"qk_nope_head_dim\": 16, "
        "\"qk_rope_head_dim\": 8, \"v_head_dim\": 16, \"n_shared_experts\": 1, "
        "\"first_k_dense_replace\": 1}}";
    static const char qwen[] =
        "{\"architectures\": [\"Qwen3VLMoeForConditionalGeneration\"], \"vision_config\": {}, "
        "\"text_config\": {\"model_type\": \"qwen3_vl_moe_text\", " BASE LLAMA4_EXPERTS
        ", \"moe_intermediate_size\": 8}}";
    struct model_config c = read_ok(kimi);
    assert_true(c.text_part && c.latent.rank == 32 && c.plain[0] && !c.plain[1]);
    assert_string_equal(c.family->architecture, "DeepseekV3ForCausalLM");
    c = read_ok(qwen);
    assert_true(c.text_part && c.turned && c.routing.normalise);
    assert_string_equal(c.family->architecture, "Qwen3MoeForCausalLM");
}

/* Of Qwen's models that also speak, the one that writes, by its name in the whole; PaddleOCR-VL
 * with one configuration for all, as it is published; an output layer of its own by either part's
 * word. */
static void test_parts_of_more(void **state)
{
    (void)state;
    static const char omni[] =
        "{\"architectures\": [\"Qwen2_5OmniForConditionalGeneration\"], \"model_type\": "
        "\"qwen2_5_omni\", \"talker_config\": {}, \"thinker_config\": {\"vision_config\": {}, "
        "\"tie_word_embeddings\": false, \"text_config\": {\"tie_word_embeddings\": true, "
        "\"model_type\": \"qwen2_5_omni_text\", " BASE "}}}";
    static const char paddle[] =
        "{\"architectures\": [\"PaddleOCRVLForConditionalGeneration\"], \"model_type\": "
        "\"paddleocr_vl\", \"use_bias\": false, \"rope_scaling\": {\"mrope_section\": [2, 1, 1], "
        "\"rope_type\": \"default\", \"type\": \"default\"}, \"vision_config\": {}, " BASE "}";
    struct model_config c = read_ok(omni);
    assert_true(c.text_part && c.qkv_bias && !c.tied);
    assert_string_equal(c.family->architecture, "Qwen2ForCausalLM");
    c = read_ok(paddle);
    assert_true(c.text_part && !c.neighbours && c.rope.type == ROPE_DEFAULT);
    assert_string_equal(c.family->architecture, "LlamaForCausalLM");

    struct st_tensor all[] = {{.name = "talker.model.norm.weight"},
                              {.name = "thinker.lm_head.weight"},
                              {.name = "thinker.model.norm.weight"},
                              {.name = "thinker.visual.blocks.0.norm1.weight"}};
    struct st_set set = {.tensor = all, .count = 4};
    bool head = false;
    assert_int_equal(text_part_tensors(&set, &head), 0);
    assert_true(head && all[0].used && all[3].used && !all[1].used && !all[2].used);
    assert_string_equal(all[2].name, "model.norm.weight");
}

/* ERNIE 4.5 VL, by its own keys and by transformers', and Gemma 3n beside its other parts. */
static void test_parts_of_2026(void **state)
{
    (void)state;
    static const char own[] =
        "{\"architectures\": [\"Ernie4_5_VLMoeForConditionalGeneration\"], \"model_type\": "
        "\"ernie4_5_moe_vl\", \"vision_config\": {}, \"moe_k\": 2, \"moe_num_experts\": [8, 8], "
        "\"moe_intermediate_size\": [24, 16], \"moe_layer_start_index\": [1, 1], "
        "\"moe_layer_end_index\": [29, 28], " BASE "}";
    static const char later[] =
        "{\"architectures\": [\"Ernie4_5_VLMoeForConditionalGeneration\"], \"model_type\": "
        "\"ernie4_5_vl_moe\", \"vision_config\": {}, \"text_config\": {\"model_type\": "
        "\"ernie4_5_vl_moe_text\", \"moe_k\": 2, \"moe_num_experts\": 8, "
        "\"moe_intermediate_size\": [24, 16], \"mlp_layer_types\": [\"dense\", \"dense\", "
        "\"sparse\"], " BASE "}}";
    static const char gemma[] =
        "{\"architectures\": [\"Gemma3nForConditionalGeneration\"], \"model_type\": \"gemma3n\", "
        "\"audio_config\": {}, \"vision_config\": {}, \"text_config\": {\"model_type\": "
        "\"gemma3n_text\", \"intermediate_size\": [96, 96], \"num_hidden_layers\": 2, "
        "\"num_kv_shared_layers\": 0, \"hidden_size\": 64, \"num_attention_heads\": 4}}";
    struct model_config c = read_ok(own);
    assert_true(c.text_part && c.experts == 8 && c.expert_intermediate == 24 && c.neighbours);
    assert_true(c.plain[0] && !c.plain[1] && c.shared_intermediate == 48);
    assert_string_equal(c.family->architecture, "Ernie4_5_MoeForCausalLM");
    c = read_ok(later);
    assert_true(c.text_part && c.experts == 8 && c.expert_intermediate == 24);
    assert_true(c.plain[0] && c.plain[1] && !c.plain[2]);
    c = read_ok(gemma);
    assert_true(c.text_part && c.intermediate == 96 && c.vocab == 262400 && c.kv_heads == 2);
    assert_string_equal(c.family->architecture, "Gemma3nForCausalLM");
}

static const struct {
    const char *text, *field, *says;
} bad_cases[] = {
    {AFMOE(", \"score_func\": \"softmax\""), "score_func", "must be sigmoid"},
    {AFMOE(", \"route_norm\": false"), "score_func", "route_norm true"},
    {AFMOE(", \"n_group\": 2"), "n_group", "from 1 to 1"},
    {AFMOE(", \"num_shared_experts\": 0"), "num_shared_experts", "from 1 to 64"},
    {OF("Cohere", ", \"logit_scale\": 0"), "logit_scale", "logit_scale"},
    {OF("Starcoder2", ", \"hidden_act\": \"relu\""), "hidden_act", "'relu' is not supported"},
    {OF("Apertus", ", \"hidden_act\": \"silu\""), "hidden_act", "must be xielu for Apertus"},
    {OF("Nemotron", ", \"hidden_act\": \"silu\""), "hidden_act", "must be relu2 for Nemotron"},
    {FALCON(", \"mamba_d_ssm\": 60"), "mamba_n_heads", "are not mamba_d_ssm 60"},
    {FALCON(", \"mamba_d_ssm\": 64, \"mamba_d_head\": 16"), "mamba_n_heads",
     "mamba_n_heads 8 of mamba_d_head 16 are not mamba_d_ssm 64"},
    {FALCON(", \"mlp_multipliers\": [1.0]"), "mlp_multipliers", "must be 2 numbers"},
    {FALCON(", \"ssm_multipliers\": [1, 1, 1, 1, \"1\"]"), "ssm_multipliers", "must be 5 numbers"},
    {FALCON(", \"ssm_multipliers\": [1, 1, 0, 1, 1]"), "ssm_multipliers", "must be 5 numbers"},
    {FALCON(", \"key_multiplier\": 0"), "key_multiplier", "key_multiplier"},
    {FALCON(", \"hidden_act\": \"gelu\""), "hidden_act", "must be silu for FalconH1"},
    {HUNYUAN_MOE(", \"moe_topk\": [2, 2, 3]"), "moe_topk", "the same for each layer"},
    {HUNYUAN_MOE(", \"moe_topk\": []"), "moe_topk", "the same for each layer"},
    {HUNYUAN_MOE(", \"moe_topk\": [2.5]"), "moe_topk", "the same for each layer"},
    {HUNYUAN_MOE(", \"moe_topk\": 9"), "moe_topk", "moe_topk 9 is more than num_experts 8"},
    {HUNYUAN_MOE(", \"moe_intermediate_size\": \"20\""), "moe_intermediate_size", "from 1 to"},
    {HUNYUAN_MOE(", \"use_cla\": true"), "use_cla", "not supported"},
    {MINIMAX(", \"rotary_dim\": 7"), "rotary_dim", "rotary_dim is 7; it must be even"},
    {MINIMAX(", \"rotary_dim\": 130"), "rotary_dim", "from 1 to 128"},
    {GLM_LITE(", \"mlp_layer_types\": [\"dense\", \"sparse\"]"), "mlp_layer_types",
     "kind of each of the 3 layers"},
    {GLM_LITE(", \"mlp_layer_types\": [\"dense\", \"sparse\", \"moe\"]"), "mlp_layer_types",
     "has 'moe'; supported are dense and sparse"},
    {GLM_LITE(", \"mlp_layer_types\": [\"dense\", 1, \"sparse\"]"), "mlp_layer_types",
     "something that is no text"},
    {OF("Jais2", ", \"hidden_act\": \"silu\""), "hidden_act", "must be relu2 for Jais2"},
    {OF("MiniCPM3", ", \"scale_depth\": 0"), "scale_depth", "scale_depth"},
    {"{\"architectures\": [\"MiniCPM3ForCausalLM\"], \"hidden_size\": 520, "
     "\"intermediate_size\": 96, \"num_hidden_layers\": 3, \"num_attention_heads\": 1, "
     "\"vocab_size\": 100, \"max_position_embeddings\": 1024}",
     "v_head_dim", "v_head_dim is 520; it must be from 1 to 512"},
    {OF("Youtu", ", \"head_dim\": 32, \"rope_scaling\": {\"type\": \"longrope\", "
                 "\"short_factor\": " FACTORS ", \"long_factor\": " FACTORS "}"),
     "head_dim", "head_dim must be qk_rope_head_dim 64"},
    {OF("GraniteSWA", ", \"layer_rope_theta\": [0, 500]"), "layer_rope_theta",
     "each of the 3 layers"},
    {OF("GraniteSWA", ", \"layer_rope_theta\": [0, 0.5, 1]"), "layer_rope_theta", "from 1 to 1e12"},
    {OF("GraniteSWA", ", \"layer_rope_theta\": [0, \"a\", 1]"), "layer_rope_theta", "of layer 1"},
    {OF("GraniteSWA", ", \"layer_rope_theta\": [0, 500, 600]"), "layer_rope_theta",
     "of one kind 500 and 600"},
    {GEMMA3N(", \"activation_sparsity_pattern\": [0.95, 1.0, 0.0]"), "activation_sparsity_pattern",
     "from 0 to below 1"},
    {GEMMA3N(", \"activation_sparsity_pattern\": [0.95]"), "activation_sparsity_pattern",
     "1 numbers for 3 layers"},
    {GEMMA3N(", \"altup_active_idx\": 4"), "altup_active_idx", "from 0 to 3"},
    {OF("Gemma3n", ", \"num_kv_shared_layers\": 2, \"layer_types\": [\"sliding_attention\", "
                   "\"full_attention\", \"sliding_attention\"]"),
     "num_kv_shared_layers", "layer 1 reads keys and values of an earlier full_attention layer"},
    {"{\"architectures\": [\"ArceeForCausalLM\"], " BASE ", \"hidden_act\": \"silu\"}",
     "hidden_act", "must be relu2 for Arcee"},
    {OF("IQuestCoder", ", \"clip_qkv\": 0.5"), "clip_qkv", "must be null"},
    {OF("Olmo", ", \"clip_qkv\": 0"), "clip_qkv", "from"},
    {OF("Falcon", ", \"alibi\": true"), "alibi", "scores that fall with the distance"},
    {GPT2(", \"add_cross_attention\": true"), "add_cross_attention", "is not supported"},
    {GPT2(", \"n_inner\": 0"), "n_inner", "from 1 to"},
    {GPT("GPTJ", ", \"rotary_dim\": 5"), "rotary_dim", "an even number up to 16"},
    {"{\"architectures\": [\"CodeGenForCausalLM\"], \"n_embd\": 64, \"n_layer\": 3, \"n_head\": 2, "
     "\"n_positions\": 128, \"vocab_size\": 100}",
     "n_head", "a multiple of 4"},
    {NEO(""), "attention_layers", "must name the kind of each of the 3 layers"},
    {NEO(", \"attention_layers\": [\"global\", \"local\", \"near\"]"), "attention_layers",
     "'near'"},
    {OF("OPT", ", \"activation_function\": \"tanh\""), "activation_function", "is not supported"},
    {OF("IQuestCoder", ", \"use_sliding_window\": true, \"sliding_window\": 8"),
     "use_sliding_window", "must be false"},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad_cases) / sizeof(bad_cases[0]); i++) {
        struct model_config c = {.vocab = 77};
        struct ek_fault f = {0};
        int r = config_parse(bad_cases[i].text, strlen(bad_cases[i].text), &c, &f);
        if (r != -EBADMSG || strcmp(f.field, bad_cases[i].field) != 0 ||
            !strstr(f.msg, bad_cases[i].says))
            fail_msg("case %zu: %d [%s] %s", i, r, f.field, f.msg);
        assert_int_equal(c.vocab, 77);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_classes_of_2026),
                                       cmocka_unit_test(test_newer_spellings),
                                       cmocka_unit_test(test_side_by_side),
                                       cmocka_unit_test(test_small_models),
                                       cmocka_unit_test(test_learned_positions),
                                       cmocka_unit_test(test_first_rotations),
                                       cmocka_unit_test(test_text_parts),
                                       cmocka_unit_test(test_parts_of_more),
                                       cmocka_unit_test(test_parts_of_2026),
                                       cmocka_unit_test(test_gemma3n),
                                       cmocka_unit_test(test_indexed),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_classes_of_known_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
