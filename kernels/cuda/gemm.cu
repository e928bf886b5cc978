/*
 * Products c[rows, n] = scale * x[rows, k] * w[n, k]^T + bias. Three forms:
 *
 *   ek_gemv_*   up to 16 rows: bound by reading w once. A block takes 16 rows of w, its warps take
 *               turns along k; w goes from memory straight into the registers of mma.
 *   ek_gemm_*   more rows, where cuBLASLt is not used: tiles of 128 x 128, mma, two stages.
 *   ek_gemm_f32 f32: plain, for small models and comparison; reads packed weights, too.
 *
 * Packed weights of 16-bit models: packed.cu. Rows of x lie a multiple of 128 elements apart, those
 * of plain w of 32, and what lies behind column k is zero in both (planned so in shape.c), so k is
 * rounded up to 32 and has no tail.
 */
#include "kernels/cuda/gemv.cuh"

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

#define TILE  128
#define DEPTH 32
#define PITCH                                                                                      \
    40 /* halves from row to row in shared memory: lanes of a quad group hit all banks             \
        */

struct gemm_stage {
    uint16_t x[TILE * PITCH], w[TILE * PITCH];
};

DEV void gemm_fetch(const struct cu_gemm_args *a, struct gemm_stage *stage, uint32_t row0,
                    uint32_t col0, uint32_t rows, uint32_t k0)
{
    const uint32_t w_stride = (a->k + 31) / 32 * 32;

    for (uint32_t i = threadIdx.x; i < TILE * DEPTH / 8; i += blockDim.x) {
        uint32_t r = i / 4, k = i % 4 * 8;
        uint32_t row = row0 + r, col = min(col0 + r, a->n - 1);
        const uint16_t *x =
            at<const uint16_t>(a->x.at) + (uint64_t)(row < rows ? row : 0) * a->x.stride + k0 + k;
        async_16(&stage->x[r * PITCH + k], x, row < rows);
        async_16(&stage->w[r * PITCH + k],
                 at<const uint16_t>(a->w) + (uint64_t)col * w_stride + k0 + k, true);
    }
    async_commit();
}

/* Eight warps, two by four; each computes 64 x 32 of the tile. */
template <class T> DEV void gemm(const struct cu_gemm_args &a)
{
    __shared__ __align__(16) struct gemm_stage stage[2];
    const uint32_t rows = rows_of(&a), row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const uint32_t wr = warp / 4 * 64, wc = warp % 4 * 32, steps = (a.k + DEPTH - 1) / DEPTH;
    float c[4][4][4];

    if (row0 >= rows)
        return;
    for (int i = 0; i < 64; i++)
        c[i / 16][i / 4 % 4][i % 4] = 0.0f;
    gemm_fetch(&a, &stage[0], row0, col0, rows, 0);
    for (uint32_t step = 0; step < steps; step++) {
        if (step + 1 < steps) {
            gemm_fetch(&a, &stage[(step + 1) % 2], row0, col0, rows, (step + 1) * DEPTH);
            async_wait<1>();
        } else {
            async_wait<0>();
        }
        __syncthreads();
        const struct gemm_stage *s = &stage[step % 2];
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            uint32_t f[4][4], b[4][2];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint16_t *p = &s->x[(wr + i * 16 + g) * PITCH + k + 2 * t];
                f[i][0] = pair(p), f[i][1] = pair(p + 8 * PITCH);
                f[i][2] = pair(p + 8), f[i][3] = pair(p + 8 * PITCH + 8);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint16_t *p = &s->w[(wc + j * 8 + g) * PITCH + k + 2 * t];
                b[j][0] = pair(p), b[j][1] = pair(p + 8);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    mma(T{}, c[i][j], f[i], b[j][0], b[j][1]);
        }
        __syncthreads(); /* before the stage is filled again */
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                uint32_t row = row0 + wr + i * 16 + g + e / 2 * 8,
                         col = col0 + wc + j * 8 + 2 * t + e % 2;
                if (row < rows && col < a.n)
                    put(&a, row, col, c[i][j][e]);
            }
}

EK_KERNEL(ek_gemm_bf16, struct cu_gemm_args, 256)
{
    gemm<bf16>(a);
}
EK_KERNEL(ek_gemm_f16, struct cu_gemm_args, 256)
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
