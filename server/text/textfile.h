/*
 * Reads a file of a model directory whole. Only regular files: a pipe or a device of that name is
 * refused at once and not waited for. Runs at start.
 */
#pragma once

#include <stddef.h>

struct ek_buf;
struct ek_fault;

/* Appends the file to out. -ENOENT when there is none (no fault is set), -EBADMSG with a fault on
 * `field` that names the file and the remedy, -ENOMEM. */
int text_file_read(const char *path, const char *field, size_t most_bytes, struct ek_buf *out,
                   struct ek_fault *fault);
