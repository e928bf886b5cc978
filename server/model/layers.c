/* The common parts of layers. Pure but for the graph that is written. */
#include "server/model/layers.h"

void layers_begin(struct graph_builder *b, struct layers *l)
{
    const struct model_config *c = b->config;
    const uint32_t q = c->q_heads * c->head_dim, kv = c->kv_heads * c->head_dim;

    l->stream = graph_value(b, c->hidden);
    l->side = graph_value(b, c->hidden);
    l->qkv = graph_value(b, q + 2 * kv);
    l->heads = graph_value(b, q);
    if (c->experts > 0) {
        l->router = graph_value(b, c->experts);
        l->mixed = graph_value(b, c->hidden);
    }
    bool plain = c->experts == 0;
    for (uint32_t i = 0; i < c->layers; i++)
        plain = plain || c->plain[i];
    if (plain) {
        l->gate_up = graph_value(b, 2 * c->intermediate);
        l->inner = graph_value(b, c->intermediate);
    }
    l->rope = graph_rope(b, &c->rope);
    l->rope_local = c->local_rope ? graph_rope(b, &c->rope_local) : l->rope;
    graph_embed(b, l->stream, "model.embed_tokens",
                l->embed_scale > 0 ? l->embed_scale : c->embed_scale);
}

static void norm_heads(struct graph_builder *b, const struct layers *l)
{
    const struct model_config *c = b->config;
    const uint32_t d = c->head_dim, q = c->q_heads * d, kv = c->kv_heads * d;
    const bool whole = l->qk_norm == NORM_WHOLE;

    graph_head_norm(b, l->qkv, "self_attn.q_norm",
                    whole ? (struct graph_heads){0, q, 1} : (struct graph_heads){0, d, c->q_heads});
    graph_head_norm(b, l->qkv, "self_attn.k_norm",
                    whole ? (struct graph_heads){q, kv, 1}
                          : (struct graph_heads){q, d, c->kv_heads});
}

void layers_attention_of(struct graph_builder *b, const struct layers *l, uint16_t src,
                         uint32_t layer)
{
    const struct model_config *c = b->config;
    const uint32_t q = c->q_heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const struct graph_part fused = {"self_attn.qkv_proj", q + 2 * kv};
    const struct graph_part parts[] = {
        {"self_attn.q_proj", q}, {"self_attn.k_proj", kv}, {"self_attn.v_proj", kv}};
    const struct graph_part out = {"self_attn.o_proj", c->hidden};
    const uint32_t table = c->windowed[layer] ? l->rope_local : l->rope;

    graph_linear(b, l->qkv, src, l->fused ? &fused : parts, l->fused ? 1 : 3, c->qkv_bias);
    if (l->qk_norm != NORM_NONE)
        norm_heads(b, l);
    if (!c->unrotated[layer]) {
        graph_rotate(b, l->qkv, table, 0, c->q_heads);
        graph_rotate(b, l->qkv, table, q, c->kv_heads);
    }
    graph_attention(b, l->heads, l->qkv, layer);
    graph_linear(b, l->side, l->heads, &out, 1, c->o_bias);
}

void layers_feed_forward_of(struct graph_builder *b, const struct layers *l, uint16_t src)
{
    const struct model_config *c = b->config;
    const struct graph_part fused = {"mlp.gate_up_proj", 2 * c->intermediate};
    const struct graph_part parts[] = {{"mlp.gate_proj", c->intermediate},
                                       {"mlp.up_proj", c->intermediate}};
    const struct graph_part down = {"mlp.down_proj", c->hidden};

    graph_linear(b, l->gate_up, src, l->fused ? &fused : parts, l->fused ? 1 : 2, c->mlp_bias);
    graph_glu(b, l->inner, l->gate_up);
    graph_linear(b, l->side, l->inner, &down, 1, c->mlp_bias);
}

void layers_attention(struct graph_builder *b, const struct layers *l, uint32_t layer)
{
    layers_attention_of(b, l, l->side, layer);
}

void layers_feed_forward(struct graph_builder *b, const struct layers *l)
{
    layers_feed_forward_of(b, l, l->side);
}

void layers_pre_norm(struct graph_builder *b, const struct layers *l, uint32_t layer)
{
    graph_prefix(b, "model.layers.%u.", layer);
    graph_norm(b, l->side, l->stream, "input_layernorm");
    layers_attention(b, l, layer);
    graph_add(b, l->stream, l->side);
    graph_norm(b, l->side, l->stream, "post_attention_layernorm");
    if (b->config->experts > 0 && !b->config->plain[layer]) {
        graph_experts(b, l->mixed, l->side, l->router, &l->experts);
        graph_add(b, l->stream, l->mixed);
        return;
    }
    layers_feed_forward(b, l);
    graph_add(b, l->stream, l->side);
}

void layers_end(struct graph_builder *b, const struct layers *l)
{
    graph_prefix(b, "%s", "");
    graph_head(b, l->stream, "model.norm", "model.embed_tokens");
}
