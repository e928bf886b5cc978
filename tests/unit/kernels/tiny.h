/*
 * A small random model as a graph, its answer by a plain computation in double without any cache,
 * and a writer of steps: what the tests of the CPU backend share. Header only, because a unit test
 * is one source file.
 */
#pragma once

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/cpu/num.h"
#include "kernels/quant.h"
#include "kernels/registry.h"

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
    uint32_t width[9];
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

/* ---- the plain computation ---- */

static inline const float *tiny_data(const struct tiny *t, uint32_t weight)
{
    return t->data + t->weight[weight].part[0].offset_bytes / sizeof(float);
}

static inline double tiny_act(double x, enum ek_activation a)
{
    if (a == EK_ACT_SILU)
        return x / (1 + exp(-x));
    if (a == EK_ACT_GELU)
        return 0.5 * x * (1 + erf(x / sqrt(2.0)));
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static inline double tiny_gated(double gate, double up, enum ek_activation a)
{
    if (a != EK_ACT_SWIGLU_CLAMPED)
        return tiny_act(gate, a) * up;
    gate = gate < 7 ? gate : 7;
    up = up < -7 ? -7 : up > 7 ? 7 : up;
    return gate / (1 + exp(-1.702 * gate)) * (up + 1);
}

/* A key or value becomes what the cache keeps of it. */
static inline void tiny_cached(const struct tiny_params *p, double *x, float scale)
{
    double most = 0;

    for (uint32_t i = 0; i < p->head_dim; i++)
        most = fabs(x[i]) > most ? fabs(x[i]) : most;
    for (uint32_t i = 0; i < p->head_dim; i++) {
        uint8_t stored[4];
        cpu_store(p->dtype, stored, 0, (float)x[i]);
        const float value = cpu_load(p->dtype, stored, 0);
        if (p->k_scale != 0.0f)
            x[i] = (double)(cpu_from_f8(cpu_to_f8(value / scale)) * scale);
        else if (!p->kv_i8)
            x[i] = (double)value;
        else if (most > 0)
            x[i] = rint(x[i] * 127 / most) * most / 127;
    }
}

static inline void tiny_ref_attention(const struct tiny *t, const struct ek_op *op, uint32_t n,
                                      double **value)
{
    uint32_t hd = t->p.head_dim, qh = t->p.q_heads, kh = t->p.kv_heads, w = t->width[2];
    double *score = malloc(n * sizeof(double));

    for (uint32_t i = 0; i < n; i++)
        for (uint32_t h = qh; h < qh + 2 * kh; h++)
            tiny_cached(&t->p, value[2] + (size_t)i * w + (size_t)h * hd,
                        h < qh + kh ? t->p.k_scale : t->p.v_scale);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < qh; h++) {
            const double *q = value[2] + (size_t)i * w + (size_t)h * hd;
            double *out = value[3] + (size_t)i * qh * hd + (size_t)h * hd, sum = 0, most = -1e300;
            uint32_t from = t->p.window && i + 1 > t->p.window ? i + 1 - t->p.window : 0;
            if (t->p.chunks)
                from = i - i % t->p.window;
            uint32_t kv = h / (qh / kh);
            memset(out, 0, hd * sizeof(double));
            for (uint32_t j = from; j <= i; j++) {
                const double *k = value[2] + (size_t)j * w + (size_t)(qh + kv) * hd;
                double s = 0;
                for (uint32_t d = 0; d < hd; d++)
                    s += q[d] * k[d];
                s *= (double)op->u.attention.scale;
                double cap = (double)op->u.attention.softcap;
                score[j] = cap > 0 ? cap * tanh(s / cap) : s;
                most = score[j] > most ? score[j] : most;
            }
            for (uint32_t j = from; j <= i; j++)
                sum += exp(score[j] - most);
            if (op->bias != EK_NO_WEIGHT)
                sum += exp((double)tiny_data(t, op->bias)[h] - most);
            for (uint32_t j = from; j <= i; j++) {
                const double *v = value[2] + (size_t)j * w + (size_t)(qh + kh + kv) * hd;
                for (uint32_t d = 0; d < hd; d++)
                    out[d] += exp(score[j] - most) / sum * v[d];
            }
        }
    free(score);
}

static inline double tiny_bias(const struct tiny *t, uint32_t weight, uint32_t at)
{
    return weight == EK_NO_WEIGHT ? 0 : (double)tiny_data(t, weight)[at];
}

/* What all experts are worth, and what they compete with: -INFINITY in groups that lost. */
static inline void tiny_ref_scores(const struct tiny *t, const struct ek_op *op,
                                   const double *logit, double *score, double *competes)
{
    const struct ek_routing *r = &op->u.experts.routing;
    const uint32_t count = op->u.experts.count, groups = r->groups > 0 ? r->groups : 1;
    double all = 0, worth[16] = {0};

    for (uint32_t e = 0; e < count; e++)
        all += exp(logit[e]);
    for (uint32_t e = 0; e < count; e++) {
        score[e] = r->score == EK_SCORE_SIGMOID ? 1 / (1 + exp(-logit[e])) : exp(logit[e]) / all;
        competes[e] = score[e] + tiny_bias(t, r->correction, e);
    }
    const uint32_t n = count / groups;
    for (uint32_t e = 0; e < count; e++) {
        uint32_t before = 0;
        for (uint32_t o = e / n * n; o < e / n * n + n; o++)
            before += competes[o] > competes[e];
        worth[e / n] += before < r->group_best ? competes[e] : 0;
    }
    for (uint32_t e = 0; r->groups > 0 && e < count; e++) {
        uint32_t before = 0;
        for (uint32_t g = 0; g < groups; g++)
            before += worth[g] > worth[e / n];
        if (before >= r->groups_top)
            competes[e] = -INFINITY;
    }
}

static inline void tiny_ref_experts(const struct tiny *t, const struct ek_op *op, const double *x,
                                    const double *logit, double *dst)
{
    const uint32_t count = op->u.experts.count, k = t->p.hidden, n = t->p.ffn;
    const struct ek_routing *r = &op->u.experts.routing;
    double share[16], competes[16], kept = 0;

    tiny_ref_scores(t, op, logit, share, competes);
    for (uint32_t e = 0; e < count; e++) {
        uint32_t before = 0;
        for (uint32_t o = 0; o < count; o++)
            before += competes[o] > competes[e] || (competes[o] == competes[e] && o < e);
        share[e] = before < op->u.experts.top ? share[e] : 0;
        kept += share[e];
    }
    memset(dst, 0, k * sizeof(double));
    for (uint32_t e = 0; e < count; e++) {
        const float *gate = tiny_data(t, op->weight + e);
        const float *up = tiny_data(t, op->u.experts.up + e);
        const float *down = tiny_data(t, op->u.experts.down + e);
        const double whole = share[e] / (r->normalise ? kept : 1) * (double)r->scale;
        const double in = r->share_in ? whole : 1, by = r->share_in ? 1 : whole;
        for (uint32_t j = 0; j < k && share[e] > 0; j++)
            dst[j] += by * tiny_bias(t, op->u.experts.down_bias, e * k + j);
        for (uint32_t i = 0; i < n && share[e] > 0; i++) {
            double g = tiny_bias(t, op->bias, e * n + i);
            double u = tiny_bias(t, op->u.experts.up_bias, e * n + i);
            for (uint32_t j = 0; j < k; j++) {
                g += in * x[j] * (double)gate[(size_t)i * k + j];
                u += in * x[j] * (double)up[(size_t)i * k + j];
            }
            double inner = tiny_gated(g, u, op->u.experts.act) * by;
            for (uint32_t j = 0; j < k; j++)
                dst[j] += inner * (double)down[(size_t)j * n + i];
        }
    }
}

static inline void tiny_ref_row(const struct tiny *t, const struct ek_op *op, uint32_t row,
                                int32_t token, double **value)
{
    double *dst = value[op->dst] + (size_t)row * t->width[op->dst];
    const double *src = value[op->src] + (size_t)row * t->width[op->src];
    uint32_t n = t->width[op->dst], k = t->width[op->src];
    const float *w = op->weight == EK_NO_WEIGHT ? NULL : tiny_data(t, op->weight);

    if (op->kind == EK_OP_EMBED) {
        for (uint32_t i = 0; i < n; i++)
            dst[i] = (double)w[(size_t)token * n + i] * (double)op->u.embed.scale;
    } else if (op->kind == EK_OP_NORM) {
        for (uint32_t h = 0; h < op->u.norm.heads; h++) {
            double sum = 0;
            uint32_t g = op->u.norm.group, at = h * g;
            for (uint32_t i = 0; i < g; i++)
                sum += src[at + i] * src[at + i];
            for (uint32_t i = 0; i < g; i++)
                dst[at + i] = src[at + i] / sqrt(sum / g + (double)op->u.norm.eps) * (double)w[i];
        }
    } else if (op->kind == EK_OP_LINEAR) {
        for (uint32_t i = 0; i < n; i++) {
            dst[i] = op->bias == EK_NO_WEIGHT ? 0.0 : (double)tiny_data(t, op->bias)[i];
            for (uint32_t j = 0; j < k; j++)
                dst[i] += src[j] * (double)w[(size_t)i * k + j];
        }
    } else if (op->kind == EK_OP_ROPE) {
        uint32_t half = op->u.rope.rotary_dim / 2;
        double length = row + 1 > t->p.prompt ? row + 1 : t->p.prompt, base = 1;
        bool beyond = t->p.above > 0 && length > t->p.above;
        if (beyond)
            base = 10000 * pow(3 * length / t->p.above - 2, half / (half - 1.0));
        for (uint32_t h = 0; h < op->u.rope.heads; h++)
            for (uint32_t i = 0; i < half; i++) {
                const uint32_t apart = t->p.neighbours ? 1 : half;
                double *x = dst + (size_t)h * op->u.rope.head_dim + (t->p.neighbours ? 2 * i : i);
                const double a = x[0], b = x[apart];
                float freq = beyond ? (float)pow(base, -1.0 * i / half) : t->inv_freq[i];
                double angle = (double)((float)row * freq);
                x[0] = a * cos(angle) - b * sin(angle);
                x[apart] = b * cos(angle) + a * sin(angle);
            }
        const double by =
            t->p.warm_every > 0 ? 1 + 0.7 * log(1 + floor((row + 1.0) / t->p.warm_every)) : 1;
        for (uint32_t i = 0; i < op->u.rope.heads * op->u.rope.head_dim; i++)
            dst[i] *= by;
    } else if (op->kind == EK_OP_GLU) {
        for (uint32_t i = 0; i < n; i++)
            dst[i] = tiny_gated(src[i], src[n + i], op->u.glu.act);
    } else if (op->kind == EK_OP_EXPERTS) {
        tiny_ref_experts(t, op, src, value[8] + (size_t)row * t->width[8], dst);
    } else if (op->kind == EK_OP_ADD) {
        for (uint32_t i = 0; i < n; i++)
            dst[i] += src[i] * (double)op->u.add.scale;
    } else if (op->kind == EK_OP_PICK) {
        memcpy(dst, src, n * sizeof(double));
    }
}

/* The logits after the last of n tokens. */
static inline void tiny_reference(const struct tiny *t, const int32_t *tokens, uint32_t n,
                                  double *logits)
{
    double *value[9];

    for (int i = 0; i < 9; i++)
        value[i] = calloc((size_t)n * t->width[i], sizeof(double));
    for (uint32_t i = 0; i < t->g.op_count; i++) {
        const struct ek_op *op = &t->op[i];
        if (op->kind == EK_OP_ATTENTION) {
            tiny_ref_attention(t, op, n, value);
            continue;
        }
        if (op->kind == EK_OP_LOGITS) {
            const double *x = value[7] + (size_t)(n - 1) * t->p.hidden;
            const float *w = tiny_data(t, op->weight);
            for (uint32_t v = 0; v < t->p.vocab; v++) {
                logits[v] = 0;
                for (uint32_t k = 0; k < t->p.hidden; k++)
                    logits[v] += x[k] * (double)w[(size_t)v * t->p.hidden + k];
                logits[v] *= (double)op->u.logits.scale;
            }
            continue;
        }
        for (uint32_t row = 0; row < n; row++)
            tiny_ref_row(t, op, row, tokens[row], value);
    }
    for (int i = 0; i < 9; i++)
        free(value[i]);
}

/* ---- a device with the model loaded, and steps for it ---- */

struct tiny_device {
    const struct ek_backend *b;
    struct ek_device *d;
    struct ek_step_ceiling ceiling;
    uint32_t block_size, prompt;
    struct ek_step *step;
    struct ek_result *result;
    uint64_t id;
};

static inline void tiny_close(struct tiny_device *x)
{
    if (x->b)
        x->b->close(x->d);
    free(x->step);
    free(x->result);
    *x = (struct tiny_device){0};
}

/* With ceilings of the test's own. */
static inline int tiny_open_for(const struct ek_backend *b, const struct tiny *t,
                                const struct ek_open_params *open, const struct ek_plan_request *q,
                                uint32_t blocks, struct tiny_device *x)
{
    const struct ek_kv_params kv = {blocks, 4, q->block_size,
                                    t->g.state_floats > 0 ? TINY_STATES : 0};

    *x = (struct tiny_device){
        .b = b, .ceiling = q->ceiling, .block_size = q->block_size, .prompt = t->p.prompt};
    int r = x->b->open(open, &x->d, NULL);
    if (r == 0)
        r = x->b->load(x->d, q, &t->files, NULL, NULL, NULL);
    if (r == 0)
        r = x->b->kv_open(x->d, &kv);
    x->step = calloc(1, ek_step_size(&q->ceiling));
    x->result = calloc(1, ek_result_bytes(q->ceiling.seqs, q->ceiling.scores, q->ceiling.seqs, 64));
    if (r == 0 && (!x->step || !x->result))
        r = -12;
    if (r < 0)
        tiny_close(x);
    else
        ek_step_layout(x->step, &q->ceiling);
    return r;
}

static inline int tiny_open_on(const struct ek_backend *b, const struct tiny *t,
                               const struct ek_open_params *open, uint32_t block_size,
                               uint32_t blocks, struct tiny_device *x)
{
    const struct ek_plan_request q = {.graph = &t->g,
                                      .ceiling = {512, 16, 1024, 8, 4096, 8},
                                      .logit_rows = 24,
                                      .block_size = block_size,
                                      .offload_bytes = t->p.offload};

    return tiny_open_for(b, t, open, &q, blocks, x);
}

static inline int tiny_open(const struct tiny *t, const char *isa, uint32_t threads,
                            uint32_t block_size, uint32_t blocks, struct tiny_device *x)
{
    const struct ek_open_params open = {.threads = threads, .isa = isa};

    return tiny_open_on(ek_backend_find("cpu", NULL), t, &open, block_size, blocks, x);
}

static inline void tiny_set(struct tiny_device *x, const struct ek_slot_set *set)
{
    ek_step_sets(x->step)[x->step->sets++] = *set;
}

/* Adds rows [from, from + rows) of a sequence; token NULL = EK_FROM_PREVIOUS. table: all blocks. */
static inline void tiny_add(struct tiny_device *x, uint32_t slot, const int32_t *tokens,
                            uint32_t from, uint32_t rows, const uint32_t *table, bool sample)
{
    struct ek_step *s = x->step;
    uint32_t bs = x->block_size, blocks = (from + rows + bs - 1) / bs;

    ek_step_seqs(s)[s->seqs++] = (struct ek_step_seq){.slot = slot,
                                                      .row = s->rows,
                                                      .rows = rows,
                                                      .context = from + rows,
                                                      .table = s->entries,
                                                      .blocks = blocks,
                                                      .prompt = x->prompt,
                                                      .sample = sample,
                                                      .logit_row = sample ? s->logit_rows++ : 0};
    memcpy(ek_step_tables(s) + s->entries, table, blocks * sizeof(uint32_t));
    s->entries += blocks;
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t at = from + i;
        ek_step_tokens(s)[s->rows] = tokens ? tokens[at] : EK_FROM_PREVIOUS;
        ek_step_positions(s)[s->rows] = at;
        ek_step_kv_slots(s)[s->rows++] = table[at / bs] * bs + at % bs;
    }
}

/* Runs the step and begins a new, empty one. */
static inline int tiny_run(struct tiny_device *x, const struct ek_masks *masks)
{
    x->step->id = ++x->id;
    int r = x->b->forward(x->d, x->step);
    if (r == 0)
        r = x->b->sample(x->d, x->step, masks);
    if (r == 0)
        r = x->b->wait(x->d, x->id, x->result,
                       ek_result_bytes(x->ceiling.seqs, x->ceiling.scores, x->ceiling.seqs, 64),
                       60000000);
    ek_step_layout(x->step, &x->ceiling);
    return r < 0 ? r : x->result->error;
}
