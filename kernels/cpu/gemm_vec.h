/*
 * Products of rows with packed panels, a part of ops_vec.h. The kernel keeps a block of rows x
 * vectors of sums in registers and reads each weight vector once for all its rows. What bounds it:
 * arithmetic from about 8 rows up, reading the weights below; with few rows it walks several panels
 * at once, so that there are enough chains of dependent additions. All shapes of block run the same
 * chain for an element.
 */
#pragma once

/* What is read next, fetched into the second cache while a block is multiplied: `share` / 256 bytes
 * for each input. The first cache takes fewer lines at once than memory could deliver. */
struct ahead {
    const char *at;
    uint32_t share;
};

#define FETCHING 8u /* blocks of rows that fetch, at most, an equal share each */

/* Of a block of rows, of what is `bytes` long and as many inputs wide as the block. */
INLINE struct ahead ahead_of(const char *next, size_t bytes, uint32_t inputs, uint32_t block,
                             uint32_t blocks)
{
    const uint32_t fetching = blocks < FETCHING ? blocks : FETCHING;
    const size_t some = bytes / fetching;

    if (block >= fetching)
        return (struct ahead){.at = next, .share = 0};
    return (struct ahead){.at = next + block * some, .share = (uint32_t)(some * 256 / inputs)};
}

/* Where a block of few rows is. */
struct few_at {
    const char *x[3]; /* of three rows each: all in reach of the registers there are */
    size_t x_bytes;   /* from row to row */
    const char *w;
    uint32_t passed; /* of what is fetched, / 256 */
};

/* One input of all rows: the one `j` after where the block is. Sums are of so many halves of each
 * panel, from `half` on. */
INLINE void few_step(enum ek_dtype t, int rows, int panels, int halves, int half, int j,
                     const struct few_at *at, size_t panel_bytes, vf a[CPU_MOST_ROWS][4],
                     vf b[CPU_MOST_ROWS][4])
{
    vf wa[4], wb[4];

    UNROLL4
    for (int p = 0; p < panels * halves; p++)
        v_load_pair(
            t, at->w + j * (int)(CPU_PANEL * elem_bytes(t)) + (size_t)(p / halves) * panel_bytes,
            half + p % halves, &wa[p], &wb[p]);
    UNROLL8
    for (int i = 0; i < rows; i++) {
        float x;
        memcpy(&x, at->x[i / 3] + (size_t)(i % 3) * at->x_bytes + (size_t)j * 4, 4);
        const vf xv = v_set1(x);
        UNROLL4
        for (int p = 0; p < panels * halves; p++) {
            a[i][p] = v_fma(xv, wa[p], a[i][p]);
            b[i][p] = v_fma(xv, wb[p], b[i][p]);
        }
    }
}

/* Goes on by `n` inputs and fetches for them, `share` / 256 bytes each; with few rows the processor
 * runs ahead by itself. */
INLINE void few_on(enum ek_dtype t, int rows, int n, int passes, uint32_t share,
                   const struct ahead *next, struct few_at *at)
{
    const int lines = (t == EK_F32 ? 2 * n : n) / passes;

    if (rows >= (VW == 16 ? 4 : 2))
        UNROLL4
    for (int i = 0; i < lines; i++)
        __builtin_prefetch(next->at + (at->passed >> 8) + i * 64, 0, 2);
    at->passed += (uint32_t)n * share;
    for (int i = 0; i < 3; i++)
        at->x[i] += (size_t)n * sizeof(float);
    at->w += (size_t)n * CPU_PANEL * elem_bytes(t);
}

/* Vector p of a row's sums: where it is in c. */
INLINE int few_column(int halves, int half, int p)
{
    return p / halves * (int)CPU_PANEL + (half + p % halves) * VW;
}

/* `halves` of each panel at once; each pass over the block fetches its part of what is next. */
INLINE void gemm_block(enum ek_dtype t, int rows, int panels, int halves, const struct cpu_gemm *g,
                       const float *x, const char *w, float *c, struct ahead next)
{
    const int passes = HALVES / halves;
    const uint32_t share = next.share / (uint32_t)passes;

    NOROLL
    for (int h = 0; h < HALVES; h += halves) {
        struct few_at at = {.x = {(const char *)x, (const char *)(x + 3 * g->x_stride),
                                  (const char *)(x + 6 * g->x_stride)},
                            .x_bytes = g->x_stride * sizeof(float),
                            .w = w,
                            .passed = h > 0 ? g->k * share : 0};
        vf a[CPU_MOST_ROWS][4], b[CPU_MOST_ROWS][4];
        UNROLL8
        for (int i = 0; i < rows; i++) {
            UNROLL4
            for (int p = 0; p < panels * halves; p++) {
                float *to = c + (size_t)i * g->c_stride + few_column(halves, h, p);
                a[i][p] = g->add ? v_read(to) : v_set1(0.0f);
                b[i][p] = g->add ? v_read(to + 16) : v_set1(0.0f);
            }
        }
        NOROLL
        for (uint32_t k = 0; k < g->k / 2; k++) {
            few_step(t, rows, panels, halves, h, 0, &at, g->panel_bytes, a, b);
            few_step(t, rows, panels, halves, h, 1, &at, g->panel_bytes, a, b);
            few_on(t, rows, 2, passes, share, &next, &at);
        }
        if (g->k % 2)
            few_step(t, rows, panels, halves, h, 0, &at, g->panel_bytes, a, b);
        UNROLL8
        for (int i = 0; i < rows; i++) {
            UNROLL4
            for (int p = 0; p < panels * halves; p++) {
                float *to = c + (size_t)i * g->c_stride + few_column(halves, h, p);
                v_store(to, a[i][p]);
                v_store(to + 16, b[i][p]);
            }
        }
    }
}

#define BLOCK_OF(r, p, halves)                                                                     \
    case (r)*8 + (p):                                                                              \
        gemm_block(t, r, p, halves, g, x, w, c, next);                                             \
        break
#define BLOCK(r, p) BLOCK_OF(r, p, 1)

/* Panels that blocks of one and of two or three rows walk at once, and rows of a block at most. A
 * block has eight sums in registers at least, or they would wait for each other; with 16 registers
 * twelve at most, and few rows take whole panels: each line that is read is used at once. */
#if VW == 16
#define PANELS_OF_ONE 4u
#define PANELS_OF_FEW 2u
#define FEW_ROWS      8u
#define WHOLE(r, p)   BLOCK_OF(r, p, 1)
#else
#define PANELS_OF_ONE 2u
#define PANELS_OF_FEW 1u
#define FEW_ROWS      6u
#define WHOLE(r, p)   BLOCK_OF(r, p, 2)
#endif

INLINE uint32_t panels_at_once(uint32_t rows)
{
    return rows == 1 ? PANELS_OF_ONE : rows <= 3 ? PANELS_OF_FEW : 1;
}

INLINE void gemm_some(enum ek_dtype t, const struct cpu_gemm *g, uint32_t row, uint32_t rows,
                      uint32_t panel, uint32_t panels, struct ahead next)
{
    const float *x = g->x + row * g->x_stride;
    const char *w = (const char *)g->w + panel * g->panel_bytes;
    float *c = g->c + row * g->c_stride + (size_t)panel * CPU_PANEL;

    switch (rows * 8 + panels) {
        WHOLE(1, 1);
        WHOLE(1, PANELS_OF_ONE);
        WHOLE(2, 1);
        WHOLE(3, 1);
        BLOCK(4, 1);
        BLOCK(5, 1);
        BLOCK(6, 1);
#if VW == 16
        BLOCK(2, 2);
        BLOCK(3, 2);
        BLOCK(7, 1);
        BLOCK(8, 1);
#endif
    }
}

/* Each panel fetches the one after. */
INLINE void gemm_rows(enum ek_dtype t, const struct cpu_gemm *g, uint32_t blocks)
{
    uint32_t step = blocks == 1 ? panels_at_once(g->rows) : 1;

    for (uint32_t panel = 0; panel < g->panels; panel += step) {
        if (g->panels - panel < step)
            step = 1;
        for (uint32_t i = 0; i < blocks; i++) { /* blocks of equal height, give or take one row */
            uint32_t row = i * g->rows / blocks, end = (i + 1) * g->rows / blocks;
            const char *w = (const char *)g->w + panel * g->panel_bytes;
            const size_t bytes = (size_t)g->k * CPU_PANEL * elem_bytes(t);
            gemm_some(t, g, row, end - row, panel, step,
                      ahead_of(w + step * g->panel_bytes, bytes, g->k, i, blocks));
        }
    }
}

#include "kernels/cpu/wide_vec.h"

INLINE void gemm_of(enum ek_dtype t, const struct cpu_gemm *g)
{
    struct cpu_gemm rest = *g;

    if ((g->wide || t == EK_F32) && g->rows >= WIDE_LEAST) {
        float kept[WIDE_PART * WIDE_COLUMNS] __attribute__((aligned(64)));
        uint32_t panel = 0;
        for (; panel + WIDE_PANELS <= g->panels; panel += WIDE_PANELS)
            wide_strip(t, g, panel, kept);
        rest.panels -= panel;
        rest.w = (const char *)g->w + panel * g->panel_bytes;
        rest.c = g->c + (size_t)panel * CPU_PANEL;
    }
    if (rest.rows > 0 && rest.panels > 0)
        gemm_rows(t, &rest, (rest.rows + FEW_ROWS - 1) / FEW_ROWS);
}

static void vec_gemm(const struct cpu_gemm *g)
{
    switch (g->dtype) {
    case EK_F32: gemm_of(EK_F32, g); break;
    case EK_BF16: gemm_of(EK_BF16, g); break;
    case EK_F16: gemm_of(EK_F16, g); break;
    case EK_F8_E4M3:
    case EK_I8:
    case EK_I4:
    case EK_F4_E2M1: break; /* refused at load */
    }
}
