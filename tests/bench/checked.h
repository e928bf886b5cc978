/*
 * The simulation of server/bench/schedsim.h with the null backend below it, which checks every
 * step, and with the allocations counted: for programs that wrap the allocator.
 */
#pragma once

#include "server/bench/schedsim.h"

int schedsim_checked(const struct trace *t, const struct schedsim_params *p,
                     struct schedsim_result *ret_result);
