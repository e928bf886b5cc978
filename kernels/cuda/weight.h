/* Where a weight lies, and in what form (weights.c, shape.c). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/args.h"

#define CUDA_ALIGN 256u /* bytes, of every array on the card */

struct cuda_weight {
    size_t at, bytes; /* in the weight memory, or in its item; with scales and zeros */
    size_t row_bytes;
    uint32_t stride; /* elements from row to row; behind the last column are zeros */
    bool vector;     /* f32, as it is */
    bool rounds;     /* its products round their inputs to 8 bits */
    uint32_t item;   /* 0 = on the card, else which in host memory */
    struct cu_packing packing;
    size_t block_at; /* scales of blocks of 128 rows, for cuBLASLt; 0 = it has none */
};
