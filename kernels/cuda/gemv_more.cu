/*
 * Other ways to multiply few rows by plain weights, as choices.c offers them. Their sums are those
 * of ek_gemv8 and ek_gemv16 to the bit.
 *
 *   ek_gemv8_ahead_*   twice as many loads of weights under way
 *   ek_gemv8_glu_*     a block takes 16 columns of the gate and the same of what it gates, rounds
 *   ek_gemv16_glu_*    both as they would be stored, and stores what the activation makes of them
 */
#include "kernels/cuda/gemv.cuh"

template <class T> DEV void gemv_ahead(const struct cu_gemm_args &a)
{
    __shared__ float part[GEMV_WARPS][16 * 8];
    const uint32_t rows = rows_of(&a), row = threadIdx.x % 32 / 4, n0 = blockIdx.x * 16;
    const struct gemv_weight w = {a.w, a.n, a.k, a.packing};
    const uint16_t *const x[1] = {
        row < rows ? at<const uint16_t>(a.x.at) + (uint64_t)row * a.x.stride : NULL};

    gemv_sums_ahead<T>(w, n0, x, part);
    for (uint32_t i = threadIdx.x; i < 16 * 8; i += blockDim.x) {
        const uint32_t col = n0 + i % 16;
        float sum = 0.0f;
        for (int k = 0; k < GEMV_WARPS; k++)
            sum += part[k][i];
        if (i / 16 < rows && col < a.n)
            put(&a, i / 16, col, sum);
    }
}

/* As a number of T. */
template <class T> DEV float rounded_to(float f)
{
    T t;

    from_float(&t, f);
    return to_float(t);
}

/* A block: 16 columns of dst, and 8 * NT rows of it. */
template <class T, int NT> DEV void gemv_glu(const struct cu_glu_args &a)
{
    __shared__ float part[GEMV_WARPS][16 * 8 * NT];
    const uint32_t rows = rows_of(&a.gemm), half = a.gemm.n / 2, n0 = blockIdx.x * 16;
    struct gemv_weight w = {a.gemm.w, half, a.gemm.k, a.gemm.packing};
    const uint64_t row_bytes = (uint64_t)((a.gemm.k + 31) / 32) * 64;
    const uint16_t *x[NT];
    float gate = 0.0f, up = 0.0f; /* 16 * 8 * NT <= threads: one of each */

    for (int j = 0; j < NT; j++) {
        const uint32_t row = j * 8 + threadIdx.x % 32 / 4;
        x[j] =
            row < rows ? at<const uint16_t>(a.gemm.x.at) + (uint64_t)row * a.gemm.x.stride : NULL;
    }
    const uint32_t i = threadIdx.x, row = i / 16, col = n0 + i % 16;
    const bool mine = i < 16 * 8 * NT;
    gemv_sums<T, plain, NT>(w, n0, x, part);
    for (int k = 0; mine && k < GEMV_WARPS; k++)
        gate += part[k][i];
    __syncthreads();
    w.at += half * row_bytes;
    gemv_sums<T, plain, NT>(w, n0, x, part);
    for (int k = 0; mine && k < GEMV_WARPS; k++)
        up += part[k][i];
    if (!mine || row >= rows || col >= half)
        return;
    gate *= a.gemm.scale;
    up *= a.gemm.scale;
    if (a.gemm.bias) {
        gate += at<const float>(a.gemm.bias)[col];
        up += at<const float>(a.gemm.bias)[half + col];
    }
    store(&a.dst, (uint64_t)row * a.dst.stride + col,
          gated(rounded_to<T>(gate), rounded_to<T>(up), a.act));
}

EK_KERNEL(ek_gemv8_ahead_bf16, struct cu_gemm_args, 256)
{
    gemv_ahead<bf16>(a);
}
EK_KERNEL(ek_gemv8_ahead_f16, struct cu_gemm_args, 256)
{
    gemv_ahead<f16>(a);
}
EK_KERNEL(ek_gemv8_glu_bf16, struct cu_glu_args, 256)
{
    gemv_glu<bf16, 1>(a);
}
EK_KERNEL(ek_gemv8_glu_f16, struct cu_glu_args, 256)
{
    gemv_glu<f16, 1>(a);
}
EK_KERNEL(ek_gemv16_glu_bf16, struct cu_glu_args, 256)
{
    gemv_glu<bf16, 2>(a);
}
EK_KERNEL(ek_gemv16_glu_f16, struct cu_glu_args, 256)
{
    gemv_glu<f16, 2>(a);
}
