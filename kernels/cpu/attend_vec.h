/*
 * Scores and weighted sums over blocks of the paged cache, a part of ops_vec.h: query rows share
 * each vector of K or V that is read, and as many vectors are walked together as keep enough chains
 * of dependent additions in the registers. An element's chain runs in order of dim or of keys,
 * whatever the shape of the walk. What is read next is fetched meanwhile. For many queries K and V
 * become floats once, a strip of columns at a time, and are multiplied as weights are (gemm_vec.h).
 */
#pragma once

#define GROUP (VW == 16 ? 6 : 4) /* queries whose sums are in the registers together */

/* Sanitized code of all widths would take a minute to compile. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WIDE 1u
#else
#define WIDE (VW == 16 ? 4u : 2u)
#endif

/* One vector of output columns: where it begins in its block, what is fetched, its output. */
struct column {
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
            if (c % HALVES == 0) /* a line holds 16 keys at least */
                __builtin_prefetch(col[c].next + k * width, 0, 2);
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

/* acc[rows, cols vectors] += in[rows, keys] * v[keys, dim] of one block. */
INLINE void mix_strip(enum ek_dtype t, int rows, int cols, const struct cpu_block *b,
                      const struct column *col)
{
    const size_t width = b->dim * elem_bytes(t);
    const size_t piece = (size_t)cols * VW * elem_bytes(t); /* fetched for each key, in order */
    const float *in = b->in;
    vf sum[GROUP][4];

    UNROLL8
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int c = 0; c < cols; c++)
            sum[i][c] = v_read(col[c].out + (size_t)i * b->out_stride);
    }
    NOROLL
    for (uint32_t k = 0; k < b->keys; k++) {
        vf v[4];
        UNROLL4
        for (int c = 0; c < cols; c++) {
            v[c] = v_load(t, col[c].kv + k * width);
            if (c * VW * elem_bytes(t) % 64 == 0)
                __builtin_prefetch(col[0].next + k * piece + c * VW * elem_bytes(t), 0, 2);
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
            const size_t skip = first * elem_bytes(t);
            col[i].kv = (const char *)b->kv[block] + skip;
            col[i].next = (const char *)b->next[block] + (mix ? skip * b->keys : skip);
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

/* A block after another, so that V is read in the order in which it lies. */
INLINE void few_mixed(enum ek_dtype t, const struct cpu_block *b, uint32_t at)
{
    struct cpu_block one = *b;

    one.blocks = 1;
    for (uint32_t i = 0; i < b->blocks; i++) {
        one.kv[0] = b->kv[i];
        one.next[0] = b->next[i];
        one.in = (const float *)b->in + (size_t)i * b->keys;
        few_of(t, true, &one, at);
    }
}

/* Where a strip's columns lie in memory: each vector of it in each run of inputs, which are `step`
 * bytes apart. Vector h * WIDE_VECTORS + v holds the columns from h * VW + v * 16 on. */
struct strip_at {
    uint32_t runs, inputs; /* inputs of each run, but fewer where the part ends */
    size_t step;
    const char *run[CPU_BLOCKS][HALVES * WIDE_VECTORS];
};

/* Inputs [k, k + n) of the strip that begins at `column`. */
INLINE struct strip_at strip_find(enum ek_dtype t, bool mix, const struct cpu_block *b,
                                  uint32_t column, uint32_t k, uint32_t n)
{
    const size_t elem = elem_bytes(t);
    struct strip_at s = {.runs = 1, .inputs = n, .step = (mix ? b->dim : b->keys) * elem};

    if (mix && b->keys < n) {
        s.inputs = b->keys;
        s.runs = n / b->keys;
    }
    for (uint32_t r = 0; r < s.runs; r++)
        UNROLL4
    for (uint32_t i = 0; i < HALVES * WIDE_VECTORS; i++) {
        const uint32_t at = column + i / WIDE_VECTORS * VW + i % WIDE_VECTORS * 16;
        const uint32_t input = k + r * s.inputs;
        const size_t first =
            mix ? (size_t)(input % b->keys) * b->dim + at : (size_t)input * b->keys + at % b->keys;
        s.run[r][i] = (const char *)b->kv[(mix ? input : at) / b->keys] + first * elem;
    }
    return s;
}

/* The first rows at a strip, which they leave as floats for the others. */
INLINE void keep_half(enum ek_dtype t, int rows, int h, const struct wide *s,
                      const struct strip_at *strip, vf sum[WIDE_ROWS][4])
{
    const char *x = (const char *)s->x, *y = (const char *)(s->x + 3 * s->x_stride);
    const size_t x_bytes = s->x_stride * sizeof(float), step = strip->step;
    const uint32_t inputs = strip->inputs, runs = strip->runs, share = s->share * WIDE_PANELS;
    const char *next = s->next[0];
    float *kept = s->kept + h * VW;
    uint32_t passed = 0;

    NOROLL
    for (uint32_t r = 0; r < runs; r++) {
        const char *run[4];
        size_t at = 0;
        memcpy(run, &strip->run[r][h * WIDE_VECTORS], WIDE_VECTORS * sizeof(*run));
        NOROLL
        for (uint32_t k = inputs; k > 0; k--, at += step) {
            vf w[4];
            UNROLL4
            for (int v = 0; v < WIDE_VECTORS; v++) {
                w[v] = v_load(t, run[v] + at);
                v_store(kept + (size_t)v * 16, w[v]);
            }
            __builtin_prefetch(next + (passed >> 8), 0, 2);
            UNROLL8
            for (int i = 0; i < rows; i++) {
                float one;
                memcpy(&one, (i < 3 ? x : y) + (size_t)(i % 3) * x_bytes, sizeof(one));
                const vf in = v_set1(one);
                UNROLL4
                for (int v = 0; v < WIDE_VECTORS; v++)
                    sum[i][v] = v_fma(in, w[v], sum[i][v]);
            }
            kept += WIDE_COLUMNS;
            x += sizeof(float);
            y += sizeof(float);
            passed += share;
        }
    }
}

INLINE void keep_block(enum ek_dtype t, int rows, const struct wide *s,
                       const struct strip_at *strip)
{
    NOROLL
    for (int h = 0; h < HALVES; h++) {
        vf sum[WIDE_ROWS][4];
        float *c = s->c + h * VW;
        UNROLL8
        for (int i = 0; i < rows; i++) {
            UNROLL4
            for (int v = 0; v < WIDE_VECTORS; v++)
                sum[i][v] = s->add ? v_read(c + (size_t)i * s->c_stride + v * 16) : v_set1(0.0f);
        }
        keep_half(t, rows, h, s, strip, sum);
        UNROLL8
        for (int i = 0; i < rows; i++) {
            UNROLL4
            for (int v = 0; v < WIDE_VECTORS; v++)
                v_store(c + (size_t)i * s->c_stride + v * 16, sum[i][v]);
        }
    }
}

#define KEEP_BLOCK(name, t)                                                                        \
    static void name(uint32_t rows, const struct wide *s, const struct strip_at *strip)            \
    {                                                                                              \
        switch (rows) {                                                                            \
        case 3: keep_block(t, 3, s, strip); break;                                                 \
        case 4: keep_block(t, 4, s, strip); break;                                                 \
        case 5: keep_block(t, 5, s, strip); break;                                                 \
        case 6: keep_block(t, 6, s, strip); break;                                                 \
        }                                                                                          \
    }
KEEP_BLOCK(keep_f32, EK_F32)
KEEP_BLOCK(keep_bf16, EK_BF16)
KEEP_BLOCK(keep_f16, EK_F16)
KEEP_BLOCK(keep_i8, EK_I8)

INLINE void keep(enum ek_dtype t, uint32_t rows, const struct wide *s, const struct strip_at *strip)
{
    if (t == EK_F32)
        keep_f32(rows, s, strip);
    else if (t == EK_BF16)
        keep_bf16(rows, s, strip);
    else if (t == EK_F16)
        keep_f16(rows, s, strip);
    else
        keep_i8(rows, s, strip);
}

/* Where the next blocks are that are fetched, and how many bytes each group of queries fetches. */
struct fetched {
    uint32_t block;
    size_t at, step;
};

INLINE const char *next_piece(const struct cpu_block *b, size_t block_bytes, struct fetched *f)
{
    const char *piece = (const char *)b->next[f->block] + f->at;

    f->at += f->step;
    if (f->at >= block_bytes && f->block + 1 < b->blocks) {
        f->at -= block_bytes;
        f->block++;
    }
    return piece;
}

/* All queries at the columns that make whole strips; returns how many. */
INLINE uint32_t many_of(enum ek_dtype t, bool mix, const struct cpu_block *b)
{
    const size_t block_bytes = (size_t)b->dim * b->keys * elem_bytes(t);
    const uint32_t inputs = mix ? b->blocks * b->keys : b->dim;
    const uint32_t columns = (mix ? b->dim : b->blocks * b->keys) / WIDE_COLUMNS * WIDE_COLUMNS;
    const uint32_t parts = (inputs + WIDE_PART - 1) / WIDE_PART;
    const uint32_t groups = (b->rows + WIDE_ROWS - 1) / WIDE_ROWS;
    const uint32_t least = b->rows / groups, more = b->rows % groups; /* rows of a group */
    const uint32_t pieces = columns / WIDE_COLUMNS * parts * groups * WIDE_PANELS;
    float kept[WIDE_PART * WIDE_COLUMNS] __attribute__((aligned(64)));
    struct wide s = {.x_stride = b->in_stride, .kept = kept, .c_stride = b->out_stride};
    struct fetched f = {.step = pieces > 0 ? b->blocks * block_bytes / pieces : 0};

    for (uint32_t column = 0; column < columns; column += WIDE_COLUMNS)
        for (uint32_t k = 0; k < inputs; k += WIDE_PART) {
            s.inputs = inputs - k < WIDE_PART ? inputs - k : WIDE_PART;
            s.add = mix || k > 0;
            s.share = (uint32_t)f.step * 256 / s.inputs;
            const struct strip_at strip = strip_find(t, mix, b, column, k, s.inputs);
            s.x = (const float *)b->in + k;
            s.c = b->out + column;
            for (uint32_t i = 0; i < groups; i++) {
                const uint32_t rows = least + (i < more);
                for (int p = 0; p < WIDE_PANELS; p++)
                    s.next[p] = next_piece(b, block_bytes, &f);
                if (i == 0)
                    keep(t, rows, &s, &strip);
                else
                    wide_kept(rows, &s);
                s.x += rows * b->in_stride;
                s.c += rows * b->out_stride;
            }
        }
    return columns;
}

INLINE void block_of(enum ek_dtype t, bool mix, const struct cpu_block *b)
{
    const bool whole = mix || (b->keys % VW == 0 && WIDE_COLUMNS % b->keys == 0);
    struct cpu_block rest = *b;

    if (b->rows < WIDE_LEAST || !whole) {
        if (mix)
            few_mixed(t, b, 0);
        else
            few_of(t, false, b, 0);
        return;
    }
    const uint32_t done = many_of(t, mix, b);
    if (mix && done < b->dim)
        few_mixed(t, b, done / VW);
    if (mix)
        return;
    rest.blocks -= done / b->keys;
    rest.out += done;
    for (uint32_t i = 0; i < rest.blocks; i++) {
        rest.kv[i] = b->kv[i + done / b->keys];
        rest.next[i] = b->next[i + done / b->keys];
    }
    if (rest.blocks > 0)
        few_of(t, false, &rest, 0);
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
