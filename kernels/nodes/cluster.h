/*
 * Nodes: processes, on machines of their own, that compute one model together, each with an even
 * share of the ranks. Node 0 has everything above backend.h; its device sends each call to the
 * others as well, which follow (they load the same model from their own disk, take steps, and say
 * what they sampled). Others of the project may include this header beside backend.h.
 *
 * Threads: one caller. `say`, `lost` and `leaving` come from threads of the cluster and must not
 * call it. What fails on one node fails all: steps are EK_ECOMM from then on, and `lost` has the
 * sentence. Without a key, whoever reaches the port of node 0 and knows the protocol gets token ids
 * and decides when the group ends; with one, who can change what is on the way: it belongs on a
 * network of the nodes' own.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/nodes/frame.h"

struct ek_cluster;
struct ek_fault;

struct ek_cluster_params {
    uint32_t node, nodes;
    const char *addr; /* of node 0: it listens there and nowhere else */
    uint16_t port;
    uint64_t wait_us;  /* for the others to come, 0 = for ever */
    uint64_t stall_us; /* node 0: others may be silent for so long, 0 = for ever */
    /* What this node is and has; node and nodes are filled in. */
    struct ek_node_card card;
    /* A secret that all nodes have, against strangers at the door; NULL: whoever reaches it may be
     * a node. Not used once they have met. */
    const void *key;
    size_t key_bytes;
    void (*say)(void *ctx, bool warning, const char *text);
    void (*lost)(void *ctx, const char *why);                    /* once */
    void (*leaving)(void *ctx, uint32_t node, const char *host); /* node 0: it was asked to stop */
    void *ctx;
};

/* Meets the other nodes: node 0 returns when all have come, the others when node 0 has taken them.
 * -EBADMSG with a sentence when this node does not fit to node 0, EK_ECOMM with one when a node did
 * not come in time. */
int ek_cluster_new(const struct ek_cluster_params *p, struct ek_cluster **ret_cluster,
                   struct ek_fault *fault);
void ek_cluster_free(struct ek_cluster *c); /* after its device; accepts NULL */

/* Adds to the parameters of a device which ranks are here and how the others are reached. */
void ek_cluster_open(struct ek_cluster *c, struct ek_open_params *p);
/* Node 0: what the plan may count on: each node gets what the smallest has. */
void ek_cluster_info(const struct ek_cluster *c, struct ek_device_info *info);
/* This node ends for this reason: the others are told, and end. NULL is fine. */
void ek_cluster_fail(struct ek_cluster *c, int code, const char *why);
/* The first failure, "" = none. */
void ek_cluster_why(struct ek_cluster *c, char *ret_text, size_t size);

/* Node 0: a device of ek_ranks_backend() that the other nodes have a part of. */
const struct ek_backend *ek_cluster_backend(const struct ek_backend *each);
/* Node 0, before the device is loaded: the length that the model is loaded for (other nodes change
 * their frequencies by it). */
void ek_cluster_serve(struct ek_cluster *c, uint32_t max_model_len);
/* Node 0: the others end with it; code is that of the process. After the last step. */
void ek_cluster_bye(struct ek_cluster *c, int code);

/* The others: obeys node 0 until it says BYE (0 with its exit code) or the group fails (EK_ECOMM or
 * what failed here, with a sentence). */
struct ek_follow_params {
    const struct ek_backend *backend; /* ek_ranks_backend() */
    struct ek_open_params open;
    const struct ek_graph *graph;
    const struct ek_weight_files *files;
    ek_progress_fn progress;
    /* Before the weights are loaded and when they are. */
    void (*loading)(void *ctx, const struct ek_load_order *order);
    void (*ready)(void *ctx, struct ek_device *d, uint32_t blocks);
    /* The device will be closed: nobody may ask it any more. */
    void (*closing)(void *ctx);
    void *ctx;
};
int ek_cluster_follow(struct ek_cluster *c, const struct ek_follow_params *p, int *ret_code,
                      struct ek_fault *fault);
/* The others, any thread: asks node 0 to drain and end; again: leaves at once. */
void ek_cluster_leave(struct ek_cluster *c);
