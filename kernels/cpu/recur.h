/* What goes from token to token. */
#pragma once

struct cpu_member;
struct ek_op;

/* Members share the channels, or heads, of each sequence. A
 * barrier is needed before and after. */
void cpu_conv(const struct cpu_member *m, const struct ek_op *op);
void cpu_delta(const struct cpu_member *m, const struct ek_op *op); /* has one inside */
void cpu_scan(const struct cpu_member *m, const struct ek_op *op);
