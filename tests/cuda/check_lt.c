/* What kernels/cuda/lt.h declares is what the toolkit's cublasLt.h says. Compiled, never run, where
 * that is; the C compiler does the checking. */
#include <cublasLt.h>

#include "kernels/cuda/lt.h"

#define SAME(ours, theirs) _Static_assert((long)(ours) == (long)(theirs), #ours)
#define PLACE(ours, theirs)                                                                        \
    SAME(__builtin_offsetof(struct lt_result, ours),                                               \
         __builtin_offsetof(cublasLtMatmulHeuristicResult_t, theirs))

SAME(LT_COMPUTE_32F, CUBLAS_COMPUTE_32F);
SAME(LT_R_32F, CUDA_R_32F);
SAME(LT_R_16F, CUDA_R_16F);
SAME(LT_R_16BF, CUDA_R_16BF);
SAME(LT_R_E4M3, CUDA_R_8F_E4M3);
SAME(LT_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(LT_A_SCALE, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
SAME(LT_B_SCALE, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
SAME(LT_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
SAME(LT_B_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE);
SAME(LT_SCALE_ALL, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F);
SAME(LT_SCALE_ROWS, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
SAME(LT_SCALE_GROUPS, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
SAME(LT_SCALE_BLOCKS, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
SAME(LT_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(LT_OP_T, CUBLAS_OP_T);
SAME(LT_OK, CUBLAS_STATUS_SUCCESS);
SAME(LT_NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED);
SAME(LT_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED);
SAME(LT_INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE);
SAME(LT_EXECUTION_FAILED, CUBLAS_STATUS_EXECUTION_FAILED);
SAME(LT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED);
SAME(sizeof(struct lt_result), sizeof(cublasLtMatmulHeuristicResult_t));
SAME(sizeof(((struct lt_result *)0)->algo), sizeof(cublasLtMatmulAlgo_t));
PLACE(algo, algo);
PLACE(workspace, workspaceSize);
PLACE(state, state);
PLACE(waves, wavesCount);
PLACE(reserved, reserved);
