/*
 * What one rank of several computes of a graph (tensor parallelism), as a graph of its own that a
 * backend runs like any other. Attention is divided by heads, a feed-forward and the experts of a
 * mixture by their inner width, embedding and logits by the vocabulary; what stands between them is
 * the same on all ranks. EK_OP_REDUCE stands where ranks hold parts of a sum, EK_OP_GATHER behind
 * the logits. Heads of K and V are divided too, or where there are fewer than ranks, each serves
 * several ranks.
 *
 * A rank's weights are ranges of the same files: rows, or columns where the input is divided. A
 * matrix that is quantized in groups of columns is cut between groups; one that has too few of them
 * is unpacked. Matrices that are quantized while they are loaded take scales of their own shares.
 *
 * Pure but for the memory of the result.
 */
#pragma once

#include <stdint.h>

#include "kernels/graph.h"

struct ek_fault;

/* 0 with a graph that ek_graph_free() frees; it names no memory of `g`. -EBADMSG with a fault when
 * so many ranks cannot share the model (and which numbers can), -ENOTSUP with one when there is no
 * rule for an operation, -ENOMEM. */
int ek_shard(const struct ek_graph *g, uint32_t rank, uint32_t ranks, struct ek_graph *ret_graph,
             struct ek_fault *fault);

/* Where the share of a rank begins among n things that are given out by `unit`; n for rank = ranks.
 * Shares differ by at most one unit. */
static inline uint32_t ek_shard_begin(uint32_t n, uint32_t unit, uint32_t rank, uint32_t ranks)
{
    uint64_t units = n / unit + (n % unit != 0), at = units * rank / ranks * unit;
    return at < n ? (uint32_t)at : n;
}
/* The unit for n columns: 32, or multiples of `group` where there are enough of them; smaller where
 * there are too few. 0 when there are fewer columns than ranks. */
uint32_t ek_shard_unit(uint32_t n, uint32_t group, uint32_t ranks);
/* Where each rank's share of the vocabulary begins. */
uint32_t ek_shard_vocab(uint32_t vocab, uint32_t rank, uint32_t ranks);
