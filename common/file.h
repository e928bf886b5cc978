/* Whole small files into memory. */
#pragma once

#include <stddef.h>

struct ek_buf;
struct ek_fault;

/* Opens for reading a file that somebody else may have put there: never through a symlink at its
 * end, never waiting for one, and only a regular file. A descriptor; -EINVAL for what is no regular
 * file, -ELOOP for a symlink, or another errno. */
int ek_file_open_regular(const char *path);
/* Appends such a file to `out`: 0, an errno as above, -EFBIG when it has more than `most` bytes, or
 * -ENOMEM. */
int ek_file_read_regular(const char *path, size_t most, struct ek_buf *out);

/* Appends the file to `out`, which then ends with a NUL if it is not empty. -EBADMSG with a fault
 * that begins with `what` (a flag, "--config") when it cannot be read or is larger than `most`. */
int ek_file_read(const char *what, const char *path, size_t most, struct ek_buf *out,
                 struct ek_fault *fault);
