/*
 * Parts of layers that many families share (layers.h). Called by the build functions of families;
 * pure but for the graph that is written.
 */
#include "server/model/layers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

float layers_root(enum ek_dtype dtype, uint32_t n)
{
    float scale = sqrtf((float)n);
    uint32_t bits;

    switch (dtype) {
    case EK_F16: { /* 11 significant bits; sizes keep it far from the ends of the range */
        int exponent;
        float fraction = frexpf(scale, &exponent);
        return ldexpf(rintf(fraction * 2048.0f), exponent - 11);
    }
    case EK_BF16:
        memcpy(&bits, &scale, sizeof(bits));
        bits += 0x7fff + (bits >> 16 & 1);
        bits &= 0xffff0000u;
        memcpy(&scale, &bits, sizeof(scale));
        return scale;
    case EK_F32:
    case EK_F8_E4M3:
    case EK_I8:
    case EK_I4:
    case EK_F4_E2M1: break;
    }
    return scale;
}

/* What a token is, and where there is a table of them, at which position. */
static void layers_embed(struct graph_builder *b, const struct layers *l)
{
    const struct model_config *c = b->config;
    const struct graph_part project = {l->project, c->hidden};
    const uint16_t first = c->embed_width > 0 ? graph_value(b, c->embed_width) : l->stream;

    graph_embed(b, first, l->embedding ? l->embedding : "model.embed_tokens",
                l->embed_scale > 0 ? l->embed_scale : c->embed_scale);
    if (c->embed_width > 0)
        graph_linear(b, l->stream, first, &project, 1, false);
    if (!l->positions)
        return;
    graph_embed_positions(b, l->side, l->positions, l->positions_skip);
    graph_add(b, l->stream, l->side);
}

void layers_begin(struct graph_builder *b, struct layers *l)
{
    const struct model_config *c = b->config;
    const uint32_t q = c->q_heads * c->head_dim, kv = c->kv_heads * c->head_dim;

    l->stream = graph_value(b, c->hidden);
    l->side = graph_value(b, c->hidden);
    if (c->latent.rank > 0) {
        latent_begin(b, l);
    } else {
        l->qkv = graph_value(b, q + 2 * kv);
        l->heads = graph_value(b, q);
    }
    if (l->qkv_by_group && l->qkv_groups == 0 && c->kv_heads == 1) { /* one lies as q | k | v do */
        l->fused_qkv = true;
        l->qkv_proj = l->qkv_by_group;
        l->qkv_by_group = NULL;
    }
    if (l->qkv_by_group)
        l->by_group = graph_value(b, q + 2 * kv);
    if (c->output_gate)
        l->gated = graph_value(b, 2 * q + 2 * kv);
    if (l->gate_proj)
        l->gates = graph_value(b, q);
    if (c->delta.v_heads > 0)
        delta_begin(b, l);
    if (c->experts > 0) {
        l->router = graph_value(b, c->experts);
        l->mixed = graph_value(b, c->hidden);
    }
    if (c->shared_intermediate > 0) {
        l->shared_gate_up = graph_value(b, 2 * c->shared_intermediate);
        l->shared_inner = graph_value(b, c->shared_intermediate);
        l->shared_gate = c->shared_gate ? graph_value(b, 1) : 0;
    }
    bool plain = c->experts == 0;
    for (uint32_t i = 0; i < c->layers; i++)
        plain = plain || c->plain[i];
    if (plain) {
        if (!l->ungated)
            l->gate_up = graph_value(b, 2 * c->intermediate);
        l->inner = graph_value(b, c->intermediate);
    }
    l->rope = graph_rope(b, &c->rope);
    l->rope_local = c->local_rope ? graph_rope(b, &c->rope_local) : l->rope;
    layers_embed(b, l);
}

/* Each of `heads` by weights of its own, NAME.0 and so on. */
static void norm_each(struct graph_builder *b, const struct layers *l, const char *name,
                      struct graph_heads h)
{
    for (uint32_t i = 0; i < h.heads; i++) {
        char one[64];
        (void)snprintf(one, sizeof(one), "%s.%u", name, i);
        graph_head_norm_unbiased(b, l->qkv, one,
                                 (struct graph_heads){h.first + i * h.group, h.group, 1});
    }
}

static void norm_heads(struct graph_builder *b, const struct layers *l)
{
    const struct model_config *c = b->config;
    const uint32_t d = c->head_dim, q = c->q_heads * d, kv = c->kv_heads * d;
    const bool whole = l->qk_norm == NORM_WHOLE, bare = l->qk_norm == NORM_BARE;
    const char *q_name = l->q_norm ? l->q_norm : "self_attn.q_norm";
    const char *k_name = l->k_norm ? l->k_norm : "self_attn.k_norm";

    if (l->qk_norm == NORM_OWN) {
        graph_head_norm_own(b, l->qkv, q_name, (struct graph_heads){0, d, c->q_heads});
        graph_head_norm_own(b, l->qkv, k_name, (struct graph_heads){q, d, c->kv_heads});
        return;
    }
    if (l->qk_norm == NORM_EACH) {
        norm_each(b, l, q_name, (struct graph_heads){0, d, c->q_heads});
        norm_each(b, l, k_name, (struct graph_heads){q, d, c->kv_heads});
        return;
    }
    graph_head_norm(b, l->qkv, bare ? NULL : q_name,
                    whole ? (struct graph_heads){0, q, 1} : (struct graph_heads){0, d, c->q_heads});
    graph_head_norm(b, l->qkv, bare ? NULL : k_name,
                    whole ? (struct graph_heads){q, kv, 1}
                          : (struct graph_heads){q, d, c->kv_heads});
}

/* q | k | v out of a matrix that has them group by group. */
static void queries_by_group(struct graph_builder *b, const struct layers *l, uint16_t src)
{
    const struct model_config *c = b->config;
    const uint32_t d = c->head_dim, q = c->q_heads * d, kv = c->kv_heads * d;
    const uint32_t groups = l->qkv_groups > 0 ? l->qkv_groups : c->kv_heads;
    const uint32_t each = q / groups, own = kv / groups, step = each + 2 * own;
    const uint32_t k = each + (l->values_first ? own : 0), v = each + (l->values_first ? 0 : own);
    const struct graph_part all = {l->qkv_by_group, q + 2 * kv};

    graph_linear(b, l->by_group, src, &all, 1, c->qkv_bias);
    graph_take(b, l->qkv, l->by_group, (struct graph_run){0, step, each, groups, 0});
    graph_take(b, l->qkv, l->by_group, (struct graph_run){k, step, own, groups, q});
    graph_take(b, l->qkv, l->by_group, (struct graph_run){v, step, own, groups, q + kv});
}

/* q | k | v of src; with a gate they come out of a wider value. */
static void queries_and_keys(struct graph_builder *b, const struct layers *l, uint16_t src)
{
    const struct model_config *c = b->config;
    const uint32_t d = c->head_dim, q = c->q_heads * d, kv = c->kv_heads * d;
    const struct graph_part fused = {l->qkv_proj ? l->qkv_proj : "self_attn.qkv_proj", q + 2 * kv};
    char names[3][64];
    const struct graph_part parts[] = {
        {names[0], c->output_gate ? 2 * q : q}, {names[1], kv}, {names[2], kv}};

    for (uint32_t i = 0; i < 3; i++)
        (void)snprintf(names[i], sizeof(names[i]), "%s.%c_proj",
                       l->attention ? l->attention : "self_attn", "qkv"[i]);
    if (l->qkv_by_group) {
        queries_by_group(b, l, src);
        return;
    }
    graph_linear(b, c->output_gate ? l->gated : l->qkv, src, l->fused_qkv ? &fused : parts,
                 l->fused_qkv ? 1 : 3, c->qkv_bias);
    if (!c->output_gate)
        return;
    graph_take(b, l->qkv, l->gated, (struct graph_run){0, 2 * d, d, c->q_heads, 0});
    graph_take(b, l->qkv, l->gated, (struct graph_run){2 * q, 0, 2 * kv, 1, q});
}

void layers_attention_of(struct graph_builder *b, const struct layers *l, uint16_t src,
                         uint32_t layer)
{
    const struct model_config *c = b->config;
    const uint32_t d = c->head_dim, q = c->q_heads * d;
    const struct graph_part out = {l->o_proj ? l->o_proj : "self_attn.o_proj", c->hidden};
    const uint32_t table = c->windowed[layer] ? l->rope_local : l->rope;
    const struct graph_part gate = {l->gate_proj, q};
    const bool turns = !c->unrotated[layer];

    if (c->latent.rank > 0) {
        latent_attention(b, l, src, layer);
        return;
    }
    queries_and_keys(b, l, src);
    if (l->gate_proj)
        graph_linear(b, l->gates, src, &gate, 1, false);
    if (l->qk_norm == NORM_HEADS || l->qk_norm == NORM_WHOLE || l->qk_norm == NORM_OWN ||
        l->qk_norm == NORM_EACH)
        norm_heads(b, l);
    if (c->clip > 0)
        graph_clip(b, l->qkv);
    if (turns)
        graph_rotate(b, l->qkv, table, 0, c->q_heads);
    if (c->warm_every > 0 && !(turns && c->warm_unrotated))
        graph_warm(b, l->qkv, 0, c->q_heads);
    if (turns)
        graph_rotate(b, l->qkv, table, q, c->kv_heads);
    if (l->qk_norm == NORM_TURNED || (l->qk_norm == NORM_BARE && turns))
        norm_heads(b, l);
    graph_attention(b, l->heads, l->qkv, layer);
    if (c->output_gate)
        graph_gate(b, l->heads, l->gated, EK_GATE_SIGMOID,
                   (struct graph_run){.first = d, .step = 2 * d, .group = d});
    if (l->gate_proj)
        graph_gate(b, l->heads, l->gates, EK_GATE_SIGMOID,
                   (struct graph_run){.step = q, .group = q});
    graph_linear(b, l->side, l->heads, &out, 1, c->o_bias);
}

void layers_attend_normed(struct graph_builder *b, const struct layers *l, uint16_t qkv,
                          uint16_t heads, uint32_t layer)
{
    const struct model_config *c = b->config;
    const struct graph_kv kv = graph_kv_of(c, layer);
    const uint32_t d = kv.head_dim, q = c->q_heads * d, own = kv.heads * d;
    const uint32_t table = c->windowed[layer] ? l->rope_local : l->rope;
    const struct graph_heads of_q = {0, d, c->q_heads}, of_k = {q, d, kv.heads};
    const struct graph_part out = {"self_attn.o_proj", c->hidden};

    graph_head_norm(b, qkv, "self_attn.q_norm", of_q);
    graph_rotate_heads(b, qkv, table, of_q);
    if (!kv.reads) {
        graph_head_norm(b, qkv, "self_attn.k_norm", of_k);
        graph_head_norm(b, qkv, NULL, (struct graph_heads){q + own, d, kv.heads});
        graph_rotate_heads(b, qkv, table, of_k);
    }
    graph_attention(b, heads, qkv, layer);
    graph_linear(b, l->side, heads, &out, 1, c->o_bias);
}

enum ek_gate layers_gate_of(const struct model_config *c)
{
    static const enum ek_gate gates[] = {[EK_ACT_SILU] = EK_GATE_SIGMOID,
                                         [EK_ACT_GELU_TANH] = EK_GATE_GELU_TANH,
                                         [EK_ACT_GELU] = EK_GATE_GELU,
                                         [EK_ACT_RELU] = EK_GATE_STEP};

    return gates[c->act];
}

void layers_gated(struct graph_builder *b, const struct layers *l, const struct layers_gated *f)
{
    char gate[64], up[64], both[64], down[64];
    const struct graph_part fused = {both, 2 * f->width}, out = {down, b->config->hidden};
    const struct graph_part parts[] = {{gate, f->width}, {up, f->width}};

    const char *point = f->name[0] ? "." : "";
    (void)snprintf(gate, sizeof(gate), "%s%s%s", f->name, point, l->gate ? l->gate : "gate_proj");
    (void)snprintf(up, sizeof(up), "%s%s%s", f->name, point, l->up ? l->up : "up_proj");
    (void)snprintf(both, sizeof(both), "%s%sgate_up_proj", f->name, point);
    (void)snprintf(down, sizeof(down), "%s%s%s", f->name, point, l->down ? l->down : "down_proj");
    if (l->ungated) {
        graph_linear(b, f->inner, f->src, &parts[1], 1, b->config->mlp_bias);
        if (l->of_itself == EK_GATE_XIELU)
            graph_xielu(b, f->inner, "mlp.act_fn");
        else
            graph_gate(b, f->inner, f->inner, l->of_itself,
                       (struct graph_run){.step = f->width, .group = f->width});
        graph_linear(b, l->side, f->inner, &out, 1, b->config->mlp_bias);
        return;
    }
    graph_linear(b, f->gate_up, f->src, l->fused_gate_up ? &fused : parts, l->fused_gate_up ? 1 : 2,
                 b->config->mlp_bias);
    if (l->gate_times > 0 && l->gate_times != 1.0f) {
        graph_take(b, f->inner, f->gate_up, (struct graph_run){.group = f->width, .heads = 1});
        graph_scale(b, f->inner, l->gate_times, NULL);
        graph_take(b, f->gate_up, f->inner, (struct graph_run){.group = f->width, .heads = 1});
    }
    graph_glu(b, f->inner, f->gate_up);
    graph_linear(b, l->side, f->inner, &out, 1, b->config->mlp_bias);
}

void layers_feed_forward_of(struct graph_builder *b, const struct layers *l, uint16_t src)
{
    const struct layers_gated f = {l->mlp ? l->mlp : "mlp", src, l->gate_up, l->inner,
                                   b->config->intermediate};

    layers_gated(b, l, &f);
}

void layers_shared_of(struct graph_builder *b, const struct layers *l, uint16_t src)
{
    const struct layers_gated f = {l->shared, src, l->shared_gate_up, l->shared_inner,
                                   b->config->shared_intermediate};

    layers_gated(b, l, &f);
}

void layers_attention(struct graph_builder *b, const struct layers *l, uint32_t layer)
{
    layers_attention_of(b, l, l->side, layer);
}

void layers_feed_forward(struct graph_builder *b, const struct layers *l)
{
    layers_feed_forward_of(b, l, l->side);
}

void layers_mixed(struct graph_builder *b, const struct layers *l, uint32_t layer)
{
    const struct model_config *c = b->config;
    const struct graph_part gate = {"mlp.shared_expert_gate", 1};

    if (c->experts == 0 || c->plain[layer]) {
        layers_feed_forward(b, l);
        graph_add(b, l->stream, l->side);
        return;
    }
    graph_experts(b, l->mixed, l->side, l->router, &l->experts);
    graph_add(b, l->stream, l->mixed);
    if (c->shared_intermediate == 0)
        return;
    if (c->shared_gate)
        graph_linear_exact(b, l->shared_gate, l->side, &gate, 1);
    layers_shared_of(b, l, l->side);
    if (c->shared_gate)
        graph_gate(b, l->side, l->shared_gate, EK_GATE_SIGMOID, (struct graph_run){.group = 1});
    graph_add(b, l->stream, l->side);
}

void layers_prefix(struct graph_builder *b, const struct layers *l, uint32_t layer)
{
    graph_prefix(b, "%s.%u.", l->layer ? l->layer : "model.layers", layer);
}

void layers_pre_norm(struct graph_builder *b, const struct layers *l, uint32_t layer)
{
    layers_prefix(b, l, layer);
    graph_norm(b, l->side, l->stream, l->norm ? l->norm : "input_layernorm");
    if (b->config->recurrent[layer])
        delta_attention(b, l, l->side);
    else
        layers_attention(b, l, layer);
    graph_add(b, l->stream, l->side);
    graph_norm(b, l->side, l->stream, l->mlp_norm ? l->mlp_norm : "post_attention_layernorm");
    layers_mixed(b, l, layer);
}

void layers_pre_norms(struct graph_builder *b, const struct layers *l, const struct model_config *c)
{
    for (uint32_t i = 0; i < c->layers; i++)
        layers_pre_norm(b, l, i);
}

void layers_write(struct graph_builder *b, struct layers *l, const struct model_config *c)
{
    layers_begin(b, l);
    layers_pre_norms(b, l, c);
    layers_end(b, l);
}

void layers_parallel(struct graph_builder *b, const struct layers *l, const struct model_config *c)
{
    const uint16_t normed = graph_value(b, c->hidden);

    for (uint32_t i = 0; i < c->layers; i++) {
        layers_prefix(b, l, i);
        graph_norm(b, normed, l->stream, l->norm ? l->norm : "input_layernorm");
        layers_attention_of(b, l, normed, i);
        graph_add(b, l->stream, l->side);
        layers_feed_forward_of(b, l, normed);
        graph_add(b, l->stream, l->side);
    }
}

void layers_post_norm(struct graph_builder *b, const struct layers *l, uint32_t layer)
{
    const bool mixture = b->config->experts > 0;

    layers_prefix(b, l, layer);
    layers_attention_of(b, l, l->stream, layer);
    graph_norm(b, l->side, l->side, "post_attention_layernorm");
    graph_add(b, l->stream, l->side);
    if (mixture)
        graph_experts(b, l->mixed, l->stream, l->router, &l->experts);
    else
        layers_feed_forward_of(b, l, l->stream);
    graph_norm(b, l->side, mixture ? l->mixed : l->side, "post_feedforward_layernorm");
    graph_add(b, l->stream, l->side);
}

void layers_both_norms(struct graph_builder *b, const struct layers *l,
                       const struct layer_norms *names, uint32_t layer)
{
    layers_prefix(b, l, layer);
    graph_norm(b, l->side, l->stream, "input_layernorm");
    layers_attention(b, l, layer);
    if (names->after_attention)
        graph_norm(b, l->side, l->side, names->after_attention);
    graph_add(b, l->stream, l->side);
    graph_norm(b, l->side, l->stream, names->before_mlp);
    layers_feed_forward(b, l);
    if (names->after_mlp)
        graph_norm(b, l->side, l->side, names->after_mlp);
    graph_add(b, l->stream, l->side);
}

void layers_end(struct graph_builder *b, const struct layers *l)
{
    graph_head(b, l->stream, "model.norm", "model.embed_tokens");
}
