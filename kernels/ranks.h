/*
 * What the device of several ranks (ranks.c) works out, apart from what it does; and how it reaches
 * ranks on other nodes, where this one leads them (mpi/cluster.c).
 */
#pragma once

#include <stdint.h>

#include "kernels/backend.h"

/* One device for the plan out of those of all ranks: each rank gets as much as the smallest has, so
 * its memory, and a note that names the cards when they differ, with what a rank's own note says.
 * In host memory the ranks share one device: then all of `info` are the same. */
void ek_ranks_info(const struct ek_device_info *info, uint32_t ranks, bool in_host_memory,
                   struct ek_device_info *ret_info);
/* One plan out of those of all ranks: their sum in host memory, else what the largest rank needs.
 */
void ek_ranks_plan(const struct ek_plan *plan, uint32_t ranks, bool in_host_memory,
                   struct ek_plan *ret_plan);

/* The other nodes (mpi/cluster.h). But for group(), for the one that leads them, whose
 * first rank is the first of all: what it is asked goes to all of them at once. Codes as in
 * backend.h. */
struct ek_others {
    /* Of the ranks that are here: a failure of any node aborts the group. NULL, NULL: it ends. */
    void (*group)(struct ek_cluster *c, const struct ek_backend *each, struct ek_group *group);
    /* Begin there; kv() opens the pool, or resizes it. settle() waits until all have done so: the
     * first code of those that could not, and the least room that load() measured, if it is less.
     */
    int (*load)(struct ek_cluster *c, const struct ek_plan_request *q);
    int (*kv)(struct ek_cluster *c, const struct ek_kv_params *p);
    int (*settle)(struct ek_cluster *c, uint64_t *ret_room_bytes, struct ek_fault *fault);
    int (*forward)(struct ek_cluster *c, const struct ek_step *step);
    int (*sample)(struct ek_cluster *c, const struct ek_masks *masks);
    /* What the device of ranks of a node answers: of all nodes but that with the first rank of the
     * last stage the sum alone. */
    int (*wait)(struct ek_cluster *c, uint32_t node, uint64_t step, struct ek_result *ret_result,
                size_t bytes, uint64_t timeout_us);
    /* The group fails by a node in a step, 0 for the one that leads: by the code of a rank there,
     * -ETIMEDOUT when it was late, -EBADMSG when it sampled other tokens than the first. The first
     * word counts. */
    void (*blame)(struct ek_cluster *c, uint32_t node, int code, uint64_t step);
};
