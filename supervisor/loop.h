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

struct config;

/* Holds (SIG_BLOCK) the signals that the loop takes, or lets them through (SIG_UNBLOCK). Held from
 * the first moment of the program on, or a SIGHUP before the loop would end it. Negative errno. */
int loop_signals(int how);

/* Runs until told to end. Takes over config. Returns an exit code (enum ek_exit). */
int loop_run(struct config *config, int argc, char **argv);
