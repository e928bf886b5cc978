/*
 * The connections by which the CPU ranks of several nodes share what they sum: after
 * ek_wire_share() each node has what all have, so that each adds it in order of the ranks and all
 * have the same bits. All nodes call it in the same order with the same sizes. Each node has one
 * connection to node 0; of two nodes both send at the same time, among more node 0 collects and
 * gives out, so its network carries (nodes - 1) times the sum of the others.
 *
 * One thread of a node at a time, but for ek_wire_cut(). A node that does not answer within the
 * deadline, or leaves, fails the wire for good.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/link.h"

struct ek_wire {
    uint32_t node, nodes;
    struct ek_link *link[EK_NODES_MOST]; /* node 0: [1 .. nodes - 1]; the others: [0] */
    uint64_t stall_us;                   /* 0 = for ever */
    uint64_t turn;
    _Atomic bool cut;
    /* The first failure: which node, and a code of link.h. Before it is cut. */
    void (*failed)(void *ctx, uint32_t node, int code);
    void *ctx;
};

/* block: [nodes][each] floats, of which this node has filled its own. 0 or EK_ECOMM. */
int ek_wire_share(struct ek_wire *w, float *block, size_t each);
void ek_wire_cut(struct ek_wire *w); /* by any thread: nobody waits on it any more */
