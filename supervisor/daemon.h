/*
 * What evenkeeld keeps while it runs: its servers, and what belongs to all of them. Made and ended
 * by loop.c; reload.c changes its servers. The loop's thread only.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "supervisor/io/state.h"
#include "supervisor/io/subprocess.h"
#include "supervisor/servers/fleet.h"

#define LOOP_FD_PREFIX "listen-" /* of names in systemd's store */

struct reloading;
struct status;

struct loop {
    struct fleet fleet;
    int argc;
    char **argv;             /* to read the configuration again */
    struct config **retired; /* what servers that are configured no longer still read */
    size_t retired_count;
    sd_event_source *sweep, *reap;
    uint64_t leave_us; /* when it was told to leave to the next evenkeeld; 0 = it was not */
    struct subprocesses subprocesses;
    struct reloading *reloading; /* reload.c; NULL = none is under way */
    struct state state;
    struct status *status;
    int lock, state_lock; /* of run_dir and state_dir; -1: none */
    bool ending, said_ready;
    char said[320];      /* the last status line for systemd */
    char who[WHO_BYTES]; /* see services */
    uint64_t ticks;
    uint64_t debug_until_us; /* 0: the log has the configured level */
};
