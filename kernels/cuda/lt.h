/*
 * cuBLASLt as a table of functions, filled from its library where that is found (lt.c): neither the
 * server nor the plug-in links it. Types and constants are declared as its stable interface has
 * them (tests/cuda/check_lt.c holds them against cublasLt.h where that is installed).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/driver.h"

enum {
    LT_COMPUTE_32F = 68,
    LT_R_32F = 0,
    LT_R_16F = 2,
    LT_R_16BF = 14,
    LT_R_E4M3 = 28,
    LT_TRANSA = 3,
    LT_A_SCALE = 17, /* where the scales of W lie, */
    LT_B_SCALE = 18, /* of X, */
    LT_A_SCALE_MODE = 31,
    LT_B_SCALE_MODE = 32, /* and of what: */
    LT_SCALE_ALL = 0,     /* one of all, 1 if there is none */
    LT_SCALE_ROWS = 3,    /* f32 of each row */
    LT_SCALE_GROUPS = 4,  /* f32 [groups of 128 columns][rows] */
    LT_SCALE_BLOCKS = 5,  /* f32 [blocks of 128 rows][groups of 128 columns] */
    LT_WORKSPACE = 1,
    LT_OP_T = 1,
    LT_OK = 0,
    LT_NOT_INITIALIZED = 1,
    LT_ALLOC_FAILED = 3,
    LT_INVALID_VALUE = 7,
    LT_EXECUTION_FAILED = 13,
    LT_NOT_SUPPORTED = 15,
    LT_ALIGN = 256, /* of matrices, bytes: what algorithms are chosen for unless one says less */
};

struct lt_result {
    uint64_t algo[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

typedef struct lt_opaque *lt_handle;

#define LT_FUNCTIONS(X)                                                                            \
    X(create, cublasLtCreate, (lt_handle *))                                                       \
    X(destroy, cublasLtDestroy, (lt_handle))                                                       \
    X(desc_new, cublasLtMatmulDescCreate, (lt_handle *, int, int))                                 \
    X(desc_free, cublasLtMatmulDescDestroy, (lt_handle))                                           \
    X(desc_set, cublasLtMatmulDescSetAttribute, (lt_handle, int, const void *, size_t))            \
    X(layout_new, cublasLtMatrixLayoutCreate, (lt_handle *, int, uint64_t, uint64_t, int64_t))     \
    X(layout_free, cublasLtMatrixLayoutDestroy, (lt_handle))                                       \
    X(pref_new, cublasLtMatmulPreferenceCreate, (lt_handle *))                                     \
    X(pref_free, cublasLtMatmulPreferenceDestroy, (lt_handle))                                     \
    X(pref_set, cublasLtMatmulPreferenceSetAttribute, (lt_handle, int, const void *, size_t))      \
    X(heuristic, cublasLtMatmulAlgoGetHeuristic,                                                   \
      (lt_handle, lt_handle, lt_handle, lt_handle, lt_handle, lt_handle, lt_handle, int,           \
       struct lt_result *, int *))                                                                 \
    X(matmul, cublasLtMatmul,                                                                      \
      (lt_handle, lt_handle, const void *, const void *, lt_handle, const void *, lt_handle,       \
       const void *, const void *, lt_handle, void *, lt_handle, const void *, void *, size_t,     \
       cu_handle))

struct cu_gemm_args;
struct ek_device;

/* cuBLASLt, if it is there and wanted; NULL else. */
struct cuda_lt *cuda_lt_open(struct ek_device *d);
void cuda_lt_close(struct cuda_lt *lt);
/* 1 when it was enqueued, 0 when the own kernel has to do it, a code. */
int cuda_lt_gemm(struct ek_device *d, const struct cu_gemm_args *g, uint32_t rows);
/* The same of inputs that were rounded to E4M3, g->scale_stride rows of scales apart: as many as
 * this says, 0 = it does not do that. */
uint32_t cuda_lt_e4m3_rows(struct ek_device *d, const struct cu_gemm_args *g, uint32_t rows);
int cuda_lt_e4m3(struct ek_device *d, const struct cu_gemm_args *g, uint32_t rows);
