/*
 * Decoders with LayerNorms, biases and a feed-forward without a gate, of which a part of each head
 * turns. GPTNeoXForCausalLM (Pythia, GPT-NeoX-20B): attention and feed-forward read the stream
 * through a norm each, beside each other unless the file says otherwise; q, k and v of a head lie
 * side by side in one matrix. PhiForCausalLM (Phi-1, 1.5 and 2): both read the same norm, and the
 * output layer has a bias.
 */
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

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

static void neox_layer(struct graph_builder *b, const struct layers *l, uint16_t normed,
                       uint32_t layer)
{
    const bool parallel = b->config->parallel;

    graph_prefix(b, "gpt_neox.layers.%u.", layer);
    graph_norm(b, l->side, l->stream, "input_layernorm");
    if (parallel) /* of the stream before attention was added */
        graph_norm(b, normed, l->stream, "post_attention_layernorm");
    layers_attention(b, l, layer);
    graph_add(b, l->stream, l->side);
    if (!parallel)
        graph_norm(b, normed, l->stream, "post_attention_layernorm");
    layers_feed_forward_of(b, l, normed);
    graph_add(b, l->stream, l->side);
}

static void neox_build(struct graph_builder *b, const struct model_config *c)
{
    const struct graph_head_names names = {"gpt_neox.final_layer_norm", "gpt_neox.embed_in",
                                           "embed_out", false};
    struct layers l = {.embedding = names.embedding,
                       .qkv_by_head = "attention.query_key_value",
                       .o_proj = "attention.dense",
                       .ungated = true,
                       .of_itself = layers_gate_of(c),
                       .up = "dense_h_to_4h",
                       .down = "dense_4h_to_h"};

    layers_begin(b, &l);
    const uint16_t normed = graph_value(b, c->hidden);
    for (uint32_t i = 0; i < c->layers; i++)
        neox_layer(b, &l, normed, i);
    graph_prefix(b, "%s", "");
    graph_head_of(b, l.stream, &names);
}

static void phi_build(struct graph_builder *b, const struct model_config *c)
{
    const struct graph_head_names names = {"model.final_layernorm", "model.embed_tokens", "lm_head",
                                           c->output == CONFIG_TEXT};
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
    graph_prefix(b, "%s", "");
    graph_head_of(b, l.stream, &names);
}

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
