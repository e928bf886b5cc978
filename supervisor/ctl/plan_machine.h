/* What this machine's CPU reads and computes at most: asks `evenkeel-bench kernels --limits`. */
#pragma once

#include <jansson.h>

#include "supervisor/planner/speed.h"

struct ek_fault;

/* Some seconds. -EBADMSG with a fault that says why it could not be measured. */
int plan_machine_measure(struct plan_device *ret_device, struct ek_fault *fault);
/* From its report. -EBADMSG. */
int plan_machine_read(const json_t *report, struct plan_device *ret_device, struct ek_fault *fault);
