/*
 * Inputs of a product of whole numbers, rounded to 8 bits by groups of QUADS_GROUP with AVX-512:
 * the same bits for all tiers that multiply them.
 */
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "kernels/cpu/quads.h"

/* Where the parts of `work` lie. */
struct rounded {
    int8_t *x;      /* [rows][padded] */
    float *scale;   /* [rows][groups] */
    int32_t *start; /* [rows][groups]: less the zero of weights times the sum of the inputs */
    size_t padded;
    uint32_t groups;
};

static inline struct rounded rounded_of(const struct cpu_quads *q)
{
    struct rounded r = {.padded = QUADS_PADDED(q->k)};

    r.groups = (uint32_t)(r.padded / QUADS_GROUP);
    r.x = (int8_t *)q->work;
    r.scale = (float *)(void *)(q->work + q->rows * r.padded);
    r.start = (int32_t *)(void *)(r.scale + (size_t)q->rows * r.groups);
    return r;
}

/* One group: 32 inputs, of which `n` are there. What is not a number makes the scale none. */
static inline void round_group(const float *x, uint32_t n, uint32_t zero, int8_t *to, float *scale,
                               int32_t *start)
{
    const __mmask16 low = n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
    const __mmask16 high = n <= 16 ? 0 : n >= 32 ? 0xffff : (__mmask16)((1u << (n - 16)) - 1);
    const __m512 a = _mm512_maskz_loadu_ps(low, x), b = _mm512_maskz_loadu_ps(high, x + 16);
    const __m512 most = _mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b));
    const __m512 none = _mm512_mul_ps(_mm512_add_ps(a, b), _mm512_setzero_ps());
    const float top = _mm512_reduce_max_ps(most);
    const __m512 by = _mm512_set1_ps(top > 0.0f ? 127.0f / top : 0.0f);
    const __m512i i = _mm512_cvtps_epi32(_mm512_mul_ps(a, by));
    const __m512i j = _mm512_cvtps_epi32(_mm512_mul_ps(b, by));

    _mm_storeu_si128((__m128i *)(void *)to, _mm512_cvtsepi32_epi8(i));
    _mm_storeu_si128((__m128i *)(void *)(to + 16), _mm512_cvtsepi32_epi8(j));
    *scale = top / 127.0f;
    if (_mm512_cmp_ps_mask(none, none, _CMP_UNORD_Q) != 0)
        *scale = __builtin_nanf("");
    const uint32_t sum = (uint32_t)_mm512_reduce_add_epi32(_mm512_add_epi32(i, j));
    *start = (int32_t)(0u - zero * sum); /* of what is no number any value will do */
}

static inline void round_inputs(const struct cpu_quads *q, const struct rounded *r)
{
    const uint32_t zero = q->dtype == EK_I4 ? 8 : 128;

    for (uint32_t row = 0; row < q->rows; row++)
        for (uint32_t g = 0; g < r->groups; g++) {
            const uint32_t k = g * QUADS_GROUP, left = q->k - k;
            const size_t at = (size_t)row * r->groups + g;
            round_group(q->x + row * q->x_stride + k, left < QUADS_GROUP ? left : QUADS_GROUP, zero,
                        r->x + row * r->padded + k, &r->scale[at], &r->start[at]);
        }
}
