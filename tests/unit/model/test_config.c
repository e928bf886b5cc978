/* config.json and generation_config.json: spellings, bounds, and rope frequencies by hand. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "common/families.h"
#include "server/model/config.h"
#include "server/model/family.h"
#include "server/model/rope.h"

/* What each case adds to; keys given twice are refused, so a case names only others. */
#define BASE                                                                                       \
    "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 3, "                   \
    "\"num_attention_heads\": 4, \"vocab_size\": 100, \"max_position_embeddings\": 1024"
#define LLAMA(more)   "{\"architectures\": [\"LlamaForCausalLM\"], " BASE more "}"
#define MISTRAL(more) "{\"architectures\": [\"MistralForCausalLM\"], " BASE more "}"
#define GEMMA3(more)  "{\"architectures\": [\"Gemma3ForCausalLM\"], " BASE more "}"
#define PHI3(more)    "{\"architectures\": [\"Phi3ForCausalLM\"], " BASE more "}"
#define SMOLLM3(more) "{\"architectures\": [\"SmolLM3ForCausalLM\"], " BASE more "}"
#define MOE(more)     "{\"architectures\": [\"Qwen3MoeForCausalLM\"], " BASE more "}"
#define GPT_OSS(more) "{\"architectures\": [\"GptOssForCausalLM\"], " BASE more "}"
#define GLM_MOE(more) "{\"architectures\": [\"Glm4MoeForCausalLM\"], " BASE more "}"
#define DEEPSEEK2(more)                                                                            \
    "{\"architectures\": [\"DeepseekV2ForCausalLM\"], " BASE GLM_EXPERTS more "}"
#define DEEPSEEK3(more)                                                                            \
    "{\"architectures\": [\"DeepseekV3ForCausalLM\"], " BASE GLM_EXPERTS more "}"
#define LLAMA4(more) "{\"architectures\": [\"Llama4ForCausalLM\"], " BASE more "}"
#define GLM_EXPERTS                                                                                \
    ", \"n_routed_experts\": 8, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 8"
#define LLAMA4_EXPERTS ", \"num_local_experts\": 4, \"num_experts_per_tok\": 1"
#define ROPE           ", \"rope_scaling\": {\"rope_type\": \"default\"}"
#define LFM2(more)     "{\"architectures\": [\"Lfm2ForCausalLM\"], " BASE more "}"
#define ATTENDING      ", \"full_attn_idxs\": [1]"
#define GRANITE4_OF(kinds, more)                                                                   \
    "{\"architectures\": [\"GraniteMoeHybridForCausalLM\"], \"layer_types\": " kinds               \
    ", \"mamba_n_heads\": 8, \"num_local_experts\": 0, " BASE more "}"
#define GRANITE4(more) GRANITE4_OF("[\"mamba\", \"attention\", \"linear_attention\"]", more)
#define NEMOTRON_OF(kinds, more)                                                                   \
    "{\"architectures\": [\"NemotronHForCausalLM\"], " kinds ", " BASE more "}"
#define NEMOTRON3_OF(experts, top, inner, more)                                                    \
    NEMOTRON_OF("\"hybrid_override_pattern\": \"ME*\"",                                            \
                ", \"n_routed_experts\": " experts ", \"num_experts_per_tok\": " top               \
                ", \"moe_intermediate_size\": " inner                                              \
                ", \"moe_shared_expert_intermediate_size\": 36" more)
#define NEMOTRON3(more) NEMOTRON3_OF("6", "3", "20", more)
#define NEMOTRON(more)  NEMOTRON_OF("\"hybrid_override_pattern\": \"M-*\"", more)
#define QWEN3_5(more)   "{\"architectures\": [\"Qwen3_5ForCausalLM\"], " BASE more "}"
#define QWEN2_MOE(more)                                                                            \
    "{\"architectures\": [\"Qwen2MoeForCausalLM\"], " BASE                                         \
    ", \"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 8" more "}"
#define QWEN3(more) "{\"architectures\": [\"Qwen3ForCausalLM\"], " BASE more "}"

static struct model_config read_ok(const char *text)
{
    struct model_config c = {0};
    struct ek_fault f = {0};
    if (config_parse(text, strlen(text), &c, &f) != 0)
        fail_msg("%s: %s", text, f.msg);
    return c;
}

/* JSON has no infinity: as text where a file has it bare, or in an object. */
static void test_granite4(void **state)
{
    const struct model_config c =
        read_ok(GRANITE4(", \"time_step_limit\": [0.25, {\"__float__\": \"Infinity\"}]"));
    const struct model_config bare = read_ok(GRANITE4(", \"time_step_limit\": [0.0, Infinity]"));
    (void)state;
    assert_true(c.scan.least == 0.25f && isinf(c.scan.most) && isinf(bare.scan.most));
    assert_int_equal(c.scan.head_dim, 16);
    assert_true(c.recurrent[0] && !c.recurrent[1] && c.recurrent[2] && c.unrotated[1]);
    assert_int_equal(c.experts, 0);
}

/* The number of layers is that of their names where the file has no other. */
static void test_nemotron(void **state)
{
    static const char bare[] =
        "{\"architectures\": [\"NemotronHForCausalLM\"], \"hidden_size\": 64, "
        "\"intermediate_size\": 96, \"num_attention_heads\": 4, \"vocab_size\": 100, "
        "\"max_position_embeddings\": 1024, \"layers_block_type\": [\"mamba\", "
        "\"linear_attention\", \"mlp\", \"attention\", \"full_attention\"]}";
    struct model_config c = read_ok(bare);
    (void)state;
    assert_int_equal(c.layers, 5);
    assert_true(c.recurrent[0] && c.recurrent[1] && c.forward_only[2] && !c.forward_only[3]);
    assert_true(c.rms_eps == 1e-5 && c.act == EK_ACT_RELU && isinf(c.scan.most));
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.scan.heads, 128);
    assert_int_equal(c.scan.head_dim, 64);
    assert_int_equal(c.scan.groups, 8);
    assert_int_equal(c.scan.state_dim, 128);
    c = read_ok(NEMOTRON(", \"attention_head_dim\": 32, \"layer_norm_epsilon\": 0.25, "
                         "\"rms_norm_eps\": 0.5, \"hidden_act\": \"silu\""));
    assert_true(c.recurrent[0] && c.forward_only[1] && !c.recurrent[2] && !c.forward_only[2]);
    assert_true(c.rms_eps == 0.25 && c.act == EK_ACT_RELU);
    assert_int_equal(c.head_dim, 32);
    assert_int_equal(c.experts, 0);
    assert_false(read_ok(NEMOTRON(", \"tie_word_embeddings\": true")).tied);
}

static void test_nemotron3(void **state)
{
    struct model_config c = read_ok(NEMOTRON3(""));
    (void)state;
    assert_true(c.plain[0] && !c.plain[1] && c.plain[2] && c.forward_only[1]);
    assert_true(c.routing.score == EK_SCORE_SIGMOID && c.routing.normalise);
    assert_true(c.routing.groups == 0 && c.routing.scale == 1);
    assert_int_equal(c.experts, 6);
    assert_int_equal(c.experts_per_token, 3);
    assert_int_equal(c.expert_intermediate, 20);
    assert_int_equal(c.shared_intermediate, 36);
    assert_int_equal(c.expert_latent, 0);
    c = read_ok(NEMOTRON3(", \"moe_latent_size\": 12, \"routed_scaling_factor\": 2.5, "
                          "\"first_k_dense_replace\": 2, \"n_group\": 3, \"topk_group\": 2"));
    assert_int_equal(c.expert_latent, 12);
    assert_true(c.routing.scale == 2.5f && c.routing.groups == 3 && c.routing.groups_top == 2);
    assert_true(!c.plain[1]);
    assert_int_equal(read_ok(NEMOTRON3(", \"moe_latent_size\": null")).expert_latent, 0);
}

static void test_defaults(void **state)
{
    (void)state;
    struct model_config c = read_ok(LLAMA(""));
    assert_ptr_equal(c.family, &family_llama);
    assert_int_equal(c.kv_heads, 4);
    assert_int_equal(c.head_dim, 16);
    assert_true(c.rms_eps == 1e-6 && c.rope.theta == 10000);
    assert_int_equal(c.rope.type, ROPE_DEFAULT);
    assert_int_equal(c.act, EK_ACT_SILU);
    assert_false(c.tied || c.dtype_given || c.qkv_bias || c.mlp_bias);
    assert_int_equal(c.max_model_len, 1024);
    assert_int_equal(c.eos_count, 0);
    assert_int_equal(c.bos, -1);
    assert_int_equal(read_ok(QWEN3("")).head_dim, 128);
    assert_int_equal(read_ok(LLAMA(", \"head_dim\": null")).head_dim, 16);
}

/* Those of the classes in transformers, which leave out of a file what is the default. */
static void test_family_defaults(void **state)
{
    (void)state;
    assert_int_equal(read_ok(LFM2(ATTENDING)).intermediate, 256);
    assert_int_equal(
        read_ok(LFM2(ATTENDING ", \"block_multiple_of\": 10, \"block_ffn_dim_multiplier\": 0.9"))
            .intermediate,
        60);
    assert_int_equal(read_ok(LFM2(ATTENDING ", \"block_ffn_dim_multiplier\": null")).intermediate,
                     64);
    assert_int_equal(read_ok(LFM2(ATTENDING ", \"block_auto_adjust_ff_dim\": false")).intermediate,
                     96);
    assert_int_equal(read_ok(LFM2(ATTENDING ", \"hidden_act\": \"gelu\"")).act, EK_ACT_SILU);

    struct model_config c = read_ok(QWEN2_MOE(", \"use_sliding_window\": true"));
    assert_int_equal(c.window, 4096);
    assert_true(c.windowed[0] && !c.windowed[1] && c.windowed[2]);
    c = read_ok(QWEN2_MOE(", \"use_sliding_window\": true, \"sliding_window\": null"));
    assert_int_equal(c.window, 0);
    assert_int_equal(read_ok(QWEN2_MOE("")).window, 0);
    c = read_ok(QWEN3(", \"use_sliding_window\": true"));
    assert_true(c.window == 4096 && !c.windowed[0] && !c.windowed[2]);
    assert_int_equal(read_ok(QWEN3(", \"is_causal\": true")).layers, 3);
}

/* Numbers that a json_t cannot hold, where nobody reads them. */
static void test_odd_numbers(void **state)
{
    static const char odd[] = "{\"max_length\": 1000000000000000019884624838656, \"top_k\": 4, "
                              "\"length_penalty\": -Infinity, \"epsilon_cutoff\": 1e999}";
    struct model_defaults d;
    (void)state;
    struct model_config c =
        read_ok(LLAMA(", \"time_step_limit\": [0.0, Infinity], \"router_jitter_noise\": NaN, "
                      "\"max_length\": 1000000000000000019884624838656, \"head_dim\": 8"));
    assert_int_equal(c.head_dim, 8);
    assert_int_equal(config_parse_generation(odd, strlen(odd), &c, &d, NULL), 0);
    assert_int_equal(d.sampling.top_k, 4);
}

/* Models that see: the text part is what is read, with what transformers has as default there. */
static void test_text_part(void **state)
{
#define SEES(type, more)                                                                           \
    "{\"architectures\": [\"GreatForConditionalGeneration\"], \"model_type\": \"great\", "         \
    "\"torch_dtype\": \"float16\", \"eos_token_id\": [1, 7], \"vision_config\": "                  \
    "{\"hidden_size\": "                                                                           \
    "\"x\"}, \"text_config\": {\"model_type\": \"" type "\", " more "}}"
    (void)state;
    struct model_config c =
        read_ok(SEES("gemma3_text", "\"hidden_size\": 2560, \"intermediate_size\": 10240, "
                                    "\"num_hidden_layers\": 34, \"torch_dtype\": \"float32\""));
    assert_ptr_equal(c.family, &family_gemma3);
    assert_true(c.text_part && c.dtype == EK_F16);
    assert_int_equal(c.q_heads, 8);
    assert_int_equal(c.vocab, 262208);
    assert_int_equal(c.eos_count, 2);
    assert_string_equal(c.model_type, "great");
    c = read_ok(SEES("mistral", BASE ", \"num_key_value_heads\": 4, \"eos_token_id\": 3"));
    assert_ptr_equal(c.family, &family_mistral);
    assert_int_equal(c.hidden, 64);
    assert_int_equal(c.eos[0], 1);
    c = read_ok("{\"architectures\": [\"Qwen2_5_VLForConditionalGeneration\"], \"model_type\": "
                "\"qwen2_5_vl\", \"vision_config\": {}, \"rope_scaling\": {\"type\": \"mrope\", "
                "\"mrope_section\": [2, 3, 3]}, " BASE "}");
    assert_ptr_equal(c.family, &family_qwen2);
    assert_true(c.text_part && c.qkv_bias);
    assert_int_equal(c.rope.type, ROPE_DEFAULT);
    assert_false(read_ok(LLAMA(", \"vision_config\": {}")).text_part);
    c = read_ok(SEES("qwen3_5_moe_text", "\"num_hidden_layers\": 4, \"mlp_only_layers\": [1], "
                                         "\"decoder_sparse_step\": 2"));
    assert_ptr_equal(c.family, &family_qwen3_5_moe);
    assert_true(c.expert_intermediate == 512 && c.experts == 256 && c.experts_per_token == 8);
    assert_false(c.plain[0] || c.plain[1]);
    assert_int_equal(c.output, CONFIG_TEXT);
    c = read_ok("{\"architectures\": [\"Qwen3_5ForSequenceClassification\"], \"text_config\": "
                "{\"model_type\": \"qwen3_5_text\"}}");
    assert_true(c.text_part && c.family == &family_qwen3_5 && c.output == CONFIG_CLASSES);

    struct ek_fault f = {0};
    static const char none[] = SEES("sphinx", BASE);
    assert_int_equal(config_parse(none, strlen(none), &c, &f), -EBADMSG);
    assert_non_null(
        strstr(f.msg, "'GreatForConditionalGeneration' is not supported; take another"));
    static const struct {
        const char *name, *nearest;
    } near[] = {{"Qwen3OldForCausalLM", "Qwen3ForCausalLM"},
                {"Llama5ForConditionalGeneration", "LlamaForCausalLM"},
                {"Llama4ForConditionalGeneration", "Llama4ForCausalLM"},
                {"GraniteMoeOtherForCausalLM", "GraniteMoeForCausalLM"},
                {"Olmo3SinkForCausalLM", "Olmo3ForCausalLM"},
                {"GemmaXForCausalLM", "GemmaForCausalLM"},
                {"MistralXForCausalLM", "MistralForCausalLM"}};
    for (size_t i = 0; i < sizeof(near) / sizeof(near[0]); i++)
        assert_string_equal(ek_family_nearest(near[i].name), near[i].nearest);
    assert_null(ek_family_nearest("T5ForConditionalGeneration"));
    assert_null(ek_family_nearest(""));
}

static void test_spellings(void **state)
{
    (void)state;
    /* transformers 4 and 5 say the same. */
    struct model_config four = read_ok(LLAMA(
        ", \"torch_dtype\": \"float16\", \"rope_theta\": 500000.0, \"rope_scaling\": {\"type\": "
        "\"linear\", \"factor\": 4}"));
    struct model_config five =
        read_ok(LLAMA(", \"dtype\": \"float16\", \"rope_parameters\": {\"rope_theta\": 500000, "
                      "\"rope_type\": \"linear\", \"factor\": 4.0}"));
    assert_true(four.dtype_given && five.dtype_given);
    assert_int_equal(four.dtype, EK_F16);
    assert_int_equal(five.dtype, EK_F16);
    assert_memory_equal(&four.rope, &five.rope, sizeof(four.rope));
    assert_int_equal(four.max_model_len, 4096);
    assert_int_equal(read_ok(LLAMA(", \"torch_dtype\": \"torch.bfloat16\"")).dtype, EK_BF16);
    assert_int_equal(read_ok(LLAMA(", \"rope_scaling\": null")).rope.type, ROPE_DEFAULT);

    struct model_config c = read_ok(LLAMA(", \"bos_token_id\": 100")); /* of a vocabulary of 100 */
    assert_int_equal(c.bos, -1);
    c = read_ok(LLAMA(", \"eos_token_id\": [7, 9, 7], \"bos_token_id\": 1"));
    assert_int_equal(c.eos_count, 2);
    assert_int_equal(c.eos[1], 9);
    assert_int_equal(c.bos, 1);
    c = read_ok("{\"architectures\": [\"Other\", \"LlamaForCausalLM\"], " BASE "}");
    assert_ptr_equal(c.family, &family_llama);
    c = read_ok(MISTRAL(", \"sliding_window\": 8, \"layer_types\": [\"full_attention\", "
                        "\"sliding_attention\", \"full_attention\"]"));
    assert_int_equal(c.window, 8);
    assert_false(c.windowed[0] || c.windowed[2]);
    assert_true(c.windowed[1]);
}

static const struct {
    const char *text, *field, *says;
} bad_cases[] = {
    {"{\"architectures\": [\"BloomForCausalLM\"]}", "architectures",
     "architecture 'BloomForCausalLM' is not supported; take another model, of which"},
    {"{}", "architectures", "names no model class"},
    {"{\"architectures\": [3]}", "architectures", "names no model class"},
    {"[]", "config.json", "must be a JSON object"},
    {"{\"a\": 1, \"a\": 1}", "config.json", "duplicate"},
    {LLAMA(", \"rms_norm_eps\": NaN"), "rms_norm_eps", "a number from 0 to 1, but is NaN; correct"},
    {LLAMA(", \"rms_norm_eps\": 1e999"), "rms_norm_eps", "from 0 to 1, but is 1e999; correct it"},
    {LLAMA(", \"head_dim\": 1000000000000000019884624838656"), "head_dim",
     "an integer from 1 to 1024, but is 1000000000000000019884624838656; correct it"},
    {LLAMA(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": Infinity}"), "factor",
     "but is Infinity"},
    {LLAMA(", \"eos_token_id\": [1, 99999999999999999999]"), "eos_token_id", "from 0 to 99"},
    {LLAMA(", \"dtype\": NaN"), "dtype", "'NaN' is not supported"},
    {"{\"architectures\": [\"LlamaForCausalLM\"]}", "hidden_size",
     "config.json: hidden_size is missing; download"},
    {"{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 0}", "hidden_size",
     "config.json: hidden_size must be an integer from 1 to 65536, but is 0; correct it"},
    {"{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64.5}", "hidden_size",
     "integer"},
    {"{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": \"64\"}", "hidden_size", ""},
    {"{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 1e3}", "hidden_size", ""},
    {"{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 4294967296}", "hidden_size", ""},
    {LLAMA(", \"num_key_value_heads\": 3"), "num_key_value_heads", "no multiple of"},
    {LLAMA(", \"num_key_value_heads\": -1"), "num_key_value_heads", "from 1"},
    {LLAMA(", \"head_dim\": 15"), "head_dim", "even"},
    {"{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 2048, \"intermediate_size\": "
     "96, "
     "\"num_hidden_layers\": 2, \"num_attention_heads\": 1, \"vocab_size\": 9, "
     "\"max_position_embeddings\": 8}",
     "head_dim", "is 2048, but a head has at most 1024"},
    {LLAMA(", \"head_dim\": 0"), "head_dim", "from 1"},
    {LLAMA(", \"rms_norm_eps\": -1"), "rms_norm_eps", "a number from 0 to 1"},
    {LLAMA(", \"hidden_act\": \"relu\""), "hidden_act", "'relu' is not supported"},
    {LLAMA(", \"is_causal\": false"), "is_causal", "attention to later tokens is not supported"},
    {LFM2(ATTENDING ", \"block_ffn_dim_multiplier\": 0.001"), "intermediate_size",
     "96 becomes 0 by block_auto_adjust_ff_dim"},
    {GRANITE4(", \"mamba_n_groups\": 3"), "mamba_n_groups",
     "mamba_n_heads 8 is no multiple of mamba_n_groups 3"},
    {GRANITE4(", \"mamba_d_head\": 8"), "mamba_n_heads",
     "mamba_n_heads 8 of mamba_d_head 8 are not mamba_expand 2 times hidden_size 64"},
    {GRANITE4(", \"mamba_expand\": 3, \"mamba_d_head\": 16"), "mamba_n_heads",
     "not mamba_expand 3 times hidden_size 64"},
    {GRANITE4(", \"mamba_d_conv\": 1"), "mamba_d_conv", "mamba_d_conv is 1; it must be 2 to 8"},
    {GRANITE4(", \"position_embedding_type\": \"alibi\""), "position_embedding_type",
     "'alibi' is not supported; supported are rope and nope"},
    {GRANITE4(", \"time_step_limit\": [0.5, 0.1]"), "time_step_limit", "two numbers from 0"},
    {GRANITE4(", \"time_step_limit\": [0, \"much\"]"), "time_step_limit", "two numbers from 0"},
    {GRANITE4(", \"hidden_act\": \"gelu\""), "hidden_act", "must be silu for GraniteMoeHybrid"},
    {GRANITE4_OF("[\"mamba\", \"attention\"]", ""), "layer_types", "kind of each of the 3 layers"},
    {GRANITE4_OF("[\"mamba\", \"mamba\", \"mamba\"]", ""), "layer_types",
     "no layer of layer_types"},
    {GRANITE4_OF("[\"mamba\", \"conv\", \"attention\"]", ""), "layer_types", "has 'conv'"},
    {NEMOTRON3_OF("0", "3", "20", ""), "n_routed_experts", "n_routed_experts"},
    {NEMOTRON3_OF("6", "7", "20", ""), "num_experts_per_tok", "more than the 6 experts"},
    {NEMOTRON3_OF("6", "3", "null", ""), "moe_intermediate_size", "is missing"},
    {NEMOTRON3(", \"n_shared_experts\": 0"), "n_shared_experts", "n_shared_experts"},
    {NEMOTRON3(", \"moe_latent_size\": 0"), "moe_latent_size", "moe_latent_size"},
    {NEMOTRON3(", \"n_group\": 4"), "n_group", "6 experts do not make n_group 4 groups"},
    {NEMOTRON_OF("\"layer_types\": [\"mamba\", \"moe\", \"attention\"]", ""), "num_local_experts",
     "is missing"},
    {NEMOTRON_OF("\"hybrid_override_pattern\": \"MX*\"", ""), "hybrid_override_pattern",
     "has 'X'; supported are M (mamba, linear_attention)"},
    {NEMOTRON_OF("\"layers_block_type\": [1, \"mlp\", \"mlp\"]", ""), "layers_block_type",
     "has 'something that is no text'"},
    {NEMOTRON_OF("\"hybrid_override_pattern\": \"M-\"", ""), "hybrid_override_pattern",
     "kind of each of the 3 layers"},
    {NEMOTRON_OF("\"hybrid_override_pattern\": \"M--\"", ""), "hybrid_override_pattern",
     "no layer of hybrid_override_pattern has attention"},
    {NEMOTRON_OF("\"is_causal\": true", ""), "hybrid_override_pattern",
     "kind of each of the 3 layers"},
    {NEMOTRON(", \"mlp_hidden_act\": \"gelu\""), "mlp_hidden_act", "must be relu2 for Nemotron"},
    {NEMOTRON(", \"mamba_hidden_act\": \"gelu\""), "mamba_hidden_act", "must be silu for"},
    {NEMOTRON(", \"attention_head_dim\": 33"), "attention_head_dim", "is 33; it must be even"},
    {NEMOTRON(", \"n_groups\": 3"), "n_groups", "mamba_num_heads 128 is no multiple of n_groups 3"},
    {NEMOTRON(", \"conv_kernel\": 9"), "conv_kernel", "conv_kernel"},
    {QWEN3_5(", \"hidden_act\": \"gelu\""), "hidden_act", "must be silu for Qwen3_5ForCausalLM"},
    {LLAMA(", \"hidden_act\": 3"), "hidden_act", "must be a string"},
    {LLAMA(", \"tie_word_embeddings\": 1"), "tie_word_embeddings", "true or false"},
    {LLAMA(", \"attention_bias\": \"no\""), "attention_bias", "true or false"},
    {LLAMA(", \"dtype\": \"int8\""), "dtype", "'int8' is not supported"},
    {LLAMA(", \"quantization_config\": {}"), "quantization_config", "'(none)', which is not"},
    {LLAMA(", \"quantization_config\": 4"), "quantization_config", "must be an object"},
    {LLAMA(", \"quantization_config\": {\"quant_method\": \"bitsandbytes\"}"),
     "quantization_config",
     "'bitsandbytes', which is not supported; supported are fp8, fbgemm_fp8, modelopt, "
     "compressed-tensors, "
     "gptq, awq, auto-round, quark and mxfp4"},
    {LLAMA(", \"quantization_config\": {\"quant_method\": \"auto-round\", \"packing_format\": "
           "\"auto_round\"}"),
     "quantization_config", "has packing_format 'auto_round', which is not supported"},
    {LLAMA(", \"quantization_config\": {\"quant_method\": \"quark\", \"global_quant_config\": "
           "{\"weight\": {\"dtype\": \"int4\"}}}"),
     "quantization_config", "fp8_e4m3, int8 and fp4"},
    {LLAMA(
         ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"config_groups\": "
         "{\"a\": {\"format\": \"marlin-24\"}}}"),
     "quantization_config", "format 'marlin-24'"},
    {LLAMA(", \"quantization_config\": {\"quant_method\": \"gptq\", \"checkpoint_format\": "
           "\"marlin\"}"),
     "quantization_config", "'marlin'"},
    {LLAMA(", \"quantization_config\": {\"quant_method\": \"awq\", \"version\": \"gemv\"}"),
     "quantization_config", "version 'gemv'"},
    {LLAMA(", \"quantization_config\": {\"quant_method\": \"gptq\", \"group_size\": -2}"),
     "group_size", "from -1"},
    {LLAMA(", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [0, 1]}"),
     "weight_block_size", "two numbers"},
    {LLAMA(", \"eos_token_id\": 100"), "eos_token_id", "token ids from 0 to 99"},
    {LLAMA(", \"eos_token_id\": [-1]"), "eos_token_id", "token ids"},
    {LLAMA(", \"eos_token_id\": [[1]]"), "eos_token_id", "token ids"},
    {LLAMA(", \"eos_token_id\": [1,2,3,4,5,6,7,8,9]"), "eos_token_id", "more than 8"},
    {LLAMA(", \"bos_token_id\": -1"), "bos_token_id", "from 0 to"},
    {LLAMA(", \"rope_theta\": 0"), "rope_theta", "from 1"},
    {LLAMA(", \"rope_scaling\": 3"), "rope_scaling", "must be an object"},
    {LLAMA(", \"rope_scaling\": {\"type\": \"mrope\", \"factor\": 2}"), "type",
     "rope type 'mrope' is not supported; supported are default, linear, dynamic, llama3, yarn, "
     "longrope and proportional"},
    {LLAMA(", \"rope_scaling\": {\"type\": \"dynamic\"}"), "factor", "factor is missing"},
    {LLAMA(", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1]}"),
     "short_factor", "must be a list of 8 numbers"},
    {LLAMA(", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1,1,1,1,1,1,1,1], "
           "\"long_factor\": [1,1,1,1,1,1,1,0]}"),
     "long_factor", "numbers from 0.001 to 1e6"},
    {LLAMA(", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"longrope\", "
           "\"short_factor\": [1,1,1,1,1,1,1,1], \"long_factor\": [1,1,1,1,1,1,1,1]}}"),
     "rope_parameters", "by kind of layer, which LlamaForCausalLM lacks"},
    {GEMMA3(", \"head_dim\": 16, \"rope_parameters\": {\"full_attention\": {\"rope_type\": "
            "\"longrope\", "
            "\"short_factor\": [1,1,1,1,1,1,1,1], \"long_factor\": [1,1,1,1,1,1,1,1]}}"),
     "rope_parameters", "longrope beside other frequencies"},
    {GEMMA3(", \"use_bidirectional_attention\": true"), "use_bidirectional_attention", "embedding"},
    {GEMMA3(", \"query_pre_attn_scalar\": 0"), "query_pre_attn_scalar", "from 0.001"},
    {GEMMA3(", \"sliding_window_pattern\": 0"), "sliding_window_pattern", "from 1"},
    {GEMMA3(", \"hidden_activation\": \"tanh\""), "hidden_activation", "'tanh' is not supported"},
    {SMOLLM3(", \"no_rope_layers\": [1]"), "no_rope_layers", "each of the 3 layers"},
    {SMOLLM3(", \"no_rope_layers\": [1, 0, \"x\"]"), "no_rope_layers", "0 or 1"},
    {GPT_OSS(""), "rope_scaling", "is missing"},
    {GPT_OSS(ROPE ", \"swiglu_limit\": 6.5"), "swiglu_limit", "6.5 is not supported; it must be 7"},
    {GPT_OSS(ROPE ", \"swiglu_alpha\": 1"), "swiglu_alpha", "1 is not supported; it must be 1.702"},
    {GPT_OSS(ROPE ", \"hidden_act\": \"gelu\""), "hidden_act", "must be silu for GptOss"},
    {GPT_OSS(ROPE), "num_local_experts", "missing"},
    {MOE(""), "num_local_experts", "missing"},
    {MOE(", \"num_experts\": 100000"), "num_experts", "from 1 to 4096"},
    {MOE(", \"num_experts\": 4, \"num_experts_per_tok\": 5, \"moe_intermediate_size\": 8"),
     "num_experts_per_tok", "5 is more than the 4 experts of num_experts"},
    {MOE(", \"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 8, "
         "\"mlp_only_layers\": [3]"),
     "mlp_only_layers", "numbers of layers from 0 to 2"},
    {"{\"architectures\": [\"OlmoeForCausalLM\"], " BASE ", \"clip_qkv\": -8}", "clip_qkv", "from"},
    {GLM_MOE(""), "num_local_experts", "missing"},
    {GLM_MOE(GLM_EXPERTS ", \"n_group\": 3"), "n_group", "8 experts do not make n_group 3 groups"},
    {GLM_MOE(GLM_EXPERTS ", \"n_group\": 4, \"topk_group\": 1"), "n_group",
     "topk_group 1 have 3 experts"},
    {GLM_MOE(GLM_EXPERTS ", \"routed_scaling_factor\": 0"), "routed_scaling_factor", "from 1e-06"},
    {DEEPSEEK2(", \"norm_topk_prob\": true"), "norm_topk_prob", "it must be false"},
    {DEEPSEEK2(", \"topk_method\": \"noaux_tc\""), "topk_method", "group_limited_greedy"},
    {DEEPSEEK2(", \"scoring_func\": \"sigmoid\""), "scoring_func", "it must be softmax"},
    {DEEPSEEK3(", \"scoring_func\": \"softmax\""), "scoring_func", "it must be sigmoid"},
    {DEEPSEEK3(", \"topk_method\": \"greedy\""), "topk_method", "it must be noaux_tc"},
    {DEEPSEEK3(", \"qk_rope_head_dim\": 63"), "qk_rope_head_dim", "must be even"},
    {DEEPSEEK3(", \"kv_lora_rank\": 1000"), "qk_rope_head_dim", "at most 1024"},
    {DEEPSEEK3(", \"kv_lora_rank\": 2000"), "kv_lora_rank", "1024"},
    {LLAMA4(LLAMA4_EXPERTS ", \"moe_layers\": [3]"), "moe_layers", "layers from 0 to 2"},
    {LLAMA4(LLAMA4_EXPERTS ", \"no_rope_layers\": [1]"), "no_rope_layers", "each of the 3 layers"},
    {LLAMA4(LLAMA4_EXPERTS ", \"layer_types\": [\"sliding_attention\", \"x\", \"y\"]"),
     "layer_types", "supported are full_attention and chunked_attention"},
    {"{\"architectures\": [\"Exaone4ForCausalLM\"], " BASE
     ", \"sliding_window\": 8, \"sliding_window_pattern\": \"LLLG\"}",
     "layer_types", "missing beside sliding_window_pattern"},
    {"{\"architectures\": [\"HunYuanDenseV1ForCausalLM\"], " BASE ", \"use_cla\": true}", "use_cla",
     "use_cla true is not supported"},
    {PHI3(", \"partial_rotary_factor\": 0.1"), "partial_rotary_factor", "leave an even number"},
    {LLAMA(", \"rope_scaling\": {\"type\": \"linear\"}"), "factor", "factor is missing"},
    {LLAMA(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 0.5}"), "factor", "from 1"},
    {LLAMA(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 1e6}"), "factor", "stretches"},
    {LLAMA(", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4,"
           "\"high_freq_factor\": 3}"),
     "high_freq_factor", "not be less than"},
    {LLAMA(", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}"), "low_freq_factor",
     "missing"},
    {LLAMA(", \"rope_parameters\": {\"partial_rotary_factor\": 0.5}"), "partial_rotary_factor",
     "must be 1"},
    {MISTRAL(", \"sliding_window\": 0"), "sliding_window", "from 1"},
    {MISTRAL(", \"sliding_window\": 8, \"layer_types\": [\"full_attention\"]"), "layer_types",
     "each of the 3 layers"},
    {MISTRAL(", \"sliding_window\": 8, \"layer_types\": [\"full_attention\", \"x\", \"y\"]"),
     "layer_types", "has 'x'"},
};

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad_cases) / sizeof(bad_cases[0]); i++) {
        struct model_config c = {.vocab = 77};
        struct ek_fault f = {0};
        int r = config_parse(bad_cases[i].text, strlen(bad_cases[i].text), &c, &f);
        if (r != -EBADMSG || strcmp(f.field, bad_cases[i].field) != 0 ||
            !strstr(f.msg, bad_cases[i].says) || strncmp(f.msg, "config.json: ", 13) != 0)
            fail_msg("case %zu: %d [%s] %s", i, r, f.field, f.msg);
        assert_int_equal(c.vocab, 77); /* unchanged */
    }
}

static void test_generation(void **state)
{
    (void)state;
    static const char text[] =
        "{\"temperature\": 0.6, \"top_p\": 0.95, \"top_k\": 20, \"min_p\": 0, "
        "\"repetition_penalty\": 1.05, \"max_new_tokens\": 512, "
        "\"eos_token_id\": [5, 6], \"unknown\": {}}";
    struct model_config c = read_ok(LLAMA(", \"eos_token_id\": 6"));
    struct model_defaults d = {0};
    assert_int_equal(config_parse_generation(text, strlen(text), &c, &d, NULL), 0);
    assert_true(d.sampling.temperature == 0.6f && d.sampling.top_p == 0.95f &&
                d.sampling.min_p == 0);
    assert_true(d.sampling.repetition == 1.05f);
    assert_int_equal(d.sampling.top_k, 20);
    assert_int_equal(d.max_new_tokens, 512);
    assert_int_equal(c.eos_count, 2);
    assert_int_equal(c.eos[0], 5);
    assert_int_equal(c.eos[1], 6);

    c = read_ok(LLAMA(", \"eos_token_id\": 6"));
    assert_int_equal(config_parse_generation("{}", 2, &c, &d, NULL), 0);
    assert_true(d.sampling.temperature == 1 && d.sampling.top_p == 1 && d.sampling.min_p == 0);
    assert_true(d.sampling.repetition == 1);
    assert_int_equal(d.sampling.top_k, 0);
    assert_int_equal(c.eos_count, 1);

    static const char *const bad[] = {
        "{\"temperature\": -0.1}",
        "{\"temperature\": \"hot\"}",
        "{\"top_p\": 0}",
        "{\"top_p\": 1.01}",
        "{\"min_p\": 2}",
        "{\"top_k\": -2}",
        "{\"top_k\": 1.5}",
        "{\"repetition_penalty\": 0}",
        "{\"max_new_tokens\": 0}",
        "{\"eos_token_id\": 100}",
        "{\"eos_token_id\": [0,1,2,3,4,5,7,8]}",
        "[",
        "",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct ek_fault f = {0};
        d.sampling.top_k = 77;
        assert_int_equal(config_parse_generation(bad[i], strlen(bad[i]), &c, &d, &f), -EBADMSG);
        assert_non_null(strstr(f.msg, "generation_config.json: "));
        assert_int_equal(d.sampling.top_k, 77);
        assert_int_equal(c.eos_count, 1);
    }
}

static void near(float a, double b)
{
    if (!(fabs((double)a - b) <= 1e-6 * fabs(b)))
        fail_msg("%.9g is not %.9g", (double)a, b);
}

static void test_rope(void **state)
{
    (void)state;
    float freq[8];
    /* theta 10000, 16 dimensions: 10000^(-i/8), i = 4: 0.01 */
    struct config_rope_params p = read_ok(LLAMA("")).rope;
    assert_true(config_rope_table(&p, false, freq) == 1.0f);
    near(freq[0], 1);
    near(freq[4], 0.01);
    near(freq[2], 0.1);

    p = read_ok(LLAMA(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}")).rope;
    (void)config_rope_table(&p, false, freq);
    near(freq[4], 0.0025);

    /* 8192 original positions: waves under 8192/4 = 2048 stay, over 8192 are divided by 8. The wave
     * of 10000^(-6/8) = 0.001 is 6283.19: smooth = (8192/6283.19 - 1)/3 = 0.101265,
     * (1 - smooth) * 0.001/8 + smooth * 0.001 = 2.13607e-4. That of 10000^(-7/8) is 19869. */
    p = read_ok(LLAMA(", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
                      "\"low_freq_factor\": 1, \"high_freq_factor\": 4, "
                      "\"original_max_position_embeddings\": 8192}"))
            .rope;
    (void)config_rope_table(&p, false, freq);
    near(freq[4], 0.01);
    double smooth = (8192 / (2 * M_PI / 0.001) - 1) / 3;
    assert_true(smooth > 0.1012 && smooth < 0.1013);
    near(freq[6], (1 - smooth) * 0.001 / 8 + smooth * 0.001);
    near(freq[7], pow(10000, -7.0 / 8) / 8);
}

static void test_yarn(void **state)
{
    (void)state;
    float freq[8];
    /* 1024 positions, 16 dimensions: turns 32 at 16 ln(1024/(64 pi))/(2 ln 10000) = 1.41 -> 1,
     * turns 1 at 16 ln(1024/(2 pi))/(2 ln 10000) = 4.42 -> 5; ramp of i = 3: (3-1)/(5-1) = 0.5. */
    struct model_config c =
        read_ok(LLAMA(", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}"));
    assert_int_equal(c.max_model_len, 4096);
    near(config_rope_table(&c.rope, false, freq), 0.1 * log(4) + 1);
    near(freq[1], pow(10000, -1.0 / 8));
    near(freq[3], pow(10000, -3.0 / 8) * (0.5 / 4 + 0.5));
    near(freq[5], pow(10000, -5.0 / 8) / 4);

    /* Published length beside the original one: the factor counts once. */
    c = read_ok(LLAMA(", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2, "
                      "\"original_max_position_embeddings\": 512, \"attention_factor\": 1.5}"));
    assert_int_equal(c.max_model_len, 1024);
    near(config_rope_table(&c.rope, false, freq), 1.5);
    c = read_ok(
        LLAMA(", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 40, \"mscale\": 1, "
              "\"mscale_all_dim\": 1, \"truncate\": false}"));
    near(config_rope_table(&c.rope, false, freq), 1);
    /* theta 1 has no wave lengths to rank; the table stays finite. */
    c = read_ok(
        LLAMA(", \"rope_theta\": 1, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}"));
    (void)config_rope_table(&c.rope, false, freq);
    for (int i = 0; i < 8; i++)
        assert_true(isfinite(freq[i]) && freq[i] > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_family_defaults),
        cmocka_unit_test(test_defaults),

        cmocka_unit_test(test_odd_numbers),
        cmocka_unit_test(test_text_part),
        cmocka_unit_test(test_granite4),
        cmocka_unit_test(test_nemotron),
        cmocka_unit_test(test_nemotron3),
        cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_generation),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_yarn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
