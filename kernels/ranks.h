/*
 * What the device of several ranks (ranks.c) works out, apart from what it does; and what the
 * device of node 0, which has one of these inside, takes from it (mpi/lead.c).
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
/* The group of a device of ek_ranks_backend() has failed; by any thread, after load() began. */
void ek_ranks_abort(struct ek_device *d);
/* As ek_ranks_backend() has them: nothing in them differs where some ranks are on other nodes. */
int ranks_probe(const struct ek_open_params *p, struct ek_device_info *ret_info,
                struct ek_fault *fault);
int ranks_plan(const struct ek_open_params *p, const struct ek_plan_request *q,
               struct ek_plan *ret_plan, struct ek_fault *fault);
int ranks_choose(const struct ek_open_params *p, const struct ek_graph *graph,
                 struct ek_forms *forms, struct ek_fault *fault);
