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
 *
 * The matrix kernel keeps a block of rows x vectors of sums in registers and reads each weight
 * vector once for all its rows. What bounds it: arithmetic from about 8 rows up, reading the
 * weights below; with few rows it walks several panels at once, so that there are enough chains of
 * dependent additions. All shapes of block run the same chain for an element.
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

/* What is read next, fetched into the second cache while a block is multiplied: `share` / 256 bytes
 * for each input. The first cache takes fewer lines at once than memory could deliver. */
struct ahead {
    const char *at;
    uint32_t share;
};

#define FETCHING 8u /* blocks of rows that fetch, at most, an equal share each */

/* Of a block of rows, of what is `bytes` long and as many inputs wide as the block. */
INLINE struct ahead ahead_of(const char *next, size_t bytes, uint32_t inputs, uint32_t block,
                             uint32_t blocks)
{
    const uint32_t fetching = blocks < FETCHING ? blocks : FETCHING;
    const size_t some = bytes / fetching;

    if (block >= fetching)
        return (struct ahead){.at = next, .share = 0};
    return (struct ahead){.at = next + block * some, .share = (uint32_t)(some * 256 / inputs)};
}

/* Where a block of few rows is. */
struct few_at {
    const char *x[3]; /* of three rows each: all in reach of the registers there are */
    size_t x_bytes;   /* from row to row */
    const char *w;
    uint32_t passed; /* of what is fetched, / 256 */
};

/* One input of all rows: the one `j` after where the block is. Sums are of so many halves of each
 * panel, from `half` on. */
INLINE void few_step(enum ek_dtype t, int rows, int panels, int halves, int half, int j,
                     const struct few_at *at, size_t panel_bytes, vf a[CPU_MOST_ROWS][4],
                     vf b[CPU_MOST_ROWS][4])
{
    vf wa[4], wb[4];

    UNROLL4
    for (int p = 0; p < panels * halves; p++)
        v_load_pair(
            t, at->w + j * (int)(CPU_PANEL * elem_bytes(t)) + (size_t)(p / halves) * panel_bytes,
            half + p % halves, &wa[p], &wb[p]);
    UNROLL8
    for (int i = 0; i < rows; i++) {
        float x;
        memcpy(&x, at->x[i / 3] + (size_t)(i % 3) * at->x_bytes + (size_t)j * 4, 4);
        const vf xv = v_set1(x);
        UNROLL4
        for (int p = 0; p < panels * halves; p++) {
            a[i][p] = v_fma(xv, wa[p], a[i][p]);
            b[i][p] = v_fma(xv, wb[p], b[i][p]);
        }
    }
}

/* Goes on by `n` inputs and fetches for them, `share` / 256 bytes each; with few rows the processor
 * runs ahead by itself. */
INLINE void few_on(enum ek_dtype t, int rows, int n, int passes, uint32_t share,
                   const struct ahead *next, struct few_at *at)
{
    const int lines = (t == EK_F32 ? 2 * n : n) / passes;

    if (rows >= (VW == 16 ? 4 : 2))
        UNROLL4
    for (int i = 0; i < lines; i++)
        __builtin_prefetch(next->at + (at->passed >> 8) + i * 64, 0, 2);
    at->passed += (uint32_t)n * share;
    for (int i = 0; i < 3; i++)
        at->x[i] += (size_t)n * sizeof(float);
    at->w += (size_t)n * CPU_PANEL * elem_bytes(t);
}

/* Vector p of a row's sums: where it is in c. */
INLINE int few_column(int halves, int half, int p)
{
    return p / halves * (int)CPU_PANEL + (half + p % halves) * VW;
}

/* `halves` of each panel at once; each pass over the block fetches its part of what is next. */
INLINE void gemm_block(enum ek_dtype t, int rows, int panels, int halves, const struct cpu_gemm *g,
                       const float *x, const char *w, float *c, struct ahead next)
{
    const int passes = HALVES / halves;
    const uint32_t share = next.share / (uint32_t)passes;

    NOROLL
    for (int h = 0; h < HALVES; h += halves) {
        struct few_at at = {.x = {(const char *)x, (const char *)(x + 3 * g->x_stride),
                                  (const char *)(x + 6 * g->x_stride)},
                            .x_bytes = g->x_stride * sizeof(float),
                            .w = w,
                            .passed = h > 0 ? g->k * share : 0};
        vf a[CPU_MOST_ROWS][4], b[CPU_MOST_ROWS][4];
        UNROLL8
        for (int i = 0; i < rows; i++) {
            UNROLL4
            for (int p = 0; p < panels * halves; p++) {
                float *to = c + (size_t)i * g->c_stride + few_column(halves, h, p);
                a[i][p] = g->add ? v_read(to) : v_set1(0.0f);
                b[i][p] = g->add ? v_read(to + 16) : v_set1(0.0f);
            }
        }
        NOROLL
        for (uint32_t k = 0; k < g->k / 2; k++) {
            few_step(t, rows, panels, halves, h, 0, &at, g->panel_bytes, a, b);
            few_step(t, rows, panels, halves, h, 1, &at, g->panel_bytes, a, b);
            few_on(t, rows, 2, passes, share, &next, &at);
        }
        if (g->k % 2)
            few_step(t, rows, panels, halves, h, 0, &at, g->panel_bytes, a, b);
        UNROLL8
        for (int i = 0; i < rows; i++) {
            UNROLL4
            for (int p = 0; p < panels * halves; p++) {
                float *to = c + (size_t)i * g->c_stride + few_column(halves, h, p);
                v_store(to, a[i][p]);
                v_store(to + 16, b[i][p]);
            }
        }
    }
}

#define BLOCK_OF(r, p, halves)                                                                     \
    case (r)*8 + (p):                                                                              \
        gemm_block(t, r, p, halves, g, x, w, c, next);                                             \
        break
#define BLOCK(r, p) BLOCK_OF(r, p, 1)

/* Panels that blocks of one and of two or three rows walk at once, and rows of a block at most. A
 * block has eight sums in registers at least, or they would wait for each other; with 16 registers
 * twelve at most, and few rows take whole panels: each line that is read is used at once. */
#if VW == 16
#define PANELS_OF_ONE 4u
#define PANELS_OF_FEW 2u
#define FEW_ROWS      8u
#define WHOLE(r, p)   BLOCK_OF(r, p, 1)
#else
#define PANELS_OF_ONE 2u
#define PANELS_OF_FEW 1u
#define FEW_ROWS      6u
#define WHOLE(r, p)   BLOCK_OF(r, p, 2)
#endif

INLINE uint32_t panels_at_once(uint32_t rows)
{
    return rows == 1 ? PANELS_OF_ONE : rows <= 3 ? PANELS_OF_FEW : 1;
}

INLINE void gemm_some(enum ek_dtype t, const struct cpu_gemm *g, uint32_t row, uint32_t rows,
                      uint32_t panel, uint32_t panels, struct ahead next)
{
    const float *x = g->x + row * g->x_stride;
    const char *w = (const char *)g->w + panel * g->panel_bytes;
    float *c = g->c + row * g->c_stride + (size_t)panel * CPU_PANEL;

    switch (rows * 8 + panels) {
        WHOLE(1, 1);
        WHOLE(1, PANELS_OF_ONE);
        WHOLE(2, 1);
        WHOLE(3, 1);
        BLOCK(4, 1);
        BLOCK(5, 1);
        BLOCK(6, 1);
#if VW == 16
        BLOCK(2, 2);
        BLOCK(3, 2);
        BLOCK(7, 1);
        BLOCK(8, 1);
#endif
    }
}

/* Each panel fetches the one after. */
INLINE void gemm_rows(enum ek_dtype t, const struct cpu_gemm *g, uint32_t blocks)
{
    uint32_t step = blocks == 1 ? panels_at_once(g->rows) : 1;

    for (uint32_t panel = 0; panel < g->panels; panel += step) {
        if (g->panels - panel < step)
            step = 1;
        for (uint32_t i = 0; i < blocks; i++) { /* blocks of equal height, give or take one row */
            uint32_t row = i * g->rows / blocks, end = (i + 1) * g->rows / blocks;
            const char *w = (const char *)g->w + panel * g->panel_bytes;
            const size_t bytes = (size_t)g->k * CPU_PANEL * elem_bytes(t);
            gemm_some(t, g, row, end - row, panel, step,
                      ahead_of(w + step * g->panel_bytes, bytes, g->k, i, blocks));
        }
    }
}

#include "kernels/cpu/wide_vec.h"

INLINE void gemm_of(enum ek_dtype t, const struct cpu_gemm *g)
{
    struct cpu_gemm rest = *g;

    if ((g->wide || t == EK_F32) && g->rows >= WIDE_LEAST) {
        float kept[WIDE_PART * WIDE_COLUMNS] __attribute__((aligned(64)));
        uint32_t panel = 0;
        for (; panel + WIDE_PANELS <= g->panels; panel += WIDE_PANELS)
            wide_strip(t, g, panel, kept);
        rest.panels -= panel;
        rest.w = (const char *)g->w + panel * g->panel_bytes;
        rest.c = g->c + (size_t)panel * CPU_PANEL;
    }
    if (rest.rows > 0 && rest.panels > 0)
        gemm_rows(t, &rest, (rest.rows + FEW_ROWS - 1) / FEW_ROWS);
}

static void vec_gemm(const struct cpu_gemm *g)
{
    switch (g->dtype) {
    case EK_F32: gemm_of(EK_F32, g); break;
    case EK_BF16: gemm_of(EK_BF16, g); break;
    case EK_F16: gemm_of(EK_F16, g); break;
    case EK_F8_E4M3:
    case EK_I8:
    case EK_I4:
    case EK_F4_E2M1: break; /* refused at load */
    }
}

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
