/*
 * The answer of a tiny model by a plain computation in double, without any cache: what tests hold
 * the backends against.
 */
#pragma once

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/num.h"
#include "tests/unit/kernels/tiny.h"

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

static inline void tiny_ref_rope(const struct tiny *t, const struct ek_op *op, uint32_t row,
                                 double *dst)
{
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
        tiny_ref_rope(t, op, row, dst);
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
