/*
 * Lines of a log, see split.h. A line that lies whole in what was fed is passed on where it is;
 * only one that spans two reads is copied. What a catalog looks for is ASCII, so of UTF-16 the
 * bytes that are not 0 are enough.
 */
#include "supervisor/doctor/split.h"

#include <errno.h>
#include <string.h>

#include "supervisor/doctor/lines.h"

static void feed(struct doctor_split *s, const char *bytes, size_t len, doctor_line_fn *fn,
                 void *ctx)
{
    while (len > 0) {
        const char *newline = memchr(bytes, '\n', len);
        size_t n = newline ? (size_t)(newline - bytes) : len;
        if (newline && s->rest.len == 0) {
            fn(ctx, bytes, n);
        } else {
            size_t room = DOCTOR_LINE_MOST - s->rest.len;
            (void)ek_buf_add(&s->rest, bytes, n < room ? n : room); /* _end() tells */
        }
        if (newline && s->rest.len > 0) {
            fn(ctx, s->rest.data, s->rest.len);
            s->rest.len = 0;
        }
        bytes += n + (newline != NULL);
        len -= n + (newline != NULL);
    }
}

/* The mark of UTF-16 at the begin of a file; a log may consist of several. */
static bool is_wide(const char *bytes, size_t len)
{
    return len > 1 && (memcmp(bytes, "\xff\xfe", 2) == 0 || memcmp(bytes, "\xfe\xff", 2) == 0);
}

void doctor_split_feed(struct doctor_split *s, const char *bytes, size_t len, doctor_line_fn *fn,
                       void *ctx)
{
    if (s->rest.len == 0 && is_wide(bytes, len)) {
        s->wide = true;
        bytes += 2;
        len -= 2;
    }
    for (size_t n; len > 0; bytes += n, len -= n) {
        const char *zero = s->wide ? memchr(bytes, 0, len) : NULL;
        n = zero ? (size_t)(zero - bytes) : len;
        feed(s, bytes, n, fn, ctx);
        n += zero != NULL;
    }
}

int doctor_split_end(struct doctor_split *s, doctor_line_fn *fn, void *ctx)
{
    if (!ek_buf_ok(&s->rest))
        return -ENOMEM;
    if (s->rest.len > 0)
        fn(ctx, s->rest.data, s->rest.len);
    s->rest.len = 0;
    return 0;
}

void doctor_split_done(struct doctor_split *s)
{
    ek_buf_done(&s->rest);
}
