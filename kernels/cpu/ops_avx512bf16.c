/*
 * The tier "avx512bf16": as avx512, but bf16 matrix products take their inputs rounded to bf16 and
 * multiply them in pairs (vdpbf16ps): twice the arithmetic per instruction, sums still in f32.
 * Everything else, float32 and float16 stay as they are.
 *
 * The same goes for attention over a bf16 cache: queries and weights are rounded, K and V
 * multiplied in pairs. Packed panels hold [k / 2][32 columns][2]: a lane is one column at two
 * adjacent k. An odd last k is paired with zeros.
 */
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/attend_pairs.h"
#include "kernels/cpu/cache.h"
#include "kernels/cpu/expand_pairs.h"
#include "kernels/cpu/quads.h"

/* Pairs from row to row in `work`: an odd number of lines, so that rows do not meet in a cache. */
static size_t work_stride(const struct cpu_gemm *g)
{
    return ((((size_t)g->k + 1) / 2 + 15) / 16 | 1) * 16;
}

/* x[rows, k] as pairs of bf16. */
static void round_rows(const struct cpu_gemm *g)
{
    for (uint32_t row = 0; row < g->rows; row++)
        round_pairs(g->work + row * work_stride(g), g->x + row * g->x_stride, g->k);
}

#define HIGHEST 9u /* rows of a block of one panel, which reads each weight once */
#define UNROLL9 _Pragma("GCC unroll 9")

#define SUB_PAIRS 128u /* of inputs: what two panels hold of them stays in the first cache */

#define LINE        64u /* bytes, of a cache */
#define FETCH_LEAST 4   /* rows of a block that may fetch: where there are several all have them */
#define AHEAD       4096u /* bytes from what a single block reads to what it fetches */
#define AHEAD_LEAST 6u    /* rows of a single block that fetches */

/* A block of rows and panels at some of the inputs. */
struct dot_rows {
    const uint32_t *x;
    const char *w;
    float *c;
    uint32_t pairs;
    size_t x_stride; /* pairs */
    size_t ahead;    /* bytes from w to what is fetched meanwhile, `share` / 256 for each pair */
    uint32_t share;  /* 0: nothing */
    bool add;
};

INLINE void dot_block(int rows, int panels, const struct cpu_gemm *g, const struct dot_rows *s)
{
    __m512 a[HIGHEST][4], b[HIGHEST][4];

    UNROLL9
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int p = 0; p < panels; p++) {
            float *at = s->c + i * g->c_stride + p * (int)CPU_PANEL;
            __builtin_prefetch(at, 1); /* written at the end */
            __builtin_prefetch(at + 16, 1);
            a[i][p] = s->add ? v_read(at) : v_set1(0.0f);
            b[i][p] = s->add ? v_read(at + 16) : v_set1(0.0f);
        }
    }
    NOROLL
    for (uint32_t k = 0; k < s->pairs; k++) {
        __m512i v[4][2];
        UNROLL4
        for (int p = 0; p < panels; p++) {
            const char *at = s->w + (size_t)k * 128 + p * g->panel_bytes;
            v[p][0] = _mm512_loadu_si512(at);
            v[p][1] = _mm512_loadu_si512(at + 64);
            if (rows >= FETCH_LEAST && s->share > 0) {
                const char *next = s->w + s->ahead + (k * s->share >> 8) + p * g->panel_bytes;
                _mm_prefetch(next, _MM_HINT_T0);
                if (s->share > LINE * 256)
                    _mm_prefetch(next + LINE, _MM_HINT_T0);
            }
        }
        UNROLL9
        for (int i = 0; i < rows; i++) {
            UNROLL4
            for (int p = 0; p < panels; p++) {
                a[i][p] = dot(a[i][p], s->x[i * s->x_stride + k], v[p][0]);
                b[i][p] = dot(b[i][p], s->x[i * s->x_stride + k], v[p][1]);
            }
        }
    }
    UNROLL9
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int p = 0; p < panels; p++) {
            float *at = s->c + i * g->c_stride + p * (int)CPU_PANEL;
            v_store(at, a[i][p]);
            v_store(at + 16, b[i][p]);
        }
    }
}

#define DOT(r, p)                                                                                  \
    case (r)*8 + (p): dot_block(r, p, g, s); break

static void dot_some(const struct cpu_gemm *g, uint32_t rows, uint32_t panels,
                     const struct dot_rows *s)
{
    switch (rows * 8 + panels) {
        DOT(1, 1);
        DOT(1, 4);
        DOT(2, 1);
        DOT(2, 2);
        DOT(3, 1);
        DOT(3, 2);
        DOT(4, 1);
        DOT(4, 2);
        DOT(5, 1);
        DOT(5, 2);
        DOT(6, 1);
        DOT(6, 2);
        DOT(7, 1);
        DOT(8, 1);
        DOT(9, 1);
    }
}

/* Blocks of rows, of equal height, give or take one row. Up to two are of one panel, which leaves
 * room for higher ones: 13 rows are two blocks, not three. */
static uint32_t blocks_of(uint32_t rows)
{
    return rows > 2 * HIGHEST ? (rows + PAIR_ROWS - 1) / PAIR_ROWS : rows > HIGHEST ? 2 : 1;
}

/* Some panels: all rows at the first part of the inputs, then at the next. The first blocks of rows
 * fetch the part that follows, or the first one of the `next` panels, each an equal share of it:
 * with some 16 rows, where reading and multiplying take as long, memory is never idle. A single
 * block of many rows fetches what lies a little further on; with few the processor runs ahead by
 * itself, faster than if asked. */
static void dot_panels(const struct cpu_gemm *g, uint32_t panel, uint32_t panels, bool next)
{
    const uint32_t pairs = (g->k + 1) / 2, blocks = blocks_of(g->rows);
    const uint32_t fetching = blocks < FETCHING ? blocks : FETCHING;
    const uint32_t parts = blocks > 1 ? (pairs + SUB_PAIRS - 1) / SUB_PAIRS : 1;
    const bool fetches = blocks > 1 || g->rows >= AHEAD_LEAST;
    const size_t stride = work_stride(g);
    const char *w = (const char *)g->w + panel * g->panel_bytes;

    for (uint32_t part = 0; part < parts; part++) {
        const uint32_t first = part * pairs / parts, end = (part + 1) * pairs / parts;
        const size_t some = (size_t)(end - first) * 128;
        size_t ahead = some;
        if (blocks == 1)
            ahead = AHEAD;
        else if (part + 1 == parts)
            ahead = next ? panels * g->panel_bytes - (size_t)first * 128 : 0;
        for (uint32_t i = 0; i < blocks; i++) {
            const uint32_t row = i * g->rows / blocks, below = (i + 1) * g->rows / blocks;
            const struct dot_rows s = {.x = g->work + row * stride + first,
                                       .w = w + (size_t)first * 128,
                                       .c = g->c + row * g->c_stride + (size_t)panel * CPU_PANEL,
                                       .pairs = end - first,
                                       .x_stride = stride,
                                       .share = fetches && i < fetching ? 128 * 256 / fetching : 0,
                                       .ahead = ahead + i * some / fetching,
                                       .add = g->add || part > 0};
            dot_some(g, below - row, panels, &s);
        }
    }
}

static void bf16_gemm(const struct cpu_gemm *g)
{
    if (g->dtype != EK_BF16) {
        vec_gemm(g);
        return;
    }
    if (!g->rounded)
        round_rows(g);
    const uint32_t most = g->rows == 1 ? 4 : g->rows <= PAIR_ROWS || g->rows > 2 * HIGHEST ? 2 : 1;
    for (uint32_t panel = 0, step = most; panel < g->panels; panel += step) {
        if (g->panels - panel < step)
            step = 1;
        dot_panels(g, panel, step, panel + 2 * step <= g->panels);
    }
}

/* The tier "amx": products in tiles, the rest as here. */
static void amx_gemm(const struct cpu_gemm *g)
{
    if (g->dtype == EK_BF16)
        cpu_gemm_amx(g);
    else
        vec_gemm(g);
}

const struct cpu_ops cpu_ops_amx = {
    VEC_FIELDS("amx"), .scores = pair_scores,
    .mix = pair_mix,   .softmax_pairs = pair_softmax,
    .gemm = amx_gemm,  .expand = pair_expand,
    .pairs = true,     .quads = cpu_quads_amx,
    .quads_bytes = 1,  .cache = &cpu_quad_cache_vnni,
};

const struct cpu_ops cpu_ops_avx512bf16 = {
    VEC_FIELDS("avx512bf16"),
    .scores = pair_scores,
    .mix = pair_mix,
    .softmax_pairs = pair_softmax,
    .gemm = bf16_gemm,
    .expand = pair_expand,
    .pairs = true,
    .quads = cpu_quads_vnni,
    .quads_bytes = 1,
    .cache = &cpu_quad_cache_vnni,
};
