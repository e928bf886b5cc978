/*
 * Appends to and reads the incident log; servers/past.c decides what goes in and what is made of
 * it. Appending is a write of one line in behind.c's thread and an fsync when that is idle; the
 * format and its kinds are described in incidents.h. A line whose sum does not fit is skipped, so a
 * torn last line costs only itself.
 */
#include "supervisor/io/incidents.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/fnv.h"
#include "supervisor/io/behind.h"

#define SUM_LEN   16u
#define KIND_MOST 15u
#define LINE_MOST 16384u

struct incidents {
    struct behind *behind;
    char path[512], before[520];
    /* The thread's own. */
    int fd; /* -1 = not open */
    uint64_t bytes;
    bool torn; /* the file may end within a line */
    uint64_t written;
};

/* Writing, in the thread */

static void incidents_close(struct incidents *in)
{
    if (in->fd >= 0)
        close(in->fd);
    in->fd = -1;
}

static int incidents_open(struct incidents *in)
{
    struct stat st;
    if (in->fd >= 0 && fstat(in->fd, &st) == 0 && st.st_nlink > 0)
        return 0;
    incidents_close(in); /* it was removed: the next record begins another */
    in->fd =
        open(in->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (in->fd < 0)
        return -errno;
    int r = fstat(in->fd, &st) < 0 ? -errno : S_ISREG(st.st_mode) ? 0 : -EINVAL;
    if (r < 0) {
        incidents_close(in);
        return r;
    }
    in->bytes = (uint64_t)st.st_size;
    in->torn =
        in->bytes > 0; /* a killed evenkeeld may have left half a line: one more LF ends it */
    return 0;
}

static int incidents_put_line(struct incidents *in, const char *record, size_t len)
{
    char line[LINE_MOST + SUM_LEN + 4];
    int r = incidents_open(in);
    if (r == 0 && in->bytes > 0 && in->bytes + len + SUM_LEN + 3 > INCIDENTS_BYTES) {
        incidents_close(in);
        r = rename(in->path, in->before) < 0 ? -errno : incidents_open(in);
    }
    if (r < 0)
        return r;
    int n = snprintf(line, sizeof(line), "%s%016llx %.*s\n", in->torn ? "\n" : "",
                     (unsigned long long)ek_fnv(EK_FNV_BEGIN, record, len), (int)len, record);
    ssize_t w = write(in->fd, line, (size_t)n);
    r = w < 0 ? -errno : w < n ? -ENOSPC : 0;
    in->bytes += w > 0 ? (uint64_t)w : 0;
    in->torn = w > 0 ? w < n : in->torn;
    return r;
}

static int write_record(void *ctx, const char *record, size_t len)
{
    struct incidents *in = ctx;
    int r = incidents_put_line(in, record, len);
    in->written += r == 0;
    if (r < 0)
        incidents_close(in);
    return r;
}

static void sync_file(void *ctx)
{
    struct incidents *in = ctx;
    if (in->fd >= 0 && in->written > 0)
        (void)fdatasync(in->fd); /* against loss of power; a disk that fails says so at a write */
    in->written = 0;
}

int incidents_new(struct behind *b, const char *dir, struct incidents **ret_incidents)
{
    struct incidents *in = calloc(1, sizeof(*in));
    if (!in)
        return -ENOMEM;
    in->behind = b;
    in->fd = -1;
    (void)snprintf(in->path, sizeof(in->path), "%s/incidents.log", dir);
    (void)snprintf(in->before, sizeof(in->before), "%s/incidents.1.log", dir);
    behind_idle(b, sync_file, in);
    *ret_incidents = in;
    return 0;
}

void incidents_free(struct incidents *in)
{
    if (!in)
        return;
    incidents_close(in);
    free(in);
}

void incidents_append(struct incidents *in, const char *kind, const char *json, size_t len)
{
    char record[LINE_MOST];
    if (!in)
        return;
    int n = snprintf(record, sizeof(record), "%s %.*s", kind, (int)len, json);
    if (n < 0 || (size_t)n >= sizeof(record) || memchr(record, '\n', (size_t)n))
        return; /* no record of ours is so long, or has a line feed */
    (void)behind_push(in->behind, write_record, in, record, (size_t)n); /* counted */
}

/* Reading */

static int read_file(const char *dir, const char *name, struct ek_buf *out)
{
    char path[600], part[16384];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    int fd = ek_file_open_regular(path);
    if (fd < 0)
        return fd == -ENOENT ? 0 : fd;
    ssize_t n;
    size_t most = out->len + 2 * INCIDENTS_BYTES; /* what is longer is not ours */
    while ((n = read(fd, part, sizeof(part))) > 0 && out->len < most && ek_buf_ok(out))
        (void)ek_buf_add(out, part, (size_t)n); /* tested below */
    int r = n < 0 ? -errno : ek_buf_ok(out) ? 0 : -ENOMEM;
    close(fd);
    if (r == 0 && out->len > 0) /* so that a torn end is not one with the next file's first line */
        r = ek_buf_puts(out, "\n");
    return r;
}

int incidents_read(const char *dir, struct ek_buf *out)
{
    int r = read_file(dir, "incidents.1.log", out);
    return r < 0 ? r : read_file(dir, "incidents.log", out);
}

static bool hex_sum(const char *text, uint64_t *ret_sum)
{
    uint64_t v = 0;
    for (size_t i = 0; i < SUM_LEN; i++) {
        char c = text[i];
        if (c >= '0' && c <= '9')
            v = v << 4 | (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            v = v << 4 | (uint64_t)(c - 'a' + 10);
        else
            return false;
    }
    *ret_sum = v;
    return true;
}

/* One line without its end. */
static bool parse_line(const char *line, size_t len, incidents_fn each, void *ctx)
{
    uint64_t sum;
    char kind[KIND_MOST + 1];
    if (len < SUM_LEN + 3 || !hex_sum(line, &sum) || line[SUM_LEN] != ' ')
        return false;
    const char *text = line + SUM_LEN + 1;
    size_t n = len - SUM_LEN - 1;
    const char *space = memchr(text, ' ', n);
    size_t word = space ? (size_t)(space - text) : 0;
    if (word == 0 || word > KIND_MOST || ek_fnv(EK_FNV_BEGIN, text, n) != sum)
        return false;
    memcpy(kind, text, word);
    kind[word] = '\0';
    each(ctx, kind, space + 1, n - word - 1);
    return true;
}

void incidents_parse(const char *text, size_t len, incidents_fn each, void *ctx,
                     struct incidents_count *ret_count)
{
    struct incidents_count count = {0};
    const char *end = text + len;
    while (text < end) {
        const char *eol = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((eol ? eol : end) - text);
        if (n > 0) { /* an empty line only ends what may have been torn */
            bool good = parse_line(text, n, each, ctx);
            count.records += good;
            count.damaged += !good;
        }
        text += n + (eol != NULL);
    }
    *ret_count = count;
}

uint64_t incidents_when(const char *json, size_t len, const char *server)
{
    char head[80];
    uint64_t us = 0, unit = EK_US_PER_S;
    int n = snprintf(head, sizeof(head), "{\"server\":\"%.40s\",\"at_s\":", server);
    if (len <= (size_t)n || memcmp(json, head, (size_t)n) != 0)
        return 0;
    bool point = false;
    for (size_t i = (size_t)n; i < len; i++) {
        if (json[i] == '.' && !point) {
            point = true;
        } else if (json[i] < '0' || json[i] > '9' || us > UINT64_MAX / 100) {
            break;
        } else if (!point) {
            us = us * 10 + (uint64_t)(json[i] - '0') * EK_US_PER_S;
        } else if (unit > 1) {
            unit /= 10;
            us += (uint64_t)(json[i] - '0') * unit;
        }
    }
    return us;
}
