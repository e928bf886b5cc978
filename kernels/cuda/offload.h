/*
 * Which weights stay in host memory (--cpu-offload-gb). Two kinds can: an embedding table that is
 * no output layer, too, of which a step reads a few rows where they are; and the matrices of linear
 * operations and mixtures of experts before the rows are picked, which are copied to the card for
 * each step, one ahead of its use, into one of two buffers in turn (stream.c). What is read for
 * logits alone stays on the card, since not every step has some. A mixture's experts come some at a
 * time, so that the buffers need not hold all of them; a step of few rows, which asks for few of
 * them, reads those where they are.
 *
 * Those that are copied are spread evenly over the step, by bytes, so that the copy of one goes on
 * while what lies between is computed. A buffer is as large as the largest of them, so large ones
 * are left out where smaller ones are enough: what counts is what the card has left in the end.
 * Pure but for the memory it works in.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/graph.h"

struct cuda_weight;

#define CUDA_OFFLOAD_SLOTS 2u

/* What can be said of a graph, and what was chosen of it. */
struct cuda_offload {
    uint32_t few_rows;   /* steps of up to so many read experts where they are */
    bool experts;        /* some are among the items */
    uint32_t items;      /* in host memory; numbered from 1 in the order of their use, */
    uint32_t streamed;   /* those that are copied first; one more is the embedding */
    uint64_t most_bytes; /* all that could be there */
    uint64_t slot_most;  /* a buffer for the largest of them */
    uint64_t least;      /* the least that frees memory on the card, 0 = nothing does */
};

/* Of `count` matrices, in the order in which a step reads them, at most `budget` bytes. Sets all of
 * chosen[]; returns the bytes of the largest that was, 0 when none is worth it. */
uint64_t cuda_offload_choose(const uint64_t *bytes, uint32_t count, uint64_t budget,
                             bool *ret_chosen);
/* The least budget with which something is chosen, 0 = there is none. */
uint64_t cuda_offload_least(const uint64_t *bytes, uint32_t count);

/* How many experts of an operation lie together: their gates and ups, or their downs. */
uint32_t cuda_offload_experts(const struct ek_graph *g, const struct cuda_weight *weights,
                              const struct ek_op *op);
/* Sets `item` of all weights that are to stay in host memory, at most `budget` bytes of them; what
 * they take is known. -ENOMEM. */
int cuda_offload_mark(const struct ek_graph *g, uint64_t budget, struct cuda_weight *weights,
                      struct cuda_offload *ret_offload);
