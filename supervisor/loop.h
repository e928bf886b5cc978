/*
 * evenkeeld itself: one thread (but for the one that writes the log, common/spool.h), one sd-event
 * loop, N servers. Owns the services, the servers, the lock of run_dir, systemd's descriptor store,
 * signals and readiness notices.
 *
 * SIGTERM and SIGINT drain all servers and end (or leave them, on_stop); SIGHUP reads the
 * configuration again, all or nothing (reload.h); SIGUSR1 ends it for the next evenkeeld with the
 * servers running. Dies with kill -9 without harm to any server. systemd hears READY when each
 * server answers or was tried.
 */
#pragma once

#include <stdbool.h>
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
    struct subprocesses subprocesses;
    struct reloading *reloading; /* reload.c; NULL = none is under way */
    struct state state;
    struct status *status;
    int lock;
    bool ending, said_ready;
    char said[320];      /* the last status line for systemd */
    char who[WHO_BYTES]; /* see services */
    uint64_t ticks;
    uint64_t debug_until_us; /* 0: the log has the configured level */
};

/* Holds (SIG_BLOCK) the signals that the loop takes, or lets them through (SIG_UNBLOCK). Held from
 * the first moment of the program on, or a SIGHUP before the loop would end it. Negative errno. */
int loop_signals(int how);

/* Runs until told to end. Takes over config. Returns an exit code (enum ek_exit). */
int loop_run(struct config *config, int argc, char **argv);
