/*
 * What the cgroup tree says about memory (a unit's MemoryMax=, a container's limit, how much is
 * used, what the kernel killed for it) and processor time (CPUQuota=). The one place that reads
 * memory.* and cpu.* files. Versions 1 and 2 where a limit is asked for; directories are version
 * 2's.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define EK_CGROUP_SELF "/proc/self/cgroup"

/* The smallest limit of the cgroup and those above it, and what the tightest of them has left;
 * UINT64_MAX where there is none. `self` is EK_CGROUP_SELF, `root` /sys/fs/cgroup. */
void ek_cgroup_left(const char *self, const char *root, uint64_t *ret_limit_bytes,
                    uint64_t *ret_left_bytes);
/* Cores of which the cgroup and those above it may use all or a part; UINT32_MAX where there is no
 * quota. *ret_whole: those that they may use all of, at least 1. Of 1.5 cores it is 1: two threads
 * that use up what both may use are stopped for the rest of each period. Arguments as above. */
uint32_t ek_cgroup_cores(const char *self, const char *root, uint32_t *ret_whole);
/* The directory, version 2, of the process whose /proc file is `self`: 0, -ENOENT when there is
 * none, -ENAMETOOLONG, or why the file cannot be read. */
int ek_cgroup_dir(const char *self, char *ret_path, size_t size);
/* Groups that a server with --engine-process makes below the one it was started in: its engine's,
 * followed by its own pid, and the one that it moves to itself. */
#define EK_CGROUP_ENGINE "evenkeel-engine."
#define EK_CGROUP_BESIDE "evenkeel-main"
/* Cuts such a name off the end of a path or directory: what is left is the whole server's group. */
void ek_cgroup_own(char *path);
/* Removes a group in which nothing lives, with such groups below it. 0, -EBUSY, or why not. */
int ek_cgroup_remove(const char *dir);
/* What the kernel says of a group's memory, version 2. UINT64_MAX = it does not say, and for
 * most_bytes that there is no limit. */
struct ek_cgroup_memory {
    uint64_t most_bytes; /* memory.max of this group; see ek_cgroup_left() for those above it */
    uint64_t used_bytes; /* memory.current, with the files */
    uint64_t anon_bytes; /* what its processes have allocated */
    uint64_t file_bytes; /* of files, which the kernel takes back when memory is short; else 0 */
    uint64_t oom_kills;  /* that are counted in this very group */
    uint64_t stalled_us; /* for how long a process of it has waited for memory */
};
void ek_cgroup_memory(const char *dir, struct ek_cgroup_memory *ret_memory);
/* Processes that the kernel killed for memory: in the group whose directory `dir` is open (-1 =
 * none). A group has the count only when the controller was handed down to it; else that of our own
 * speaks for all of us. 0 where the kernel does not count. */
uint64_t ek_cgroup_oom_kills(int dir);
