/*
 * The walk of shard.c over a list of operations, and the cuts of weights that it asks for
 * (shard_cut.c).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/graph.h"

struct ek_fault;

struct shard_cut { /* columns [first, first + count) of a value or rows of a matrix */
    uint32_t first, count;
};

enum {
    SHARD_MOST_RUNS = 5, /* gate, x, B, C and steps of Mamba 2 */
    SHARD_MOST_PIECES = 3
};

struct shard_runs { /* columns of a value that lie apart, from left to right */
    uint32_t count;
    struct shard_cut run[SHARD_MOST_RUNS];
};

struct shard_held {
    /* HEADS: the rank's [q | k | v]; GATED: the same, each head of q with its gate behind it; RUNS:
     * what `runs` says, one after the other */
    enum { WHOLE, COLUMNS, HEADS, GATED, RUNS } form;
    struct shard_cut columns;
    struct shard_runs runs;
};

struct sharding {
    const struct ek_graph *g;
    struct ek_graph *out;
    uint32_t rank, ranks;
    bool whole_states;       /* recurrent layers are not divided */
    struct ek_op op;         /* the one at hand, as it is for the rank */
    uint32_t at;             /* its place in the whole list */
    struct shard_held *held; /* [values and SHARD_MOST_PIECES] */
    uint8_t *width_set;      /* [the same]: the rank's width is known */
    uint8_t *cut;            /* [weights]: how a weight is cut, 0 = not yet */
    struct ek_fault *fault;
};

/* The rank's part of n columns or rows, cut at multiples of `unit`. */
struct shard_cut shard_cut_of(const struct sharding *s, uint32_t n, uint32_t unit);

/* The rank's rows of a weight or a bias, in `count` runs; its columns. 0, or -ENOTSUP
 * with the fault of shard_no_rule() where the weight was cut in another way before. */
int shard_cut_rows(struct sharding *s, uint32_t index, const struct shard_cut *c, uint32_t count);
int shard_cut_cols(struct sharding *s, uint32_t index, struct shard_cut c);
/* The same rows or columns of a weight that several operations share: its own, or those of one
 * `more`. EK_NO_WEIGHT stays that. */
int shard_piece(struct sharding *s, bool more, struct shard_cut c, bool rows, uint32_t *index);
/* Columns that share a published scale, the most of all matrices with so many columns: the same cut
 * serves all layers. */
uint32_t shard_widest_group(const struct ek_graph *g, uint32_t cols);

/* Faults of s->op: -ENOTSUP and -EBADMSG. shard_check_heads() is 0 where the ranks can share them.
 */
int shard_no_rule(const struct sharding *s, const char *why);
int shard_check_heads(const struct sharding *s, uint32_t q, uint32_t kv);
int shard_too_narrow(const struct sharding *s, uint32_t columns);

/* shard.c: one more operation, as it is for the rank; the width of a value there. */
void shard_push(struct sharding *s, const struct ek_op *op);
int shard_width(struct sharding *s, uint16_t value, uint32_t width);
/* s->op, after which the rank holds a part of a sum in its dst, or all of it. */
int shard_push_sum(struct sharding *s);
int shard_push_whole(struct sharding *s);
/* The operation that reads what operation `at` makes, past norms and rotations of heads in place;
 * the attention that reads a value of heads. NULL: none. */
const struct ek_op *shard_reader(const struct sharding *s);
const struct ek_op *shard_attention_of(const struct sharding *s, uint16_t value);
/* The heads of K and V that the rank has: its share, or the one that several ranks need. */
struct shard_cut shard_kv_cut(const struct sharding *s, uint32_t kv);

/* shard_products.c: rules of s->op; 0 or a fault. */
int shard_linear(struct sharding *s);
int shard_gate(struct sharding *s);
int shard_take(struct sharding *s);

/* shard_copy.c: all of a graph but its operations; 0 or -ENOMEM. ek_graph_free() frees it. */
int shard_copy(const struct ek_graph *g, struct ek_graph *ret_copy);

/*
 * shard_runs.c. Rules of s->op where what it reads or makes is divided in runs of columns; 0 or the
 * fault of shard_no_rule().
 */

/* Whether a product makes what goes into a recurrent layer that can be divided, and which columns
 * the rank has of it; that product. */
bool shard_state_runs(const struct sharding *s, struct shard_runs *ret_runs);
int shard_linear_runs(struct sharding *s, const struct shard_runs *r);
int shard_take_runs(struct sharding *s);
int shard_conv(struct sharding *s);
int shard_delta(struct sharding *s);
int shard_scan(struct sharding *s);
int shard_norm_columns(struct sharding *s);
/* The rank's column where it has all of columns `c`; false: it lacks some. */
bool shard_columns_at(const struct sharding *s, uint16_t value, struct shard_cut c,
                      uint32_t *ret_local);
/* Gives the states of a rank's operations their places. */
void shard_states(struct ek_graph *out);
