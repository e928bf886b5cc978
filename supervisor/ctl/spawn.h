/* Runs a program and keeps what it says, with a deadline: a driver's tools may hang on a sick card.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct ek_buf;

/* argv[0] is a path, or a name that is looked up in $PATH. Output is cut at the buffers' limits. 0
 * and the wait status; -ENOENT: no such program; -ETIMEDOUT: it was killed; other errnos. */
int spawn_read(char *const *argv, double seconds, struct ek_buf *out, struct ek_buf *err,
               int *ret_status);
/* A program of ours: beside this one, else in $PATH. */
bool spawn_find(const char *name, char *path, size_t size);

/* A program of ours that goes on beside this one and ends with it. What it says on standard error
 * goes to err_fd. argv[0] is a path. 0 or an errno. */
int spawn_beside(char *const *argv, int err_fd, pid_t *ret_pid);
/* Ends it; *pid is 0 then. */
void spawn_end(pid_t *pid);
/* Whether it has ended; then *pid is 0. */
bool spawn_ended(pid_t *pid, int *ret_status);
