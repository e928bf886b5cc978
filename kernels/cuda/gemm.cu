/*
 * Products c[rows, n] = scale * x[rows, k] * w[n, k]^T + bias. Three forms:
 *
 *   ek_gemv_*   up to 16 rows: bound by reading w once. A block takes 16 rows of w, its warps take
 *               turns along k; w goes from memory straight into the registers of mma.
 *   ek_gemm_*   more rows, where cuBLASLt is not used: tiles of 128 x 128, mma (tile.cuh).
 *   ek_gemm_f32 f32: plain, for small models and comparison; reads packed weights, too.
 *
 * Packed weights of 16-bit models: gemv_packed.cu. Rows of x lie a multiple of 128 elements apart,
 * those of plain w of 32, and what lies behind column k is zero in both (planned so in shape.c), so
 * k is rounded up to 32 and has no tail.
 */
#include "kernels/cuda/tile.cuh"

EK_KERNEL(ek_gemv8_bf16, struct cu_gemm_args, 256)
{
    gemv<bf16, plain, 1>(a);
}
EK_KERNEL(ek_gemv16_bf16, struct cu_gemm_args, 256)
{
    gemv<bf16, plain, 2>(a);
}
EK_KERNEL(ek_gemv8_f16, struct cu_gemm_args, 256)
{
    gemv<f16, plain, 1>(a);
}
EK_KERNEL(ek_gemv16_f16, struct cu_gemm_args, 256)
{
    gemv<f16, plain, 2>(a);
}

/* A block: 128 x 128 results. Three stages are what a block has without asking for more. */
template <class T> DEV void gemm(const struct cu_gemm_args &a)
{
    enum { TILE = 128, STAGES = 3 };
    __shared__ __align__(128) unsigned char stages[STAGES * CU_TILE_STAGE(TILE)];
    const uint32_t rows = rows_of(&a), row0 = blockIdx.y * TILE, col0 = blockIdx.x * COLS;
    const uint32_t chunks = (a.k + 31) / 32;
    const struct tile_operand of[2] = {{at<const uint4>(a.x.at), a.x.stride / 8, rows},
                                       {at<const uint4>(a.w), chunks * 4, a.n}};
    float c[2][TILE / 16][4] = {};

    if (row0 >= rows)
        return;
    tile_sums<tile_halves<T>, TILE, STAGES>(stages, of, row0, col0, 0, chunks, c, [](uint32_t) {});
    tile_results<TILE>(c, [&](uint32_t row, uint32_t col, float sum) {
        if (row0 + row < rows && col0 + col < a.n)
            put(&a, row0 + row, col0 + col, sum);
    });
}

EK_KERNEL_BLOCKS(ek_gemm_bf16, struct cu_gemm_args, 256, 2)
{
    gemm<bf16>(a);
}
EK_KERNEL_BLOCKS(ek_gemm_f16, struct cu_gemm_args, 256, 2)
{
    gemm<f16>(a);
}

/* 16 x 16 results per block, one per thread. */
EK_KERNEL(ek_gemm_f32, struct cu_gemm_args, 256)
{
    __shared__ float x[16][17], w[16][17];
    const uint32_t rows = rows_of(&a), i = threadIdx.x / 16, j = threadIdx.x % 16;
    const uint32_t row0 = blockIdx.y * 16, col0 = blockIdx.x * 16, w_stride = (a.k + 31) / 32 * 32;
    float sum = 0.0f;

    if (row0 >= rows)
        return;
    for (uint32_t k = 0; k < a.k; k += 16) {
        uint32_t row = row0 + i, col = col0 + i;
        x[i][j] = row < rows ? at<const float>(a.x.at)[(uint64_t)row * a.x.stride + k + j] : 0.0f;
        if (a.packing.form == CU_PLAIN)
            w[i][j] = col < a.n ? at<const float>(a.w)[(uint64_t)col * w_stride + k + j] : 0.0f;
        else
            w[i][j] =
                col < a.n && k + j < a.k ? packed_value(a.w, a.packing, col, a.k, k + j) : 0.0f;
        __syncthreads();
        for (uint32_t e = 0; e < 16; e++)
            sum += x[i][e] * w[j][e];
        __syncthreads();
    }
    if (row0 + i < rows && col0 + j < a.n)
        put(&a, row0 + i, col0 + j, sum);
}
