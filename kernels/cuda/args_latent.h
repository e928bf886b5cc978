/*
 * Arguments of the kernels of latent attention (latent.cu) that no others share; see args.h. Its
 * attention takes struct cu_attend_args, with these meanings: the query heads lie in `kv_heads`
 * groups, of which a block takes one, `key_dim` is that of Q and of a position in the cache, and
 * `head_dim` that of what comes out, the first elements of K.
 */
#pragma once

#include "kernels/cuda/args.h"

#define CU_LATENT_THREADS 128
#define CU_LATENT_PAIRS   32u  /* (row, head) that a block attends for */
#define CU_LATENT_KEYS    32u  /* positions in shared memory */
#define CU_LATENT_DIM     576u /* of K, */
#define CU_LATENT_VALUE   512u /* and of V, at most: fewer are padded in shared memory */
#define CU_LATENT_LEAST   256u /* positions of a part of a context, about, at least */

/* Rows of shared memory, in numbers, so that lanes meet few banks twice: of Q and K, of scores and
 * of weights; and all of it, with how much each of the pairs' sums shrinks. */
#define CU_LATENT_PITCH   (CU_LATENT_DIM + 8u)
#define CU_LATENT_SCORES  (CU_LATENT_KEYS + 4u)
#define CU_LATENT_WEIGHTS (CU_LATENT_KEYS + 8u)
#define CU_LATENT_SHARED                                                                           \
    ((CU_LATENT_PAIRS + CU_LATENT_KEYS) * CU_LATENT_PITCH * 2u +                                   \
     CU_LATENT_PAIRS * (CU_LATENT_SCORES * 4u + CU_LATENT_WEIGHTS * 2u + 4u))

#define CU_HEADS_TILE  64u /* rows, and columns of a head, of a block of a product by heads; */
#define CU_HEADS_PLAIN 16u /* the same of the plain kernel */

/* For each head: dst[:n] = src[:k] * w[n, k]^T, then the `rest` of src behind those k as it is. */
struct cu_heads_args {
    cu_addr step, w; /* of the first head */
    uint64_t w_step; /* bytes from head to head */
    struct cu_view src, dst;
    uint32_t heads, n, k, rest;
    uint32_t tiles, pad; /* of columns, in which a head's n are computed */
};
