/*
 * What the modules of the nodes share: cluster.c (meeting, failing), lead.c (node 0),
 * follow.c (the others). `lock` guards what stands below it. A failure is stored once, by
 * cluster_fail(); no thread waits after it.
 *
 * Node 0 says an order to all others, and has an answer of each: a reply to LOAD and KV, a result
 * (struct ek_result) of each step that was sampled. A step is sampled by the order behind its own.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "common/err.h"
#include "kernels/mpi/cluster.h"
#include "kernels/mpi/table.h"
#include "kernels/mpi/wire.h"
#include "kernels/ranks.h"

enum cluster_order {
    ORDER_LOAD = EK_MPI_ORDER, /* struct cluster_load: opens the device, too */
    ORDER_KV,                  /* struct ek_kv_params: the first opens the pool, others resize it */
    ORDER_STEP,                /* struct ek_step, packed */
    ORDER_SAMPLE,              /* struct ek_masks, or nothing: of the oldest step */
    ORDER_BYE,                 /* int32_t exit code of node 0 */
};

struct cluster_load {
    uint8_t meeting[EK_MEETING_BYTES];
    struct ek_plan_request plan; /* but its graph, which each node has */
};

struct cluster_reply {
    int32_t code;
    uint64_t room_bytes; /* of ORDER_LOAD: ek_device_stats.room_bytes */
    struct ek_fault fault;
};

struct cluster_buffer {
    void *data;
    size_t room, bytes;
};

struct ek_cluster {
    struct ek_cluster_params p;
    struct ek_node_card card[EK_NODES_MOST]; /* node 0: of all; others: theirs and node 0's */
    struct ek_wire wire;
    uint8_t meeting[EK_MEETING_BYTES];
    _Atomic bool failed;
    struct cluster_buffer in, packed;    /* node 0: what came last; the step that goes out */
    uint64_t until_us[2][EK_NODES_MOST]; /* and until when a step's results are waited for */
    bool over;                           /* it has ended as it should: the module is finished */
    pthread_mutex_t lock;                /* of what follows */
    char why[480];
    const struct ek_backend *each; /* of the ranks here, NULL = none: */
    struct ek_group *group;        /* whose waits a failure ends */
};

/* The first failure counts: no thread waits any more. `code` is EK_ECOMM, or the cause here. */
void cluster_fail(struct ek_cluster *c, const char *why);
/* A node was silent or is gone, by a code of table.h; `what` it was in the middle of. EK_ECOMM. */
int cluster_lost(struct ek_cluster *c, uint32_t node, int code);
/* Whose waits a failure ends from now on. */
void cluster_group(struct ek_cluster *c, const struct ek_backend *each, struct ek_group *group);
extern const struct ek_others cluster_others;
/* Sends, and waits until all of them are taken. 0, or EK_ECOMM when a node is lost. */
int cluster_send(struct ek_cluster *c, struct ek_mpi_message *m, uint32_t count);
/* The next message of a tag of a node, into a buffer that grows. limit_us: for it to begin, 0 = for
 * ever; one that has begun is taken whole. A code of ek_mpi_move() or -ENOMEM. */
int cluster_take(struct ek_cluster *c, uint32_t node, uint32_t tag, struct cluster_buffer *b,
                 uint64_t limit_us);
int cluster_room(struct cluster_buffer *b, size_t bytes); /* 0 or -ENOMEM */
/* The node with the first rank of the last stage, which tells results whole. */
static inline uint32_t cluster_teller(const struct ek_cluster *c)
{
    const struct ek_node_card *all = &c->p.card;
    return (all->ranks - all->ranks / all->stages) / (all->ranks / c->p.nodes);
}
/* All has been said and taken: MPI ends, and with it the group as it should. */
void cluster_end(struct ek_cluster *c);
