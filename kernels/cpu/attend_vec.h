/*
 * Scores and weighted sums over blocks of the paged cache, a part of ops_vec.h: query rows share
 * each vector of K or V that is read, and as many vectors are walked together as keep enough chains
 * of dependent additions in the registers. An element's chain runs in order of dim or of keys,
 * whatever the shape of the walk. What is read next is fetched meanwhile. For many queries K and V
 * become floats once, a strip of columns at a time, and are multiplied as weights are (ops_vec.h).
 */
#pragma once

#define GROUP (VW == 16 ? 6 : 4) /* queries whose sums are in the registers together */

/* Sanitized code of all widths would take a minute to compile. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WIDE 1u
#else
#define WIDE (VW == 16 ? 4u : 2u)
#endif

/* One vector of output columns: where it begins in its block, what comes next, its output. */
struct column {
    size_t at; /* bytes */
    const char *kv, *next;
    float *out;
};

/* out[rows, cols vectors] = in[rows, dim] * kt[dim, keys]; only the first `part` lanes. */
INLINE void score_strip(enum ek_dtype t, int rows, int cols, uint32_t part,
                        const struct cpu_block *b, const struct column *col)
{
    const size_t width = b->keys * elem_bytes(t);
    const float *in = b->in;
    vf sum[GROUP][4];

    UNROLL8
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int c = 0; c < cols; c++)
            sum[i][c] = v_set1(0.0f);
    }
    NOROLL
    for (uint32_t k = 0; k < b->dim; k++) {
        vf v[4];
        UNROLL4
        for (int c = 0; c < cols; c++) {
            const char *at = col[c].kv + k * width;
            v[c] = part == VW ? v_load(t, at) : v_load_part(t, at, part);
            __builtin_prefetch(col[c].next + k * width);
        }
        UNROLL8
        for (int i = 0; i < rows; i++) {
            vf x = v_set1(in[i * b->in_stride + k]);
            UNROLL4
            for (int c = 0; c < cols; c++)
                sum[i][c] = v_fma(x, v[c], sum[i][c]);
        }
    }
    UNROLL8
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int c = 0; c < cols; c++) {
            float *at = col[c].out + (size_t)i * b->out_stride;
            if (part == VW)
                v_store(at, sum[i][c]);
            else
                memcpy(at, &sum[i][c], part * sizeof(float));
        }
    }
}

/* acc[rows, cols vectors] += in[rows, blocks * keys] * v[blocks][keys, dim]. */
INLINE void mix_strip(enum ek_dtype t, int rows, int cols, const struct cpu_block *b,
                      const struct column *col)
{
    const size_t width = b->dim * elem_bytes(t);
    vf sum[GROUP][4];
    const float *in = b->in;

    UNROLL8
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int c = 0; c < cols; c++)
            sum[i][c] = v_read(col[c].out + (size_t)i * b->out_stride);
    }
    NOROLL
    for (uint32_t block = 0; block < b->blocks; block++) {
        const char *kv = b->kv[block], *next = b->next[block];
        NOROLL
        for (uint32_t k = 0; k < b->keys; k++, in++) {
            vf v[4];
            UNROLL4
            for (int c = 0; c < cols; c++) {
                v[c] = v_load(t, kv + col[c].at + k * width);
                __builtin_prefetch(next + col[c].at + k * width);
            }
            UNROLL8
            for (int i = 0; i < rows; i++) {
                vf x = v_set1(in[(size_t)i * b->in_stride]);
                UNROLL4
                for (int c = 0; c < cols; c++)
                    sum[i][c] = v_fma(x, v[c], sum[i][c]);
            }
        }
    }
    UNROLL8
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int c = 0; c < cols; c++)
            v_store(col[c].out + (size_t)i * b->out_stride, sum[i][c]);
    }
}

/* Walks the vectors of all blocks (scores) or of all dims (mix), several at once, from `at` on. A
 * block of keys is whole vectors wide, or (part < VW) less than one. */
INLINE void strips(enum ek_dtype t, int rows, bool mix, uint32_t part, const struct cpu_block *b,
                   uint32_t at)
{
    const uint32_t most = rows <= 2 ? 4 : WIDE;
    const uint32_t width = mix ? b->dim : b->keys, each = (width + VW - 1) / VW;

    for (uint32_t left = (mix ? each : each * b->blocks) - at; left > 0;) {
        uint32_t count = left >= 4 ? 4 : left >= 2 ? 2 : 1;
        struct column col[4];
        count = count < most ? count : most;
        for (uint32_t i = 0; i < count; i++, at++) {
            uint32_t block = at / each, first = at % each * VW;
            col[i].at = first * elem_bytes(t);
            col[i].kv = (const char *)b->kv[block] + col[i].at;
            col[i].next = (const char *)b->next[block] + col[i].at;
            col[i].out = b->out + (mix ? 0 : (size_t)block * b->keys) + first;
        }
        left -= count;
        if (mix && count == 4 && most >= 4)
            mix_strip(t, rows, 4, b, col);
        else if (mix && count == 2 && most >= 2)
            mix_strip(t, rows, 2, b, col);
        else if (mix)
            mix_strip(t, rows, 1, b, col);
        else if (count == 4 && most >= 4)
            score_strip(t, rows, 4, part, b, col);
        else if (count == 2 && most >= 2)
            score_strip(t, rows, 2, part, b, col);
        else
            score_strip(t, rows, 1, part, b, col);
    }
}

INLINE void rows_of(enum ek_dtype t, int rows, bool mix, const struct cpu_block *b, uint32_t at)
{
    if (!mix && b->keys < VW)
        strips(t, rows, mix, b->keys, b, at);
    else
        strips(t, rows, mix, VW, b, at);
}

/* By groups of queries of equal height, give or take one, from a vector of columns on. */
INLINE void few_of(enum ek_dtype t, bool mix, const struct cpu_block *b, uint32_t at)
{
    const uint32_t groups = (b->rows + GROUP - 1) / GROUP;

    for (uint32_t i = 0; i < groups; i++) {
        const uint32_t row = i * b->rows / groups, end = (i + 1) * b->rows / groups;
        struct cpu_block some = *b;
        some.rows = end - row;
        some.in = (const float *)b->in + row * b->in_stride;
        some.out = b->out + row * b->out_stride;
        for (uint32_t k = 0; i > 0 && k < b->blocks; k++)
            some.next[k] = b->kv[k]; /* the first ones have fetched it */
        switch (some.rows) {
        case 1: rows_of(t, 1, mix, &some, at); break;
        case 2: rows_of(t, 2, mix, &some, at); break;
        case 3: rows_of(t, 3, mix, &some, at); break;
        case 4: rows_of(t, 4, mix, &some, at); break;
#if VW == 16
        case 5: rows_of(t, 5, mix, &some, at); break;
        case 6: rows_of(t, 6, mix, &some, at); break;
#endif
        }
    }
}

/* Inputs [k, k + n) of the strip of columns that begins at `column`, as floats. */
INLINE void keep_strip(enum ek_dtype t, bool mix, const struct cpu_block *b, uint32_t column,
                       uint32_t k, uint32_t n, float *kept)
{
    const size_t elem = elem_bytes(t);

    for (uint32_t i = 0; i < n && mix; i++) {
        const char *kv = (const char *)b->kv[(k + i) / b->keys];
        const size_t at = (size_t)((k + i) % b->keys) * b->dim + column;
        for (uint32_t c = 0; c < WIDE_COLUMNS; c += VW)
            v_store(kept + (size_t)i * WIDE_COLUMNS + c, v_load(t, kv + (at + c) * elem));
    }
    for (uint32_t c = 0; c < WIDE_COLUMNS && !mix; c += VW) {
        const char *kv = (const char *)b->kv[(column + c) / b->keys];
        kv += ((size_t)k * b->keys + (column + c) % b->keys) * elem;
        for (uint32_t i = 0; i < n; i++, kv += b->keys * elem)
            v_store(kept + (size_t)i * WIDE_COLUMNS + c, v_load(t, kv));
    }
}

/* The next blocks are fetched in `pieces` parts: part `i` of them. */
INLINE const char *next_piece(const struct cpu_block *b, size_t block_bytes, uint32_t i,
                              uint32_t pieces)
{
    const uint32_t at = i * b->blocks;

    return (const char *)b->next[at / pieces] + at % pieces * block_bytes / pieces;
}

/* All queries at the columns that make whole strips; returns how many. */
INLINE uint32_t many_of(enum ek_dtype t, bool mix, const struct cpu_block *b)
{
    const size_t block_bytes = (size_t)b->dim * b->keys * elem_bytes(t);
    const uint32_t inputs = mix ? b->blocks * b->keys : b->dim;
    const uint32_t columns = (mix ? b->dim : b->blocks * b->keys) / WIDE_COLUMNS * WIDE_COLUMNS;
    const uint32_t parts = (inputs + WIDE_PART - 1) / WIDE_PART;
    const uint32_t groups = (b->rows + WIDE_ROWS - 1) / WIDE_ROWS;
    const uint32_t pieces = columns / WIDE_COLUMNS * parts * 2 * WIDE_PANELS; /* by two groups */
    float kept[WIDE_PART * WIDE_COLUMNS] __attribute__((aligned(64)));
    struct wide s = {.x_stride = b->in_stride, .kept = kept, .c_stride = b->out_stride};
    uint32_t piece = 0;

    for (uint32_t column = 0; column < columns; column += WIDE_COLUMNS)
        for (uint32_t k = 0; k < inputs; k += WIDE_PART) {
            s.inputs = inputs - k < WIDE_PART ? inputs - k : WIDE_PART;
            s.add = mix || k > 0;
            keep_strip(t, mix, b, column, k, s.inputs, kept);
            for (uint32_t i = 0; i < groups; i++) { /* of equal height, give or take one row */
                const uint32_t row = i * b->rows / groups, end = (i + 1) * b->rows / groups;
                s.x = (const float *)b->in + row * b->in_stride + k;
                s.c = b->out + row * b->out_stride + column;
                s.share = i < 2 ? (uint32_t)(b->blocks * block_bytes * 256 / pieces / s.inputs) : 0;
                for (int p = 0; p < WIDE_PANELS && i < 2; p++)
                    s.next[p] = next_piece(b, block_bytes, piece++, pieces);
                wide_kept(end - row, &s);
            }
        }
    return columns;
}

INLINE void block_of(enum ek_dtype t, bool mix, const struct cpu_block *b)
{
    const bool whole = mix || (b->keys % VW == 0 && WIDE_COLUMNS % b->keys == 0);
    const bool many = t != EK_F32 && b->rows >= WIDE_LEAST; /* floats are what they are */
    struct cpu_block rest = *b;

    if (!many || !whole) {
        few_of(t, mix, b, 0);
        return;
    }
    const uint32_t done = many_of(t, mix, b);
    if (mix && done < b->dim)
        few_of(t, mix, b, done / VW);
    if (mix)
        return;
    rest.blocks -= done / b->keys;
    rest.out += done;
    for (uint32_t i = 0; i < rest.blocks; i++) {
        rest.kv[i] = b->kv[i + done / b->keys];
        rest.next[i] = b->next[i + done / b->keys];
    }
    if (rest.blocks > 0)
        few_of(t, mix, &rest, 0);
}

static void vec_scores(const struct cpu_block *b)
{
    if (b->dtype == EK_BF16)
        block_of(EK_BF16, false, b);
    else if (b->dtype == EK_F32)
        block_of(EK_F32, false, b);
    else if (b->dtype == EK_I8)
        block_of(EK_I8, false, b);
    else
        block_of(EK_F16, false, b);
}

static void vec_mix(const struct cpu_block *b)
{
    if (b->dtype == EK_BF16)
        block_of(EK_BF16, true, b);
    else if (b->dtype == EK_F32)
        block_of(EK_F32, true, b);
    else if (b->dtype == EK_I8)
        block_of(EK_I8, true, b);
    else
        block_of(EK_F16, true, b);
}
