/* Whole small files: into memory, and replaced at once. */
#pragma once

#include <stddef.h>

struct ek_buf;
struct ek_fault;

/* Opens for reading a file that another user may have put there: never through a symlink at its
 * end, never waiting for one, and only a regular file. A descriptor; -EINVAL for what is no regular
 * file, -ELOOP for a symlink, or another errno. */
int ek_file_open_regular(const char *path);
/* Appends such a file to `out`: 0, an errno as above, -EFBIG when it has more than `most` bytes, or
 * -ENOMEM. */
int ek_file_read_regular(const char *path, size_t most, struct ek_buf *out);
/* The same of one that may be a symlink to a regular file, as in a mounted ConfigMap or a model's
 * directory of a hub's cache: it is not waited for either. */
int ek_file_read_linked(const char *path, size_t most, struct ek_buf *out);

/* Appends the file to `out`, which then ends with a NUL if it is not empty. -EBADMSG with a fault
 * that begins with `what` (a flag, "--config") when it cannot be read or is larger than `most`. */
int ek_file_read(const char *what, const char *path, size_t most, struct ek_buf *out,
                 struct ek_fault *fault);
/* The same of a file that is read again while others are served: a FIFO, which the start may wait
 * for, is an error. */
int ek_file_read_again(const char *what, const char *path, size_t most, struct ek_buf *out,
                       struct ek_fault *fault);

enum ek_file_how {
    EK_FILE_PLAIN,
    EK_FILE_SYNC, /* the bytes are on the disk before the name is: a power cut leaves one or other
                   */
    EK_FILE_NEW,  /* as EK_FILE_SYNC, and -EEXIST when the path is there already */
};

/* Makes the file what `data` is, at once: `path` is either the old file or the whole new one.
 * It is written beside it as PATH.new, which is never followed if it is a symlink. 0; or an errno,
 * -ENOSPC when the disk is full: then the old file is as it was and PATH.new is gone. One writer
 * of a path at a time. */
int ek_file_replace(const char *path, const void *data, size_t len, unsigned mode,
                    enum ek_file_how how);

/* Writes what the file is to be to `fd`, which stays the caller's. 0, or a negative code. */
typedef int (*ek_file_fill_fn)(void *ctx, int fd);
/* The same of a file that is not in memory as a whole. What `fill` says instead of 0 is the code;
 * then the old file is as it was. */
int ek_file_replace_by(const char *path, unsigned mode, enum ek_file_how how, ek_file_fill_fn fill,
                       void *ctx);
/* Removes what a writer of the path that was cut short left beside it. */
void ek_file_drop_part(const char *path);
