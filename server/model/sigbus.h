/*
 * What happens when a mapped weight file becomes shorter while it is read: the kernel answers with
 * SIGBUS. files.c tells each mapping that it makes; between sigbus_watch() and sigbus_done() the
 * process then says which model it was and ends with a code of its own, in place of a death by
 * signal without an explanation. A SIGBUS from anywhere else kills as always. Any thread may be
 * the one that reads.
 */
#pragma once

#include <stdint.h>

/* A mapping that is there from now on, or no longer. Any thread. More than 1,040 at once are not
 * noticed. */
void sigbus_add(const void *data, uint64_t bytes);
void sigbus_drop(const void *data);

/* `model` is named in the sentence; NULL: nothing is said. `code` is the process's end. One watch
 * at a time; it may be begun anew. 0 or a negative errno. */
int sigbus_watch(const char *model, int code);
void sigbus_done(void);
