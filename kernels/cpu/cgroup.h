/* The memory that the cgroup of this process may take: a unit's MemoryMax=, a container's limit. */
#pragma once

#include <stdint.h>

/* The smallest limit of the cgroup and those above it, and what that one has left; UINT64_MAX where
 * there is none. `self` is /proc/self/cgroup, `root` /sys/fs/cgroup; versions 1 and 2. */
void cpu_cgroup_memory(const char *self, const char *root, uint64_t *ret_limit_bytes,
                       uint64_t *ret_left_bytes);
