/*
 * The file of one server's charts: servers/past.c reads it at the start, servers/watch.c adds a row
 * a second through behind.c. Every row carries its own time and checksum, so a write that was cut
 * off costs that row and no other, and nothing has to be repaired at the start.
 */
#include "supervisor/io/charts.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "common/buf.h"
#include "common/clock.h"
#include "supervisor/io/behind.h"

#define COLUMNS_MOST 64u /* of any version */
#define PLACE_BYTES  ((HISTORY_COLUMNS + 2) * 4u)
#define FILE_MOST    (CHARTS_HEAD + HISTORY_ROWS * (COLUMNS_MOST + 2) * 4u)
#define ORDER        (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? "le" : "be")

struct charts {
    struct behind *behind;
    int fd; /* the thread's own */
};

struct chart_place {
    uint32_t number, at_s;
    float value[HISTORY_COLUMNS];
};

static void make_head(char head[CHARTS_HEAD])
{
    size_t n = (size_t)snprintf(head, CHARTS_HEAD, "evenkeel charts 1 %s ", ORDER);
    for (int c = 0; c < HISTORY_COLUMNS; c++)
        n += (size_t)snprintf(head + n, CHARTS_HEAD - n, "%s%s", c ? "," : "", history_name(c));
    n += (size_t)snprintf(head + n, CHARTS_HEAD - n, "\n"); /* far from full */
    memset(head + n, 0, CHARTS_HEAD - n);
}

static int column_named(const char *name, size_t len)
{
    for (int c = 0; c < HISTORY_COLUMNS; c++) {
        if (strlen(history_name(c)) == len && memcmp(history_name(c), name, len) == 0)
            return c;
    }
    return -1;
}

/* The columns of a file: which of ours each is, -1 for none. Their number; 0: no file of charts. */
static uint32_t parse_head(const char *bytes, int ret_column[COLUMNS_MOST])
{
    char begin[40];
    int n = snprintf(begin, sizeof(begin), "evenkeel charts 1 %s ", ORDER);
    const char *end = memchr(bytes, '\n', CHARTS_HEAD), *at = bytes + n;
    uint32_t count = 0;
    if (!end || memcmp(bytes, begin, (size_t)n) != 0)
        return 0;
    while (at < end && count < COLUMNS_MOST) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        size_t len = (size_t)((comma ? comma : end) - at);
        ret_column[count++] = column_named(at, len);
        at += len + 1;
    }
    return at < end ? 0 : count;
}

static uint32_t word_at(const char *bytes)
{
    uint32_t v;
    memcpy(&v, bytes, sizeof(v));
    return v;
}

uint32_t charts_parse(const char *bytes, size_t len, uint64_t wall_us, struct history *h)
{
    int column[COLUMNS_MOST];
    uint32_t count = len > CHARTS_HEAD ? parse_head(bytes, column) : 0, damaged = 0;
    uint64_t now_s = wall_us / EK_US_PER_S;
    size_t size = (count + 2u) * 4u;
    /* From the oldest second that may be there to the newest: the order in which h wants them. */
    for (uint64_t t = now_s - HISTORY_ROWS + 1; count > 0 && t <= now_s; t++) {
        size_t at = CHARTS_HEAD + t % HISTORY_ROWS * size;
        if (at + size > len)
            continue;
        const char *p = bytes + at;
        uint32_t at_s = word_at(p), sum = word_at(p + size - 4);
        if (at_s == 0 && sum == 0)
            continue; /* never written */
        if (sum != (uint32_t)crc32(0, (const Bytef *)p, (uInt)(size - 4))) {
            damaged++;
            continue;
        }
        if (at_s != t)
            continue; /* of a time that is kept no more */
        float value[HISTORY_COLUMNS];
        for (int c = 0; c < HISTORY_COLUMNS; c++)
            value[c] = NAN;
        for (uint32_t i = 0; i < count; i++) {
            if (column[i] >= 0)
                memcpy(&value[column[i]], p + 4 + 4u * i, 4);
        }
        history_push(h, t * EK_US_PER_S, value);
    }
    return damaged;
}

static int read_whole(int fd, struct ek_buf *out)
{
    char part[16384];
    ssize_t n;
    out->limit = FILE_MOST;
    while ((n = read(fd, part, sizeof(part))) > 0 && ek_buf_ok(out))
        (void)ek_buf_add(out, part, (size_t)n); /* tested below */
    return n < 0 ? -errno : ek_buf_ok(out) ? 0 : -ENOMEM;
}

static int put_place(int fd, const struct chart_place *p)
{
    char bytes[PLACE_BYTES];
    memcpy(bytes, &p->at_s, 4);
    memcpy(bytes + 4, p->value, sizeof(p->value));
    uint32_t sum = (uint32_t)crc32(0, (const Bytef *)bytes, PLACE_BYTES - 4);
    memcpy(bytes + PLACE_BYTES - 4, &sum, 4);
    ssize_t n =
        pwrite(fd, bytes, sizeof(bytes), (off_t)(CHARTS_HEAD + (size_t)p->number * PLACE_BYTES));
    return n < 0 ? -errno : n < (ssize_t)sizeof(bytes) ? -ENOSPC : 0;
}

/* A file of our columns with the rows that h has. */
static int begin_again(int fd, const char head[CHARTS_HEAD], const struct history *h)
{
    if (ftruncate(fd, 0) < 0 || pwrite(fd, head, CHARTS_HEAD, 0) != (ssize_t)CHARTS_HEAD)
        return -errno;
    int r = 0;
    for (uint32_t i = 0; i < h->count && r == 0; i++) {
        struct chart_place p = {.number = h->at_s[i] % HISTORY_ROWS, .at_s = h->at_s[i]};
        memcpy(p.value, h->value[i], sizeof(p.value));
        r = put_place(fd, &p);
    }
    return r;
}

int charts_open(struct behind *b, const char *dir, const char *name, uint64_t wall_us,
                struct history *h, struct charts **ret_charts, uint32_t *ret_damaged)
{
    char path[600], head[CHARTS_HEAD];
    struct ek_buf bytes = {0};
    struct stat st;
    int r = -ENOMEM, fd = -1;
    struct charts *c = calloc(1, sizeof(*c));
    if (!c)
        goto out;
    (void)snprintf(path, sizeof(path), "%s/charts-%s.bin", dir, name);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    r = fd < 0 || fstat(fd, &st) < 0 ? -errno : S_ISREG(st.st_mode) ? 0 : -EINVAL;
    if (r == 0)
        r = read_whole(fd, &bytes);
    if (r < 0)
        goto out;
    uint32_t damaged = charts_parse(bytes.data ? bytes.data : "", bytes.len, wall_us, h);
    make_head(head);
    if (bytes.len < CHARTS_HEAD || memcmp(bytes.data, head, CHARTS_HEAD) != 0)
        r = begin_again(fd, head, h);
    if (r < 0)
        goto out;
    *c = (struct charts){.behind = b, .fd = fd};
    *ret_charts = c;
    *ret_damaged = damaged;
    c = NULL;
    fd = -1;
out:
    if (fd >= 0)
        close(fd);
    ek_buf_done(&bytes);
    free(c);
    return r;
}

void charts_free(struct charts *c)
{
    if (!c)
        return;
    close(c->fd);
    free(c);
}

/* In the thread. */
static int write_row(void *ctx, const char *data, size_t len)
{
    const struct charts *c = ctx;
    struct chart_place p = {0};
    memcpy(&p, data, len < sizeof(p) ? len : sizeof(p));
    return put_place(c->fd, &p);
}

void charts_put(struct charts *c, const struct history *h)
{
    if (!c || h->count == 0)
        return;
    uint32_t newest = (h->next + HISTORY_ROWS - 1) % HISTORY_ROWS;
    struct chart_place p = {.number = h->at_s[newest] % HISTORY_ROWS, .at_s = h->at_s[newest]};
    memcpy(p.value, h->value[newest], sizeof(p.value));
    (void)behind_push(c->behind, write_row, c, &p, sizeof(p)); /* a gap in a chart is no loss */
}
