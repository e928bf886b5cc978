/*
 * Recordings and their replay, see replay.h. Pages are read one at a time into one buffer.
 */
#include "supervisor/replay.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "supervisor/dialect.h"
#include "supervisor/promtext.h"

#define HEAD_MOST 64 /* bytes of "@at bytes\n" */

static bool read_u64(const char **at, char ends, uint64_t *ret_value)
{
    uint64_t v = 0;
    const char *p = *at;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (__builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v))
            return false;
    }
    if (p == *at || *p != ends)
        return false;
    *at = p + 1;
    *ret_value = v;
    return true;
}

static int bad(struct ek_fault *fault, uint64_t offset, const char *what)
{
    (void)ek_fault_set(fault, "replay", "Byte %" PRIu64 ": %s.", offset, what);
    if (fault)
        fault->at = offset;
    return -EBADMSG;
}

/* Reads one head and page. Returns 1, 0 at the end, or a negative code. */
static int next_page(FILE *in, uint64_t *at_us, struct ek_buf *page, struct ek_fault *fault)
{
    char head[HEAD_MOST];
    uint64_t len = 0;
    long where = ftell(in);
    uint64_t offset = where < 0 ? 0 : (uint64_t)where;
    ek_buf_clear(page);
    if (!fgets(head, sizeof(head), in))
        return ferror(in) ? -EIO : 0;
    const char *p = head + 1;
    if (head[0] != '@' || !read_u64(&p, ' ', at_us) || !read_u64(&p, '\n', &len))
        return bad(fault, offset,
                   "no line '@<microseconds> <bytes>'; make recordings with --record");
    if (len > PROMTEXT_MOST)
        return bad(fault, offset, "the page is longer than 4 MiB");
    if (ek_buf_reserve(page, (size_t)len) < 0)
        return -ENOMEM;
    if (len && fread(page->data, 1, (size_t)len, in) != len)
        return ferror(in) ? -EIO : bad(fault, offset, "the page ends early");
    page->len = (size_t)len;
    return 1;
}

static int print_decision(const struct replay_setup *setup, struct decision *d, FILE *out,
                          struct ek_buf *line)
{
    ek_buf_clear(line);
    if (decision_json(d, setup->server ? setup->server : "replay", line) < 0)
        return -ENOMEM;
    return fprintf(out, "%s\n", line->data) < 0 ? -EIO : 0;
}

int replay_run(const struct replay_setup *setup, FILE *in, FILE *out, struct ek_fault *fault)
{
    struct policy *p = NULL;
    struct ek_buf page = {0}, line = {0};
    struct sample last = {0}; /* the last good one */
    uint64_t at_us = 0;
    int r = policy_new(&setup->params, &p);
    if (r < 0)
        goto out;
    if (setup->seqs || setup->tokens)
        policy_limits(p, setup->seqs, setup->tokens);
    for (bool first = true; (r = next_page(in, &at_us, &page, fault)) > 0; first = false) {
        struct sample s;
        if (page.len)
            sample_parse(setup->dialect, page.data, page.len, at_us, &s);
        else
            sample_missing(at_us, &s);
        sample_compare(&s, &last);
        if (first)
            policy_restart(p, at_us);
        struct decision d = policy_step(p, &s, at_us);
        if (d.act) {
            d.applied = true;
            policy_applied(p, &d, true);
        }
        if (d.kind != ACT_NONE) {
            r = print_decision(setup, &d, out, &line);
            if (r < 0)
                goto out;
        }
        if (s.good)
            last = s;
    }
out:
    ek_buf_done(&page);
    ek_buf_done(&line);
    policy_free(p);
    return r;
}

int replay_write(FILE *out, uint64_t at_us, const char *page, size_t len)
{
    if (!page)
        len = 0;
    if (fprintf(out, "@%" PRIu64 " %zu\n", at_us, len) < 0)
        return -EIO;
    return len && fwrite(page, 1, len, out) != len ? -EIO : 0;
}
