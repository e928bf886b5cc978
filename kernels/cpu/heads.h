/* Products of each head with a weight of its own. */
#pragma once

struct cpu_member;
struct ek_op;

/* Members share the heads and the panels of each; a barrier is needed before and after. */
void cpu_heads(const struct cpu_member *m, const struct ek_op *op, char *scratch);
