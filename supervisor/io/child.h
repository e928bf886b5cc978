/*
 * One server process: started, watched, signalled and ended by pidfd, so that a reused pid is never
 * hit. Its own session, and its own cgroup v2 below evenkeeld's where that may be made; then all
 * its descendants end with it. Without a cgroup its process group is what is signalled.
 *
 * A process that an earlier evenkeeld started is adopted by pid: its end is seen by the pidfd, its
 * status only where the kernel tells (exit_status.h), as it is not our child any more.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct child {
    pid_t pid;  /* 0 = none */
    int pidfd;  /* -1 = none; readable when the process has ended */
    bool ours;  /* its status can be waited for */
    int cgroup; /* descriptor of its cgroup's directory, -1 = none */
    char cgroup_path[256];
    char stale_path[256]; /* a cgroup whose last task is still on its way out */
};

struct child_spec {
    char *const *argv; /* argv[0] is looked up in PATH; NULL ends */
    char *const *env;  /* NAME=value added to or replacing evenkeeld's own; NULL ends or is NULL */
    int out_fd;        /* stdout and stderr; stays the caller's */
    bool level_prefix; /* out_fd is a stream of the journal that reads levels */
    const char *cgroup_name;   /* directory name of its cgroup, NULL = none */
    int listen_fd;             /* told it as by sd_listen_fds(); 0 = none; stays the caller's */
    bool isolated;             /* ek_sandbox_alone(), where it can be had */
    int oom_score_adj;         /* raised to this if lower */
    const struct run_as *user; /* that it becomes; NULL, or not set = as evenkeeld */
};

struct child_exit {
    bool known;    /* false for an adopted process of which the kernel does not tell */
    bool signaled; /* then code is the signal */
    bool core;
    int code;
};

void child_init(struct child *c);
/* Closes descriptors and removes an empty cgroup; does not end the process. */
void child_done(struct child *c);
/* Tries again to remove the cgroup of a process that has ended: the kernel counts a task for a
 * moment longer than its parent does. True when nothing is left to do. */
bool child_sweep(struct child *c);

/* The path of argv0, looked up as a shell would. 0 or a negative errno. */
int child_find_program(const char *argv0, char *ret_path, size_t size);
/* 0, or a negative errno: -ENOENT when the program is not found. exec failures after that show as
 * exit status 127 with a line in the log. Ends leftovers in the cgroup first. */
int child_spawn(struct child *c, const struct child_spec *spec);
/* A process that is not ours. 0, or a negative errno: -ESRCH when there is none, or it has ended
 * and waits for its parent. */
int child_adopt(struct child *c, pid_t pid, const char *cgroup_name);

/* To the main process. 0 or a negative errno; -ESRCH when it is gone. */
int child_signal(const struct child *c, int sig);
/* SIGKILL to everything in its cgroup or process group. */
int child_kill(const struct child *c);
/* Ends what is left of one that has been reaped, in its cgroup or else its session; how many. */
unsigned child_clear(const struct child *c);
/* 1 and the status once it has ended, 0 while it runs, a negative errno. */
int child_reap(struct child *c, struct child_exit *ret_exit);
/* The process's state letter in /proc ('R', 'S', 'D', 'T', ...), 0 if unknown. */
char child_run_state(const struct child *c);

/* Seconds since the process began, 0 if unknown. */
double child_age_s(const struct child *c);
/* When a process started, in ticks since boot, which with its pid names it; 0: there is none, or it
 * has ended. */
unsigned long long child_start_ticks(pid_t pid);
/* Growth of this is a kill by the kernel for memory; 0 without such a counter. */
uint64_t child_oom_kills(const struct child *c);
/* Remembers the process in a file, and finds it again if it still is the same one. */
int child_note_pid(const struct child *c, const char *path);
int child_find_pid(const char *path, pid_t *ret_pid);

/* Orphans of servers become our children, so that they can be reaped. 0 or a negative errno. */
int child_subreaper(void);
/* The same of the process. */
int child_cgroup(const struct child *c, char *ret_path, size_t size);
