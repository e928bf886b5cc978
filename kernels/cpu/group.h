/*
 * Ranks of the CPU in one process: what they sum and gather lies in memory that all of them see.
 * Each rank is a team of threads (pool.h); all members of all teams share the work, each element is
 * added in order of the ranks by one of them and written to every rank, so all have the same bits.
 */
#pragma once

#include <stdint.h>

#include "kernels/collective.h"

struct cpu_pool;
struct ek_group;

/* deadline_us: how long ranks wait for one another, 0 = for ever. -ENOMEM. */
int cpu_group_new(uint32_t ranks, uint64_t deadline_us, struct ek_group **ret_group);
void cpu_group_free(struct ek_group *g); /* when all have left; accepts NULL */
void cpu_group_abort(struct ek_group *g);
/* The end of one rank, whose team calls it. The pool must outlive it. */
int cpu_group_join(struct ek_group *g, uint32_t rank, struct cpu_pool *pool,
                   struct ek_collective **ret_end);
/* The rank that was waited for when the group failed; UINT32_MAX: none. */
uint32_t cpu_group_missing(const struct ek_group *g);
