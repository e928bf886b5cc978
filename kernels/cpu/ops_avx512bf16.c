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
#include "kernels/cpu/expand_pairs.h"
#include "kernels/cpu/quads.h"

/* x[rows, k] as pairs of bf16 in work[rows, (k + 1) / 2]. */
static void round_rows(const struct cpu_gemm *g)
{
    for (uint32_t row = 0; row < g->rows; row++)
        round_pairs(g->work + (size_t)row * ((g->k + 1) / 2), g->x + row * g->x_stride, g->k);
}

/* `ahead`: bytes from here to what is read next from memory, fetched meanwhile; 0 = nothing. With
 * few rows the reads are so dense that the processor runs ahead of them by itself. */
INLINE void dot_block(int rows, int panels, const struct cpu_gemm *g, const uint32_t *x,
                      const char *w, size_t ahead, float *c)
{
    const uint32_t pairs = (g->k + 1) / 2;
    __m512 a[CPU_MOST_ROWS][4], b[CPU_MOST_ROWS][4];

    UNROLL8
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int p = 0; p < panels; p++) {
            float *at = c + (size_t)i * g->c_stride + p * (int)CPU_PANEL;
            a[i][p] = g->add ? v_read(at) : v_set1(0.0f);
            b[i][p] = g->add ? v_read(at + 16) : v_set1(0.0f);
        }
    }
    NOROLL
    for (uint32_t k = 0; k < pairs; k++) {
        if (rows >= 6) {
            _mm_prefetch(w + ahead + (size_t)k * 128, _MM_HINT_T0);
            _mm_prefetch(w + ahead + (size_t)k * 128 + 64, _MM_HINT_T0);
        }
        UNROLL8
        for (int i = 0; i < rows; i++) {
            UNROLL4
            for (int p = 0; p < panels; p++) {
                const char *at = w + (size_t)k * 128 + (size_t)p * g->panel_bytes;
                a[i][p] = dot(a[i][p], x[(size_t)i * pairs + k], _mm512_loadu_si512(at));
                b[i][p] = dot(b[i][p], x[(size_t)i * pairs + k], _mm512_loadu_si512(at + 64));
            }
        }
    }
    UNROLL8
    for (int i = 0; i < rows; i++) {
        UNROLL4
        for (int p = 0; p < panels; p++) {
            float *at = c + (size_t)i * g->c_stride + p * (int)CPU_PANEL;
            v_store(at, a[i][p]);
            v_store(at + 16, b[i][p]);
        }
    }
}

#define DOT(r, p)                                                                                  \
    case (r)*8 + (p): dot_block(r, p, g, x, w, ahead, c); break

static void dot_some(const struct cpu_gemm *g, uint32_t row, uint32_t rows, uint32_t panel,
                     uint32_t panels, size_t ahead)
{
    const uint32_t *x = g->work + (size_t)row * ((g->k + 1) / 2);
    const char *w = (const char *)g->w + panel * g->panel_bytes;
    float *c = g->c + row * g->c_stride + (size_t)panel * CPU_PANEL;

    switch (rows * 8 + panels) {
        DOT(1, 1);
        DOT(1, 4);
        DOT(2, 1);
        DOT(2, 2);
        DOT(3, 1);
        DOT(3, 2);
        DOT(4, 1);
        DOT(5, 1);
        DOT(6, 1);
        DOT(7, 1);
        DOT(8, 1);
    }
}

static void bf16_gemm(const struct cpu_gemm *g)
{
    if (g->dtype != EK_BF16) {
        vec_gemm(g);
        return;
    }
    uint32_t blocks = (g->rows + CPU_MOST_ROWS - 1) / CPU_MOST_ROWS;
    uint32_t step = blocks == 1 ? panels_at_once(g->rows) : 1;
    round_rows(g);
    for (uint32_t panel = 0; panel < g->panels; panel += step) {
        if (g->panels - panel < step)
            step = 1;
        for (uint32_t i = 0; i < blocks; i++) {
            uint32_t row = i * g->rows / blocks, end = (i + 1) * g->rows / blocks;
            bool fetch = i + 1 == blocks && panel + step < g->panels;
            dot_some(g, row, end - row, panel, step, fetch ? g->panel_bytes : 0);
        }
    }
}

const struct cpu_ops cpu_ops_avx512bf16 = {
    VEC_FIELDS("avx512bf16"), .scores = pair_scores, .mix = pair_mix, .softmax_pairs = pair_softmax,
    .gemm = bf16_gemm,        .expand = pair_expand, .pairs = true,   .quads = cpu_quads_vnni,
};
