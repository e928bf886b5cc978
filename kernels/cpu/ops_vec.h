/*
 * The body of the vector tiers. A tier's file defines the vector type and primitives below, then
 * includes this file, which ends in its table of operations.
 *
 *   VW          lanes of a vector: 8 or 16         vf   the vector of floats
 *   v_set1, v_fma(a, b, c) = a * b + c, v_min, v_max (second operand if one is not a number),
 *   v_sum, v_most: the lanes' sum in a fixed tree, and the largest
 *   v_exp2i_above(x, least, p, n) = x < least ? 0 : p * 2^n for whole n
 *   v_below(a, b, yes, no) = a < b ? yes : no, v_over(a, b) = a / b for b of 1 to 1e38
 *   v_load(t, p)          VW elements of type t as floats
 *   v_load_pair(t, p, h)  of a packed panel row: columns [VW h, VW h + VW) and the same plus 16
 *   v_load_part(t, p, n)  the first n < VW elements, zeros behind
 */
#pragma once

#include <math.h>
#include <string.h>

#include "kernels/cpu/expand.h"
#include "kernels/cpu/round8.h"
#include "kernels/cpu/tier.h"
#include "kernels/num.h"

#define INLINE  static inline __attribute__((always_inline))
#define HALVES  (16 / VW)
#define UNROLL8 _Pragma("GCC unroll 8")
#define UNROLL4 _Pragma("GCC unroll 4")
#define NOROLL  _Pragma("GCC unroll 1")

INLINE size_t elem_bytes(enum ek_dtype t)
{
    return t == EK_F32 ? 4 : t == EK_I8 ? 1 : 2;
}

INLINE void v_store(float *p, vf v)
{
    memcpy(p, &v, sizeof(v));
}

INLINE vf v_read(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof(v));
    return v;
}

INLINE vf v_read_part(const float *p, uint32_t n, float fill)
{
    vf v = v_set1(fill);
    memcpy(&v, p, n * sizeof(float));
    return v;
}

/* The exponential of one vector waits for each of its steps; so many side by side fill the time. */
#define EXPS 4

/* exp of what is not above 88, with less than one unit of error in the last place; 0 below -87.33.
 * The nearest whole number of powers of two is what adding a large number rounds to. */
INLINE void v_exps_low(vf *x, int count)
{
    const vf large = v_set1(0x1.8p23f);
    vf n[EXPS], r[EXPS], p[EXPS];

#define EXPS_EACH UNROLL4 for (int i = 0; i < count; i++)
    EXPS_EACH n[i] = v_fma(x[i], v_set1(1.44269504f), large) - large;
    EXPS_EACH r[i] = v_fma(n[i], v_set1(-0.693359375f), x[i]);
    EXPS_EACH r[i] = v_fma(n[i], v_set1(2.12194440e-4f), r[i]);
    /* of the sixth degree: at most 3e-9 beside exp */
    EXPS_EACH p[i] = v_fma(v_set1(1.3814173871651292e-3f), r[i], v_set1(8.368921466171741e-3f));
    EXPS_EACH p[i] = v_fma(p[i], r[i], v_set1(4.166840761899948e-2f));
    EXPS_EACH p[i] = v_fma(p[i], r[i], v_set1(1.666651964187622e-1f));
    EXPS_EACH p[i] = v_fma(p[i], r[i], v_set1(4.999999403953552e-1f));
    EXPS_EACH p[i] = v_fma(p[i], r[i], v_set1(1.0f));
    EXPS_EACH p[i] = v_fma(p[i], r[i], v_set1(1.0f));
    EXPS_EACH x[i] = v_exp2i_above(x[i], v_set1(-87.33f), p[i], n[i]);
#undef EXPS_EACH
}

INLINE vf v_exp_low(vf x)
{
    v_exps_low(&x, 1);
    return x;
}

/* The same, capped above 87, so that its inverse is no smaller than a normal number. */
INLINE void v_exps(vf *x, int count)
{
    UNROLL4
    for (int i = 0; i < count; i++)
        x[i] = v_min(v_set1(87.0f), x[i]);
    v_exps_low(x, count);
}

INLINE vf v_exp(vf x)
{
    v_exps(&x, 1);
    return x;
}

/* tanh by exp; small arguments keep their relative precision through x - x^3/3 + 2x^5/15. */
INLINE vf v_tanh(vf x)
{
    vf e = v_exp(x + x);
    vf big = v_set1(1.0f) - v_over(v_set1(2.0f), e + v_set1(1.0f));
    vf xx = x * x;
    vf poly = v_fma(xx, v_set1(-0.05396825f), v_set1(0.13333333f));
    poly = v_fma(xx, poly, v_set1(-0.33333333f));
    vf small = v_fma(x * xx, poly, x);
    return v_below(xx, v_set1(0.01f), small, big);
}

#include "kernels/cpu/gemm_vec.h"

#include "kernels/cpu/attend_vec.h"

/* The lanes from the `n`th on become -infinity. */
INLINE vf first_lanes(vf v, uint32_t n)
{
    static const float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

    return v_below(v_read(lanes), v_set1((float)n), v, v_set1(-INFINITY));
}

/* The largest of n scores, times `scale`. In four chains: each waits for itself alone. */
INLINE float most_of(const float *s, uint32_t n, float scale)
{
    const uint32_t whole = n / VW * VW;
    const vf by = v_set1(scale);
    vf most[4];
    uint32_t i = 0;

    UNROLL4
    for (int c = 0; c < 4; c++)
        most[c] = v_set1(-INFINITY);
    for (; i + 4 * VW <= n; i += 4 * VW)
        UNROLL4
    for (int c = 0; c < 4; c++)
        most[c] = v_max(most[c], v_read(s + i + c * VW) * by);
    for (; i < whole; i += VW)
        most[0] = v_max(most[0], v_read(s + i) * by);
    if (i < n)
        most[0] = v_max(most[0], first_lanes(v_read(s + i) * by, n - i));
    return v_most(v_max(v_max(most[0], most[1]), v_max(most[2], most[3])));
}

static float vec_softmax(float *s, uint32_t n, float scale, float cap, float *m, float *l)
{
    const uint32_t whole = n / VW * VW;

    if (cap > 0.0f) {
        for (uint32_t i = 0; i < n; i += VW)
            v_store(s + i, v_set1(cap) * v_tanh(v_read(s + i) * v_set1(scale) / v_set1(cap)));
        scale = 1.0f;
    }
    float top = most_of(s, n, scale);
    top = top < *m ? *m : top; /* not a number stays none */
    const vf by = v_set1(scale), off = v_set1(-top);
    vf sum = v_set1(0.0f);
    uint32_t i = 0;
    for (; i + EXPS * VW <= n; i += EXPS * VW) {
        vf v[EXPS];
        UNROLL4
        for (int e = 0; e < EXPS; e++)
            v[e] = v_fma(v_read(s + i + e * VW), by, off);
        v_exps_low(v, EXPS);
        UNROLL4
        for (int e = 0; e < EXPS; e++) {
            v_store(s + i + e * VW, v[e]);
            sum += v[e];
        }
    }
    for (; i < n; i += VW) {
        vf v = v_fma(v_read(s + i), by, off);
        v = v_exp_low(i < whole ? v : first_lanes(v, n - i));
        v_store(s + i, v);
        sum += v;
    }
    float lane[VW];
    vf f = v_exp_low(v_set1(*m - top));
    memcpy(lane, &f, sizeof(f));
    *m = top;
    *l = fmaf(*l, lane[0], v_sum(sum));
    return lane[0];
}

static void vec_norm(float *dst, const float *src, const float *w, uint32_t n, float eps,
                     float offset)
{
    const vf ones = v_set1(1.0f);
    vf sum = v_set1(0.0f);
    uint32_t whole = n / VW * VW, part = n - whole;

    for (uint32_t i = 0; i < whole; i += VW) {
        vf v = v_read(src + i);
        sum = v_fma(v, v, sum);
    }
    vf last = v_read_part(src + whole, part, 0.0f);
    sum = v_fma(last, last, sum);
    float scale = 1.0f / sqrtf(v_sum(sum) / (float)n + eps);
    for (uint32_t i = 0; i < whole; i += VW) {
        vf f = v_set1(offset) + (w ? v_read(w + i) : ones);
        v_store(dst + i, v_read(src + i) * v_set1(scale) * f);
    }
    if (part > 0) {
        vf f = v_set1(offset) + (w ? v_read_part(w + whole, part, 0.0f) : ones);
        vf v = last * v_set1(scale) * f;
        memcpy(dst + whole, &v, part * sizeof(float));
    }
}

/* x[i] / (1 + exp(e[i])) */
INLINE void v_sigmoids(vf *x, vf *e, int count)
{
    v_exps(e, count);
    UNROLL4
    for (int i = 0; i < count; i++)
        x[i] = v_over(x[i], v_set1(1.0f) + e[i]);
}

INLINE void activate_each(vf *x, int count, enum ek_activation a)
{
    vf e[EXPS];

    UNROLL4
    for (int i = 0; i < count; i++)
        switch (a) {
        case EK_ACT_SILU: e[i] = v_set1(0.0f) - x[i]; break;
        case EK_ACT_GELU_TANH: {
            vf inner = v_fma(x[i] * x[i] * x[i], v_set1(0.044715f), x[i]) * v_set1(0.7978845608f);
            e[i] = inner * v_set1(-2.0f); /* (1 + tanh y) / 2 */
            break;
        }
        case EK_ACT_SWIGLU_CLAMPED: e[i] = x[i] * v_set1(-EK_SWIGLU_ALPHA); break;
        case EK_ACT_RELU: x[i] = v_max(v_set1(0.0f), x[i]); break; /* of no number: that */
        case EK_ACT_GELU: {
            float lane[VW];
            memcpy(lane, &x[i], sizeof(x[i]));
            for (uint32_t k = 0; k < VW; k++)
                lane[k] = 0.5f * lane[k] * (1.0f + erff(lane[k] * 0.7071067812f));
            x[i] = v_read(lane);
            break;
        }
        }
    if (a != EK_ACT_RELU && a != EK_ACT_GELU)
        v_sigmoids(x, e, count);
}

INLINE vf activate(vf x, enum ek_activation a)
{
    activate_each(&x, 1, a);
    return x;
}

INLINE vf v_bound(vf x, float least, float most)
{
    vf high = v_set1(most), low = v_set1(least);

    x = v_below(high, x, high, x); /* what is no number stays so */
    return v_below(x, low, low, x);
}

/* gate[i] becomes its activation times up[i]. */
INLINE void gated(vf *gate, vf *up, int count, enum ek_activation a)
{
    const bool clamped = a == EK_ACT_SWIGLU_CLAMPED;

    UNROLL4
    for (int i = 0; i < count; i++)
        if (clamped) {
            gate[i] = v_bound(gate[i], -INFINITY, EK_SWIGLU_MOST);
            up[i] = v_bound(up[i], -EK_SWIGLU_MOST, EK_SWIGLU_MOST) + v_set1(1.0f);
        }
    activate_each(gate, count, a);
    UNROLL4
    for (int i = 0; i < count; i++)
        gate[i] *= up[i];
}

INLINE void glu_of(float *dst, const float *gate, const float *up, uint32_t n, enum ek_activation a)
{
    uint32_t i = 0;
    vf g[EXPS], u[EXPS];

    for (; i + EXPS * VW <= n; i += EXPS * VW) {
        UNROLL4
        for (int e = 0; e < EXPS; e++) {
            g[e] = v_read(gate + i + e * VW);
            u[e] = v_read(up + i + e * VW);
        }
        gated(g, u, EXPS, a);
        UNROLL4
        for (int e = 0; e < EXPS; e++)
            v_store(dst + i + e * VW, g[e]);
    }
    for (; i < n; i += VW) {
        const uint32_t part = n - i < VW ? n - i : VW;
        g[0] = v_read_part(gate + i, part, 0.0f);
        u[0] = v_read_part(up + i, part, 0.0f);
        gated(g, u, 1, a);
        memcpy(dst + i, &g[0], part * sizeof(float));
    }
}

static void vec_glu(float *dst, const float *gate, const float *up, uint32_t n,
                    enum ek_activation a)
{
    switch (a) {
    case EK_ACT_SILU: glu_of(dst, gate, up, n, EK_ACT_SILU); break;
    case EK_ACT_GELU_TANH: glu_of(dst, gate, up, n, EK_ACT_GELU_TANH); break;
    case EK_ACT_GELU: glu_of(dst, gate, up, n, EK_ACT_GELU); break;
    case EK_ACT_RELU: glu_of(dst, gate, up, n, EK_ACT_RELU); break;
    case EK_ACT_SWIGLU_CLAMPED: glu_of(dst, gate, up, n, EK_ACT_SWIGLU_CLAMPED); break;
    }
}

static void vec_add(float *dst, const float *src, uint32_t n, float scale)
{
    uint32_t i = 0;

    for (; i + VW <= n; i += VW)
        v_store(dst + i, v_fma(v_read(src + i), v_set1(scale), v_read(dst + i)));
    if (i < n) {
        vf v = v_fma(v_read_part(src + i, n - i, 0.0f), v_set1(scale),
                     v_read_part(dst + i, n - i, 0.0f));
        memcpy(dst + i, &v, (n - i) * sizeof(float));
    }
}

static void vec_store(enum ek_dtype t, void *to, const float *from, uint32_t n)
{
    if (t == EK_BF16)
        for (uint32_t i = 0; i < n; i++)
            cpu_store(EK_BF16, to, i, from[i]);
    else
        for (uint32_t i = 0; i < n; i++)
            cpu_store(t, to, i, from[i]);
}

static void vec_scale(float *dst, const float *src, uint32_t n, float factor)
{
    uint32_t i = 0;

    for (; i + VW <= n; i += VW)
        v_store(dst + i, v_read(src + i) * v_set1(factor));
    for (; i < n; i++)
        dst[i] = src[i] * factor;
}

static void vec_rope(float *x, const float *c, const float *s, uint32_t half)
{
    uint32_t i = 0;

    for (; i + VW <= half; i += VW) {
        vf a = v_read(x + i), b = v_read(x + half + i);
        v_store(x + i, v_fma(a, v_read(c + i), v_set1(0.0f) - b * v_read(s + i)));
        v_store(x + half + i, v_fma(b, v_read(c + i), a * v_read(s + i)));
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i];
        x[i] = fmaf(a, c[i], -(b * s[i]));
        x[half + i] = fmaf(b, c[i], a * s[i]);
    }
}

static void vec_softcap(float *x, uint32_t n, float cap)
{
    uint32_t i = 0;

    for (; i + VW <= n; i += VW)
        v_store(x + i, v_set1(cap) * v_tanh(v_read(x + i) / v_set1(cap)));
    if (i < n) {
        vf v = v_set1(cap) * v_tanh(v_read_part(x + i, n - i, 0.0f) / v_set1(cap));
        memcpy(x + i, &v, (n - i) * sizeof(float));
    }
}

static float vec_sum_exp(const float *x, uint32_t n, float max, float factor, float *out)
{
    vf sum = v_set1(0.0f);

    for (uint32_t i = 0; i < n; i += VW) {
        uint32_t part = n - i < VW ? n - i : VW;
        vf v = part == VW ? v_read(x + i) : v_read_part(x + i, part, -INFINITY);
        v = v_exp((v - v_set1(max)) * v_set1(factor));
        v = v_max(v, v_set1(0.0f)); /* not a number becomes 0 */
        sum += v;
        if (out)
            memcpy(out + i, &v, part * sizeof(float));
    }
    return v_sum(sum);
}

static float vec_max(const float *x, uint32_t n)
{
    vf most = v_set1(-INFINITY);
    uint32_t i = 0;

    for (; i + VW <= n; i += VW)
        most = v_max(v_read(x + i), most);
    if (i < n)
        most = v_max(v_read_part(x + i, n - i, -INFINITY), most);
    return v_most(most);
}

#include "kernels/cpu/recur_vec.h"

#define VEC_FIELDS(tier)                                                                           \
    .name = tier, .scale_panel = scale_panel, .softmax = vec_softmax, .norm = vec_norm,            \
    .glu = vec_glu, .gate = vec_gate, .conv = vec_conv, .delta = vec_delta, .scan = vec_scan,      \
    .add = vec_add, .store = vec_store, .scale = vec_scale, .rope = vec_rope,                      \
    .softcap = vec_softcap, .sum_exp = vec_sum_exp, .max = vec_max, .round8 = round8,              \
    .times = times
