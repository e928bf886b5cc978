/*
 * Inputs of a product of whole numbers, rounded to 8 bits by groups of QUADS_GROUP with AVX-512:
 * the same bits for all tiers that multiply them.
 */
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "kernels/cpu/quads.h"

/* Where the parts of `work` lie: row by row, or for each group all rows, one after another. */
struct rounded {
    int8_t *x;      /* numbers */
    float *scale;   /* of a group of a row */
    int32_t *start; /* and less the zero of weights times the sum of the inputs */
    size_t padded;
    uint32_t groups;
    size_t row_bytes, group_bytes; /* of x, from one to the next */
    size_t row_scales, group_scales;
};

static inline struct rounded rounded_of(const struct cpu_quads *q)
{
    struct rounded r = {.padded = QUADS_PADDED(q->k)};

    r.groups = (uint32_t)(r.padded / QUADS_GROUP);
    r.x = (int8_t *)q->work;
    r.scale = (float *)(void *)(q->work + q->rows * r.padded);
    r.start = (int32_t *)(void *)(r.scale + (size_t)q->rows * r.groups);
    r.row_bytes = r.padded;
    r.group_bytes = QUADS_GROUP;
    r.row_scales = r.groups;
    r.group_scales = 1;
    return r;
}

static inline struct rounded rounded_by_groups(const struct cpu_quads *q)
{
    struct rounded r = rounded_of(q);

    r.row_bytes = QUADS_GROUP;
    r.group_bytes = (size_t)q->rows * QUADS_GROUP;
    r.row_scales = 1;
    r.group_scales = q->rows;
    return r;
}

/* Numbers of 4 bits, in the low halves of bytes, as they are multiplied. */
static inline __m512i quads_four(__m512i n, bool table)
{
    const __m512i f4 = _mm512_broadcast_i32x4(_mm_setr_epi8(QUADS_TABLE_F4));

    return table ? _mm512_shuffle_epi8(f4, n) : n;
}

/* The scales of 16 columns, `powers`: in bytes. */
static inline __m512 quads_scales(const char *at, bool powers)
{
    if (!powers)
        return _mm512_loadu_ps(at);
    const __m512i power = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)at));
    return _mm512_castsi512_ps(
        _mm512_max_epi32(_mm512_slli_epi32(power, 23), _mm512_set1_epi32(0x400000)));
}

#define ROUND_GROUPS 4u /* that are rounded together */

/* [a, b, c, d] of what the lanes of four vectors come to. */
#define ROUND_REDUCE(op256, op, v)                                                                 \
    const __m512i ab = op(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));   \
    const __m512i cd = op(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));   \
    const __m512i all = op(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));          \
    const __m256i half = op256(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));    \
    return _mm256_castsi256_si128(op256(half, _mm256_permute4x64_epi64(half, 0x4e)))

static inline __m128i round_largest(const __m512i v[ROUND_GROUPS])
{
    ROUND_REDUCE(_mm256_max_epi32, _mm512_max_epi32, v);
}

static inline __m128i round_sums(const __m512i v[ROUND_GROUPS])
{
    ROUND_REDUCE(_mm256_add_epi32, _mm512_add_epi32, v);
}

/* The scales and starts of up to four groups, `from` the first on. */
static inline void round_put(const struct rounded *r, size_t from, uint32_t groups, __m128 scales,
                             __m128i starts)
{
    const __mmask8 there = (__mmask8)((1u << groups) - 1);
    float scale[ROUND_GROUPS];
    int32_t start[ROUND_GROUPS];

    if (r->group_scales == 1) {
        _mm_mask_storeu_ps(r->scale + from, there, scales);
        _mm_mask_storeu_epi32(r->start + from, there, starts);
        return;
    }
    _mm_storeu_ps(scale, scales);
    _mm_storeu_si128((__m128i *)(void *)start, starts);
    for (uint32_t g = 0; g < groups && g < ROUND_GROUPS; g++) {
        r->scale[from + g * r->group_scales] = scale[g];
        r->start[from + g * r->group_scales] = start[g];
    }
}

/* Up to four groups of a row from group `first` on: `n` inputs are there. As whole numbers
 * magnitudes are in order, and what is not a number is above; it makes the scale of its group none.
 */
static inline __attribute__((always_inline)) void round_groups(const float *x, uint32_t n,
                                                               enum ek_dtype t,
                                                               const struct rounded *r,
                                                               uint32_t row, uint32_t first)
{
    const uint32_t groups = (n + QUADS_GROUP - 1) / QUADS_GROUP;
    int8_t *to = r->x + row * r->row_bytes + first * r->group_bytes;
    const __m512i size = _mm512_set1_epi32(0x7fffffff);
    __m512i most[ROUND_GROUPS], sum[ROUND_GROUPS];
    __m512 a[ROUND_GROUPS], b[ROUND_GROUPS];

    _Pragma("GCC unroll 4") for (uint32_t g = 0; g < ROUND_GROUPS; g++)
    {
        const uint32_t k = g * QUADS_GROUP, left = n > k ? n - k : 0;
        const __mmask16 low = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
        const __mmask16 high = left <= 16   ? 0
                               : left >= 32 ? 0xffff
                                            : (__mmask16)((1u << (left - 16)) - 1);
        a[g] = _mm512_maskz_loadu_ps(low, x + k);
        b[g] = _mm512_maskz_loadu_ps(high, x + k + 16);
        most[g] = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a[g]), size),
                                   _mm512_and_si512(_mm512_castps_si512(b[g]), size));
    }
    const __m128 steps = _mm_set1_ps(t == EK_F4_E2M1 ? 254.0f : 127.0f); /* of twice the numbers */
    const __m128i bits = round_largest(most);
    const __m128 top = _mm_castsi128_ps(bits), one = _mm_set1_ps(127.0f);
    const __m128 by = _mm_maskz_div_ps(
        _mm_cmp_epi32_mask(bits, _mm_set1_epi32(QUADS_LEAST), _MM_CMPINT_GE), one, top);
    const __mmask8 none = _mm_cmp_epi32_mask(bits, _mm_set1_epi32(0x7f800000), _MM_CMPINT_GE);
    const __m128 scales =
        _mm_mask_mov_ps(_mm_div_ps(top, steps), none, _mm_set1_ps(__builtin_nanf("")));
    const __m512 each = _mm512_castps128_ps512(by);
    _Pragma("GCC unroll 4") for (uint32_t g = 0; g < ROUND_GROUPS; g++)
    {
        const __m512 own = _mm512_permutexvar_ps(_mm512_set1_epi32((int)g), each);
        const __m512i i = _mm512_cvtps_epi32(_mm512_mul_ps(a[g], own));
        const __m512i j = _mm512_cvtps_epi32(_mm512_mul_ps(b[g], own));
        sum[g] = _mm512_add_epi32(i, j);
        if (g >= groups)
            continue;
        _mm_storeu_si128((__m128i *)(void *)(to + g * r->group_bytes), _mm512_cvtsepi32_epi8(i));
        _mm_storeu_si128((__m128i *)(void *)(to + g * r->group_bytes + 16),
                         _mm512_cvtsepi32_epi8(j));
    }
    const __m128i less = _mm_mullo_epi32(round_sums(sum), _mm_set1_epi32(-(int)cpu_quads_zero(t)));
    /* of what is no number any start will do */
    round_put(r, row * r->row_scales + first * r->group_scales, groups, scales, less);
}

static inline void round_inputs(const struct cpu_quads *q, const struct rounded *r)
{
    const uint32_t some = ROUND_GROUPS * QUADS_GROUP;

    for (uint32_t row = 0; row < q->rows; row++)
        for (uint32_t g = 0; g < r->groups; g += ROUND_GROUPS) {
            const uint32_t k = g * QUADS_GROUP, left = q->k - k;
            const float *x = q->x + row * q->x_stride + k;
            if (left >= some) /* by itself: all is there, without masks */
                round_groups(x, some, q->dtype, r, row, g);
            else
                round_groups(x, left, q->dtype, r, row, g);
        }
}
