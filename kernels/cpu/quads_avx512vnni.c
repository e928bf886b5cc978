/*
 * Products of whole numbers with vpdpbusd: 64 multiply-adds an instruction. Compiled with its own
 * flags; entered only on machines that have it.
 *
 * A block of rows x vectors keeps the sums of the group and those in f32 in registers and reads
 * each vector of weights once for all its rows. What bounds it: reading the weights with few rows,
 * the multiplications from about 8 up.
 */
#include "kernels/cpu/quads.h"

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/fours.h"
#include "kernels/cpu/quads_round.h"
#include "kernels/cpu/tier.h"

#define INLINE  static inline __attribute__((always_inline))
#define UNROLL8 _Pragma("GCC unroll 8")
#define NOROLL  _Pragma("GCC unroll 1")

#define ROWS    6u  /* of a block, at most */
#define VECTORS 12u /* of sums in a block, at most */

/* A block of rows and panels, and where it is in its rows. */
struct place {
    const char *w; /* the first panel, from its begin */
    const int8_t *x;
    const float *scale;
    const int32_t *start;
    size_t at;    /* bytes of numbers before the group */
    size_t ahead; /* bytes from there to what is fetched meanwhile, half as much as is read */
    bool whole;   /* or as much: there is only this block */
};

INLINE __m512i four_inputs(const int8_t *x)
{
    int32_t four;

    memcpy(&four, x, sizeof(four));
    return _mm512_set1_epi32(four);
}

/* What a form of the kernel knows beforehand. */
struct form {
    int bits;
    bool zeros; /* of the weights' own */
    bool table; /* numbers are codes */
};

/* Eight inputs of all rows: each four of a row is read once for all vectors of weights. */
INLINE void add_eight(struct form f, int rows, int panels, const struct cpu_quads *q, size_t padded,
                      const struct place *p, uint32_t eight, __m512i sum[VECTORS])
{
    const int8_t *x = p->x + (size_t)eight * 8;
    const int bits = f.bits;
    __m512i w[8][2];

    UNROLL8
    for (int v = 0; v < 2 * panels; v++) {
        const char *at = p->w + (size_t)(v / 2) * q->panel_bytes + p->at + (v % 2) * 64;
        if (rows >= 4 && p->whole) { /* with fewer the processor runs ahead by itself */
            _mm_prefetch(at + p->ahead + (size_t)eight * (bits == 4 ? 128 : 256), _MM_HINT_T1);
            if (bits == 8)
                _mm_prefetch(at + p->ahead + (size_t)eight * 256 + 128, _MM_HINT_T1);
        } else if (rows >= 4 && (bits == 8 || v == 0))
            _mm_prefetch(at + p->ahead + (size_t)eight * (bits == 4 ? 64 : 128), _MM_HINT_T1);
        at += (size_t)eight * (bits == 4 ? 128 : 256);
        if (bits == 4) {
            const __m512i both = _mm512_loadu_si512(at), mask = _mm512_set1_epi8(15);
            w[v][0] = quads_four(_mm512_and_si512(both, mask), f.table);
            w[v][1] = quads_four(_mm512_and_si512(_mm512_srli_epi16(both, 4), mask), f.table);
        } else {
            w[v][0] = _mm512_loadu_si512(at);
            w[v][1] = _mm512_loadu_si512(at + 128);
        }
    }
    UNROLL8
    for (int four = 0; four < 2; four++)
        UNROLL8
    for (int i = 0; i < rows; i++) {
        const __m512i in = four_inputs(x + (size_t)i * padded + four * 4);
        UNROLL8
        for (int v = 0; v < 2 * panels; v++)
            fours_add(&sum[i * 2 * panels + v], w[v][four], in);
    }
}

/* A group's whole sums times the scale of their inputs. */
INLINE void add_inputs(int rows, int panels, const struct rounded *r, const struct place *p,
                       const __m512i sum[VECTORS], __m512 c[VECTORS])
{
    UNROLL8
    for (int i = 0; i < rows; i++) {
        const __m512 x = _mm512_set1_ps(p->scale[(size_t)i * r->groups]);
        UNROLL8
        for (int v = 0; v < 2 * panels; v++)
            c[i * 2 * panels + v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[i * 2 * panels + v]), x,
                                                    c[i * 2 * panels + v]);
    }
}

/* The same, times the scales of weights, less their zeros; `scales` is their group. */
INLINE void add_group(int rows, int panels, const struct cpu_quads *q, const struct rounded *r,
                      const struct place *p, uint32_t scales, __m512i sum[VECTORS],
                      __m512 c[VECTORS])
{
    const float zero = q->dtype == EK_I4 ? -1.0f / 8.0f : -1.0f / 128.0f;
    const int usual = q->dtype == EK_I4 ? 8 : 0; /* what `start` has taken off already */

    UNROLL8
    for (int v = 0; v < 2 * panels; v++) {
        const char *panel = p->w + (size_t)(v / 2) * q->panel_bytes;
        const size_t at = ((size_t)scales * CPU_PANEL + (v % 2) * 16) * sizeof(float);
        const __m512 w = _mm512_loadu_ps(panel + q->scale_at + at);
        UNROLL8
        for (int i = 0; i < rows; i++) {
            const __m512 x = _mm512_set1_ps(p->scale[(size_t)i * r->groups]);
            c[i * 2 * panels + v] =
                _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum[i * 2 * panels + v]), x), w,
                                c[i * 2 * panels + v]);
        }
        const __m256i own = _mm256_loadu_si256((const void *)(panel + q->zero_at + at / 2));
        const __m512i off = _mm512_sub_epi32(_mm512_cvtepi16_epi32(own), _mm512_set1_epi32(usual));
        const __m512 less = _mm512_mul_ps(_mm512_cvtepi32_ps(off), w);
        UNROLL8
        for (int i = 0; i < rows; i++) {
            const float inputs = (float)p->start[(size_t)i * r->groups] * zero;
            const __m512 x = _mm512_set1_ps(inputs * p->scale[(size_t)i * r->groups]);
            c[i * 2 * panels + v] = _mm512_fnmadd_ps(x, less, c[i * 2 * panels + v]);
        }
    }
}

INLINE void clear(int rows, int vectors, __m512 c[VECTORS])
{
    UNROLL8
    for (int i = 0; i < rows; i++)
        UNROLL8
    for (int v = 0; v < vectors; v++)
        c[i * vectors + v] = _mm512_setzero_ps();
}

/* What c holds, if it counts. */
INLINE void begin(bool none, int rows, int vectors, const float *from, size_t stride,
                  __m512 c[VECTORS])
{
    UNROLL8
    for (int i = 0; i < rows; i++)
        UNROLL8
    for (int v = 0; v < vectors; v++) {
        const float *at = from + (size_t)i * stride + v * 16;
        __builtin_prefetch(at, 1); /* written at the end */
        c[i * vectors + v] = none ? _mm512_setzero_ps() : _mm512_loadu_ps(at);
    }
}

INLINE void store(int rows, int vectors, const struct cpu_quads *q, const __m512 c[VECTORS],
                  float *out)
{
    UNROLL8
    for (int i = 0; i < rows; i++)
        UNROLL8
    for (int v = 0; v < vectors; v++)
        _mm512_storeu_ps(out + (size_t)i * q->c_stride + v * 16, c[i * vectors + v]);
}

/* The sums of inputs that share a scale of weights, times it, to `all`, or added to it; where that
 * does not stay in registers, it is at `out`. */
INLINE void scale(bool table, bool add, bool stay, int rows, int panels, const struct cpu_quads *q,
                  const char *w, const __m512 c[VECTORS], __m512 all[VECTORS], float *out)
{
    UNROLL8
    for (int v = 0; v < 2 * panels; v++) {
        const __m512 by = quads_scales(
            w + (size_t)(v / 2) * q->panel_bytes + (size_t)(v % 2) * (table ? 16 : 64), table);
        UNROLL8
        for (int i = 0; i < rows; i++) {
            const int at = i * 2 * panels + v;
            float *to = out + (size_t)i * q->c_stride + v * 16;
            __m512 sum = _mm512_mul_ps(c[at], by);
            if (add)
                sum = _mm512_fmadd_ps(c[at], by, stay ? all[at] : _mm512_loadu_ps(to));
            if (stay)
                all[at] = sum;
            else
                _mm512_storeu_ps(to, sum);
        }
    }
}

/* One group of inputs; then the place is at the next. */
INLINE void one_group(struct form f, int rows, int panels, const struct cpu_quads *q,
                      const struct rounded *r, struct place *p, uint32_t rest, uint32_t scales,
                      __m512 c[VECTORS])
{
    __m512i sum[VECTORS];

    UNROLL8
    for (int i = 0; i < rows; i++)
        UNROLL8
    for (int v = 0; v < 2 * panels; v++)
        sum[i * 2 * panels + v] = _mm512_set1_epi32(p->start[(size_t)i * r->groups]);
    if (rest >= QUADS_GROUP)
        UNROLL8
    for (uint32_t eight = 0; eight < QUADS_GROUP / 8; eight++)
        add_eight(f, rows, panels, q, r->padded, p, eight, sum);
    else NOROLL for (uint32_t eight = 0; eight < (rest + 7) / 8; eight++)
        add_eight(f, rows, panels, q, r->padded, p, eight, sum);
    if (f.zeros)
        add_group(rows, panels, q, r, p, scales, sum, c);
    else
        add_inputs(rows, panels, r, p, sum, c);
    p->at += (size_t)QUADS_GROUP * CPU_PANEL * (unsigned)f.bits / 8;
    if (!p->whole)
        p->ahead -= (size_t)QUADS_GROUP * CPU_PANEL * (unsigned)f.bits / 16;
    p->x += QUADS_GROUP;
    p->scale++;
    p->start++;
}

/* All sums stay in registers where there is room: what one row reads goes by fast. */
INLINE void block(struct form f, int rows, int panels, const struct cpu_quads *q,
                  const struct rounded *r, struct place p, float *out)
{
    const bool stay = f.zeros || rows * panels <= 4;
    uint32_t scales = q->first / q->group, left = q->group - q->first % q->group;
    bool add = q->add;
    __m512 c[VECTORS], all[VECTORS];

    begin(!add || !stay, rows, 2 * panels, out, q->c_stride, f.zeros ? c : all);
    for (uint32_t g = 0; g < r->groups; scales++, left = q->group, add = true) {
        const uint32_t some = left / QUADS_GROUP, there = r->groups - g;
        const uint32_t end = g + (some < there ? some : there);
        const char *w = p.w + q->scale_at + (size_t)scales * CPU_PANEL * (f.table ? 1 : 4);
        if (!f.zeros)
            clear(rows, 2 * panels, c);
        NOROLL
        for (; g < end; g++)
            one_group(f, rows, panels, q, r, &p, q->k - g * QUADS_GROUP, scales, c);
        if (!f.zeros && add)
            scale(f.table, true, stay, rows, panels, q, w, c, all, out);
        else if (!f.zeros)
            scale(f.table, false, stay, rows, panels, q, w, c, all, out);
    }
    if (stay)
        store(rows, 2 * panels, q, f.zeros ? c : all, out);
}

#define BLOCK(n, m)                                                                                \
    case (n)*8 + (m): block(f, n, m, q, r, p, out); break

INLINE void some(struct form f, const struct cpu_quads *q, const struct rounded *r, uint32_t rows,
                 uint32_t panels, struct place p, float *out)
{
    switch (rows * 8 + panels) {
        BLOCK(1, 1);
        BLOCK(1, 4);
        BLOCK(2, 1);
        BLOCK(2, 2);
        BLOCK(3, 1);
        BLOCK(3, 2);
        BLOCK(4, 1);
        BLOCK(5, 1);
        BLOCK(6, 1);
    }
}

/* Scales and zeros of `count` panels: they lie apart from the numbers, where nobody would guess. */
static void fetch_scales(const struct cpu_quads *q, uint32_t panel, uint32_t count)
{
    const uint32_t first = q->first / q->group, end = (q->first + q->k - 1) / q->group + 1;

    for (; count > 0; count--, panel++) {
        const char *at = (const char *)q->w + panel * q->panel_bytes;
        for (uint32_t g = first; g < end; g++) {
            if (q->dtype == EK_F4_E2M1) {
                _mm_prefetch(at + q->scale_at + (size_t)g * CPU_PANEL, _MM_HINT_T1);
                continue;
            }
            _mm_prefetch(at + q->scale_at + (size_t)g * CPU_PANEL * 4, _MM_HINT_T1);
            _mm_prefetch(at + q->scale_at + (size_t)g * CPU_PANEL * 4 + 64, _MM_HINT_T1);
            if (q->zero_at > 0)
                _mm_prefetch(at + q->zero_at + (size_t)g * CPU_PANEL * 2, _MM_HINT_T1);
        }
    }
}

/* A single block of rows, or the first two, fetch the next panel. */
INLINE void all(struct form f, const struct cpu_quads *q, const struct rounded *r)
{
    const uint32_t blocks = (q->rows + ROWS - 1) / ROWS;
    const size_t half = r->padded * CPU_PANEL * (unsigned)f.bits / 16;
    uint32_t step = q->rows == 1 ? 4 : q->rows <= 3 ? 2 : 1;

    for (uint32_t panel = 0; panel < q->panels; panel += step) {
        if (q->panels - panel < step)
            step = 1;
        const uint32_t left = q->panels - panel - step;
        fetch_scales(q, panel + step, left < step ? left : step);
        for (uint32_t i = 0; i < blocks; i++) {
            const uint32_t row = i * q->rows / blocks, end = (i + 1) * q->rows / blocks;
            struct place p = {.w = (const char *)q->w + panel * q->panel_bytes,
                              .x = r->x + row * r->padded,
                              .scale = r->scale + (size_t)row * r->groups,
                              .start = r->start + (size_t)row * r->groups,
                              .whole = blocks == 1,
                              .at = (size_t)q->first * CPU_PANEL * (unsigned)f.bits / 8};
            if (panel + step < q->panels && i < 2)
                p.ahead = step * q->panel_bytes + i * half;
            some(f, q, r, end - row, step, p, q->c + row * q->c_stride + (size_t)panel * CPU_PANEL);
        }
    }
}

/* A function for each form: one with the arrays of all would want much stack where they are not
 * kept in registers, in builds for tests. */
#define FORM(name, ...)                                                                            \
    static __attribute__((noinline)) void name(const struct cpu_quads *q, const struct rounded *r) \
    {                                                                                              \
        all((struct form){__VA_ARGS__}, q, r);                                                     \
    }
FORM(int4, 4, false, false)
FORM(int4_zeros, 4, true, false)
FORM(int8, 8, false, false)
FORM(int8_zeros, 8, true, false)
FORM(float4, 4, false, true)

void cpu_quads_vnni(const struct cpu_quads *q)
{
    const struct rounded r = rounded_of(q);

    if (!q->rounded)
        round_inputs(q, &r);
    if (q->dtype == EK_F4_E2M1)
        float4(q, &r);
    else if (q->dtype == EK_I4)
        (q->zero_at > 0 ? int4_zeros : int4)(q, &r);
    else
        (q->zero_at > 0 ? int8_zeros : int8)(q, &r);
}
