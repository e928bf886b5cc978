/*
 * Qwen2ForCausalLM (biases on q, k, v) and Qwen3ForCausalLM (norms on each head of q and k before
 * they are rotated). Both may have a sliding window in the layers from max_window_layers on.
 */
#include <math.h>
#include <string.h>

#include "server/model/family.h"
#include "server/model/graph.h"

static int window_configure(const struct model_json *j, struct model_config *c)
{
    bool use = false, given = false;
    int64_t first = 0;
    int r = config_read_bool(j, "use_sliding_window", false, &use);
    if (r == 0)
        r = model_json_int(j, "max_window_layers", (struct model_range){0, 1u << 20}, &first,
                           &given);
    return r < 0 ? r : config_read_window(j, use, (uint32_t)first, c);
}

static int qwen2_configure(const struct model_json *j, struct model_config *c)
{
    c->qkv_bias = true;
    return window_configure(j, c);
}

static int qwen3_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    return r < 0 ? r : window_configure(j, c);
}

static void qwen_build(struct graph_builder *b, const struct model_config *c)
{
    const bool head_norms = c->family == &family_qwen3;
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
        if (head_norms) {
            graph_head_norm(b, qkv, "self_attn.q_norm", 0, c->q_heads);
            graph_head_norm(b, qkv, "self_attn.k_norm", q, c->kv_heads);
        }
        graph_rotate(b, qkv, table, 0, c->q_heads);
        graph_rotate(b, qkv, table, q, c->kv_heads);
        graph_attention(b, heads, qkv, i, scale);
        graph_linear(b, side, heads, &o_part, 1, c->o_bias);
        graph_add(b, stream, side);
        graph_norm(b, side, stream, "post_attention_layernorm");
        graph_linear(b, gate_up, side, up_parts, 2, false);
        graph_glu(b, inner, gate_up);
        graph_linear(b, side, inner, &down_part, 1, false);
        graph_add(b, stream, side);
    }
    graph_prefix(b, "%s", "");
    graph_head(b, stream, "model.norm", "model.embed_tokens");
}

const struct model_family family_qwen2 = {
    .architecture = "Qwen2ForCausalLM", .configure = qwen2_configure, .build = qwen_build};
const struct model_family family_qwen3 = {.architecture = "Qwen3ForCausalLM",
                                          .head_dim = 128,
                                          .configure = qwen3_configure,
                                          .build = qwen_build};
