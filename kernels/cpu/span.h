/*
 * Ranks of the CPU on several nodes: those of one node are a group in its memory (group.h). A stage
 * lies within a node, or over several whole ones.
 *
 * Over several, what a rank has goes to all nodes of the stage by wire.h, and every rank adds the
 * parts of all ranks in their order; where the parts are large, each node adds some of the columns
 * and gives the others the sums. Either way the sum has the same bits as in one process with as
 * many ranks. Large values go in pieces, which bounds the memory.
 *
 * From a stage to the next one on another node rows go once: all ranks of a stage have the same, so
 * the first one of a node sends, and those of the node that takes them share what comes. What was
 * sampled goes from the nodes of the last stage to those of the first. With the wire moves one
 * thread of a stage, the others wait.
 */
#pragma once

#include <stdint.h>

#include "kernels/collective.h"

struct cpu_pool;
struct cpu_span;
struct ek_wire;

/* Ranks [first, first + local) of `ranks` in `stages` are here. */
struct cpu_span_place {
    uint32_t first, local, ranks, stages;
};

/* Makes the wire's circle that of the stage. -ENOMEM; -EINVAL when a stage is neither within nodes
 * nor over whole ones. */
int cpu_span_new(const struct cpu_span_place *at, struct ek_wire *wire, struct cpu_span **ret_span);
void cpu_span_free(struct cpu_span *s); /* accepts NULL */
uint64_t cpu_span_bytes(uint32_t ranks);
uint32_t cpu_span_first(const struct cpu_span *s);
struct ek_wire *cpu_span_wire(const struct cpu_span *s);

/* How members meet within a node: by the group that the ends there are of. */
struct cpu_span_meet {
    /* A barrier of all members of all ranks of the group; the last one calls fn(ctx) before any
     * goes on, with a deadline of its own. When fn fails, so has the group. */
    int (*all)(struct ek_collective *c, uint32_t member, int (*fn)(void *ctx), void *ctx);
    /* The same of the members of one rank. */
    int (*own)(struct ek_collective *c, uint32_t member, int (*fn)(void *ctx), void *ctx);
};

/* The end of a rank whose end in its node's group is `inner`, which leaves with it. `meet` outlives
 * both. */
int cpu_span_join(struct cpu_span *s, struct ek_collective *inner, const struct cpu_span_meet *meet,
                  struct cpu_pool *pool, struct ek_collective **ret_end);
