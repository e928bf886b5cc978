/*
 * Lines of a log, see split.h. A line that lies whole in what was fed is passed on where it is;
 * only one that spans two reads is copied. UTF-16 becomes UTF-8 first; a character beyond its first
 * plane becomes one '?', since no pattern of a catalog holds one. A shell may append UTF-8 to what
 * PowerShell has begun: from there on it is read as that.
 */
#include "supervisor/doctor/split.h"

#include <errno.h>
#include <string.h>

#include "supervisor/doctor/lines.h"

#define DECODED_MOST 512 /* bytes that are decoded at once */
#define UNIT_BYTES   3   /* of UTF-8 that one unit of UTF-16 becomes at most */
#define MARK_LEAST   0xfeu
#define MARK_SUM     (0xfeu + 0xffu) /* of the bytes of a mark, in either order */
#define MARK         0xfeffu
/* Units in a row, each two letters of ASCII and none as the one before it, that no text of UTF-16
 * has. A rule of '\u2550' or '\u2026', whose bytes are "P%" and "& ", repeats one. */
#define NARROW_UNITS 16u

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

/* Looks for the mark of UTF-16, which may be cut between two feeds. Returns how many of the bytes
 * (at least one) it has taken. */
static size_t begin(struct doctor_split *s, const char *bytes, size_t len, doctor_line_fn *fn,
                    void *ctx)
{
    size_t taken = 0;
    if (!s->has_odd) {
        s->begun = (unsigned char)bytes[0] < MARK_LEAST;
        if (s->begun)
            return 0;
        s->odd = (unsigned char)bytes[taken++];
        s->has_odd = true;
        if (taken == len)
            return taken;
    }
    const char first = (char)s->odd;
    s->begun = true;
    s->has_odd = false;
    if (s->odd + (unsigned)(unsigned char)bytes[taken] == MARK_SUM) {
        s->wide = true;
        s->big = s->odd == MARK_LEAST;
        return taken + 1;
    }
    feed(s, &first, 1, fn, ctx);
    return taken;
}

/* One unit of UTF-16 as UTF-8; returns its bytes, 0 for a mark, an empty unit and the second half
 * of a pair. */
static size_t put_unit(unsigned unit, char out[UNIT_BYTES])
{
    if (unit == 0 || unit == MARK || (unit >= 0xdc00 && unit < 0xe000))
        return 0;
    if (unit >= 0xd800 && unit < 0xdc00)
        unit = '?';
    if (unit < 0x80) {
        out[0] = (char)unit;
        return 1;
    }
    size_t n = 0;
    if (unit < 0x800) {
        out[n++] = (char)(0xc0 | unit >> 6);
    } else {
        out[n++] = (char)(0xe0 | unit >> 12);
        out[n++] = (char)(0x80 | (unit >> 6 & 0x3f));
    }
    out[n++] = (char)(0x80 | (unit & 0x3f));
    return n;
}

static bool is_ascii_text(unsigned char byte)
{
    return (byte >= ' ' && byte < 0x7f) || byte == '\t' || byte == '\r' || byte == '\n';
}

/* Reads the last units of the rest, which were bytes of UTF-8, as such. Each has become three bytes
 * of the rest, and none a newline. False: the line is too long, some were dropped. */
static bool turn_narrow(struct doctor_split *s, doctor_line_fn *fn, void *ctx)
{
    const size_t most = (size_t)NARROW_UNITS * UNIT_BYTES;
    char raw[2 * NARROW_UNITS];

    if (!ek_buf_ok(&s->rest) || s->rest.len < most || s->rest.len >= DOCTOR_LINE_MOST)
        return false;
    const char *at = s->rest.data + s->rest.len - most;
    for (size_t i = 0; i < NARROW_UNITS; i++, at += UNIT_BYTES) {
        unsigned unit = ((unsigned char)at[0] & 0x0fu) << 12 | ((unsigned char)at[1] & 0x3fu) << 6 |
                        ((unsigned char)at[2] & 0x3fu);
        raw[2 * i] = (char)(s->big ? unit >> 8 : unit & 0xff);
        raw[2 * i + 1] = (char)(s->big ? unit & 0xff : unit >> 8);
    }
    s->rest.len -= most;
    s->wide = false;
    feed(s, raw, sizeof(raw), fn, ctx);
    return true;
}

static void feed_wide(struct doctor_split *s, const char *bytes, size_t len, doctor_line_fn *fn,
                      void *ctx)
{
    char out[DECODED_MOST];
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        s->has_odd = !s->has_odd;
        if (s->has_odd) {
            s->odd = byte;
            continue;
        }
        unsigned high = s->big ? s->odd : byte, low = s->big ? byte : s->odd;
        if (n + UNIT_BYTES > sizeof(out)) {
            feed(s, out, n, fn, ctx);
            n = 0;
        }
        unsigned unit = high << 8 | low;
        n += put_unit(unit, out + n);
        bool letters = is_ascii_text(s->odd) && is_ascii_text(byte) && unit != s->before;
        s->narrow = letters ? s->narrow + 1 : 0;
        s->before = unit;
        if (s->narrow < NARROW_UNITS)
            continue;
        s->narrow = 0;
        feed(s, out, n, fn, ctx);
        n = 0;
        if (turn_narrow(s, fn, ctx)) {
            feed(s, bytes + i + 1, len - i - 1, fn, ctx);
            return;
        }
    }
    feed(s, out, n, fn, ctx);
}

void doctor_split_feed(struct doctor_split *s, const char *bytes, size_t len, doctor_line_fn *fn,
                       void *ctx)
{
    if (len > 0 && !s->begun) {
        size_t taken = begin(s, bytes, len, fn, ctx);
        bytes += taken;
        len -= taken;
    }
    if (s->wide)
        feed_wide(s, bytes, len, fn, ctx);
    else
        feed(s, bytes, len, fn, ctx);
}

int doctor_split_end(struct doctor_split *s, doctor_line_fn *fn, void *ctx)
{
    const char odd = (char)s->odd;
    if (s->has_odd && !s->begun) /* the only byte of its file */
        feed(s, &odd, 1, fn, ctx);
    s->begun = s->wide = s->has_odd = false;
    s->narrow = s->before = 0;
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
