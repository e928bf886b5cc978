/*
 * Products of bf16 with tiles (tiles.h): some 15 times as many multiply-adds an instruction as
 * pairs in vectors have. The packed panels are those of avx512bf16: 16 pairs of inputs x 16 columns
 * are a tile as they lie. All else of the tier "amx" is in ops_avx512bf16.c.
 *
 * An instruction multiplies 32 inputs: it sums those at even places and those at odd ones by
 * themselves, adds the two, and that to the sum before. So an element is a chain over 32s of
 * inputs, and every number of rows takes the tiles, one row alone, too. Rounding is to nearest even
 * whatever the thread has set, and numbers below the smallest normal one count as zero.
 *
 * What bounds it: the multiplications from about 32 rows up, reading the weights below. A part of a
 * panel stays in the first cache while up to 128 rows pass; the panel that follows is fetched into
 * the second meanwhile.
 */
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/tier.h"
#include "kernels/cpu/tiles.h"

#define INLINE static inline __attribute__((always_inline))
#define NOROLL _Pragma("GCC unroll 1")

#define STEP_BYTES (CPU_K_STEP * CPU_PANEL * 2) /* of weights, for each step of inputs */
#define PART_STEPS 8u                           /* what of a panel stays in the first cache */
#define LINE       64u

/* A product: how it is cut. */
struct cut {
    struct tiles_cut rows;
    uint32_t steps; /* of CPU_K_STEP inputs, the last one filled up with zeros */
};

/* A block of one or two tiles of rows, at some steps. */
struct tiles_block {
    const char *x;       /* tiles at the first step */
    size_t x_step, x_to; /* bytes from step to step, from tile to tile */
    const char *w, *end; /* weights at the first step; end[panel]: those of the last step */
    size_t panel_bytes;
    const char *next; /* fetched meanwhile, LINES of each step; NULL: nothing */
    uint32_t lines, steps;
    bool ends; /* the last of these steps has its weights at `end` */
    bool add;
    float *c[2];      /* of each tile of rows */
    size_t stride[2]; /* bytes */
};

/* 32 inputs, of which `n` are there. */
INLINE __m512i round_step(const float *x, uint32_t n)
{
    const __mmask16 low = n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
    const __mmask16 high = n <= 16 ? 0 : n >= 32 ? 0xffff : (__mmask16)((1u << (n - 16)) - 1);

    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high, x + 16),
                                        _mm512_maskz_loadu_ps(low, x));
}

/* Inputs as tiles: work[tile][step][height][32 bf16]. Rows behind the last are zeros. */
static void round_rows(const struct cpu_gemm *g, const struct cut *t)
{
    const size_t tile_bytes = (size_t)t->rows.height * LINE;

    for (uint32_t row = 0; row < t->rows.tiles * t->rows.height; row++) {
        char *to = (char *)g->work + row / t->rows.height * t->steps * tile_bytes +
                   (size_t)(row % t->rows.height) * LINE;
        for (uint32_t k = 0; k < g->k; k += CPU_K_STEP, to += tile_bytes) {
            const uint32_t n = row < g->rows ? g->k - k : 0;
            _mm512_storeu_si512(to, round_step(g->x + row * g->x_stride + k, n));
        }
    }
}

INLINE void begin(int tiles, int panels, const struct tiles_block *s)
{
    if (!s->add) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        return;
    }
    TILE_LOAD(0, s->c[0], s->stride[0]);
    TILE_LOAD(1, s->c[0] + 16, s->stride[0]);
    if (tiles == 2 || panels == 2) {
        const float *c = tiles == 2 ? s->c[1] : s->c[0] + CPU_PANEL;
        const size_t stride = s->stride[tiles == 2];
        TILE_LOAD(2, c, stride);
        TILE_LOAD(3, c + 16, stride);
    }
}

INLINE void finish(int tiles, int panels, const struct tiles_block *s)
{
    TILE_STORE(0, s->c[0], s->stride[0]);
    TILE_STORE(1, s->c[0] + 16, s->stride[0]);
    if (tiles == 2 || panels == 2) {
        float *c = tiles == 2 ? s->c[1] : s->c[0] + CPU_PANEL;
        const size_t stride = s->stride[tiles == 2];
        TILE_STORE(2, c, stride);
        TILE_STORE(3, c + 16, stride);
    }
}

/* Two tiles of rows x one panel, one x one or one x two. */
INLINE void block(int tiles, int panels, const struct tiles_block *s)
{
    const size_t width = (size_t)CPU_PANEL * 4; /* a row of pairs */

    begin(tiles, panels, s);
    NOROLL
    for (uint32_t step = 0; step < s->steps; step++) {
        const bool end = s->ends && step + 1 == s->steps;
        const char *x = s->x + step * s->x_step;
        const char *w = end ? s->end : s->w + (size_t)step * STEP_BYTES;
        TILE_LOAD(6, w, width);
        TILE_LOAD(7, w + LINE, width);
        TILE_LOAD(4, x, LINE);
        TILE_PAIRS(0, 4, 6);
        TILE_PAIRS(1, 4, 7);
        if (tiles == 2) {
            TILE_LOAD(5, x + s->x_to, LINE);
            TILE_PAIRS(2, 5, 6);
            TILE_PAIRS(3, 5, 7);
        } else if (panels == 2) {
            w += end ? STEP_BYTES : s->panel_bytes;
            TILE_LOAD(6, w, width);
            TILE_LOAD(7, w + LINE, width);
            TILE_PAIRS(2, 4, 6);
            TILE_PAIRS(3, 4, 7);
        }
        for (uint32_t i = 0; s->next && i < s->lines; i++)
            for (int p = 0; p < panels; p++)
                _mm_prefetch(s->next + (size_t)step * STEP_BYTES + p * s->panel_bytes +
                                 (size_t)i * LINE,
                             _MM_HINT_T1);
    }
    finish(tiles, panels, s);
}

/* The sums of a tile that lacks rows are not where its other rows would be written. */
static void tile_block(const struct cpu_gemm *g, const struct cut *t, uint32_t tile,
                       uint32_t panels, float *c, struct tiles_block *s)
{
    const uint32_t tiles = t->rows.tiles - tile > 1 && panels == 1 ? 2 : 1;
    const uint32_t last = tile + tiles - 1, first = last * t->rows.height;
    const uint32_t rows = g->rows - first < t->rows.height ? g->rows - first : t->rows.height;
    const size_t bytes = (size_t)panels * CPU_PANEL * sizeof(float);
    float aside[16][2 * CPU_PANEL];

    for (uint32_t i = 0; i < tiles; i++) {
        s->c[i] = c + (size_t)(tile + i) * t->rows.height * g->c_stride;
        s->stride[i] = g->c_stride * sizeof(float);
    }
    float *there = s->c[tiles - 1];
    if (rows < t->rows.height) {
        s->c[tiles - 1] = aside[0];
        s->stride[tiles - 1] = sizeof(aside[0]);
        for (uint32_t row = 0; row < t->rows.height; row++) {
            if (s->add && row < rows)
                memcpy(aside[row], there + row * g->c_stride, bytes);
            else
                memset(aside[row], 0, bytes);
        }
    }
    if (panels == 2)
        block(1, 2, s);
    else if (tiles == 2)
        block(2, 1, s);
    else
        block(1, 1, s);
    for (uint32_t row = 0; rows < t->rows.height && row < rows; row++)
        memcpy(there + row * g->c_stride, aside[row], bytes);
}

/* Some panels: all rows at the first part of the inputs, then at the next. */
static void some_panels(const struct cpu_gemm *g, const struct cut *t, uint32_t panel,
                        uint32_t panels, bool next)
{
    const uint32_t blocks = panels == 2 ? 1 : (t->rows.tiles + 1) / 2, rest = g->k % CPU_K_STEP;
    const uint32_t parts = blocks > 1 ? (t->steps + PART_STEPS - 1) / PART_STEPS : 1;
    const size_t tile_bytes = (size_t)t->rows.height * LINE;
    const size_t left = (size_t)((rest + 1) / 2) * CPU_PANEL * 4;
    const char *w = (const char *)g->w + panel * g->panel_bytes;
    char end[2][STEP_BYTES] __attribute__((aligned(64)));

    for (uint32_t p = 0; rest > 0 && p < panels; p++) { /* nothing is read behind a panel */
        memcpy(end[p], w + p * g->panel_bytes + (size_t)(t->steps - 1) * STEP_BYTES, left);
        memset(end[p] + left, 0, STEP_BYTES - left);
    }
    for (uint32_t part = 0; part < parts; part++) {
        const uint32_t first = part * t->steps / parts, after = (part + 1) * t->steps / parts;
        for (uint32_t i = 0; i < blocks; i++) {
            const uint32_t lines = (STEP_BYTES / LINE + blocks - 1) / blocks;
            const size_t at = (size_t)first * STEP_BYTES;
            struct tiles_block s = {.x = (const char *)g->work +
                                         (2 * i * t->steps + first) * tile_bytes,
                                    .x_step = tile_bytes,
                                    .x_to = t->steps * tile_bytes,
                                    .w = w + at,
                                    .end = end[0],
                                    .panel_bytes = g->panel_bytes,
                                    .lines = lines,
                                    .steps = after - first,
                                    .ends = rest > 0 && after == t->steps,
                                    .add = g->add || part > 0};
            if (next)
                s.next = w + panels * g->panel_bytes + at + (size_t)i * lines * LINE;
            tile_block(g, t, 2 * i, panels, g->c + (size_t)panel * CPU_PANEL, &s);
        }
    }
}

void cpu_gemm_amx(const struct cpu_gemm *g)
{
    const struct cut t = {.rows = tiles_cut(g->rows),
                          .steps = (g->k + CPU_K_STEP - 1) / CPU_K_STEP};
    if (!g->rounded)
        round_rows(g, &t);
    tiles_begin(t.rows.height, LINE, CPU_K_STEP / 2);
    for (uint32_t panel = 0, step = t.rows.tiles == 1 ? 2 : 1; panel < g->panels; panel += step) {
        if (g->panels - panel < step)
            step = 1;
        some_panels(g, &t, panel, step, panel + 2 * step <= g->panels);
    }
    tiles_end();
}
