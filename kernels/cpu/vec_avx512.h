/* The vector primitives of ops_vec.h with 16 lanes (AVX-512 F, BW, DQ, VL), for the two tiers that
 * share them. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "kernels/graph.h"

#define VW 16
typedef __m512 vf;

#define v_set1(x)              _mm512_set1_ps(x)
#define v_fma(a, b, c)         _mm512_fmadd_ps(a, b, c)
#define v_min(a, b)            _mm512_min_ps(a, b)
#define v_max(a, b)            _mm512_max_ps(a, b)
#define v_below(a, b, yes, no) _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes)

#define v_sum(x)  _mm512_reduce_add_ps(x)
#define v_most(x) _mm512_reduce_max_ps(x)

static inline __m512 v_exp2i_above(__m512 x, __m512 least, __m512 p, __m512 n)
{
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, least, _CMP_NLT_UQ), p, n);
}

/* A division takes as long as sixteen multiplications: the inverse to 14 bits, one step of
 * Newton's, and so one and a half units in the last place. */
static inline __m512 v_over(__m512 a, __m512 b)
{
    const __m512 near = _mm512_rcp14_ps(b);
    const __m512 off = _mm512_fnmadd_ps(b, near, _mm512_set1_ps(1.0f));

    return _mm512_mul_ps(a, _mm512_fmadd_ps(near, off, near));
}

/* Each becomes the upper half of a float, in one instruction. */
static inline __m512 from_bf16(__m256i h)
{
    const __m512i upper = _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0, 7,
                                           0, 6, 0, 5, 0, 4, 0, 3, 0, 2, 0, 1, 0, 0, 0);

    return _mm512_castsi512_ps(
        _mm512_maskz_permutexvar_epi16(0xaaaaaaaa, upper, _mm512_castsi256_si512(h)));
}

static inline __m512 v_load(enum ek_dtype t, const void *p)
{
    if (t == EK_F32)
        return _mm512_loadu_ps(p);
    if (t == EK_I8)
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
    __m256i h = _mm256_loadu_si256(p);
    return t == EK_BF16 ? from_bf16(h) : _mm512_cvtph_ps(h);
}

static inline __m512 v_load_part(enum ek_dtype t, const void *p, uint32_t n)
{
    __mmask16 lanes = (__mmask16)((1u << n) - 1);
    if (t == EK_F32)
        return _mm512_maskz_loadu_ps(lanes, p);
    if (t == EK_I8)
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(lanes, p)));
    __m256i h = _mm256_maskz_loadu_epi16(lanes, p);
    return t == EK_BF16 ? from_bf16(h) : _mm512_cvtph_ps(h);
}

static inline void v_load_pair(enum ek_dtype t, const void *p, int half, __m512 *a, __m512 *b)
{
    (void)half; /* one pair covers the row */
    if (t == EK_BF16) {
        __m512i both = _mm512_loadu_si512(p);
        *a = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
        *b = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-65536)));
        return;
    }
    size_t elem = t == EK_F32 ? 4 : 2;
    *a = v_load(t, p);
    *b = v_load(t, (const char *)p + 16 * elem);
}

#include "kernels/cpu/ops_vec.h"
