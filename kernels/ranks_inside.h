/* The ranks of one device (ranks.c), what is worked out before there are any (ranks_plan.c), and
 * how all of them load at once (ranks_load.c). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

struct rank { /* or another node, of which only the answer is here */
    struct ek_device *device;
    struct ek_graph graph;
    struct ek_plan_request plan;
    struct ek_result *result; /* its answer, to be held against that of the first */
};

struct ranks {
    const struct ek_backend *each;
    struct ek_open_params open;
    struct ek_group *group;
    uint32_t base, count; /* ranks that are here: base and those behind it */
    uint32_t all;         /* with the other nodes behind them, where this one leads */
    struct ek_kv_params kv;
    uint64_t room_bytes; /* the least that other nodes measured, UINT64_MAX = none */
    char *host;          /* memory for the host tiers of all, NULL = each has its own */
    uint32_t first;      /* of all, the first of the last stage: those from it on may sample */
    size_t result_bytes;
    bool landed[2][EK_MOST_RANKS]; /* of a step: the rank's result is there, the first's is not */
    struct rank rank[];
};

/* Loads each rank's share by its plan, in a thread of its own. The failure that the others followed
 * from is returned; `progress` is told sums, by one thread at a time. */
int ranks_load_all(struct ranks *s, const struct ek_weight_files *files, ek_progress_fn progress,
                   void *ctx, struct ek_fault *fault);

/* ranks_plan.c: what a rank is opened with, counted from the first one that is here. */
struct ek_open_params ranks_open_of(const struct ek_open_params *p, uint32_t rank);
/* -EBADMSG or -ENOTSUP with a fault where a device of so many ranks is not to be had. */
int ranks_check(const struct ek_open_params *p, struct ek_fault *fault);
size_t ranks_result_bytes(const struct ek_plan_request *q);
/* The sum, at most UINT64_MAX, or the larger of the two. */
uint64_t ranks_join(uint64_t a, uint64_t b, bool sums);
int ranks_probe(const struct ek_open_params *p, struct ek_device_info *ret_info,
                struct ek_fault *fault);
int ranks_plan(const struct ek_open_params *p, const struct ek_plan_request *q,
               struct ek_plan *ret_plan, struct ek_fault *fault);
int ranks_choose(const struct ek_open_params *p, const struct ek_graph *graph,
                 struct ek_forms *forms, struct ek_fault *fault);
