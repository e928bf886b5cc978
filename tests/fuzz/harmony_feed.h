/* An answer in harmony's form as one string, its marks as tokens and its text in pieces. */
#pragma once

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "server/text/answer/harmony.h"

struct harmony_seen {
    struct ek_buf thought, text;
    struct toolcalls calls;
};

/* The mark that begins at p, HARMONY_MARKS if none does. */
static inline enum harmony_mark harmony_at(const char *p, size_t len)
{
    int i = 0;
    for (; i < HARMONY_MARKS; i++) {
        size_t n = strlen(harmony_text((enum harmony_mark)i));
        if (n <= len && memcmp(p, harmony_text((enum harmony_mark)i), n) == 0)
            break;
    }
    return (enum harmony_mark)i;
}

/* 0 or -ENOMEM. */
static inline int harmony_feed(struct harmony *h, const char *p, size_t len, size_t piece,
                               struct harmony_seen *seen)
{
    struct harmony_out out = {&seen->thought, &seen->text, &seen->calls};
    int r = 0;
    for (size_t at = 0; r == 0 && at < len;) {
        enum harmony_mark mark = harmony_at(p + at, len - at);
        size_t n = 1;
        if (mark < HARMONY_MARKS) {
            r = harmony_mark(h, mark, &out);
            at += strlen(harmony_text(mark));
            continue;
        }
        while (n < piece && at + n < len && harmony_at(p + at + n, len - at - n) == HARMONY_MARKS)
            n++;
        r = harmony_push(h, p + at, n, &out);
        at += n;
    }
    return r;
}

static inline int harmony_over(struct harmony *h, struct harmony_seen *seen)
{
    struct harmony_out out = {&seen->thought, &seen->text, &seen->calls};
    return harmony_end(h, &out);
}

static inline void harmony_unsee(struct harmony_seen *seen)
{
    ek_buf_done(&seen->thought);
    ek_buf_done(&seen->text);
    toolcalls_done(&seen->calls);
}
