/*
 * Products with plain weights for 17 to 64 rows of x, as fused.cu has them for packed ones: w is
 * read once, k is cut where columns are few, parts are added in order. Bound by reading w. One of
 * the choices (choices.c); else such products go to cuBLASLt.
 */
#include "kernels/cuda/fused.cuh"

EK_KERNEL_ALONE(ek_fused64_bf16, struct cu_gemm_args, 256)
{
    fused<bf16, plain, 8>(a);
}
EK_KERNEL_ALONE(ek_fused64_f16, struct cu_gemm_args, 256)
{
    fused<f16, plain, 8>(a);
}
