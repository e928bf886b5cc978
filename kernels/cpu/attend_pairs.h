/*
 * Scores and weighted sums over KV blocks in pairs (struct cpu_block), for the tier that multiplies
 * pairs of bf16. Query rows share each vector of K or V that is read; what bounds it is reading the
 * cache, so what comes next is fetched meanwhile.
 *
 * Sums: a score is the sum over the even pairs of dims plus that over the odd ones; a weighted sum
 * takes each PART_KEYS positions by themselves. Both break the
 * chains of dependent instructions, and both depend on shape and position alone.
 */
#pragma once

#include <immintrin.h>
#include <stdint.h>

#define PART_KEYS 8u /* positions; no block that the server offers is smaller */

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

static void round_block(const struct cpu_block *b, uint32_t n)
{
    for (uint32_t i = 0; i < b->rows; i++)
        round_pairs(b->work + (size_t)i * ((n + 1) / 2), b->in + i * b->in_stride, n);
}

/* A vector of keys: where they lie, what is fetched meanwhile, where their scores go. */
struct keys {
    const char *kv, *next;
    float *out;
};

INLINE void score_keys(int rows, int cols, const struct cpu_block *b, const struct keys *key)
{
    const uint32_t n = b->dim / 2;
    const size_t width = (size_t)b->keys * 4;
    const __mmask16 lanes = b->keys < 16 ? (__mmask16)((1u << b->keys) - 1) : 0xffff;
    __m512 even[CPU_MOST_ROWS][4], odd[CPU_MOST_ROWS][4];

    UNROLL8
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int c = 0; c < cols; c++)
            even[i][c] = odd[i][c] = _mm512_setzero_ps();
    }
    NOROLL
    for (uint32_t k = 0; k < n; k += 2) {
        const uint32_t *x = b->work + k;
        UNROLL4
        for (int c = 0; c < cols; c++) {
            __m512i v = _mm512_maskz_loadu_epi32(lanes, key[c].kv + k * width);
            _mm_prefetch(key[c].next + k * width, _MM_HINT_T0);
            UNROLL8
            for (int i = 0; i < rows; i++)
                even[i][c] = dot(even[i][c], x[(size_t)i * n], v);
        }
        if (k + 1 == n)
            break;
        UNROLL4
        for (int c = 0; c < cols; c++) {
            __m512i v = _mm512_maskz_loadu_epi32(lanes, key[c].kv + (k + 1) * width);
            _mm_prefetch(key[c].next + (k + 1) * width, _MM_HINT_T0);
            UNROLL8
            for (int i = 0; i < rows; i++)
                odd[i][c] = dot(odd[i][c], x[(size_t)i * n + 1], v);
        }
    }
    UNROLL8
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int c = 0; c < cols; c++)
            _mm512_mask_storeu_ps(key[c].out + (size_t)i * b->out_stride, lanes,
                                  even[i][c] + odd[i][c]);
    }
}

INLINE void score_rows(int rows, const struct cpu_block *b)
{
    const uint32_t most = rows <= 2 ? 4 : rows <= 4 ? 2 : 1;
    struct keys key[4];
    uint32_t count = 0;

    for (uint32_t block = 0; block < b->blocks; block++)
        for (uint32_t first = 0; first < b->keys; first += 16) {
            key[count++] = (struct keys){(const char *)b->kv[block] + (size_t)first * 4,
                                         (const char *)b->next[block] + (size_t)first * 4,
                                         b->out + (size_t)block * b->keys + first};
            if (count == most) {
                score_keys(rows, rows <= 2 ? 4 : rows <= 4 ? 2 : 1, b, key);
                count = 0;
            }
        }
    uint32_t done = count / 2 * 2;
    if (done > 0)
        score_keys(rows, 2, b, key);
    if (count > done)
        score_keys(rows, 1, b, key + done);
}

/* sum += the weighted V of `count` keys, at most PART_KEYS; x: the weights of the first two. */
INLINE void mix_part(int rows, int cols, uint32_t count, size_t width, size_t stride,
                     const uint32_t *x, const char *kv, const char *next,
                     __m512 sum[CPU_MOST_ROWS][4])
{
    __m512 part[CPU_MOST_ROWS][4];

    UNROLL8
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int c = 0; c < cols; c++)
            part[i][c] = _mm512_setzero_ps();
    }
    NOROLL
    for (uint32_t key = 0; key < count; key += 2, x++, kv += width, next += width) {
        UNROLL4
        for (int c = 0; c < cols; c++) {
            __m512i v = _mm512_loadu_si512(kv + (size_t)c * 64);
            _mm_prefetch(next + (size_t)c * 64, _MM_HINT_T0);
            if (key + 1 == count) /* the key behind the last was never written */
                v = _mm512_and_si512(v, _mm512_set1_epi32(0xffff));
            UNROLL8
            for (int i = 0; i < rows; i++)
                part[i][c] = dot(part[i][c], x[(size_t)i * stride], v);
        }
    }
    UNROLL8
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int c = 0; c < cols; c++)
            sum[i][c] += part[i][c];
    }
}

/* Dims [at / 4, at / 4 + 16 cols) of the weighted sum. */
INLINE void mix_dims(int rows, int cols, const struct cpu_block *b, size_t at)
{
    const size_t width = (size_t)b->dim * 4, stride = (b->blocks * b->keys + 1) / 2;
    const uint32_t *x = b->work;
    float *out = b->out + at / 4;
    __m512 sum[CPU_MOST_ROWS][4];

    UNROLL8
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int c = 0; c < cols; c++)
            sum[i][c] = v_read(out + (size_t)i * b->out_stride + c * 16);
    }
    NOROLL
    for (uint32_t block = 0; block < b->blocks; block++) {
        const char *kv = (const char *)b->kv[block] + at, *next = (const char *)b->next[block] + at;
        NOROLL
        for (uint32_t key = 0; key < b->keys; key += PART_KEYS) {
            uint32_t count = b->keys - key < PART_KEYS ? b->keys - key : PART_KEYS;
            size_t skip = key / 2 * width;
            mix_part(rows, cols, count, width, stride, x, kv + skip, next + skip, sum);
            x += count / 2;
        }
    }
    UNROLL8
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int c = 0; c < cols; c++)
            v_store(out + (size_t)i * b->out_stride + c * 16, sum[i][c]);
    }
}

INLINE void mix_rows(int rows, const struct cpu_block *b)
{
    const uint32_t most = rows <= 2 ? 4 : rows <= 4 ? 2 : 1;
    const size_t end = (size_t)b->dim * 4;
    size_t at = 0;

    for (; at + 64 * most <= end; at += 64 * most)
        mix_dims(rows, rows <= 2 ? 4 : rows <= 4 ? 2 : 1, b, at);
    for (; at < end; at += 64)
        mix_dims(rows, 1, b, at);
}

#define EACH_ROWS(fn)                                                                              \
    switch (b->rows) {                                                                             \
    case 1: fn(1, b); break;                                                                       \
    case 2: fn(2, b); break;                                                                       \
    case 3: fn(3, b); break;                                                                       \
    case 4: fn(4, b); break;                                                                       \
    case 5: fn(5, b); break;                                                                       \
    case 6: fn(6, b); break;                                                                       \
    case 7: fn(7, b); break;                                                                       \
    case 8: fn(8, b); break;                                                                       \
    }

static void pair_scores(const struct cpu_block *b)
{
    if (!b->pairs) {
        vec_scores(b);
        return;
    }
    round_block(b, b->dim);
    EACH_ROWS(score_rows)
}

static void pair_mix(const struct cpu_block *b)
{
    if (!b->pairs) {
        vec_mix(b);
        return;
    }
    round_block(b, b->blocks * b->keys);
    EACH_ROWS(mix_rows)
}
