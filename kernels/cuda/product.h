/* One product, by the kernels that are fastest for so many rows. */
#pragma once

#include "kernels/cuda/cuda.h"

/* One product for so many rows, by the kernels that are fastest; and up to how many rows
 * that is a fused one on a card of this compute capability, with cuBLASLt beside it or without. */
int cuda_product(struct ek_device *d, const struct cu_gemm_args *a, uint32_t rows);
/* The same of a product and the activation behind it, which takes all that it stores: whether few
 * enough rows are done so, and by one launch. */
bool cuda_product_joins(const struct ek_device *d, const struct cu_gemm_args *a, uint32_t rows);
int cuda_product_glu(struct ek_device *d, const struct cu_gemm_args *a,
                     const struct cu_rows_args *glu, uint32_t rows);
uint32_t cuda_fused_rows(int capability, bool lt);
/* Up to how many rows products of E4M3 are left to the own kernels. */
uint32_t cuda_e4m3_rows(int capability, bool lt);
