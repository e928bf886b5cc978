/*
 * Products of a few rows, bound by reading w once: 16 rows of w by up to 8 * NT rows of x. w goes
 * from memory straight into the registers of mma; the warps of a block take turns along k.
 */
#pragma once

#include "kernels/cuda/dev.cuh"

#define GEMV_WARPS 8
#define GEMV_TURNS 4

DEV uint32_t word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/*
 * w is operand A (16 of its rows), x is B (8 of its rows per column tile). A lane loads 8
 * neighbours of k from its row of w, and 8 of the same k from its row of x: which k an mma calls
 * its first does not matter as long as both operands agree. x[j] is the lane's row of tile j (its
 * row j * 8 + lane / 4), NULL where there is none. Ends with a barrier: part[warp][row of x][row of
 * w] are then to be added over the warps.
 */
template <class T, int NT>
DEV void gemv_sums(cu_addr w, uint32_t n, uint32_t k, uint32_t n0, const uint16_t *const x[NT],
                   float (*part)[16 * 8 * NT])
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const uint32_t chunks = (k + 31) / 32, w_stride = chunks * 4; /* in 16 bytes */
    const uint4 *w0 = at<const uint4>(w) + (uint64_t)min(n0 + g, n - 1) * w_stride + t;
    const uint4 *w1 = at<const uint4>(w) + (uint64_t)min(n0 + g + 8, n - 1) * w_stride + t;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    float c[NT][4] = {};

    for (uint32_t first = warp; first < chunks; first += GEMV_WARPS * GEMV_TURNS) {
        uint4 p[GEMV_TURNS], q[GEMV_TURNS];
#pragma unroll
        for (int u = 0; u < GEMV_TURNS; u++) {
            uint32_t chunk = first + u * GEMV_WARPS;
            p[u] = chunk < chunks ? load_stream(w0 + chunk * 4) : zero;
            q[u] = chunk < chunks ? load_stream(w1 + chunk * 4) : zero;
        }
#pragma unroll
        for (int u = 0; u < GEMV_TURNS; u++) {
            uint32_t chunk = first + u * GEMV_WARPS;
            if (chunk >= chunks) /* the same for the whole warp */
                break;
#pragma unroll
            for (int j = 0; j < NT; j++) {
                uint4 b = x[j] ? ((const uint4 *)x[j])[chunk * 4 + t] : zero;
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const uint32_t f[4] = {word(p[u], 2 * h), word(q[u], 2 * h),
                                           word(p[u], 2 * h + 1), word(q[u], 2 * h + 1)};
                    mma(T{}, c[j], f, word(b, 2 * h), word(b, 2 * h + 1));
                }
            }
        }
    }
    for (int j = 0; j < NT; j++)
        for (int i = 0; i < 4; i++)
            part[warp][(j * 8 + 2 * t + i % 2) * 16 + g + i / 2 * 8] = c[j][i];
    __syncthreads();
}
