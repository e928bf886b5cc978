/*
 * What one stage of several computes of a graph (a pipeline): a run of its layers, as a graph of
 * its own that a backend runs like any other. The first stage has the embedding, the last one the
 * final norm, the output layer and with it the sampling. Between two stages the residual stream is
 * handed on, all rows of a step: EK_OP_SEND ends a stage, EK_OP_RECV begins the next one. No sum is
 * taken in another order, so the numbers are those of the whole.
 *
 * A cut is where only one value is still needed. The runs are those whose largest share of weight
 * bytes is the smallest, embedding and output layer counted; a weight that serves both of them is
 * in the first and in the last stage.
 *
 * Stages and shares (shard.h) go together: of `ranks` in all, rank = stage * (ranks / stages) +
 * the rank of the share. Pure but for the memory of the result.
 */
#pragma once

#include <stdint.h>

#include "kernels/graph.h"

struct ek_fault;

/* Where the layers of each stage begin: ret_begin[stages] is the number of layers. -EBADMSG with a
 * fault when there are fewer layers than stages, -ENOTSUP with one when the graph cannot be cut
 * between two layers, -ENOMEM. */
int ek_stage_divide(const struct ek_graph *g, uint32_t stages, uint32_t *ret_begin,
                    struct ek_fault *fault);
/* Layers [begin[stage], begin[stage + 1]) of a graph, which may be a rank's share. 0 with a graph
 * that ek_graph_free() frees. Codes as above. */
int ek_stage(const struct ek_graph *g, const uint32_t *begin, uint32_t stage, uint32_t stages,
             struct ek_graph *ret_graph, struct ek_fault *fault);
/* The graph of one of `ranks` in `stages` (0 = 1) stages; stages divide ranks. As ek_shard(). */
int ek_rank_graph(const struct ek_graph *g, uint32_t rank, uint32_t ranks, uint32_t stages,
                  struct ek_graph *ret_graph, struct ek_fault *fault);
