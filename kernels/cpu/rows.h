/* Operations that treat rows one by one. */
#pragma once

#include <stdint.h>

struct ek_device;
struct ek_op;
struct ek_step;

/* A member of the team does its own. */
struct cpu_member {
    const struct ek_device *d;
    const struct ek_step *step;
    uint32_t index, first, end, rows; /* own rows, and those of all */
};
void cpu_ropes(const struct cpu_member *m); /* cosines and sines of its rows' positions */
void cpu_by_rows(const struct cpu_member *m, const struct ek_op *op);
void cpu_pick(const struct cpu_member *m, const struct ek_op *op);
void cpu_cap_logits(const struct cpu_member *m, const struct ek_op *op);
/* A norm of which this rank has a share; has barriers inside, as an exchange. */
void cpu_norm_of_all(const struct cpu_member *m, const struct ek_op *op);
