/*
 * Products with packed weights for some dozen to some hundred rows of x: too many to read w again
 * for every 16, too few to expand it in memory first. A block computes 64 or 128 rows by 128
 * columns of c over a part of k. Pieces of x and w flow through shared memory, up to four in
 * flight; each warp has 16 rows of w, expands them in registers as gemv.cuh does, once for all rows
 * of x, and multiplies by mma. Bound by reading w where rows are few, by the tensor cores beyond.
 *
 * Matrices of few columns are cut along k as well, so that there are enough blocks: the block of a
 * tile's parts that comes last adds them in order. How it is cut depends on the shape of w alone
 * (cuda_fused_parts()), and tiles of 64 and of 128 rows add in the same order: a row's answer does
 * not depend on the other rows.
 */
#include "kernels/cuda/fused.cuh"

#define FUSED(name, type, form)                                                                    \
    EK_KERNEL_ALONE(ek_fused64_##name, struct cu_gemm_args, 256)                                   \
    {                                                                                              \
        fused<type, form, 8>(a);                                                                   \
    }                                                                                              \
    EK_KERNEL_ALONE(ek_fused128_##name, struct cu_gemm_args, 256)                                  \
    {                                                                                              \
        fused<type, form, 16>(a);                                                                  \
    }

FUSED(bf16_i8, bf16, i8)
FUSED(bf16_f8, bf16, f8)
FUSED(bf16_i4, bf16, i4)
FUSED(f16_i8, f16, i8)
FUSED(f16_f8, f16, f8)
FUSED(f16_i4, f16, i4)
