/*
 * Products of many rows, a part of gemm_vec.h. A part of the inputs of a strip of columns stays in
 * the first cache as floats: the first block of rows makes them of what the weight holds and leaves
 * them there in passing, the others read them. Blocks are lower and wider than those of few rows:
 * fewer instructions for a multiplication, so that the multiplications are what bounds it, not the
 * number of instructions, of which two threads of a core get half each. An element's chain goes on
 * where the part before it ended, so its bits are those of gemm_rows().
 */
#pragma once

#define WIDE_PART    128u                /* inputs of a strip */
#define WIDE_ROWS    6u                  /* of a block, at most */
#define WIDE_LEAST   (FEW_ROWS + 1)      /* rows: below, a single block reads each weight once */
#define WIDE_VECTORS (VW == 16 ? 4 : 2)  /* of a block, 16 columns apart */
#define WIDE_COLUMNS (WIDE_VECTORS * 16) /* of a strip: whole panels */
#define WIDE_PANELS  (WIDE_COLUMNS / (int)CPU_PANEL)

/* A block of rows of a strip, at one part of its inputs. */
struct wide {
    const float *x;
    size_t x_stride;
    const char *w; /* the part in the first panel */
    size_t panel_bytes;
    float *kept; /* [inputs][WIDE_COLUMNS] */
    float *c;
    size_t c_stride;
    uint32_t inputs;
    bool add;
    const char *next[2]; /* what is read next, fetched meanwhile: `share` / 256 bytes an input */
    uint32_t share;
};

enum wide_from { FROM_WEIGHT, FROM_WEIGHT_KEPT, FROM_KEPT };

/* Where a block is. */
struct wide_at {
    const char *x, *y; /* of the first three rows, and of the others */
    size_t x_bytes;    /* from row to row */
    const char *w;
    size_t panel_bytes;
    float *kept;
    uint32_t passed; /* of what is fetched, / 256 */
};

/* One input of all rows: the one `j` after where the block is. */
INLINE void wide_step(enum ek_dtype t, enum wide_from from, int rows, int h, int j,
                      const struct wide_at *at, vf sum[WIDE_ROWS][4])
{
    float *kept = at->kept + j * WIDE_COLUMNS + h * VW;
    vf w[4];

    UNROLL4
    for (int p = 0; p < WIDE_PANELS && from != FROM_KEPT; p++)
        v_load_pair(t, at->w + p * at->panel_bytes + (size_t)j * CPU_PANEL * elem_bytes(t), h,
                    &w[2 * p], &w[2 * p + 1]);
    UNROLL4
    for (int v = 0; v < WIDE_VECTORS; v++) {
        if (from == FROM_KEPT)
            w[v] = v_read(kept + (size_t)v * 16);
        else if (from == FROM_WEIGHT_KEPT)
            v_store(kept + (size_t)v * 16, w[v]);
    }
    UNROLL8
    for (int i = 0; i < rows; i++) {
        float x;
        memcpy(&x, (i < 3 ? at->x : at->y) + (size_t)(i % 3) * at->x_bytes + (size_t)j * 4, 4);
        const vf xv = v_set1(x);
        UNROLL4
        for (int v = 0; v < WIDE_VECTORS; v++)
            sum[i][v] = v_fma(xv, w[v], sum[i][v]);
    }
}

/* Fetches for two inputs, and goes there. */
INLINE void wide_on(enum ek_dtype t, enum wide_from from, const struct wide *s, struct wide_at *at)
{
    UNROLL4
    for (int p = 0; p < WIDE_PANELS; p++) {
        __builtin_prefetch(s->next[p] + (at->passed >> 8), 0, 2);
        if (t == EK_F32 && from != FROM_KEPT) /* twice as many lines */
            __builtin_prefetch(s->next[p] + (at->passed >> 8) + 64, 0, 2);
    }
    at->passed += 2 * s->share;
    at->x += 2 * sizeof(float);
    at->y += 2 * sizeof(float);
    at->w += 2 * CPU_PANEL * elem_bytes(t);
    at->kept += (size_t)2 * WIDE_COLUMNS;
}

INLINE void wide_block(enum ek_dtype t, enum wide_from from, int rows, const struct wide *s)
{
    NOROLL
    for (int h = 0; h < HALVES; h++) {
        struct wide_at at = {.x = (const char *)s->x,
                             .y = (const char *)(s->x + 3 * s->x_stride),
                             .x_bytes = s->x_stride * sizeof(float),
                             .w = s->w,
                             .panel_bytes = s->panel_bytes,
                             .kept = s->kept,
                             .passed = (uint32_t)h * s->inputs * s->share};
        vf sum[WIDE_ROWS][4];
        UNROLL8
        for (int i = 0; i < rows; i++) {
            UNROLL4
            for (int v = 0; v < WIDE_VECTORS; v++)
                sum[i][v] = s->add ? v_read(s->c + (size_t)i * s->c_stride + h * VW + v * 16)
                                   : v_set1(0.0f);
        }
        NOROLL
        for (uint32_t k = 0; k < s->inputs / 2; k++) {
            wide_step(t, from, rows, h, 0, &at, sum);
            wide_step(t, from, rows, h, 1, &at, sum);
            wide_on(t, from, s, &at);
        }
        if (s->inputs % 2)
            wide_step(t, from, rows, h, 0, &at, sum);
        UNROLL8
        for (int i = 0; i < rows; i++) {
            UNROLL4
            for (int v = 0; v < WIDE_VECTORS; v++)
                v_store(s->c + (size_t)i * s->c_stride + h * VW + v * 16, sum[i][v]);
        }
    }
}

/* WIDE_LEAST rows and more are blocks of 3 to 6. */
#define WIDE_BLOCK(name, t, from)                                                                  \
    static void name(uint32_t rows, const struct wide *s)                                          \
    {                                                                                              \
        switch (rows) {                                                                            \
        case 3: wide_block(t, from, 3, s); break;                                                  \
        case 4: wide_block(t, from, 4, s); break;                                                  \
        case 5: wide_block(t, from, 5, s); break;                                                  \
        case 6: wide_block(t, from, 6, s); break;                                                  \
        }                                                                                          \
    }
WIDE_BLOCK(wide_f32, EK_F32, FROM_WEIGHT)
WIDE_BLOCK(wide_bf16, EK_BF16, FROM_WEIGHT_KEPT)
WIDE_BLOCK(wide_f16, EK_F16, FROM_WEIGHT_KEPT)
WIDE_BLOCK(wide_kept, EK_F32, FROM_KEPT)

/* All rows at all inputs of the strip that begins with a panel. */
INLINE void wide_strip(enum ek_dtype t, const struct cpu_gemm *g, uint32_t panel, float *kept)
{
    const size_t row_bytes = CPU_PANEL * elem_bytes(t);
    const uint32_t blocks = (g->rows + WIDE_ROWS - 1) / WIDE_ROWS;
    struct wide s = {.x_stride = g->x_stride,
                     .panel_bytes = g->panel_bytes,
                     .kept = kept,
                     .c_stride = g->c_stride};

    for (uint32_t k = 0; k < g->k; k += WIDE_PART) {
        const char *w = (const char *)g->w + panel * g->panel_bytes;
        const bool last = g->k - k <= WIDE_PART;
        const char *next = w + (last ? WIDE_PANELS * g->panel_bytes : (k + WIDE_PART) * row_bytes);
        s.w = w + k * row_bytes;
        s.inputs = last ? g->k - k : WIDE_PART;
        s.add = g->add || k > 0;
        for (uint32_t i = 0; i < blocks; i++) { /* of equal height, give or take one row */
            const uint32_t row = i * g->rows / blocks, rows = (i + 1) * g->rows / blocks - row;
            s.x = g->x + row * g->x_stride + k;
            s.c = g->c + row * g->c_stride + (size_t)panel * CPU_PANEL;
            const struct ahead a = ahead_of(next, s.inputs * row_bytes, s.inputs, i, blocks);
            s.next[0] = a.at;
            s.next[1] = a.at + g->panel_bytes;
            s.share = a.share / HALVES; /* each pass fetches its part */
            if (t == EK_F32)
                wide_f32(rows, &s);
            else if (i > 0)
                wide_kept(rows, &s);
            else if (t == EK_BF16)
                wide_bf16(rows, &s);
            else
                wide_f16(rows, &s);
        }
    }
}
