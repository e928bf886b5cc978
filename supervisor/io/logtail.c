/*
 * A server's log file: opened at a start, bounded once in a while, and its end read when the server
 * has failed (servers/ended.c). logtail_mark() remembers where the present process began, so that
 * an older failure in the same file is no evidence; logtail_squeeze() drops repeated lines so that
 * what matters fits in the part that is kept.
 */
#include "supervisor/io/logtail.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/file.h"
#include "common/fnv.h"

#define SEEN_SLOTS (1u << 17) /* hashes of lines; lines beyond three quarters of them stay */
#define LOOKS_MOST 64u /* at slots for a line: with three quarters taken some ten are usual */
#define LINE_SHORT 24

/* A user that may write in its directory may have put a FIFO there: without a reader that is
 * -ENXIO, and not an evenkeeld that waits for one. */
static int open_to_write(const char *path, int how)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | how, 0640);
    return fd < 0 ? -errno : fd;
}

int logtail_open(struct logtail *t)
{
    int fd = open_to_write(t->path, O_APPEND);
    if (fd < 0)
        return fd;
    (void)fcntl(fd, F_SETFL, O_APPEND); /* the server waits for its readers, if it has some */
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
    int r = -EIO, to = -1, from = open(t->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (from < 0)
        return -errno;
    to = open_to_write(old, O_TRUNC);
    if (to < 0) {
        r = to;
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

struct seen {
    uint64_t *hash; /* SEEN_SLOTS, 0 = free */
    uint32_t count;
};

/* Whether a line is the repeat of one; else it is remembered. The lines are the server's choice:
 * one that would be looked for at many places is taken for a new one. */
static bool seen_before(struct seen *s, const char *line, size_t len)
{
    uint64_t h = ek_fnv(EK_FNV_BEGIN, line, len) | 1;
    size_t i = (size_t)(h >> 7) % SEEN_SLOTS, looks = 0;
    while (s->hash[i] && s->hash[i] != h && ++looks < LOOKS_MOST)
        i = (i + 1) % SEEN_SLOTS;
    if (s->hash[i] == h)
        return true;
    if (!s->hash[i] && s->count < SEEN_SLOTS / 4 * 3) {
        s->hash[i] = h;
        s->count++;
    }
    return false;
}

void logtail_squeeze(struct ek_buf *b, size_t most)
{
    struct seen seen = {.hash = calloc(SEEN_SLOTS, sizeof(uint64_t))};
    size_t kept = 0;
    for (size_t at = 0, len; seen.hash && at < b->len; at += len) {
        const char *line = b->data + at, *nl = memchr(line, '\n', b->len - at);
        len = nl ? (size_t)(nl + 1 - line) : b->len - at;
        if (len > LINE_SHORT && seen_before(&seen, line, len))
            continue;
        memmove(b->data + kept, line, len);
        kept += len;
    }
    if (seen.hash && b->data) { /* without memory all lines stay */
        b->len = kept;
        b->data[kept] = '\0';
    }
    free(seen.hash);
    if (b->len > most) {
        const char *nl = memchr(b->data + b->len - most, '\n', most);
        bool whole = nl && nl + 1 < b->data + b->len;
        ek_buf_drop(b, whole ? (size_t)(nl + 1 - b->data) : b->len - most);
    }
}
