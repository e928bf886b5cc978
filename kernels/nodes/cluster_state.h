/*
 * What the modules of the nodes share: muster.c (how they meet), cluster.c (failing, threads that
 * listen), lead.c (node 0's device), follow.c (the others).
 *
 * `lock` guards what stands below it and `met` wakes who waits for a change. Frames are received by
 * one thread of each control connection from start() on; sent by any. Data connections belong to
 * the wire: those to node 0 are in `peer`, those among the others in `mesh`. A failure is stored
 * once, by cluster_fail(); nothing waits after it.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/nodes/cluster.h"
#include "kernels/nodes/link.h"
#include "kernels/nodes/wire.h"

struct peer {
    struct ek_cluster *cluster;
    uint32_t node;
    struct ek_link control, data;
    struct ek_node_card card;
    pthread_t reader;
    bool reads; /* the thread is there */
    /* under the cluster's lock */
    bool replied;
    struct ek_node_fault reply;
    struct ek_step_done done[2]; /* of the steps with even and odd ids */
    struct ek_inbox answer[2];   /* RESULT of these, of the node that answers */
};

struct ek_cluster {
    struct ek_cluster_params p;
    uint64_t run, stall_us;
    uint32_t peers; /* node 0: nodes - 1; else 1 */
    struct peer *peer;
    struct ek_link mesh[EK_NODES_MOST]; /* data, to nodes that are neither this one nor node 0 */
    struct ek_wire wire;
    uint8_t meeting[EK_MEETING_BYTES];
    uint32_t max_model_len;
    pthread_t pulse;
    bool pulses;
    pthread_mutex_t lock;
    pthread_cond_t met;
    bool failed, over; /* over: it ends as it should */
    bool stop;         /* the pulse */
    bool loading;      /* node 0: ranks here may wait for those of a node that cannot load */
    bool telling;      /* the others are being told why: nobody may cut them off */
    char why[480];
    void (*abort)(void *ctx); /* ends waits in the ranks here, NULL = none; must not wait */
    void *abort_ctx;
    /* A frame for the module that this node is: in a reader's thread. */
    void (*on_frame)(struct peer *from, const struct ek_frame *f, struct ek_inbox *in);
    void *role; /* its state */
};

/* "node 1 (name)" */
void cluster_name(const struct ek_node_card *card, char *ret_text, size_t size);
/* The first failure counts: everybody is told, and nobody waits any more. */
void cluster_fail(struct ek_cluster *c, int code, const char *why);
bool cluster_failed(struct ek_cluster *c);
/* A connection broke, by a code of link.h; `data`: in a step. `name` is that of the node. */
void cluster_lost(struct ek_cluster *c, const char *name, int code, bool data);
/* Ends the waits of the ranks here. */
void cluster_abort(struct ek_cluster *c);
/* A time on the clock of `met`. */
struct timespec cluster_in(uint64_t us);
/* What ends the waits of the ranks here, from now on. */
void cluster_on_fail(struct ek_cluster *c, void (*abort)(void *ctx), void *ctx);
/* Starts the threads that listen, and node 0's pulse. */
int cluster_start(struct ek_cluster *c);
void cluster_stop(struct ek_cluster *c);

/* How they meet: fills the peers' links and cards. */
int muster(struct ek_cluster *c, struct ek_fault *fault);
