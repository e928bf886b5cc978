/* Mixtures of experts. */
#pragma once

#include <stddef.h>

struct cpu_experts_shape;
struct cpu_member;
struct ek_graph;
struct ek_op;

void cpu_experts_measure(const struct ek_graph *g, size_t rows, struct cpu_experts_shape *ret);
/* Called by all members of the team; has barriers inside, and one is needed after it. */
void cpu_experts(const struct cpu_member *m, const struct ek_op *op, char *scratch);
