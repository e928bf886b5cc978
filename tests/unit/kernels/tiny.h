/*
 * A small random model as a graph: what the tests of the backends share. tiny_plain.h has its
 * answer by a plain computation, tiny_device.h a device that has loaded it. Header only, as these
 * two, because a unit test is one source file.
 */
#pragma once

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/num.h"
#include "kernels/quant.h"

#define TINY_OPS     96
#define TINY_WEIGHTS 128
#define TINY_STATES  18u /* two of them behind those of the sequences */

struct tiny_params {
    enum ek_dtype dtype;
    uint32_t layers, hidden, q_heads, kv_heads, head_dim, rotary, ffn, vocab, window;
    float softcap;
    bool qk_norm, bias, tied;
    enum ek_activation act;
    uint32_t experts, top; /* instead of one feed-forward */
    bool normalise, corrected;
    struct ek_routing routing; /* but for the correction and `normalise`; scale 0 = 1 */
    bool sinks, expert_bias;
    bool neighbours, chunks;
    uint32_t warm_every; /* with a warmth of 0.7, from 1 */
    enum ek_dtype kept;  /* how products keep their weights, EK_F32 = as `dtype` */
    uint32_t group;
    bool kv_i8;             /* an int8 KV cache */
    uint32_t above, prompt; /* dynamic frequencies, for prompts of this many tokens */
    float k_scale, v_scale; /* a KV cache of 8 bits if they are not 0 */
    uint64_t offload;       /* bytes of weights that stay in host memory */
};

struct tiny {
    struct tiny_params p;
    struct ek_graph g;
    struct ek_op op[TINY_OPS];
    struct ek_weight weight[TINY_WEIGHTS];
    uint32_t width[10];
    struct ek_rope rope;
    float inv_freq[64];
    float *data; /* all weights, f32, already rounded to dtype or quantized */
    float *raw;  /* the same before they were quantized: the file */
    bool product;
    size_t floats, room;
    struct ek_weight_file file;
    struct ek_weight_files files;
    uint64_t random;
};

static inline uint64_t tiny_next(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

static inline float tiny_float(uint64_t *state) /* -1 .. 1 */
{
    return (float)tiny_next(state) * 0x1p-30f - 1.0f;
}

/* What the numbers of kept weights are worth. */
static inline void tiny_quantize(struct tiny *t, struct ek_weight *w)
{
    const uint32_t group = t->p.group > 0 && t->p.group < w->cols ? t->p.group : w->cols;
    float *row = t->data + t->floats - (size_t)w->rows * w->cols;

    w->dtype = t->p.kept;
    w->group = t->p.group;
    for (uint32_t i = 0; i < w->rows; i++, row += w->cols)
        for (uint32_t k = 0; k < w->cols; k += group) {
            uint8_t number[2048];
            uint32_t n = w->cols - k < group ? w->cols - k : group;
            float scale = w->dtype == EK_I4
                              ? ek_quantize_scale4(row + k, n)
                              : ek_quantize_scale(w->dtype, ek_quantize_most(row + k, n, 0.0f));
            ek_quantize(w->dtype, scale, row + k, n, number);
            for (uint32_t j = 0; j < n; j++) {
                float value = (float)(int8_t)number[j];
                if (w->dtype == EK_F8_E4M3)
                    value = cpu_from_f8(number[j]);
                if (w->dtype == EK_I4)
                    value = (float)number[j] - 8.0f;
                row[k + j] = value * scale;
            }
        }
}

static inline uint32_t tiny_weight(struct tiny *t, uint32_t rows, uint32_t cols, float scale,
                                   float around)
{
    bool matrix = rows > 1 && cols > 1;
    struct ek_weight *w = &t->weight[t->g.weight_count];
    enum ek_dtype dtype = matrix ? t->p.dtype : EK_F32;

    *w = (struct ek_weight){
        .name = "w", .source = EK_F32, .dtype = dtype, .rows = rows, .cols = cols, .parts = 1};
    uint32_t half = rows / 2; /* in two parts where that is possible */
    w->part[0] = (struct ek_weight_part){0, t->floats * sizeof(float), rows, 0};
    if (half > 0) {
        w->parts = 2;
        w->part[0].rows = half;
        w->part[1] = (struct ek_weight_part){0, (t->floats + (size_t)half * cols) * sizeof(float),
                                             rows - half, 0};
    }
    for (size_t i = 0; i < (size_t)rows * cols && t->floats < t->room; i++) {
        float f = around + scale * tiny_float(&t->random);
        uint8_t stored[4];
        cpu_store(dtype, stored, 0, f);
        t->raw[t->floats] = cpu_load(dtype, stored, 0);
        t->data[t->floats] = t->raw[t->floats];
        t->floats++;
    }
    if (matrix && t->product && t->p.kept != EK_F32)
        tiny_quantize(t, w);
    return t->g.weight_count++;
}

static inline struct ek_op *tiny_op(struct tiny *t, enum ek_op_kind kind, uint16_t dst,
                                    uint16_t src, uint32_t weight)
{
    struct ek_op *op = &t->op[t->g.op_count++];
    *op = (struct ek_op){
        .kind = kind, .dst = dst, .src = src, .weight = weight, .bias = EK_NO_WEIGHT};
    return op;
}

static inline void tiny_linear(struct tiny *t, uint16_t dst, uint16_t src)
{
    uint32_t n = t->width[dst], k = t->width[src];
    t->product = true;
    uint32_t w = tiny_weight(t, n, k, 1.7f / sqrtf((float)k), 0.0f);
    t->product = false;
    struct ek_op *op = tiny_op(t, EK_OP_LINEAR, dst, src, w);
    if (t->p.bias)
        op->bias = tiny_weight(t, n, 1, 0.1f, 0.0f);
}

static inline void tiny_norm(struct tiny *t, uint16_t dst, uint16_t src, uint32_t group,
                             uint32_t heads)
{
    struct ek_op *op = tiny_op(t, EK_OP_NORM, dst, src, tiny_weight(t, 1, group, 0.2f, 1.0f));
    op->u.norm.eps = 1e-5f;
    op->u.norm.group = group;
    op->u.norm.heads = heads;
}

/* A bias for each expert. */
static inline uint32_t tiny_biases(struct tiny *t, uint32_t experts, uint32_t n)
{
    const enum ek_dtype dtype = t->p.dtype;

    t->p.dtype = EK_F32;
    uint32_t w = tiny_weight(t, experts, n, 0.5f, 0.1f);
    t->p.dtype = dtype;
    return w;
}

static inline void tiny_experts(struct tiny *t)
{
    const struct tiny_params *p = &t->p;
    uint32_t first[3] = {0};

    tiny_linear(t, 8, 1);
    t->product = true;
    for (uint32_t m = 0; m < 3; m++)
        for (uint32_t e = 0; e < p->experts; e++) {
            uint32_t n = m == 2 ? p->hidden : p->ffn, k = m == 2 ? p->ffn : p->hidden;
            uint32_t w = tiny_weight(t, n, k, 1.7f / sqrtf((float)k), 0.0f);
            first[m] = e == 0 ? w : first[m];
        }
    t->product = false;
    struct ek_op *op = tiny_op(t, EK_OP_EXPERTS, 4, 1, first[0]);
    op->u.experts.router = 8;
    op->u.experts.count = (uint16_t)p->experts;
    op->u.experts.top = (uint16_t)p->top;
    op->u.experts.routing = p->routing;
    op->u.experts.routing.normalise = p->normalise;
    if (p->routing.scale <= 0)
        op->u.experts.routing.scale = 1.0f;
    op->u.experts.routing.correction =
        p->corrected ? tiny_weight(t, p->experts, 1, 0.5f, 0.0f) : EK_NO_WEIGHT;
    op->u.experts.routing.each = EK_NO_WEIGHT;
    op->u.experts.act = p->act;
    op->u.experts.up = first[1];
    op->u.experts.down = first[2];
    op->u.experts.up_bias = op->u.experts.down_bias = EK_NO_WEIGHT;
    if (p->expert_bias) {
        op->bias = tiny_biases(t, p->experts, p->ffn);
        op->u.experts.up_bias = tiny_biases(t, p->experts, p->ffn);
        op->u.experts.down_bias = tiny_biases(t, p->experts, p->hidden);
    }
}

static inline void tiny_layer(struct tiny *t, uint32_t layer)
{
    const struct tiny_params *p = &t->p;

    tiny_norm(t, 1, 0, p->hidden, 1);
    tiny_linear(t, 2, 1);
    if (p->qk_norm)
        tiny_norm(t, 2, 2, p->head_dim, p->q_heads + p->kv_heads);
    struct ek_op *rope = tiny_op(t, EK_OP_ROPE, 2, 2, EK_NO_WEIGHT);
    rope->u.rope.heads = p->q_heads + p->kv_heads;
    rope->u.rope.head_dim = p->head_dim;
    rope->u.rope.rotary_dim = p->rotary;
    rope->u.rope.neighbours = p->neighbours;
    rope->u.rope.warm = 0.7f;
    rope->u.rope.warm_from = 1;
    rope->u.rope.warm_every = p->warm_every;
    struct ek_op *a = tiny_op(t, EK_OP_ATTENTION, 3, 2, EK_NO_WEIGHT);
    a->layer = layer;
    a->u.attention.q_heads = p->q_heads;
    a->u.attention.kv_heads = p->kv_heads;
    a->u.attention.head_dim = p->head_dim;
    a->u.attention.scale = 1.0f / sqrtf((float)p->head_dim);
    a->u.attention.softcap = p->softcap;
    a->u.attention.window = p->window;
    a->u.attention.chunks = p->chunks;
    if (p->sinks)
        a->bias = tiny_weight(t, p->q_heads, 1, 1.5f, 0.5f);
    a->u.attention.k_scale = p->k_scale;
    a->u.attention.v_scale = p->v_scale;
    tiny_linear(t, 4, 3);
    tiny_op(t, EK_OP_ADD, 0, 4, EK_NO_WEIGHT)->u.add.scale = 1.0f;
    tiny_norm(t, 1, 0, p->hidden, 1);
    if (p->experts > 0) {
        tiny_experts(t);
    } else {
        tiny_linear(t, 5, 1);
        tiny_op(t, EK_OP_GLU, 6, 5, EK_NO_WEIGHT)->u.glu.act = p->act;
        tiny_linear(t, 4, 6);
    }
    tiny_op(t, EK_OP_ADD, 0, 4, EK_NO_WEIGHT)->u.add.scale = 0.9f;
}

static inline struct tiny *tiny_new(const struct tiny_params *p)
{
    struct tiny *t = calloc(1, sizeof(*t));

    t->p = *p;
    t->room = (1u << 20) + 2 * (size_t)p->vocab * p->hidden;
    t->data = malloc(t->room * sizeof(float));
    t->raw = malloc(t->room * sizeof(float));
    t->random = 42;
    uint32_t qkv = (p->q_heads + 2 * p->kv_heads) * p->head_dim, q = p->q_heads * p->head_dim;
    uint32_t experts = p->experts > 0 ? p->experts : 1;
    uint32_t width[9] = {p->hidden,  p->hidden, qkv,       q,      p->hidden,
                         2 * p->ffn, p->ffn,    p->hidden, experts};
    memcpy(t->width, width, sizeof(width));
    t->g = (struct ek_graph){.ops = t->op,
                             .weights = t->weight,
                             .value_width = t->width,
                             .value_count = 9,
                             .ropes = &t->rope,
                             .rope_count = 1,
                             .layers = p->layers,
                             .kv_heads = p->kv_heads,
                             .head_dim = p->head_dim,
                             .hidden = p->hidden,
                             .vocab = p->vocab,
                             .max_position = 4096,
                             .dtype = p->dtype,
                             .kv_i8 = p->kv_i8,
                             .kv_f8 = p->k_scale != 0.0f};
    for (uint32_t i = 0; i < p->rotary / 2; i++)
        t->inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)p->rotary);
    t->rope = (struct ek_rope){.inv_freq = t->inv_freq,
                               .count = p->rotary / 2,
                               .factor = 1.0f,
                               .above = p->above,
                               .theta = 10000.0,
                               .grow = 3.0};
    t->product = p->tied; /* it is that of the output layer, too */
    uint32_t embed = tiny_weight(t, p->vocab, p->hidden, 1.0f, 0.0f);
    t->product = false;
    tiny_op(t, EK_OP_EMBED, 0, 0, embed)->u.embed.scale = 1.5f;
    for (uint32_t i = 0; i < p->layers; i++)
        tiny_layer(t, i);
    tiny_op(t, EK_OP_PICK, 7, 0, EK_NO_WEIGHT);
    tiny_norm(t, 7, 7, p->hidden, 1);
    t->product = true;
    uint32_t head = p->tied ? embed : tiny_weight(t, p->vocab, p->hidden, 0.5f, 0.0f);
    t->product = false;
    tiny_op(t, EK_OP_LOGITS, 0, 7, head)->u.logits.scale = 0.5f;
    t->file = (struct ek_weight_file){t->raw, t->floats * sizeof(float), false};
    t->files = (struct ek_weight_files){&t->file, 1};
    return t;
}

static inline void tiny_free(struct tiny *t)
{
    free(t->data);
    free(t->raw);
    free(t);
}

/* What a weight is worth, as rows of floats. */
static inline const float *tiny_data(const struct tiny *t, uint32_t weight)
{
    return t->data + t->weight[weight].part[0].offset_bytes / sizeof(float);
}
