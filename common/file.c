/*
 * Small files, read whole or replaced whole: keys and certificates, configuration, exit.json,
 * evenkeeld's state, what its units read. Half a file is never seen: the new text goes to
 * PATH.new, which is opened with O_EXCL and O_NOFOLLOW, and takes the name when it is complete. A
 * failure on the way leaves the old file untouched.
 */
#include "common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/err.h"

#define PART_MOST 4400 /* bytes of a path with .new behind it */

static int open_regular(const char *path, int links)
{
    struct stat st;
    /* a FIFO opens at once so; a regular file does not know the difference */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | links);
    if (fd < 0)
        return -errno;
    int r = fstat(fd, &st) < 0 ? -errno : S_ISREG(st.st_mode) ? 0 : -EINVAL;
    if (r == 0)
        return fd;
    (void)close(fd);
    return r;
}

int ek_file_open_regular(const char *path)
{
    return open_regular(path, O_NOFOLLOW);
}

/* fd may be an error, which it then is. */
static int read_and_close(int fd, size_t most, struct ek_buf *out)
{
    char part[4096];
    size_t total = 0;
    ssize_t n;
    int r = 0;
    if (fd < 0)
        return fd;
    while (r == 0 && (n = read(fd, part, sizeof(part))) != 0) {
        if (n < 0)
            r = -errno;
        else if ((size_t)n > most - total)
            r = -EFBIG;
        else if (ek_buf_add(out, part, (size_t)n) < 0)
            r = -ENOMEM;
        else
            total += (size_t)n;
    }
    (void)close(fd);
    return r;
}

int ek_file_read_regular(const char *path, size_t most, struct ek_buf *out)
{
    return read_and_close(open_regular(path, O_NOFOLLOW), most, out);
}

int ek_file_read_linked(const char *path, size_t most, struct ek_buf *out)
{
    return read_and_close(open_regular(path, 0), most, out);
}

int ek_file_read(const char *what, const char *path, size_t most, struct ek_buf *out,
                 struct ek_fault *fault)
{
    char part[4096];
    const char *field = what + strspn(what, "-");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return ek_fault_set(fault, field, "%s: cannot open %s: %s", what, path, strerror(errno));
    out->limit = most;
    ssize_t n;
    while ((n = read(fd, part, sizeof(part))) > 0 && ek_buf_ok(out))
        (void)ek_buf_add(out, part, (size_t)n);
    int r = 0;
    if (n < 0)
        r = ek_fault_set(fault, field, "%s: cannot read %s: %s", what, path, strerror(errno));
    else if (!ek_buf_ok(out))
        r = ek_fault_set(fault, field, "%s: %s is larger than %zu bytes", what, path, most);
    explicit_bzero(part, sizeof(part)); /* it may have been a key */
    (void)close(fd);
    return r;
}

int ek_file_read_again(const char *what, const char *path, size_t most, struct ek_buf *out,
                       struct ek_fault *fault)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISFIFO(st.st_mode))
        return ek_fault_set(fault, what + strspn(what, "-"),
                            "%s: %s is a pipe, which is not waited for now; put a file there", what,
                            path);
    return ek_file_read(what, path, most, out, fault);
}

static int write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ENOSPC;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

/* The name that a file has while it is written. */
static int name_part(const char *path, char *ret_part, size_t size)
{
    int n = snprintf(ret_part, size, "%s.new", path);

    return n >= 0 && (size_t)n < size ? 0 : -ENAMETOOLONG;
}

int ek_file_replace_by(const char *path, unsigned mode, enum ek_file_how how, ek_file_fill_fn fill,
                       void *ctx)
{
    char part[PART_MOST];

    if (name_part(path, part, sizeof(part)) < 0)
        return -ENAMETOOLONG;
    (void)unlink(part); /* one that was cut short, or that another process put there */
    int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0)
        return -errno;
    int r = fill(ctx, fd);
    if (r == 0 && how != EK_FILE_PLAIN && fdatasync(fd) < 0)
        r = -errno;
    if (close(fd) < 0 && r == 0)
        r = -errno;
    /* link() never replaces, rename() does. */
    if (r == 0 && (how == EK_FILE_NEW ? link(part, path) : rename(part, path)) < 0)
        r = -errno;
    if (r < 0 || how == EK_FILE_NEW)
        (void)unlink(part);
    return r;
}

struct whole {
    const void *data;
    size_t len;
};

/* An ek_file_fill_fn. */
static int fill_whole(void *ctx, int fd)
{
    const struct whole *w = ctx;

    return write_all(fd, w->data, w->len);
}

int ek_file_replace(const char *path, const void *data, size_t len, unsigned mode,
                    enum ek_file_how how)
{
    struct whole w = {data, len};

    return ek_file_replace_by(path, mode, how, fill_whole, &w);
}

void ek_file_drop_part(const char *path)
{
    char part[PART_MOST];

    if (name_part(path, part, sizeof(part)) == 0)
        (void)unlink(part); /* seldom there */
}
