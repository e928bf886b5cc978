/*
 * Reads a file of a model directory whole. Only regular files: a pipe or a device of that name is
 * refused at once and not waited for. Runs at start.
 */
#pragma once

#include <stddef.h>

struct ek_buf;
struct ek_bundle;
struct ek_bundle_file;
struct ek_fault;

/* Reads the file into `out`, which is empty; from the bundle where there is one, as
 * model_file_read() does. It is JSON if `field` ends so. -ENOENT when there is none (no fault is
 * set), -EBADMSG with a fault on `field` that names the file and the remedy, -ENOMEM. */
int text_file_read(struct ek_bundle *b, const char *path, const char *field, size_t most_bytes,
                   struct ek_buf *out, struct ek_fault *fault);
/* The file itself, and which one it was. The same codes. */
int text_file_read_itself(const char *path, const char *field, size_t most_bytes,
                          struct ek_buf *out, struct ek_bundle_file *ret_which,
                          struct ek_fault *fault);
