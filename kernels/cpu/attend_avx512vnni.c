/*
 * Attention over an int8 cache in quads (cache.h) with vpdpbusd: 64 multiply-adds an instruction.
 * Compiled with its own flags; entered only on machines that have it.
 *
 * Weights have two parts of 8 bits, so each vector of V is multiplied twice with each row: as many
 * instructions for an element as pairs of bf16 take, for half the bytes; scores take half as many.
 * Blocks of rows x vectors of sums stay in registers; what comes next is fetched meanwhile
 * (attend_fetch.h).
 */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/attend_fetch.h"
#include "kernels/cpu/cache.h"
#include "kernels/cpu/fours.h"
#include "kernels/cpu/power_avx512.h"

#define INLINE  static inline __attribute__((always_inline))
#define UNROLL8 _Pragma("GCC unroll 8")
#define UNROLL4 _Pragma("GCC unroll 4")
#define NOROLL  _Pragma("GCC unroll 1")

#define ROWS  6u /* of a block; in sums of two parts with two vectors, with four half as many */
#define LEAST 1e-30f

INLINE __mmask16 lanes_of(uint32_t n)
{
    return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
}

/* Whole numbers of 16 bits in their two parts, as words of four: upper, lower. */
INLINE void store_parts(uint32_t *to, __m512i number)
{
    const __m512i low = _mm512_and_si512(number, _mm512_set1_epi32(255));
    const __m128i h = _mm512_cvtepi32_epi8(_mm512_srli_epi32(number, 8));
    const __m128i l = _mm512_cvtepi32_epi8(low);
    const __m256i both = _mm256_set_m128i(_mm_unpackhi_epi32(h, l), _mm_unpacklo_epi32(h, l));

    _mm256_storeu_si256((__m256i *)(void *)to, both);
}

static void quad_query(uint32_t *to, const float *q, uint32_t n, struct cpu_unit *ret_unit)
{
    __m512 most = _mm512_setzero_ps(), none = _mm512_setzero_ps();
    __m512i sum = _mm512_setzero_si512();

    for (uint32_t i = 0; i < n; i += 16) {
        const __m512 v = _mm512_maskz_loadu_ps(lanes_of(n - i), q + i);
        most = _mm512_max_ps(most, _mm512_abs_ps(v));
        none = _mm512_fmadd_ps(v, _mm512_setzero_ps(), none);
    }
    const float top = _mm512_reduce_max_ps(most);
    const __m512 by = _mm512_set1_ps(top > LEAST ? 127.0f / top : 0.0f);
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 lanes = lanes_of(n - i);
        const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, q + i), by);
        const __mmask16 known = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
        const __m512i number = _mm512_maskz_cvtps_epi32(known, v);
        sum = _mm512_add_epi32(sum, number);
        _mm_mask_storeu_epi32(to + i / 4, (__mmask8)lanes_of((n - i) / 4 < 4 ? (n - i) / 4 : 4),
                              _mm512_cvtepi32_epi8(number));
    }
    ret_unit->one = top / 127.0f;
    if (_mm512_cmp_ps_mask(none, none, _CMP_UNORD_Q) != 0)
        ret_unit->one = __builtin_nanf("");
    ret_unit->less = (int32_t)((uint32_t)_mm512_reduce_add_epi32(sum) * 128u);
}

/* A vector of keys: where they lie, what is fetched meanwhile, where their scores go. */
struct quad_keys {
    const char *kv, *next;
    float *out;
};

INLINE void score_keys(int rows, int cols, const struct cpu_block *b, uint32_t row,
                       const struct cpu_unit *unit, const struct quad_keys *key)
{
    const uint32_t n = b->dim / 4;
    const size_t width = (size_t)b->keys * 4;
    const __mmask16 lanes = lanes_of(b->keys);
    const uint32_t *x = (const uint32_t *)b->in + row * b->in_stride;
    __m512i sum[ROWS][4];

    UNROLL8
    for (int i = 0; i < rows; i++) {
        const __m512i start = _mm512_set1_epi32(-unit[row + (uint32_t)i].less);
        UNROLL4
        for (int c = 0; c < cols; c++)
            sum[i][c] = start;
    }
    NOROLL
    for (uint32_t k = 0; k < n; k++) {
        __m512i v[4];
        UNROLL4
        for (int c = 0; c < cols; c++) {
            v[c] = _mm512_maskz_loadu_epi32(lanes, key[c].kv + k * width);
            _mm_prefetch(key[c].next + k * width, _MM_HINT_T0);
        }
        UNROLL8
        for (int i = 0; i < rows; i++) {
            const __m512i in = _mm512_set1_epi32((int)x[i * b->in_stride + k]);
            UNROLL4
            for (int c = 0; c < cols; c++)
                fours_add(&sum[i][c], v[c], in);
        }
    }
    UNROLL8
    for (int i = 0; i < rows; i++) {
        const __m512 one = _mm512_set1_ps(unit[row + (uint32_t)i].one);
        UNROLL4
        for (int c = 0; c < cols; c++) {
            const __m512 s = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[i][c]), one);
            _mm512_mask_storeu_ps(key[c].out + i * b->out_stride, lanes, s);
        }
    }
}

/* The queries from `row` on. */
INLINE void score_rows(int rows, const struct cpu_block *b, uint32_t row,
                       const struct cpu_unit *unit, struct turn t)
{
    struct quad_keys key[4];
    uint32_t count = 0, turn = 0;

    for (uint32_t block = 0; block < b->blocks; block++)
        for (uint32_t first = 0; first < b->keys; first += 16) {
            const char *kv = (const char *)b->kv[block] + (size_t)first * 4;
            const char *next = (const char *)b->next[block] + (size_t)first * 4;
            key[count++] =
                (struct quad_keys){kv, turn == t.index ? next : kv,
                                   b->out + row * b->out_stride + (size_t)block * b->keys + first};
            turn = turn + 1 < t.count ? turn + 1 : 0;
            if (count == 4) {
                score_keys(rows, 4, b, row, unit, key);
                count = 0;
            }
        }
    const uint32_t done = count / 2 * 2;
    if (done > 0)
        score_keys(rows, 2, b, row, unit, key);
    if (count > done)
        score_keys(rows, 1, b, row, unit, key + done);
}

/* Dims [at / 4, at / 4 + 16 cols) of the weighted sum. */
INLINE void mix_dims(int rows, int cols, const struct cpu_block *b, uint32_t row, size_t at,
                     const struct cpu_unit *unit, struct turn t)
{
    const size_t width = (size_t)b->dim * 4, stride = b->in_stride;
    const uint32_t *x = (const uint32_t *)b->in + row * stride;
    __m512i upper[ROWS][4], lower[ROWS][4];

    UNROLL8
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int c = 0; c < cols; c++)
            upper[i][c] = lower[i][c] = _mm512_setzero_si512();
    }
    struct fetch fetch[4] = {fetch_from(b, at, b->keys / 4, t)};
    UNROLL4
    for (int c = 1; c < cols; c++)
        fetch[c] = fetch_from(b, at + (size_t)c * 64, b->keys / 4, t);
    const size_t step = fetch[0].step;
    NOROLL
    for (uint32_t block = 0; block < b->blocks; block++) {
        const char *kv = (const char *)b->kv[block] + at;
        const char *next[4];
        size_t ahead = 0;
        UNROLL4
        for (int c = 0; c < cols; c++)
            next[c] = fetch_next(b, &fetch[c], kv, t);
        NOROLL
        for (uint32_t key = 0; key < b->keys; key += 4, x += 2, kv += width, ahead += step) {
            __m512i v[4];
            UNROLL4
            for (int c = 0; c < cols; c++) {
                v[c] = _mm512_loadu_si512(kv + (size_t)c * 64);
                _mm_prefetch(next[c] + ahead, _MM_HINT_T0);
            }
            UNROLL8
            for (int i = 0; i < rows; i++) {
                const __m512i h = _mm512_set1_epi32((int)x[i * stride]);
                const __m512i l = _mm512_set1_epi32((int)x[i * stride + 1]);
                UNROLL4
                for (int c = 0; c < cols; c++) {
                    fours_add(&upper[i][c], h, v[c]);
                    fours_add(&lower[i][c], l, v[c]);
                }
            }
        }
    }
    float *out = b->out + row * b->out_stride + at / 4;
    UNROLL8
    for (int i = 0; i < rows; i++) {
        const __m512 one = _mm512_set1_ps(unit[row + (uint32_t)i].one);
        UNROLL4
        for (int c = 0; c < cols; c++) {
            float *to = out + i * b->out_stride + c * 16;
            const __m512 sum = _mm512_cvtepi32_ps(
                _mm512_add_epi32(_mm512_slli_epi32(upper[i][c], 8), lower[i][c]));
            _mm512_storeu_ps(to, _mm512_fmadd_ps(sum, one, _mm512_loadu_ps(to)));
        }
    }
}

INLINE void mix_rows(int rows, const struct cpu_block *b, uint32_t row, const struct cpu_unit *unit,
                     struct turn t)
{
    const size_t end = (size_t)b->dim * 4;
    size_t at = 0;

    for (; rows <= 3 && at + 256 <= end; at += 256)
        mix_dims(rows, 4, b, row, at, unit, t);
    for (; at + 128 <= end; at += 128)
        mix_dims(rows, 2, b, row, at, unit, t);
    if (at < end)
        mix_dims(rows, 1, b, row, at, unit, t);
}

#define QUAD_SCORE(rows, row, turn) score_rows(rows, b, row, unit, turn)
#define QUAD_MIX(rows, row, turn)   mix_rows(rows, b, row, unit, turn)

static void quad_scores(const struct cpu_block *b, const struct cpu_unit *unit)
{
    EACH_GROUP(ROWS, b->rows, QUAD_SCORE)
}

static void quad_mix(const struct cpu_block *b,
                     const struct cpu_unit *unit){EACH_GROUP(ROWS, b->rows, QUAD_MIX)}

/* Positions of a vector that the query sees. */
INLINE __mmask16 seen(const struct cpu_quad_scores *s, uint32_t i)
{
    return i > 0 ? lanes_of(s->n - i) : (__mmask16)(lanes_of(s->n) & (0xffffu << s->skip));
}

/* Scores times their scales, in place; the largest so far. */
static float scale_scores(const struct cpu_quad_scores *s)
{
    __m512 most = _mm512_set1_ps(*s->most);

    for (uint32_t i = 0; i < s->n; i += 16) {
        const __mmask16 lanes = seen(s, i);
        __m512 v = _mm512_maskz_loadu_ps(lanes, s->s + i);
        v = _mm512_mul_ps(v, _mm512_set1_ps(s->scale));
        if (s->k)
            v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(lanes, s->k + i));
        _mm512_storeu_ps(s->s + i, v);
        most = _mm512_mask_max_ps(most, lanes, most, v);
    }
    return _mm512_reduce_max_ps(most);
}

static float quad_softmax(const struct cpu_quad_scores *s)
{
    const float log2_e = 1.44269504f, top = scale_scores(s);
    const __m512 by = _mm512_set1_ps(log2_e), off = _mm512_set1_ps(top * log2_e);
    __m512 sum = _mm512_setzero_ps(), most = sum, none = sum;

    for (uint32_t i = 0; i < s->n; i += 16) {
        const __mmask16 lanes = seen(s, i);
        __m512 v = _mm512_fmsub_ps(_mm512_loadu_ps(s->s + i), by, off);
        v = _mm512_maskz_mov_ps(lanes, power_of_2(v));
        sum = _mm512_add_ps(sum, v);
        v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(lanes, s->v + i));
        none = _mm512_fmadd_ps(v, _mm512_setzero_ps(), none);
        most = _mm512_max_ps(most, v);
        _mm512_storeu_ps(s->s + i, v);
    }
    const float largest = _mm512_reduce_max_ps(most);
    const __m512 parts = _mm512_set1_ps(largest > LEAST ? 65535.0f / largest : 0.0f);
    for (uint32_t i = 0; i < s->n; i += 16) {
        const __m512i number = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(s->s + i), parts));
        store_parts(s->to + i / 2, number);
    }
    s->unit->one = largest / 65535.0f;
    if (_mm512_cmp_ps_mask(none, none, _CMP_UNORD_Q) != 0)
        s->unit->one = __builtin_nanf("");
    s->unit->less = 0;
    const float before = *s->most == top ? 0.0f : (*s->most - top) * log2_e;
    const float factor = _mm512_cvtss_f32(power_of_2(_mm512_set1_ps(before)));
    *s->most = top;
    *s->sum = fmaf(*s->sum, factor, _mm512_reduce_add_ps(sum));
    return factor;
}

const struct cpu_quad_cache cpu_quad_cache_vnni = {
    .query = quad_query, .scores = quad_scores, .softmax = quad_softmax, .mix = quad_mix};
