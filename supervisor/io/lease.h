/*
 * One planned restart at a time on a machine: the holder of the lease file's lock may do one. The
 * kernel gives it back when its holder dies, whatever it died of.
 */
#pragma once

#include <stddef.h>

/* Takes it without waiting: *ret_fd is closed to give it back. -EAGAIN when another has it, then
 * ret_holder names it; else a negative errno. */
int lease_take(const char *path, const char *who, int *ret_fd, char *ret_holder, size_t size);
