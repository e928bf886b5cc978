/* The tier "avx2": 8 lanes (AVX2, FMA, F16C). Compiled with its own flags; entered only after
 * cpu_tier_find() saw that the machine has them. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/quads.h"
#include "kernels/graph.h"

#define VW 8
typedef __m256 vf;

#define v_set1(x)              _mm256_set1_ps(x)
#define v_fma(a, b, c)         _mm256_fmadd_ps(a, b, c)
#define v_min(a, b)            _mm256_min_ps(a, b)
#define v_max(a, b)            _mm256_max_ps(a, b)
#define v_below(a, b, yes, no) _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ))

static inline float v_sum(__m256 x)
{
    __m128 v = _mm256_castps256_ps128(x) + _mm256_extractf128_ps(x, 1);
    v += _mm_movehl_ps(v, v);
    return _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)));
}

static inline float v_most(__m256 x)
{
    __m128 v = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    v = _mm_max_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)));
}

/* n is at most 127 here, and where it is below -126 so is x below the least. */
static inline __m256 v_exp2i_above(__m256 x, __m256 least, __m256 p, __m256 n)
{
    const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    const __m256 whole = p * _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));

    return _mm256_and_ps(_mm256_cmp_ps(x, least, _CMP_NLT_UQ), whole);
}

static inline __m256 v_over(__m256 a, __m256 b)
{
    return a / b;
}

static inline __m256 from_half(enum ek_dtype t, __m128i h)
{
    if (t == EK_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static inline __m256 v_load(enum ek_dtype t, const void *p)
{
    if (t == EK_F32)
        return _mm256_loadu_ps(p);
    if (t == EK_I8)
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)));
    return from_half(t, _mm_loadu_si128(p));
}

static inline __m256 v_load_part(enum ek_dtype t, const void *p, uint32_t n)
{
    uint8_t copy[32] = {0};
    memcpy(copy, p, n * (t == EK_F32 ? 4u : t == EK_I8 ? 1u : 2u));
    return v_load(t, copy);
}

static inline void v_load_pair(enum ek_dtype t, const void *p, int half, __m256 *a, __m256 *b)
{
    const char *row = p;
    if (t == EK_BF16) {
        __m256i both = _mm256_loadu_si256((const void *)(row + half * 32));
        *a = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
        *b = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(-65536)));
        return;
    }
    int elem = t == EK_F32 ? 4 : 2;
    *a = v_load(t, row + half * 8 * elem);
    *b = v_load(t, row + (half * 8 + 16) * elem);
}

#include "kernels/cpu/ops_vec.h"

const struct cpu_ops cpu_ops_avx2 = {
    VEC_FIELDS("avx2"), .scores = vec_scores,    .mix = vec_mix,   .gemm = vec_gemm,
    .expand = expand,   .quads = cpu_quads_avx2, .quads_bytes = 2, .quads_in_order = true};
