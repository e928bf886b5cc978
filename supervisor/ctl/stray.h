/*
 * Which processes belong to servers of evenkeeld that it no longer supervises. Only the cgroup says
 * so: a name could be anybody's. Pure, but for stray_scan().
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define STRAYS_MOST 256

struct stray {
    pid_t pid;
    char cgroup[400];
};

/* Whether a cgroup is of a server that evenkeeld started: evenkeel-server@NAME.service, or a
 * directory evenkeel-NAME-... below evenkeeld.service. evenkeeld itself is none. */
bool stray_cgroup(const char *cgroup);
/* All processes in such cgroups, but for those in a cgroup of one of `kept` and for ourselves. */
uint32_t stray_scan(const pid_t *kept, uint32_t kept_count, struct stray ret_strays[STRAYS_MOST]);
/* Whether a process is of one of these servers: it descends from it, is of its session, or is in
 * its cgroup, where that is a service's or a server's own. */
bool stray_is_of(pid_t pid, const pid_t *servers, uint32_t count);
/* The cgroup of the evenkeeld that started it: ".../evenkeeld.service". "" where the cgroup does
 * not say it (units of their own: any evenkeeld may have). */
void stray_home(const char *cgroup, char *home, size_t size);
/* Whether an evenkeeld in this cgroup would be the one of `home`. */
bool stray_is_keeper(const char *cgroup, const char *home);
/* The evenkeeld that may supervise it still: a process in its home. 0: there is none. */
pid_t stray_keeper(const char *cgroup);
/* The process's cgroup (v2), of a server's engine the server's. False: it is gone, or there is
 * none. */
bool stray_cgroup_of(pid_t pid, char *cgroup, size_t size);
