/* What this machine offers the CPU backend, before there is a device and when a pool grows. */
#pragma once

#include <stdint.h>

struct ek_device_info;
struct ek_fault;
struct ek_open_params;

/* Threads of all ranks that are here, and of the one that is opened. */
uint32_t cpu_all_threads(const struct ek_open_params *p);
uint32_t cpu_rank_threads(const struct ek_open_params *p);
/* -EBADMSG unless the threads have cores of their own beside those that are left to others. */
int cpu_check_reserve(const struct ek_open_params *p, struct ek_fault *fault);
/* Bytes that the machine and the cgroups have left for this process; the lowest limit in
 * *ret_limit. */
uint64_t cpu_free_memory(uint64_t *ret_limit);
/* probe() of the table: -ENODEV, or -EBADMSG with a fault. */
int cpu_probe(const struct ek_open_params *p, struct ek_device_info *ret_info,
              struct ek_fault *fault);
