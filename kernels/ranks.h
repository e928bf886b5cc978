/*
 * What the device of several ranks (ranks.c) works out, apart from what it does; and how it reaches
 * ranks on other nodes, where this one leads them (mpi/lead.c).
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
/* The group of a device of ek_ranks_backend(), which is there until that is closed. */
struct ek_group *ek_ranks_group(struct ek_device *d);

/* Other nodes, as one that leads them has them. */
struct ek_others {
    /* A device for each, which is opened with the first rank of that node, and with the group and
     * the backend of the ranks that are here. Its answer is that of the node's own device. load()
     * and kv_open() only begin there. */
    struct ek_backend node;
    /* Waits until the node has done what it began last: how that ended. */
    int (*settle)(struct ek_device *d, struct ek_fault *fault);
    /* The group fails by a node in a step, 0 for the one that leads: by the code of a rank there,
     * -ETIMEDOUT when it was late, -EBADMSG when it sampled other tokens than the first. The first
     * word counts. */
    void (*blame)(struct ek_cluster *c, uint32_t node, int code, uint64_t step);
};
