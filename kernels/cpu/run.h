/* The forward of a step: a row of operations, computed by the team. */
#pragma once

#include <stdint.h>

struct ek_device;
struct ek_step;

/* One job on the device thread. 0 or a code for the step. */
int cpu_forward(struct ek_device *d, const struct ek_step *step, uint64_t *ret_copy_us);
