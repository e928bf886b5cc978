/*
 * What the nodes of a model on several machines ask of MPI: messages between two of them, started
 * and then asked for, and an end of all. libevenkeel-mpi.so (module.c) gives it over Open MPI and
 * is loaded only where several nodes are started; tests have a table of their own, in one process.
 *
 * Nothing here waits but start() and finish(): ek_mpi_move() does, and sleeps while it does. All
 * functions may be called by any thread.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EK_MPI_ABI    1u
#define EK_NODES_MOST 64u
#define EK_MPI_ANY    UINT32_MAX

/* What a message is. Orders keep their order among one another, the others within their kind. */
enum ek_mpi_tag {
    EK_MPI_FLOATS = 1, /* parts of sums, all nodes of a stage to each other */
    EK_MPI_ROWS,       /* from stage to stage, and what the last one sampled */
    EK_MPI_CARD,       /* what a node is */
    EK_MPI_REPLY,      /* to node 0: to an order */
    EK_MPI_DONE,       /* to node 0: how a step ended */
    EK_MPI_LEAVE,      /* to node 0: a node was asked to stop; empty */
    EK_MPI_ORDER,      /* of node 0: this and above, see cluster_inside.h */
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

static inline struct ek_mpi_message ek_mpi_send(uint32_t node, uint32_t tag, const void *data,
                                                size_t bytes)
{
    return (struct ek_mpi_message){node,      tag,   true,  (void *)(uintptr_t)data,
                                   bytes > 0, bytes, bytes, NULL};
}

static inline struct ek_mpi_message ek_mpi_recv(uint32_t node, uint32_t tag, void *data,
                                                size_t bytes)
{
    return (struct ek_mpi_message){node, tag, false, data, bytes > 0, bytes, bytes, NULL};
}

struct ek_mpi {
    uint32_t abi;
    /* Meets the others that were started with this one. 0 with the place of this node among them,
     * or -EIO with why. Once. */
    int (*start)(void *self, uint32_t *ret_node, uint32_t *ret_nodes, char *ret_why, size_t size);
    /* The data belongs to the message until it is done. -EIO. */
    int (*begin)(void *self, struct ek_mpi_message *m);
    /* 1: done; 0: not yet; -EPROTO: another size came; -ECONNRESET: the node is gone; -EIO. */
    int (*test)(void *self, struct ek_mpi_message *m);
    void (*drop)(void *self, struct ek_mpi_message *m); /* its result is not wanted any more */
    /* Whether a message has come whose receive was not begun: of a node or of EK_MPI_ANY; with a
     * tag, or of EK_MPI_ORDER the oldest of these. 1, 0 or -EIO. */
    int (*probe)(void *self, uint32_t *node, uint32_t *tag, size_t *ret_bytes);
    void (*finish)(void *self);          /* when all do */
    void (*abort)(void *self, int code); /* ends the processes of all nodes; does not return */
};

/* How long one waits; a clock that stands still while this process does. */
struct ek_mpi_wait {
    uint64_t limit_us;         /* 0 = for ever */
    const _Atomic bool *cut;   /* ends the wait, NULL = nothing does */
    uint64_t waited_us, at_us; /* zeroed by the one that waits */
};
/* A pause that grows with the time waited, to a millisecond, or after a second of waiting to four;
 * at first other threads may run. 0, -ETIMEDOUT or -ECANCELED. */
int ek_mpi_pause(struct ek_mpi_wait *w);
/* Begins the messages and waits until all are done. A code of begin(), test() or of the pause, with
 * which message it was. None is under way after it. */
int ek_mpi_move(const struct ek_mpi *mpi, void *self, struct ek_mpi_message *m, uint32_t count,
                struct ek_mpi_wait *w, uint32_t *ret_which);

#define EK_MPI_COPIES 4u /* more than steps are under way */

/* Copies that are under way to other nodes; of one thread. */
struct ek_mpi_copies {
    struct ek_mpi_message m[EK_MPI_COPIES];
    uint32_t begun;
};
/* Sends a copy of the one row of `m`, which may be taken later: waits only for that of the last
 * few. A code of begin(), test() or of the pause, or -ENOMEM. */
int ek_mpi_tell(const struct ek_mpi *mpi, void *self, struct ek_mpi_copies *copies,
                const struct ek_mpi_message *m, struct ek_mpi_wait *w);
/* What is under way is given up; unused ones are fine. */
void ek_mpi_forget(const struct ek_mpi *mpi, void *self, struct ek_mpi_copies *copies);
