#include "supervisor/io/logtail.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/file.h"

int logtail_open(struct logtail *t)
{
    int fd = open(t->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (fd < 0)
        return -errno;
    struct stat st;
    t->start = fstat(fd, &st) == 0 ? (uint64_t)st.st_size : 0;
    return fd;
}

void logtail_mark(struct logtail *t)
{
    struct stat st;
    t->start = stat(t->path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

static int copy_all(int from, int to, uint64_t len)
{
    while (len > 0) {
        ssize_t n = sendfile(to, from, NULL, len > (1u << 24) ? (1u << 24) : (size_t)len);
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        len -= (uint64_t)n;
    }
    return 0;
}

int logtail_bound(struct logtail *t)
{
    struct stat st;
    if (t->most_bytes == 0 || stat(t->path, &st) < 0 || (uint64_t)st.st_size <= t->most_bytes)
        return 0;
    char old[sizeof(t->path) + 2];
    (void)snprintf(old, sizeof(old), "%s.1", t->path);
    int r = -EIO, to = -1, from = open(t->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (from < 0)
        return -errno;
    to = open(old, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (to < 0) {
        r = -errno;
        goto out;
    }
    /* Only the newest part: a flood may have grown the file far over the limit. */
    uint64_t size = (uint64_t)st.st_size;
    uint64_t skip = size > t->most_bytes ? size - t->most_bytes : 0;
    if (lseek(from, (off_t)skip, SEEK_SET) < 0) {
        r = -errno;
        goto out;
    }
    r = copy_all(from, to, size - skip);
    /* On a full disk the copy fails; the bound holds all the same. */
    if (ftruncate(from, 0) < 0)
        r = -errno;
    t->start = 0;
    if (r == 0)
        r = 1;
out:
    if (to >= 0)
        close(to);
    close(from);
    return r;
}

int logtail_read(const struct logtail *t, size_t most, struct ek_buf *out)
{
    struct stat st;
    int r = 0, fd = ek_file_open_regular(t->path);
    if (fd < 0)
        return fd;
    if (fstat(fd, &st) < 0) {
        r = -errno;
        goto out;
    }
    uint64_t size = (uint64_t)st.st_size, at = t->start <= size ? t->start : 0;
    bool cut = size - at > most;
    if (cut)
        at = size - most;
    while (at < size) {
        char part[8192];
        ssize_t n = pread(fd, part, sizeof(part), (off_t)at);
        if (n <= 0)
            break;
        const char *from = part;
        size_t len = (size_t)n;
        if (cut) { /* begin at a whole line */
            const char *nl = memchr(part, '\n', len);
            if (nl) {
                len -= (size_t)(nl + 1 - part);
                from = nl + 1;
                cut = false;
            } else {
                len = 0;
            }
        }
        if (len > 0 && ek_buf_add(out, from, len) < 0) {
            r = -ENOMEM;
            goto out;
        }
        at += (uint64_t)n;
    }
out:
    close(fd);
    return r;
}
