/*
 * Scores, weights and weighted sums over KV blocks in pairs (struct cpu_block), for the tier that
 * multiplies pairs of bf16. Blocks of queries x vectors of sums stay in registers; each vector of K
 * or V is read once for PAIR_ROWS queries and, from the first cache, again for the next ones. What
 * bounds it: the multiplications with many queries, reading the cache with few; so what comes next
 * is fetched meanwhile (attend_fetch.h).
 *
 * A score is one chain over the pairs of dims, a weighted sum one over the pairs of positions,
 * whatever queries and vectors are walked together.
 */
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "kernels/cpu/attend_fetch.h"
#include "kernels/cpu/power_avx512.h"

#define PAIR_ROWS                                                                                  \
    6u /* with 4 vectors: 24 sums, 4 vectors of K or V and the weight fill 32 registers */

/* sum + x * v: two products in each lane; x: a pair of bf16, the same for all lanes. */
INLINE __m512 dot(__m512 sum, uint32_t x, __m512i v)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32((int)x), (__m512bh)v);
}

/* n floats as (n + 1) / 2 pairs, an odd last one with zero. */
static void round_pairs(uint32_t *to, const float *from, uint32_t n)
{
    uint32_t k = 0;

    for (; k + 16 <= n; k += 16) {
        __m256i h = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(from + k));
        _mm256_storeu_si256((__m256i *)(void *)(to + k / 2), h);
    }
    if (k < n) {
        __m512 rest = v_read_part(from + k, n - k, 0.0f);
        __m256i h = (__m256i)_mm512_cvtneps_pbh(rest);
        memcpy(to + k / 2, &h, ((n + 1) / 2 - k / 2) * sizeof(*to));
    }
}

/* A vector of keys: where they lie, what is fetched meanwhile, where their scores go. */
struct keys {
    const char *kv, *next;
    float *out;
};

INLINE void score_keys(int rows, int cols, const struct cpu_block *b, const uint32_t *x,
                       const struct keys *key)
{
    const uint32_t n = b->dim / 2;
    const size_t width = (size_t)b->keys * 4;
    const __mmask16 lanes = b->keys < 16 ? (__mmask16)((1u << b->keys) - 1) : 0xffff;
    __m512 sum[PAIR_ROWS][4];

    UNROLL8
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int c = 0; c < cols; c++)
            sum[i][c] = _mm512_setzero_ps();
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
            UNROLL4
            for (int c = 0; c < cols; c++)
                sum[i][c] = dot(sum[i][c], x[i * b->in_stride + k], v[c]);
        }
    }
    UNROLL8
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int c = 0; c < cols; c++)
            _mm512_mask_storeu_ps(key[c].out + i * b->out_stride, lanes, sum[i][c]);
    }
}

/* The queries from `row` on. */
INLINE void score_rows(int rows, const struct cpu_block *b, uint32_t row, struct turn t)
{
    const uint32_t *x = (const uint32_t *)b->in + row * b->in_stride;
    struct keys key[4];
    uint32_t count = 0, turn = 0;

    for (uint32_t block = 0; block < b->blocks; block++)
        for (uint32_t first = 0; first < b->keys; first += 16) {
            const char *kv = (const char *)b->kv[block] + (size_t)first * 4;
            const char *next = (const char *)b->next[block] + (size_t)first * 4;
            key[count++] =
                (struct keys){kv, turn == t.index ? next : kv,
                              b->out + row * b->out_stride + (size_t)block * b->keys + first};
            turn = turn + 1 < t.count ? turn + 1 : 0;
            if (count == 4) {
                score_keys(rows, 4, b, x, key);
                count = 0;
            }
        }
    uint32_t done = count / 2 * 2;
    if (done > 0)
        score_keys(rows, 2, b, x, key);
    if (count > done)
        score_keys(rows, 1, b, x, key + done);
}

/* Dims [at / 4, at / 4 + 16 cols) of the weighted sum. */
INLINE void mix_dims(int rows, int cols, const struct cpu_block *b, uint32_t row, size_t at,
                     struct turn t)
{
    const size_t width = (size_t)b->dim * 4, stride = b->in_stride;
    const uint32_t *x = (const uint32_t *)b->in + row * stride;
    float *out = b->out + row * b->out_stride + at / 4;
    __m512 sum[PAIR_ROWS][4];

    UNROLL8
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int c = 0; c < cols; c++)
            sum[i][c] = v_read(out + i * b->out_stride + c * 16);
    }
    struct fetch fetch[4] = {fetch_from(b, at, b->keys / 2, t)};
    UNROLL4
    for (int c = 1; c < cols; c++)
        fetch[c] = fetch_from(b, at + (size_t)c * 64, b->keys / 2, t);
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
        for (uint32_t key = 0; key < b->keys; key += 2, x++, kv += width, ahead += step) {
            __m512i v[4];
            UNROLL4
            for (int c = 0; c < cols; c++) {
                v[c] = _mm512_loadu_si512(kv + (size_t)c * 64);
                _mm_prefetch(next[c] + ahead, _MM_HINT_T0);
                if (key + 1 == b->keys) /* the key behind the last was never written */
                    v[c] = _mm512_and_si512(v[c], _mm512_set1_epi32(0xffff));
            }
            UNROLL8
            for (int i = 0; i < rows; i++) {
                UNROLL4
                for (int c = 0; c < cols; c++)
                    sum[i][c] = dot(sum[i][c], x[i * stride], v[c]);
            }
        }
    }
    UNROLL8
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int c = 0; c < cols; c++)
            v_store(out + i * b->out_stride + c * 16, sum[i][c]);
    }
}

INLINE void mix_rows(int rows, const struct cpu_block *b, uint32_t row, struct turn t)
{
    const size_t end = (size_t)b->dim * 4;
    size_t at = 0;

    for (; at + 256 <= end; at += 256)
        mix_dims(rows, 4, b, row, at, t);
    for (; at + 128 <= end; at += 128)
        mix_dims(rows, 2, b, row, at, t);
    if (at < end)
        mix_dims(rows, 1, b, row, at, t);
}

#define PAIR_SCORE(rows, row, turn) score_rows(rows, b, row, turn)
#define PAIR_MIX(rows, row, turn)   mix_rows(rows, b, row, turn)

static void pair_scores(const struct cpu_block *b)
{
    if (!b->pairs) {
        vec_scores(b);
        return;
    }
    EACH_GROUP(PAIR_ROWS, b->rows, PAIR_SCORE)
}

static void pair_mix(const struct cpu_block *b)
{
    if (!b->pairs) {
        vec_mix(b);
        return;
    }
    EACH_GROUP(PAIR_ROWS, b->rows, PAIR_MIX)
}

static float pair_softmax(float *s, uint32_t n, float scale, float cap, float *m, float *l)
{
    const float log2_e = 1.44269504f;
    const __mmask16 last = (__mmask16)(0xffffu >> (15u - (n - 1) % 16));
    const uint32_t end = (n + 15) / 16 * 16;
    __m512 most = _mm512_set1_ps(*m), sum = _mm512_setzero_ps();
    char *out = (char *)s;

    for (uint32_t i = 0; i < end; i += 16) {
        const __mmask16 lanes = i + 16 == end ? last : 0xffff;
        __m512 v = _mm512_maskz_loadu_ps(lanes, s + i) * _mm512_set1_ps(scale);
        if (cap > 0.0f) {
            v = _mm512_set1_ps(cap) * v_tanh(v / _mm512_set1_ps(cap));
            _mm512_mask_storeu_ps(s + i, lanes, v);
        }
        most = _mm512_mask_max_ps(most, lanes, most, v);
    }
    const float top = v_most(most);
    const __m512 by = _mm512_set1_ps(cap > 0.0f ? log2_e : scale * log2_e);
    const __m512 less = _mm512_set1_ps(top * log2_e);
    for (uint32_t i = 0; i < end; i += 16) {
        const __mmask16 lanes = i + 16 == end ? last : 0xffff;
        __m512 v = _mm512_fmsub_ps(_mm512_maskz_loadu_ps(lanes, s + i), by, less);
        v = _mm512_maskz_mov_ps(lanes, power_of_2(v));
        sum += v;
        _mm256_storeu_si256((__m256i *)(void *)(out + (size_t)i * 2),
                            (__m256i)_mm512_cvtneps_pbh(v));
    }
    const float factor =
        _mm512_cvtss_f32(power_of_2(_mm512_set1_ps(*m == top ? 0.0f : (*m - top) * log2_e)));
    *m = top;
    *l = fmaf(*l, factor, v_sum(sum));
    return factor;
}
