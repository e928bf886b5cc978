/*
 * Runs a short-lived program of our own for what it writes: at most SUBPROCESS_TEXT bytes of it are
 * kept, and it is killed at its deadline. Its end is seen by its own pidfd, and those that run are
 * listed, so that the reaper of orphans (reap.h) leaves their status to them. Each has its
 * own callback and context: one that was cancelled calls nothing. For the loop's thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

#define SUBPROCESS_TEXT 65536u

struct subprocess;

/* Those that run; {0} is none. */
struct subprocesses {
    struct subprocess *first;
};

struct subprocess_spec {
    char *const *argv;  /* the kernel copies these at once */
    char *const *flags; /* words that follow; NULL = none */
    char *const *env;   /* besides our own; NULL = nothing */
    uint32_t timeout_ms;
};

struct subprocess_result {
    int status;       /* its exit status, -ETIMEDOUT, or -EIO: by a signal, or it was not seen */
    const char *text; /* stdout and stderr from the first byte on, ended by '\0' */
    size_t len;
};

typedef void (*subprocess_fn)(void *ctx, const struct subprocess_result *res);

/* 0, then cb follows once from the loop, or never if it is cancelled before; or a negative errno.
 * `all` has to outlive it; *ret is gone when cb is called. */
int subprocess_run(struct subprocesses *all, sd_event *event, const struct subprocess_spec *spec,
                   subprocess_fn cb, void *ctx, struct subprocess **ret);
void subprocess_cancel(struct subprocess *p); /* NULL is fine; kills it */
bool subprocess_owns(const struct subprocesses *all, pid_t pid);
