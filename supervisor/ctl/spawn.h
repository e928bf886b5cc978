/* Runs a program and keeps what it says, with a deadline: a driver's tools may hang on a sick card.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct ek_buf;

/* argv[0] is a path, or a name that is looked up in $PATH. Output is cut at the buffers' limits. 0
 * and the wait status; -ENOENT: no such program; -ETIMEDOUT: it was killed; other errnos. */
int spawn_read(char *const *argv, double seconds, struct ek_buf *out, struct ek_buf *err,
               int *ret_status);
/* A program of ours: beside this one, else in $PATH. */
bool spawn_find(const char *name, char *path, size_t size);
