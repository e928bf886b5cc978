/*
 * Nodes: processes, on machines of their own, that compute one model together, each with an even
 * share of the ranks; mpirun or srun started them. Node 0 has everything above backend.h; its
 * device of ranks sends each call to the others as well, which follow: they load the same model
 * from their own disk, take steps, and say what they sampled. server/nodes.c may include this
 * header beside backend.h.
 *
 * Threads: one caller. `lost` comes from any thread that computes and must not call the cluster.
 * What fails on one node fails all: steps are EK_ECOMM from then on, `lost` has the sentence,
 * and ek_cluster_abort() ends the processes of all nodes.
 */
#pragma once

#include <stdint.h>

#include "kernels/backend.h"

struct ek_cluster;
struct ek_fault;
struct ek_mpi;

/* What a node is and has. */
struct ek_node_card {
    uint32_t node;
    uint32_t ranks, stages; /* of all nodes */
    char host[64];
    uint32_t lines;
    struct { /* what has to be the same on all nodes, and what helps where it is not: */
        char says[96], remedy[96]; /* "computes on cpu", "give all nodes the same --device" */
    } line[12];
    uint64_t memory_bytes, free_bytes;
};

/* Whether a node fits to node 0: -EBADMSG with a sentence that names both and what to change. */
int ek_card_check(const struct ek_node_card *mine, const struct ek_node_card *first,
                  struct ek_fault *fault);

struct ek_cluster_params {
    const struct ek_mpi *mpi; /* NULL: libevenkeel-mpi.so */
    void *self;               /* of its functions */
    uint32_t node, nodes;     /* as they were started */
    uint64_t wait_us;         /* for the others to say what they are, 0 = for ever */
    uint64_t stall_us;        /* in a step others may be silent for so long, 0 = for ever */
    struct ek_node_card card; /* of this node; `node` is filled in */
    void (*lost)(void *ctx, const char *why); /* once */
    void *ctx;
};

/* Meets the other nodes. -EBADMSG with a sentence when this node does not fit to node 0, -ENOTSUP
 * when there is no MPI, EK_ECOMM when a node says nothing in time. */
int ek_cluster_new(const struct ek_cluster_params *p, struct ek_cluster **ret_cluster,
                   struct ek_fault *fault);
void ek_cluster_free(struct ek_cluster *c); /* after its device; accepts NULL */

/* Adds to the parameters of a device of ek_ranks_backend() which ranks are here and how the others
 * are reached. */
void ek_cluster_open(struct ek_cluster *c, struct ek_open_params *p);
/* Of all nodes, in their order. */
const struct ek_node_card *ek_cluster_cards(const struct ek_cluster *c);
/* Ends the processes of all nodes with this code, by any thread; returns only where there is
 * none to end: of NULL, or of a group that has ended as it should. */
void ek_cluster_abort(struct ek_cluster *c, int code);

/* Node 0: the others end with it; code is that of the process. After the last step. */
void ek_cluster_bye(struct ek_cluster *c, int code);

/* The others: obeys node 0 until it says that all end (0 with its exit code) or the group fails
 * (EK_ECOMM or what failed here, with a sentence). */
struct ek_follow_params {
    const struct ek_backend *backend; /* ek_ranks_backend() */
    struct ek_open_params open;
    const struct ek_graph *graph;
    const struct ek_weight_files *files;
    /* Before the weights are loaded and when they are. */
    void (*loading)(void *ctx, uint32_t max_model_len);
    void (*ready)(void *ctx, uint32_t blocks);
    void *ctx;
};
int ek_cluster_follow(struct ek_cluster *c, const struct ek_follow_params *p, int *ret_code,
                      struct ek_fault *fault);
/* The others, any thread: asks node 0 to drain and end. */
void ek_cluster_leave(struct ek_cluster *c);
/* Node 0, any thread until ek_cluster_bye(): a node that has asked for that, once; 0 = none. Does
 * not wait. */
uint32_t ek_cluster_leaver(struct ek_cluster *c);
