/*
 * Ranks of the CPU on several nodes: those of one node are a group in its memory (group.h), and
 * what a rank has goes to all nodes by wire.h. Every rank then adds the parts of all ranks in their
 * order, so that the sum has the same bits as in one process with as many ranks. Large values go in
 * pieces, which bounds the memory; with it moves one thread of the node, the others wait.
 */
#pragma once

#include <stdint.h>

#include "kernels/collective.h"

struct cpu_pool;
struct cpu_span;
struct ek_wire;

/* Ranks [first, first + local) of `ranks` are here. -ENOMEM. */
int cpu_span_new(uint32_t first, uint32_t local, uint32_t ranks, struct ek_wire *wire,
                 struct cpu_span **ret_span);
void cpu_span_free(struct cpu_span *s); /* accepts NULL */
uint64_t cpu_span_bytes(uint32_t ranks);
uint32_t cpu_span_first(const struct cpu_span *s);
struct ek_wire *cpu_span_wire(const struct cpu_span *s);
/* The end of a rank whose end in its node's group is `inner`, which leaves with it. */
int cpu_span_join(struct cpu_span *s, struct ek_collective *inner, struct cpu_pool *pool,
                  struct ek_collective **ret_end);
