/*
 * The walk of shard.c over a list of operations, and the cuts of weights that it asks for
 * (shard_cut.c).
 */
#pragma once

#include <stdint.h>

#include "kernels/graph.h"

struct ek_fault;

struct shard_cut { /* columns [first, first + count) of a value or rows of a matrix */
    uint32_t first, count;
};

struct shard_held {
    /* HEADS: the rank's [q | k | v]; GATED: the same, each head of q with its gate behind it */
    enum { WHOLE, COLUMNS, HEADS, GATED } form;
    struct shard_cut columns;
};

struct sharding {
    const struct ek_graph *g;
    struct ek_graph *out;
    uint32_t rank, ranks;
    struct ek_op op;         /* the one at hand, as it is for the rank */
    uint32_t at;             /* its place in the whole list */
    struct shard_held *held; /* [values] */
    uint8_t *width_set;      /* [values]: the rank's width is known */
    uint8_t *cut;            /* [weights]: how a weight is cut, 0 = not yet */
    struct ek_fault *fault;
};

/* The rank's part of n columns or rows, cut at multiples of `unit`. */
struct shard_cut shard_cut_of(const struct sharding *s, uint32_t n, uint32_t unit);

/* The rank's rows of a weight or a bias, in `count` (up to three) runs; its columns. 0, or -ENOTSUP
 * with the fault of shard_no_rule() where the weight was cut in another way before. */
int shard_cut_rows(struct sharding *s, uint32_t index, const struct shard_cut *c, uint32_t count);
int shard_cut_cols(struct sharding *s, uint32_t index, struct shard_cut c);
/* Columns that share a published scale, the most of all matrices with so many columns: the same cut
 * serves all layers. */
uint32_t shard_widest_group(const struct ek_graph *g, uint32_t cols);

/* Faults of s->op: -ENOTSUP and -EBADMSG. shard_check_heads() is 0 where the ranks can share them.
 */
int shard_no_rule(const struct sharding *s, const char *why);
int shard_check_heads(const struct sharding *s, uint32_t q, uint32_t kv);
int shard_too_narrow(const struct sharding *s, uint32_t columns);
