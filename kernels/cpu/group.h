/*
 * Ranks of the CPU in one process: what they sum and gather lies in memory that all of them see.
 * Each rank is a team of threads (pool.h); all members of all teams share the work, each element is
 * added in order of the ranks by one of them and written to every rank, so all have the same bits.
 * Rows that a stage hands on are copied out of its memory by the team of the stage that takes them.
 */
#pragma once

#include <stdint.h>

#include "kernels/collective.h"

struct cpu_pool;
struct ek_group;
struct ek_wire;

/* `ranks` of all stages, which divide them. deadline_us: how long ranks wait for one another, 0 =
 * for ever. -ENOMEM. */
int cpu_group_new(uint32_t ranks, uint32_t stages, uint64_t deadline_us,
                  struct ek_group **ret_group);
/* They are ranks [first, first + those of the group) of `ranks` in `stages`, of which other nodes
 * have the others (span.h). Before any joins. -ENOMEM, -EINVAL. */
int cpu_group_span(struct ek_group *g, uint32_t first, uint32_t ranks, uint32_t stages,
                   struct ek_wire *wire);
void cpu_group_free(struct ek_group *g); /* when all have left; accepts NULL */
void cpu_group_abort(struct ek_group *g);
/* Bytes that a span takes where so many ranks of a stage are on several nodes. */
uint64_t cpu_group_span_bytes(uint32_t ranks);
/* The end of one rank of all, whose team calls it. The pool must outlive it. */
int cpu_group_join(struct ek_group *g, uint32_t rank, struct cpu_pool *pool,
                   struct ek_collective **ret_end);
/* The rank that was waited for when the group failed; UINT32_MAX: none. */
uint32_t cpu_group_missing(const struct ek_group *g);
