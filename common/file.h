/* Whole small files into memory. */
#pragma once

#include <stddef.h>

struct ek_buf;
struct ek_fault;

/* Appends the file to `out`, which then ends with a NUL if it is not empty. -EBADMSG with a fault
 * that begins with `what` (a flag, "--config") when it cannot be read or is larger than `most`. */
int ek_file_read(const char *what, const char *path, size_t most, struct ek_buf *out,
                 struct ek_fault *fault);
