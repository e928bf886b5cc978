/*
 * Decoders with LayerNorms, biases and a feed-forward without a gate, of which a part of each head
 * turns. GPTNeoXForCausalLM (Pythia, GPT-NeoX-20B): attention and feed-forward read the stream
 * through a norm each, beside each other unless the file says otherwise; q, k and v of a head lie
 * side by side in one matrix. PersimmonForCausalLM: the same one behind the other, norms of each
 * head of q and k. PhiForCausalLM (Phi-1, 1.5 and 2): both read the same norm, and the output layer
 * has a bias. GPTJForCausalLM and CodeGenForCausalLM: so, neighbours turn, attention has no biases;
 * CodeGen's q, v and k lie in four parts. FalconForCausalLM: no biases; heads of queries lie with
 * those of keys and values that they share, whole heads turn.
 */
#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

#define CODEGEN_PARTS 4u /* in which its matrix of [q | v | k] lies */

static int neox_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_bool(j, "attention_bias", true, &c->qkv_bias);

    c->o_bias = c->qkv_bias;
    c->mlp_bias = true;
    c->norm_centred = true;
    c->norm_bias = true;
    return r < 0 ? r : config_read_bool(j, "use_parallel_residual", true, &c->parallel);
}

static int phi_configure(const struct model_json *j, struct model_config *c)
{
    c->qkv_bias = true;
    c->o_bias = true;
    c->mlp_bias = true;
    c->norm_centred = true;
    c->norm_bias = true;
    return config_read_bool(j, "qk_layernorm", false, &c->qk_norm);
}

static int persimmon_configure(const struct model_json *j, struct model_config *c)
{
    c->qkv_bias = true;
    c->o_bias = true;
    c->mlp_bias = true;
    c->norm_centred = true;
    c->norm_bias = true;
    return config_read_bool(j, "qk_layernorm", true, &c->qk_norm);
}

/* How many elements of a head turn is a number of its own. */
static int gptj_configure(const struct model_json *j, struct model_config *c)
{
    static const char KEY[] = "rotary_dim";
    int r = config_read_u32(j, KEY, c->head_dim, 64, &c->rope.dims);

    c->mlp_bias = true;
    c->norm_centred = true;
    c->norm_bias = true;
    c->neighbours = true;
    if (r == 0 && (c->rope.dims % 2 != 0 || c->rope.dims > c->head_dim))
        return ek_fault_set(
            j->fault, KEY, "%s: %s must be an even number up to %u, the size of a head; correct it",
            j->file, KEY, c->head_dim);
    return r;
}

static int codegen_configure(const struct model_json *j, struct model_config *c)
{
    if (c->q_heads % CODEGEN_PARTS != 0)
        return ek_fault_set(j->fault, "n_head", "%s: the number of heads must be a multiple of %u",
                            j->file, CODEGEN_PARTS);
    return gptj_configure(j, c);
}

static int falcon_configure(const struct model_json *j, struct model_config *c)
{
    bool alibi = false, newer = false, one = true;
    uint32_t norms = 0;
    int r = config_read_bool(j, "alibi", false, &alibi);
    if (r == 0)
        r = config_read_bool(j, "new_decoder_architecture", false, &newer);
    if (r == 0)
        r = config_read_bool(j, "multi_query", true, &one);
    if (r == 0)
        r = config_read_bool(j, "parallel_attn", true, &c->parallel);
    if (r == 0)
        r = config_read_bool(j, "bias", false, &c->qkv_bias);
    if (r == 0)
        r = config_read_u32(j, "num_ln_in_parallel_attn", 2, newer ? 2 : 1, &norms);
    if (r == 0 && alibi)
        return ek_fault_set(j->fault, "alibi",
                            "%s: alibi: scores that fall with the distance are not supported; take "
                            "a model whose heads turn",
                            j->file);
    c->o_bias = c->qkv_bias;
    c->mlp_bias = c->qkv_bias;
    c->norm_centred = true;
    c->norm_bias = true;
    c->parallel = c->parallel || newer;
    c->two_norms = newer && norms == 2;
    if (!newer)
        c->kv_heads = one ? 1 : c->q_heads;
    return r;
}

static void neox_layer(struct graph_builder *b, const struct layers *l, uint16_t normed,
                       uint32_t layer)
{
    const bool parallel = b->config->parallel;
    const char *second = l->mlp_norm ? l->mlp_norm : "post_attention_layernorm";

    layers_prefix(b, l, layer);
    graph_norm(b, l->side, l->stream, l->norm ? l->norm : "input_layernorm");
    if (parallel) /* of the stream before attention was added */
        graph_norm(b, normed, l->stream, second);
    layers_attention(b, l, layer);
    graph_add(b, l->stream, l->side);
    if (!parallel)
        graph_norm(b, normed, l->stream, second);
    layers_feed_forward_of(b, l, normed);
    graph_add(b, l->stream, l->side);
}

static void neox_build(struct graph_builder *b, const struct model_config *c)
{
    const struct graph_head_names names = {"gpt_neox.final_layer_norm", "gpt_neox.embed_in",
                                           "embed_out", false, NULL};
    struct layers l = {.embedding = names.embedding,
                       .layer = "gpt_neox.layers",
                       .qkv_by_group = "attention.query_key_value",
                       .o_proj = "attention.dense",
                       .ungated = true,
                       .of_itself = layers_gate_of(c),
                       .up = "dense_h_to_4h",
                       .down = "dense_4h_to_h"};

    layers_begin(b, &l);
    const uint16_t normed = graph_value(b, c->hidden);
    for (uint32_t i = 0; i < c->layers; i++)
        neox_layer(b, &l, normed, i);
    graph_head_of(b, l.stream, &names);
}

static void phi_build(struct graph_builder *b, const struct model_config *c)
{
    const struct graph_head_names names = {"model.final_layernorm", "model.embed_tokens", "lm_head",
                                           c->output == CONFIG_TEXT, NULL};
    struct layers l = {.qk_norm = c->qk_norm ? NORM_HEADS : NORM_NONE,
                       .q_norm = "self_attn.q_layernorm",
                       .k_norm = "self_attn.k_layernorm",
                       .o_proj = "self_attn.dense",
                       .ungated = true,
                       .of_itself = layers_gate_of(c),
                       .up = "fc1",
                       .down = "fc2"};

    layers_begin(b, &l);
    layers_parallel(b, &l, c);
    graph_head_of(b, l.stream, &names);
}

static void persimmon_build(struct graph_builder *b, const struct model_config *c)
{
    const struct graph_head_names names = {"model.final_layernorm", "model.embed_tokens", "lm_head",
                                           false, NULL};
    struct layers l = {.qk_norm = c->qk_norm ? NORM_HEADS : NORM_NONE,
                       .q_norm = "self_attn.q_layernorm",
                       .k_norm = "self_attn.k_layernorm",
                       .qkv_by_group = "self_attn.query_key_value",
                       .o_proj = "self_attn.dense",
                       .ungated = true,
                       .of_itself = EK_GATE_RELU,
                       .up = "dense_h_to_4h",
                       .down = "dense_4h_to_h"};

    layers_begin(b, &l);
    layers_pre_norms(b, &l, c);
    graph_head_of(b, l.stream, &names);
}

/* GPT-J's and CodeGen's, but for how the matrices of q, k and v lie. */
static void gptj_write(struct graph_builder *b, struct layers *l, const struct model_config *c)
{
    const struct graph_head_names names = {"transformer.ln_f", "transformer.wte", "lm_head",
                                           c->output == CONFIG_TEXT, NULL};

    l->layer = "transformer.h";
    l->norm = "ln_1";
    l->embedding = names.embedding;
    l->attention = "attn";
    l->o_proj = "attn.out_proj";
    l->ungated = true;
    l->of_itself = layers_gate_of(c);
    l->up = "fc_in";
    l->down = "fc_out";
    layers_begin(b, l);
    layers_parallel(b, l, c);
    graph_head_of(b, l->stream, &names);
}

static void gptj_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.ungated = true};

    gptj_write(b, &l, c);
}

static void codegen_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {
        .qkv_by_group = "attn.qkv_proj", .qkv_groups = CODEGEN_PARTS, .values_first = true};

    gptj_write(b, &l, c);
}

static void falcon_build(struct graph_builder *b, const struct model_config *c)
{
    const struct graph_head_names names = {"transformer.ln_f", "transformer.word_embeddings",
                                           "lm_head", false, NULL};
    struct layers l = {.layer = "transformer.h",
                       .norm = c->two_norms ? "ln_attn" : NULL,
                       .mlp_norm = c->two_norms ? "ln_mlp" : NULL,
                       .embedding = names.embedding,
                       .qkv_by_group = "self_attention.query_key_value",
                       .o_proj = "self_attention.dense",
                       .ungated = true,
                       .of_itself = layers_gate_of(c),
                       .up = "dense_h_to_4h",
                       .down = "dense_4h_to_h"};

    layers_begin(b, &l);
    const uint16_t normed = c->parallel && !c->two_norms ? 0 : graph_value(b, c->hidden);
    if (c->parallel && !c->two_norms)
        layers_parallel(b, &l, c);
    else
        for (uint32_t i = 0; i < c->layers; i++)
            neox_layer(b, &l, normed, i);
    graph_head_of(b, l.stream, &names);
}

const struct model_family family_persimmon = {.architecture = "PersimmonForCausalLM",
                                              .rms_eps = 1e-5,
                                              .eps_key = "layer_norm_eps",
                                              .act = "relu2",
                                              .act_key = "hidden_act",
                                              .partial_rotary = true,
                                              .partial = 0.5,
                                              .configure = persimmon_configure,
                                              .build = persimmon_build};
const struct model_family family_gptj = {.architecture = "GPTJForCausalLM",
                                         .keys = GPT2_KEYS,
                                         .four_times = true,
                                         .rms_eps = 1e-5,
                                         .eps_key = "layer_norm_epsilon",
                                         .act = "gelu_new",
                                         .configure = gptj_configure,
                                         .build = gptj_build};
const struct model_family family_codegen = {.architecture = "CodeGenForCausalLM",
                                            .keys = GPT2_KEYS,
                                            .four_times = true,
                                            .rms_eps = 1e-5,
                                            .eps_key = "layer_norm_epsilon",
                                            .act = "gelu_new",
                                            .configure = codegen_configure,
                                            .build = codegen_build};
const struct model_family family_falcon = {.architecture = "FalconForCausalLM",
                                           .keys = {{"hidden_size", "n_embed"},
                                                    {"num_key_value_heads", "num_kv_heads"},
                                                    {"intermediate_size", "ffn_hidden_size"},
                                                    {"hidden_act", "activation"}},
                                           .positions = 2048,
                                           .four_times = true,
                                           .rms_eps = 1e-5,
                                           .eps_key = "layer_norm_epsilon",
                                           .act = "gelu",
                                           .tied = true,
                                           .configure = falcon_configure,
                                           .build = falcon_build};
const struct model_family family_gpt_neox = {.architecture = "GPTNeoXForCausalLM",
                                             .rms_eps = 1e-5,
                                             .eps_key = "layer_norm_eps",
                                             .act = "gelu",
                                             .theta_key = "rotary_emb_base",
                                             .partial_key = "rotary_pct",
                                             .partial_rotary = true,
                                             .partial = 0.25,
                                             .configure = neox_configure,
                                             .build = neox_build};
const struct model_family family_phi = {.architecture = "PhiForCausalLM",
                                        .rms_eps = 1e-5,
                                        .eps_key = "layer_norm_eps",
                                        .act = "gelu_new",
                                        .partial_rotary = true,
                                        .partial = 0.5,
                                        .configure = phi_configure,
                                        .build = phi_build};
