/*
 * LlamaForCausalLM and MistralForCausalLM: pre-norm, grouped-query attention with rotary positions,
 * gated feed-forward. Llama may have biases, Mistral a sliding window.
 */
#include <math.h>

#include "server/model/family.h"
#include "server/model/graph.h"

static int llama_configure(const struct model_json *j, struct model_config *c)
{
    bool bias = false;
    int r = config_read_bool(j, "attention_bias", false, &bias);
    c->qkv_bias = bias;
    c->o_bias = bias;
    return r < 0 ? r : config_read_bool(j, "mlp_bias", false, &c->mlp_bias);
}

static int mistral_configure(const struct model_json *j, struct model_config *c)
{
    return config_read_window(j, true, 0, c);
}

static void llama_build(struct graph_builder *b, const struct model_config *c)
{
    const uint32_t q = c->q_heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const struct graph_part qkv_parts[] = {
        {"self_attn.q_proj", q}, {"self_attn.k_proj", kv}, {"self_attn.v_proj", kv}};
    const struct graph_part o_part = {"self_attn.o_proj", c->hidden};
    const struct graph_part up_parts[] = {{"mlp.gate_proj", c->intermediate},
                                          {"mlp.up_proj", c->intermediate}};
    const struct graph_part down_part = {"mlp.down_proj", c->hidden};

    uint16_t stream = graph_value(b, c->hidden);
    uint16_t side = graph_value(b, c->hidden); /* normed input, then what is added back */
    uint16_t qkv = graph_value(b, q + 2 * kv);
    uint16_t heads = graph_value(b, q);
    uint16_t gate_up = graph_value(b, 2 * c->intermediate);
    uint16_t inner = graph_value(b, c->intermediate);
    uint32_t table = graph_rope(b, c->head_dim);
    float scale = 1.0f / sqrtf((float)c->head_dim);

    graph_embed(b, stream, "model.embed_tokens", 1.0f);
    for (uint32_t i = 0; i < c->layers; i++) {
        graph_prefix(b, "model.layers.%u.", i);
        graph_norm(b, side, stream, "input_layernorm");
        graph_linear(b, qkv, side, qkv_parts, 3, c->qkv_bias);
        graph_rotate(b, qkv, table, 0, c->q_heads);
        graph_rotate(b, qkv, table, q, c->kv_heads);
        graph_attention(b, heads, qkv, i, scale);
        graph_linear(b, side, heads, &o_part, 1, c->o_bias);
        graph_add(b, stream, side);
        graph_norm(b, side, stream, "post_attention_layernorm");
        graph_linear(b, gate_up, side, up_parts, 2, c->mlp_bias);
        graph_glu(b, inner, gate_up);
        graph_linear(b, side, inner, &down_part, 1, c->mlp_bias);
        graph_add(b, stream, side);
    }
    graph_prefix(b, "%s", "");
    graph_head(b, stream, "model.norm", "model.embed_tokens");
}

const struct model_family family_llama = {
    .architecture = "LlamaForCausalLM", .configure = llama_configure, .build = llama_build};
const struct model_family family_mistral = {
    .architecture = "MistralForCausalLM", .configure = mistral_configure, .build = llama_build};
