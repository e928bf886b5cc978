/*
 * The tier "avx512bf16": as avx512, but bf16 matrix products take their inputs rounded to bf16 and
 * multiply them in pairs (vdpbf16ps): twice the arithmetic per instruction, sums still in f32.
 * Everything else, float32 and float16 stay as they are.
 *
 * The same goes for attention over a bf16 cache: queries and weights are rounded, K and V
 * multiplied in pairs. Packed panels hold [k / 2][32 columns][2]: a lane is one column at two
 * adjacent k. An odd last k is paired with zeros.
 */
#include <assert.h>

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

/* x[rows, k] as pairs of bf16. Each row fetches the one below: they lie far apart. */
static void round_rows(const struct cpu_gemm *g)
{
    for (uint32_t row = 0; row < g->rows; row++) {
        const float *x = g->x + row * g->x_stride;
        for (uint32_t k = 0; k < g->k && row + 1 < g->rows; k += 16)
            __builtin_prefetch(x + g->x_stride + k);
        round_pairs(g->work + row * work_stride(g), x, g->k);
    }
}

#define HIGHEST  14u /* rows of a block of one panel, which reads each weight once */
#define UNROLL14 _Pragma("GCC unroll 14")

/* Bytes ahead that the only block of rows asks for, by how many panels it reads at once: what a
 * core wants in the time of an answer from memory. Asked for this way memory is read as fast as by
 * plain loads (Zen 5: 4 to 16 KiB differ by a twentieth; without it a third is lost). */
#define AHEAD_ONE   12288u
#define AHEAD_PAIRS 4096u
/* The same where weights come from the second cache. */
#define AHEAD_NEAR 512u

#define FEW_BLOCKS 3u   /* of rows, which take turns at ... */
#define SUB_PAIRS  128u /* ... so many pairs: with what is fetched they stay in the first cache */

/* A block of rows and panels at some of the inputs. What is fetched into the first cache meanwhile:
 * the same of each panel, `ahead` bytes further; or a share of what follows the only panel, from w
 * + `ahead` on, `share` / 256 bytes for each pair; or that and, from the second cache, what of the
 * panel comes AHEAD_NEAR bytes later. */
struct dot_rows {
    const uint32_t *x;
    const char *w;
    float *c;
    uint32_t pairs;
    size_t x_stride; /* pairs */
    ptrdiff_t ahead;
    uint32_t share;
    bool add;
};

enum dot_fetch { FETCH_NONE, FETCH_SAME, FETCH_SHARE, FETCH_BOTH };

INLINE void dot_block(int rows, int panels, enum dot_fetch fetch, const struct cpu_gemm *g,
                      const struct dot_rows *s)
{
    __m512 a[HIGHEST][4], b[HIGHEST][4];

    UNROLL14
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int p = 0; p < panels; p++) {
            float *at = s->c + i * g->c_stride + p * (int)CPU_PANEL;
            if (fetch !=
                FETCH_BOTH) { /* written at the end; of many blocks it would be in the way */
                __builtin_prefetch(at, 1);
                __builtin_prefetch(at + 16, 1);
            }
            a[i][p] = s->add ? v_read(at) : v_set1(0.0f);
            b[i][p] = s->add ? v_read(at + 16) : v_set1(0.0f);
        }
    }
    NOROLL
    for (uint32_t k = 0; k < s->pairs; k++) {
        __m512i v[4][2];
        if (fetch == FETCH_SHARE || fetch == FETCH_BOTH)
            __builtin_prefetch(s->w + s->ahead + (k * s->share >> 8));
        UNROLL4
        for (int p = 0; p < panels; p++) {
            const char *at = s->w + (size_t)k * 128 + p * g->panel_bytes;
            v[p][0] = _mm512_loadu_si512(at);
            v[p][1] = _mm512_loadu_si512(at + 64);
            if (fetch == FETCH_SAME || fetch == FETCH_BOTH) {
                const ptrdiff_t ahead = fetch == FETCH_SAME ? s->ahead : AHEAD_NEAR;
                __builtin_prefetch(at + ahead);
                __builtin_prefetch(at + ahead + 64);
            }
        }
        UNROLL14
        for (int i = 0; i < rows; i++) {
            UNROLL4
            for (int p = 0; p < panels; p++) {
                a[i][p] = dot(a[i][p], s->x[i * s->x_stride + k], v[p][0]);
                b[i][p] = dot(b[i][p], s->x[i * s->x_stride + k], v[p][1]);
            }
        }
    }
    UNROLL14
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int p = 0; p < panels; p++) {
            float *at = s->c + i * g->c_stride + p * (int)CPU_PANEL;
            v_store(at, a[i][p]);
            v_store(at + 16, b[i][p]);
        }
    }
}

#define DOT(r, p, f)                                                                               \
    case ((r)*8 + (p)) * 4 + (f): dot_block(r, p, f, g, s); break

static void dot_some(const struct cpu_gemm *g, uint32_t rows, uint32_t panels, enum dot_fetch fetch,
                     const struct dot_rows *s)
{
    switch ((rows * 8 + panels) * 4 + (uint32_t)fetch) {
        DOT(1, 1, FETCH_SAME);
        DOT(1, 4, FETCH_NONE);
        DOT(2, 1, FETCH_SAME);
        DOT(2, 2, FETCH_SAME);
        DOT(3, 1, FETCH_SAME);
        DOT(3, 2, FETCH_SAME);
        DOT(4, 1, FETCH_SAME);
        DOT(4, 2, FETCH_SAME);
        DOT(5, 1, FETCH_SAME);
        DOT(5, 2, FETCH_SAME);
        DOT(6, 1, FETCH_SAME);
        DOT(6, 2, FETCH_SAME);
        DOT(7, 1, FETCH_SAME);
        DOT(7, 1, FETCH_SHARE);
        DOT(8, 1, FETCH_SAME);
        DOT(8, 1, FETCH_SHARE);
        DOT(9, 1, FETCH_SAME);
        DOT(9, 1, FETCH_SHARE);
        DOT(10, 1, FETCH_SAME);
        DOT(10, 1, FETCH_SHARE);
        DOT(10, 1, FETCH_BOTH);
        DOT(11, 1, FETCH_SAME);
        DOT(11, 1, FETCH_SHARE);
        DOT(11, 1, FETCH_BOTH);
        DOT(12, 1, FETCH_SAME);
        DOT(12, 1, FETCH_SHARE);
        DOT(12, 1, FETCH_BOTH);
        DOT(13, 1, FETCH_SAME);
        DOT(13, 1, FETCH_SHARE);
        DOT(13, 1, FETCH_BOTH);
        DOT(14, 1, FETCH_SAME);
        DOT(14, 1, FETCH_SHARE);
        DOT(14, 1, FETCH_BOTH);
    default: assert(rows == 0); /* or sums would stay what they were */
    }
}

/* Some panels by all rows at once. What the last inputs fetch are the first ones of the `next`
 * panels. */
static void dot_few(const struct cpu_gemm *g, uint32_t panel, uint32_t panels, bool next)
{
    const uint32_t pairs = (g->k + 1) / 2, most = panels == 1 ? AHEAD_ONE : AHEAD_PAIRS;
    const uint32_t last = pairs < most / 128 ? pairs : most / 128,
                   cuts[3] = {0, pairs - last, pairs};
    const enum dot_fetch fetch = panels == 4 ? FETCH_NONE : FETCH_SAME;

    for (int part = 0; part < 2; part++) {
        const uint32_t first = cuts[part], end = cuts[part + 1];
        struct dot_rows s = {.x = g->work + first,
                             .w = (const char *)g->w + panel * g->panel_bytes + (size_t)first * 128,
                             .c = g->c + (size_t)panel * CPU_PANEL,
                             .pairs = end - first,
                             .x_stride = work_stride(g),
                             .ahead = (ptrdiff_t)last * 128,
                             .add = g->add || first > 0};
        if (part == 1)
            s.ahead = next ? (ptrdiff_t)(panels * g->panel_bytes - (size_t)first * 128) : 0;
        if (end > first)
            dot_some(g, g->rows, panels, fetch, &s);
    }
}

/* A panel by several blocks of rows. The first ones fetch what follows, each an equal share of it,
 * so that memory is never idle. Few blocks take SUB_PAIRS of the inputs at a time, all of them the
 * same, and fetch the next so many or the first of the `next` panel: reading takes as long as
 * multiplying then, and what is fetched stays in the first cache. More blocks fetch the `next`
 * panel, NULL where there is none. */
static void dot_many(const struct cpu_gemm *g, uint32_t panel, const char *next)
{
    const uint32_t pairs = (g->k + 1) / 2, blocks = (g->rows + HIGHEST - 1) / HIGHEST;
    const uint32_t parts = blocks > FEW_BLOCKS ? 1 : (pairs + SUB_PAIRS - 1) / SUB_PAIRS;
    const uint32_t fetching = blocks < FETCHING ? blocks : FETCHING;
    const uint32_t height = g->rows / blocks, higher = g->rows % blocks; /* first: by one row */
    const size_t stride = work_stride(g);
    const char *w = (const char *)g->w + panel * g->panel_bytes;

    for (uint32_t part = 0; part < parts; part++) {
        const uint32_t first = part * pairs / parts, end = (part + 1) * pairs / parts;
        const size_t some = (size_t)(end - first) * 128;
        const bool last = part + 1 == parts;
        for (uint32_t i = 0, row = 0, rows; i < blocks; i++, row += rows) {
            rows = height + (i < higher);
            struct dot_rows s = {.x = g->work + row * stride + first,
                                 .w = w + (size_t)first * 128,
                                 .c = g->c + row * g->c_stride + (size_t)panel * CPU_PANEL,
                                 .pairs = end - first,
                                 .x_stride = stride,
                                 .add = g->add || part > 0};
            if ((!last || next) && i < fetching) {
                s.ahead = last ? next - s.w : (ptrdiff_t)some;
                s.ahead += (ptrdiff_t)(i * some / fetching);
                s.share = 128 * 256 / fetching;
            }
            dot_some(g, rows, 1, blocks > FEW_BLOCKS ? FETCH_BOTH : FETCH_SHARE, &s);
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
    const uint32_t most = g->rows == 1 ? 4 : g->rows <= PAIR_ROWS ? 2 : 1;
    for (uint32_t panel = 0, step = most; panel < g->panels; panel += step) {
        if (g->panels - panel < step)
            step = 1;
        const char *next = (const char *)g->w + (panel + step) * g->panel_bytes;
        if (g->rows <= HIGHEST)
            dot_few(g, panel, step, panel + 2 * step <= g->panels);
        else
            dot_many(g, panel, panel + 1 < g->panels ? next : g->next);
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
