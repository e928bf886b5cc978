/*
 * What the modules of the nodes share: cluster.c (meeting, failing), lead.c (node 0), follow.c (the
 * others). A failure is stored once, by cluster_fail(); no thread waits after it.
 *
 * Node 0 says an order to all others, and has an answer of each: a reply to LOAD and KV, a result
 * (struct ek_result) of each step that was sampled. A step is sampled by the order behind its own.
 */
#pragma once

#include <pthread.h>

#include "common/err.h"
#include "kernels/mpi/cluster.h"
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

struct ek_cluster {
    struct ek_cluster_params p;
    struct ek_node_card card[EK_NODES_MOST]; /* of all */
    struct ek_wire orders, sums; /* the first is cut when the group fails, the other also when ranks
                                    do */
    uint8_t meeting[EK_MEETING_BYTES];
    struct ek_wire_buffer in, asked[2]; /* node 0: what came last; steps under way, packed, */
    uint64_t until_us[2];               /* and until when their results are waited for */
    bool over;                          /* all has been said and taken: it ends as it should */
    pthread_mutex_t lock;               /* of what follows */
    char why[480];                      /* the first failure; before the wires are cut for it */
    const struct ek_backend *each;      /* of the ranks here, NULL = none: */
    struct ek_group *group;             /* whose waits a failure ends */
};

/* The first failure counts: no thread waits any more. */
void cluster_fail(struct ek_cluster *c, const char *form, ...)
    __attribute__((format(printf, 2, 3)));
/* A node was silent or is gone, by a code of the table. */
void cluster_lost(void *cluster, uint32_t node, int code);
/* The node with the first rank of the last stage, which tells results whole. */
static inline uint32_t cluster_teller(const struct ek_cluster *c)
{
    const struct ek_node_card *all = &c->p.card;
    return (all->ranks - all->ranks / all->stages) / (all->ranks / c->p.nodes);
}
/* lead.c, and cluster.c's function of it: whose waits a failure ends from now on. */
extern const struct ek_others cluster_others;
void cluster_group(struct ek_cluster *c, const struct ek_backend *each, struct ek_group *group);
