/*
 * What nodes say to each other. The table is what they ask of MPI: messages between two of them,
 * started and then asked for, and an end of all. libevenkeel-mpi.so (module.c) gives it over Open
 * MPI and is loaded only where several nodes are started; tests have a table of their own, in one
 * process. Nothing of it waits but start() and finish(), and any thread may call it.
 *
 * A wire is a use of the table with a deadline: ek_wire_move() begins messages and waits until all
 * are done, and sleeps while it does. A node that is silent for longer, or gone, fails the wire for
 * good. By one the ranks of several nodes sum and hand on rows, by another go orders (cluster.h).
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EK_MPI_ABI    3u
#define EK_NODES_MOST 64u
#define EK_MPI_ANY    UINT32_MAX

/* What a message is. Orders keep their order among one another, the others within their kind. */
enum ek_mpi_tag {
    EK_MPI_ROWS = 2, /* from stage to stage, and what the last one sampled */
    EK_MPI_SHARE,    /* of all nodes to each other: what they are, then parts of sums. Older
                        versions met by messages of this tag, and are told by their size. */
    EK_MPI_REPLY,    /* to node 0: to an order */
    EK_MPI_DONE,     /* to node 0: how a step ended */
    EK_MPI_LEAVE,    /* to node 0: a node was asked to stop; empty */
    EK_MPI_ORDER,    /* of node 0: this and above, see cluster.c */
};

/* A matrix of `rows` rows of `width` bytes that lie `stride` apart, to a node or from it. */
struct ek_mpi_message {
    uint32_t node, tag;
    bool out;
    void *data;
    uint32_t rows;
    size_t width, stride;
    void *request; /* the module's; NULL: not begun, or done */
};

/* Of so many bytes in one piece. */
static inline struct ek_mpi_message ek_mpi_flat(uint32_t node, uint32_t tag, bool out,
                                                const void *data, size_t bytes)
{
    void *at = (void *)(uintptr_t)data;
    return (struct ek_mpi_message){node, tag, out, at, bytes > 0, bytes, bytes, NULL};
}

struct ek_mpi {
    uint32_t abi;
    /* Meets the others that were started with this one. 0 with the place of this node among them,
     * or -EIO with why. Once. */
    int (*start)(void *self, uint32_t *ret_node, uint32_t *ret_nodes, char *ret_why, size_t size);
    /* The data belongs to the message until it is done, or nothing more is asked for. -EIO. */
    int (*begin)(void *self, struct ek_mpi_message *m);
    /* 1: done; 0: not yet; -EPROTO: another size came; -ECONNRESET: the node is gone; -EIO. */
    int (*test)(void *self, struct ek_mpi_message *m);
    /* Whether a message has come whose receive was not begun: of a node or of EK_MPI_ANY; with a
     * tag, or of EK_MPI_ORDER the oldest of these. 1, 0 or -EIO. */
    int (*probe)(void *self, uint32_t *node, uint32_t *tag, size_t *ret_bytes);
    void (*finish)(void *self);          /* when all do */
    void (*abort)(void *self, int code); /* ends the processes of all nodes; does not return */
};

#define EK_WIRE_TOLD 4u /* more than steps are under way */

struct ek_wire {
    uint32_t node, nodes;
    uint32_t first, count; /* the circle: nodes that share, this one among them; 0: all */
    const struct ek_mpi *mpi;
    void *self;        /* of its functions */
    uint64_t stall_us; /* 0 = for ever */
    _Atomic bool cut;
    struct ek_mpi_message told[EK_WIRE_TOLD]; /* by ek_wire_tell(), which one thread calls */
    uint32_t begun;
    /* The first failure: which node, and a code of the table. Before it is cut. */
    void (*failed)(void *ctx, uint32_t node, int code);
    void *ctx;
};

/* Begins the messages and waits until all are done; late_us is added to the deadline, which is for
 * nodes that do nothing at all. 0 or EK_ECOMM: then nothing may be asked of MPI any more, since it
 * may still write to what was to come. */
int ek_wire_move(struct ek_wire *w, struct ek_mpi_message *m, uint32_t count, uint64_t late_us);
/* Sends a copy, which may be taken later: waits only for that of the last few. */
int ek_wire_tell(struct ek_wire *w, uint32_t node, uint32_t tag, const void *data, size_t bytes);
/* Whether a message has come, as probe(). A node that is gone fails the wire. */
int ek_wire_look(struct ek_wire *w, uint32_t *node, uint32_t *tag, size_t *ret_bytes);

struct ek_wire_buffer {
    void *data;
    size_t room, bytes;
    uint32_t node, tag; /* of the message that it has */
};
int ek_wire_room(struct ek_wire_buffer *b, size_t bytes); /* 0 or -ENOMEM */
/* The next message of a node and tag as probe() has them, into a buffer that grows: -ETIMEDOUT when
 * it has not begun within limit_us (0: looks once); one that has begun is taken whole. EK_ECOMM,
 * -ENOMEM. */
#define EK_WIRE_EVER UINT64_MAX
int ek_wire_take(struct ek_wire *w, uint32_t node, uint32_t tag, struct ek_wire_buffer *b,
                 uint64_t limit_us);

/* Sums: all nodes of the circle make these calls in the same order with the same sizes, by one
 * thread. 0 or EK_ECOMM. */
/* block: [nodes of the circle][each] words, such as floats, of which this node has filled its own:
 * it gets those of all, so that each adds them in order of the ranks and all have the same bits. */
#define EK_WIRE_WORD 4u /* bytes */
int ek_wire_share(struct ek_wire *w, void *block, size_t each);
/* Where that is much, a node gets a part of the columns of all, adds it, and shares the sums: then
 * it sends and takes about twice what it has, however many nodes there are. block: [nodes of the
 * circle * parts][each], of which this node has filled its `parts`: it gets its own slice of all
 * others. 0 parts: [each], of which it has filled its slice: it gets those of all. */
int ek_wire_exchange(struct ek_wire *w, float *block, uint32_t parts, size_t each);
/* Slice k of `each` columns begins here, that of the k-th node of the circle. */
static inline size_t ek_wire_slice(const struct ek_wire *w, size_t each, uint32_t k)
{
    return each * k / w->count;
}

void ek_wire_cut(struct ek_wire *w);  /* by any thread: no thread waits on it any more */
void ek_wire_done(struct ek_wire *w); /* an unused one is fine */
