/*
 * Linear attention by the gated delta rule (struct ek_delta) as Qwen3-Next and Qwen3.5 have it: q,
 * k and v go through a short convolution, what comes out is normed for each head and gated. Files
 * have the products of one kind after the other (in_proj_qkv, _z, _b, _a), or, in Qwen3-Next, those
 * of each head of k together (in_proj_qkvz: [q | k | its heads of v | as many of z]; in_proj_ba),
 * or, in OLMo Hybrid, each apart (q_proj, k_proj, v_proj, g_proj; b_proj, a_proj), with
 * convolutions that transformers cuts into three of one size when it saves them, wherever q, k and
 * v end.
 */
#include <stdio.h>

#include "common/err.h"
#include "server/model/graph_weights.h"
#include "server/model/layers.h"
#include "server/model/safetensors.h"

#define APART_EPS 1e-5f /* of the norm behind it, whatever rms_norm_eps says */

static const char *const convolutions[DELTA_PARTS] = {
    "linear_attn.q_conv1d", "linear_attn.k_conv1d", "linear_attn.v_conv1d"};

void delta_begin(struct graph_builder *b, struct layers *l)
{
    const struct config_delta *t = &b->config->delta;
    const uint32_t keys = t->k_heads * t->k_dim, values = t->v_heads * t->v_dim;

    l->delta.wide = graph_value(b, 2 * keys + 2 * values);
    l->delta.gates = graph_value(b, 2 * t->v_heads);
    if (l->delta_by_heads) {
        l->delta.woven = graph_value(b, 2 * keys + 2 * values);
        l->delta.woven_gates = graph_value(b, 2 * t->v_heads);
    }
    l->delta.qkv = graph_value(b, 2 * keys + values);
    l->delta.out = graph_value(b, values);
}

/* Channels of a convolution, as the file says: the shapes are checked when it is read. */
static uint32_t channels_of(const struct graph_builder *b, const char *name)
{
    char full[160];
    (void)snprintf(full, sizeof(full), "%s%s.weight", b->prefix, name);
    const struct st_tensor *t = st_find(b->tensors, full);
    return t && t->dims == 3 && t->shape[0] <= UINT16_MAX ? (uint32_t)t->shape[0] : 0;
}

void delta_begin_apart(struct graph_builder *b, struct layers *l, uint32_t layer)
{
    const struct config_delta *t = &b->config->delta;
    const uint32_t wide = 2 * t->k_heads * t->k_dim + t->v_heads * t->v_dim;
    uint32_t sum = 0;

    layers_prefix(b, l, layer);
    if (channels_of(b, "linear_attn.conv1d") == wide)
        return;
    for (uint32_t i = 0; i < DELTA_PARTS; i++) {
        const uint32_t n = channels_of(b, convolutions[i]);
        sum += n;
        if (n > 0)
            l->delta.part[l->delta.parts++] = graph_value(b, n);
    }
    if (!b->error && (sum != wide || l->delta.parts != DELTA_PARTS))
        b->error = ek_fault_set(b->fault, "linear_attn.q_conv1d",
                                "model.safetensors: the convolutions of layer %u have %u channels "
                                "together but config.json asks for %u; use the files of one model",
                                layer, sum, wide);
}

/* Each part of q | k | v goes through its own. */
static void convolve_apart(struct graph_builder *b, const struct layers *l)
{
    uint32_t first = 0;

    for (uint32_t i = 0; i < l->delta.parts; i++) {
        const uint32_t n = graph_width(b, l->delta.part[i]);
        graph_convolve(b, l->delta.part[i], l->delta.wide,
                       &(struct graph_conv){.name = convolutions[i],
                                            .first = first,
                                            .kernel = b->config->delta.kernel,
                                            .silu = true});
        first += n;
    }
    first = 0;
    for (uint32_t i = 0; i < l->delta.parts; i++) {
        const uint32_t n = graph_width(b, l->delta.part[i]);
        graph_take(b, l->delta.qkv, l->delta.part[i], (struct graph_run){0, 0, n, 1, first});
        first += n;
    }
}

/* wide = [q | k | v | z] and gates = [b | a], each of all heads. */
static void delta_inputs(struct graph_builder *b, const struct layers *l, uint16_t src)
{
    const struct config_delta *t = &b->config->delta;
    const uint32_t keys = t->k_heads * t->k_dim, values = t->v_heads * t->v_dim;
    const struct graph_part plain[] = {{"linear_attn.in_proj_qkv", 2 * keys + values},
                                       {"linear_attn.in_proj_z", values}};
    const struct graph_part gates[] = {{"linear_attn.in_proj_b", t->v_heads},
                                       {"linear_attn.in_proj_a", t->v_heads}};
    const struct graph_part apart[] = {{"linear_attn.q_proj", keys},
                                       {"linear_attn.k_proj", keys},
                                       {"linear_attn.v_proj", values},
                                       {"linear_attn.g_proj", values}};
    const struct graph_part gates_apart[] = {{"linear_attn.b_proj", t->v_heads},
                                             {"linear_attn.a_proj", t->v_heads}};
    const struct graph_part woven = {"linear_attn.in_proj_qkvz", 2 * keys + 2 * values};
    const struct graph_part woven_gates = {"linear_attn.in_proj_ba", 2 * t->v_heads};

    if (l->delta_apart) {
        graph_linear(b, l->delta.wide, src, apart, 4, false);
        graph_linear_exact(b, l->delta.gates, src, gates_apart, 2);
        return;
    }
    if (!l->delta_by_heads) {
        graph_linear(b, l->delta.wide, src, plain, 2, false);
        graph_linear_exact(b, l->delta.gates, src, gates, 2);
        return;
    }
    const uint32_t d = t->k_dim, n = t->k_heads, each = values / n, heads = t->v_heads / n;
    const uint32_t step = 2 * d + 2 * each;
    graph_linear(b, l->delta.woven, src, &woven, 1, false);
    graph_linear_exact(b, l->delta.woven_gates, src, &woven_gates, 1);
    graph_take(b, l->delta.wide, l->delta.woven, (struct graph_run){0, step, d, n, 0});
    graph_take(b, l->delta.wide, l->delta.woven, (struct graph_run){d, step, d, n, keys});
    graph_take(b, l->delta.wide, l->delta.woven,
               (struct graph_run){2 * d, step, each, n, 2 * keys});
    graph_take(b, l->delta.wide, l->delta.woven,
               (struct graph_run){2 * d + each, step, each, n, 2 * keys + values});
    graph_take(b, l->delta.gates, l->delta.woven_gates,
               (struct graph_run){0, 2 * heads, heads, n, 0});
    graph_take(b, l->delta.gates, l->delta.woven_gates,
               (struct graph_run){heads, 2 * heads, heads, n, t->v_heads});
}

void delta_attention(struct graph_builder *b, const struct layers *l, uint16_t src)
{
    const struct config_delta *t = &b->config->delta;
    const uint32_t keys = t->k_heads * t->k_dim, values = t->v_heads * t->v_dim;
    const struct graph_part out = {l->delta_apart ? "linear_attn.o_proj" : "linear_attn.out_proj",
                                   b->config->hidden};
    const struct graph_conv conv = {
        .name = "linear_attn.conv1d", .kernel = t->kernel, .silu = true};

    delta_inputs(b, l, src);
    if (l->delta.parts > 0)
        convolve_apart(b, l);
    else
        graph_convolve(b, l->delta.qkv, l->delta.wide, &conv);
    graph_delta(b, l->delta.out, l->delta.qkv, l->delta.gates, "linear_attn.A_log",
                "linear_attn.dt_bias");
    graph_norm_groups(b, l->delta.out, l->delta_apart ? "linear_attn.o_norm" : "linear_attn.norm",
                      t->v_dim);
    if (l->delta_apart && !b->error)
        b->graph->ops[b->graph->op_count - 1].u.norm.eps = APART_EPS;
    graph_gate(b, l->delta.out, l->delta.wide, EK_GATE_SILU,
               (struct graph_run){.first = 2 * keys + values, .step = values, .group = values});
    graph_linear(b, l->side, l->delta.out, &out, 1, false);
}
