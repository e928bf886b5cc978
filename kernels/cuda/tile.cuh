/*
 * The end of a product in tiles of ROWS by CU_FUSED_COLS: sums, floats or integers, lie in shared
 * memory; where k was divided among blocks, the last one that is there adds the parts, in their
 * order. Blocks: rows of c by columns of it times parts of k.
 */
#pragma once

#include "kernels/cuda/gemv.cuh"

#define COLS  CU_FUSED_COLS
#define PITCH (COLS + 4) /* numbers of a row of results in shared memory: lanes hit all banks */

/* Whether this block is the last of the parts of its tile, whose results lie in `partials` then. */
template <class N>
DEV bool tile_last(const struct cu_gemm_args &a, const N *tile, N *mine, uint32_t count)
{
    uint32_t *counter = at<uint32_t>(a.counters) + blockIdx.y / a.parts * gridDim.x + blockIdx.x;

    for (uint32_t i = threadIdx.x; i < count; i += 256)
        mine[i] = tile[i / COLS * PITCH + i % COLS];
    return last_of(counter, a.parts);
}

/* From shared memory to c by PUT(a, row, col, sum), once all parts are there. */
template <int ROWS, class N, void PUT(const struct cu_gemm_args &, uint32_t, uint32_t, N)>
DEV void tile_end(const struct cu_gemm_args &a, const N *tile, uint32_t rows)
{
    const uint32_t row0 = blockIdx.x * ROWS, n0 = blockIdx.y / a.parts * COLS;
    const uint32_t count = ROWS * COLS;
    N *partials = at<N>(a.partials) +
                  ((uint64_t)(blockIdx.y / a.parts) * gridDim.x + blockIdx.x) * a.parts * count;

    if (a.parts > 1 && !tile_last(a, tile, partials + blockIdx.y % a.parts * count, count))
        return;
    for (uint32_t i = threadIdx.x; i < count; i += 256) {
        const uint32_t row = row0 + i / COLS, col = n0 + i % COLS;
        N sum = a.parts == 1 ? tile[i / COLS * PITCH + i % COLS] : N(0);
        for (uint32_t p = 0; a.parts > 1 && p < a.parts; p++)
            sum += partials[p * count + i];
        if (row < rows && col < a.n)
            PUT(a, row, col, sum);
    }
}
