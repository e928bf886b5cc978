/*
 * A cgroup (version 2) for the engine's process, below the one that the server was started in: the
 * engine is ended with whatever it has started, and where the memory controller may be handed down
 * the group has a memory limit below that of the whole, so that what runs out is the engine's and
 * the kernel ends the engine alone.
 *
 * The launcher is in it, too: what it forks is there from its first instruction, while to move a
 * process takes the kernel 10 ms, which would be a part of each pause. That is why the group is not
 * ended by cgroup.kill.
 *
 * A group may hand a controller down only while no process is in it. So the server moves to a group
 * beside the engine's first, but only out of one that was given to it: one that belongs to its
 * user, or that systemd marks as delegated (Delegate=yes). Where groups may not be made the engine
 * stays in the server's, as without this; why is a sentence.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct engine_cgroup {
    int dir, procs;      /* its directory, and the file that takes processes; -1 = there is none */
    uint64_t most_bytes; /* its memory limit; UINT64_MAX = none of its own */
    char path[512];      /* "" = there is none */
    char why[240];       /* why there is no group, or no limit in it; "" = as wanted */
};

/* Before the sandbox, which allows no writing there, and while the process has one thread.
 * want_bytes: the limit; 0 = derived from those above. Never fails: see `why`. */
void engine_cgroup_make(struct engine_cgroup *g, uint64_t want_bytes);
/* What the engine may have of `limit_bytes`, the smallest limit above it (UINT64_MAX: none). */
uint64_t engine_cgroup_most(uint64_t want_bytes, uint64_t limit_bytes);
/* The process that asks goes into it. 0, also where there is none; or a negative errno. */
int engine_cgroup_enter(const struct engine_cgroup *g);
/* SIGKILL to all that is in it but for the process that asks; how many. */
uint32_t engine_cgroup_clear(const struct engine_cgroup *g);
/* Closes the files; the group stays for as long as processes need it, and what started the server
 * removes it. */
void engine_cgroup_done(struct engine_cgroup *g);
