/*
 * The KV cache in 8 bits: where things lie in it, and attention over it as whole numbers.
 *
 * K and V of a token and head are numbers of 8 bits with a scale each. Plain, K is [dim][keys] and
 * V [keys][dim] of int8, and a tier makes floats of them as it reads. In quads, K is [dim /
 * 4][keys][4] of numbers with 128 as zero and V [keys / 4][dim][4] of int8: as four-fold products
 * of whole numbers take them. Behind the numbers of K, and of V, lie the scales, [keys] f32.
 *
 * In quads a query is rounded to 8 bits, and the weights of a tile to 16, in two parts of 8, each
 * with a scale of its own. The sums of products are exact; a score is its sum times the scales of
 * query and key, and what a tile adds to an output is its sum times the scale of the weights, into
 * which those of the values have gone. So an element depends on its query, its position and the
 * cache alone, whatever stands beside it and in which order it is summed.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/tier.h"

struct cpu_cells;
struct ek_device;
struct ek_op;
struct ek_step;

#define CPU_QUAD_DIM_MOST 512u /* elements of a head: sums of products fit 32 bits */

/* Of a row of inputs: what 1 is worth, and what is taken off its sums of products. */
struct cpu_unit {
    float one;
    int32_t less;
};

/* A query's scores s[skip .. n) of one tile. They begin where its weights do, at a whole quad: the
 * first `skip` < 4 are not seen by it and weigh nothing. */
struct cpu_quad_scores {
    float *s;
    uint32_t skip, n;
    float scale;
    const float *k, *v;    /* scales of the positions; k may be NULL: all 1 */
    float *most, *sum;     /* the running maximum and sum; updated */
    uint32_t *to;          /* the weights: (n + 15) / 16 * 8 words, may be where the scores begin */
    struct cpu_unit *unit; /* of the weights */
};

/* Inputs lie in words of four; weights with the upper parts in one word and the lower ones in the
 * next. `b` is as for cpu_ops.scores and .mix with in_stride in words, keys and dim whole quads;
 * mix adds to `out` once for all of its blocks. */
struct cpu_quad_cache {
    /* q[n] as n / 4 words. */
    void (*query)(uint32_t *to, const float *q, uint32_t n, struct cpu_unit *ret_unit);
    void (*scores)(const struct cpu_block *b, const struct cpu_unit *unit);
    /* Returns what the accumulator is to be multiplied with, as cpu_ops.softmax. */
    float (*softmax)(const struct cpu_quad_scores *s);
    void (*mix)(const struct cpu_block *b, const struct cpu_unit *unit);
};

/* For machines with AVX512_VNNI. */
extern const struct cpu_quad_cache cpu_quad_cache_vnni;

/* Byte of element `i` of key `key` in the K of a block in quads, and in its V. */
static inline size_t cpu_quad_key_index(uint32_t keys, uint32_t i, uint32_t key)
{
    return ((size_t)(i / 4) * keys + key) * 4 + i % 4;
}

static inline size_t cpu_quad_value_index(uint32_t dim, uint32_t i, uint32_t key)
{
    return ((size_t)(key / 4) * dim + i) * 4 + key % 4;
}

void cpu_kv_write(const struct ek_device *d, const struct ek_step *step, const struct ek_op *op,
                  uint32_t row);
/* K and V of a layer lie in pairs of bf16. */
bool cpu_cache_pairs(const struct ek_device *d, const struct cpu_cells *c);
/* What attends over int8 in quads; NULL: they do not lie so. */
const struct cpu_quad_cache *cpu_cache_quads(const struct ek_device *d, const struct cpu_cells *c);
