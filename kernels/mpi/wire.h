/*
 * By what the CPU ranks of several nodes share what they sum, hand on rows from stage to stage, and
 * say what was sampled: messages of table.h.
 *
 * After ek_wire_share() each node of a circle has what all of them have, so that each adds it in
 * order of the ranks and all have the same bits. Where that is much, ek_wire_scatter() brings each
 * node a part of the columns of all, and ek_wire_collect() the sums of these parts to everybody:
 * then a node sends and takes about twice what it has, however many nodes there are.
 *
 * One thread of a node at a time for each direction to each other node, but for ek_wire_cut(). A
 * node that does not answer within the deadline, or is gone, fails the wire for good.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/mpi/table.h"

struct ek_wire {
    uint32_t node, nodes;
    const struct ek_mpi *mpi;
    void *self;            /* of its functions */
    uint32_t first, count; /* the circle: nodes that share, this one among them; 0: all */
    uint64_t stall_us;     /* 0 = for ever */
    _Atomic bool cut;
    struct ek_mpi_copies told; /* by ek_wire_tell(), which one thread calls */
    /* The first failure: which node, and a code of table.h. Before it is cut. */
    void (*failed)(void *ctx, uint32_t node, int code);
    void *ctx;
};

/* block: [nodes of the circle][each] floats, of which this node has filled its own. All nodes of
 * the circle call it in the same order with the same sizes. 0 or EK_ECOMM. */
int ek_wire_share(struct ek_wire *w, float *block, size_t each);
/* Slice k of `each` columns begins here, that of the k-th node of the circle. */
static inline size_t ek_wire_slice(const struct ek_wire *w, size_t each, uint32_t k)
{
    return each * k / w->count;
}
/* block: [nodes of the circle * parts][each], of which this node has filled its `parts`: it gets
 * its own slice of all others. */
int ek_wire_scatter(struct ek_wire *w, float *block, uint32_t parts, size_t each);
/* sums: [each], of which this node has filled its own slice. */
int ek_wire_collect(struct ek_wire *w, float *sums, size_t each);

/* A matrix to another node, and what it sent as one: rows of `width` bytes, `stride` bytes apart.
 * late_us: added to the receiver's deadline. */
struct ek_wire_rows {
    char *data;
    uint32_t rows;
    size_t width, stride;
};
int ek_wire_send(struct ek_wire *w, uint32_t node, const struct ek_wire_rows *x);
int ek_wire_recv(struct ek_wire *w, uint32_t node, const struct ek_wire_rows *x, uint64_t late_us);
/* Sends a copy, which may be taken later: does not wait for that of the last few. */
int ek_wire_tell(struct ek_wire *w, uint32_t node, const void *data, size_t bytes);
bool ek_wire_waiting(const struct ek_wire *w, uint32_t node); /* something has come from it */
void ek_wire_cut(struct ek_wire *w);  /* by any thread: no thread waits on it any more */
void ek_wire_done(struct ek_wire *w); /* what was told is given up; an unused one is fine */
