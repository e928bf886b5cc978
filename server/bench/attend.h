/* Attention over a long context, as the CPU backend computes it: a kernel that `evenkeel-bench
 * kernels` measures beside the ones that it is made of. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/graph.h"

struct bench_attend;
struct cpu_ops;

#define ATTEND_DIM   128u /* elements of a head */
#define ATTEND_GROUP 4u   /* query heads that share a head of K and V */
/* Vector instructions of an element of a softmax, at the rate of multiply-adds: its exponential is
 * 13 of them. */
#define SOFTMAX_OPS 17u

struct attend_shape {
    enum ek_dtype dtype; /* of K and V: EK_BF16, or EK_I8 with a scale for each token and head */
    uint32_t rows;       /* tokens at the end of the context that attend */
    uint32_t keys;       /* tokens in the context: whole blocks */
};

/* Bytes and operations of K and V that a call of bench_attend_run() reads and does. */
void bench_attend_work(const struct attend_shape *s, double *ret_bytes, double *ret_flops);
/* K and V lie in `cache`, which is the caller's, as large as at least one head of them and stays as
 * it is. -ENOMEM. */
int bench_attend_new(const struct cpu_ops *ops, const struct attend_shape *s, char *cache,
                     size_t cache_bytes, struct bench_attend **ret_attend);
void bench_attend_free(struct bench_attend *a);
/* All rows at one head of keys, each `turn` another one. */
void bench_attend_run(struct bench_attend *a, uint32_t turn);
/* What came of it: of query head `head` < ATTEND_GROUP, [ATTEND_DIM]. */
const float *bench_attend_row(const struct bench_attend *a, uint32_t turn, uint32_t row,
                              uint32_t head);
