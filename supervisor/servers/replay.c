/*
 * Recordings and their replay, see replay.h. Pages are read one at a time into one buffer.
 */
#include "supervisor/servers/replay.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/promtext.h"
#include "supervisor/config/options_table.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/servers/record.h"

#define HEAD_MOST 64 /* bytes of "@at bytes\n" */
#define LINE_MOST 65536

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

static int replay_bad(struct ek_fault *fault, uint64_t offset, const char *what)
{
    (void)ek_fault_set(fault, "replay", "Byte %" PRIu64 ": %s.", offset, what);
    if (fault)
        fault->at = offset;
    return -EBADMSG;
}

/* The pages and head lines of one recording, and the policy that steps over them. */
struct replay {
    const struct replay_setup *setup;
    struct ek_fault *fault;
    FILE *in;
    uint64_t offset; /* bytes read; a pipe has no position of its own */
    struct policy *policy;
    const struct dialect *dialect;
    struct server_config recorded; /* what the last head line said */
    struct sample last;            /* the last good one */
    struct ek_buf page, line;
    struct decision change; /* by the last page; whether it was written is known by the next */
    bool begun, due;
};

enum { ITEM_END, ITEM_PAGE, ITEM_HEAD };

static int read_bytes(struct replay *r, size_t len)
{
    if (ek_buf_reserve(&r->page, len) < 0)
        return -ENOMEM;
    if (len && fread(r->page.data, 1, len, r->in) != len)
        return ferror(r->in) ? -EIO : replay_bad(r->fault, r->offset, "the page ends early");
    r->page.len = len;
    r->offset += len;
    return ITEM_PAGE;
}

/* The rest of a head line; the first bytes are in `begin`. */
static int read_head(struct replay *r, const char *begin)
{
    size_t len = strlen(begin);
    int c = len && begin[len - 1] == '\n' ? '\n' : 0;
    (void)ek_buf_puts(&r->page, begin); /* tested at the end */
    while (c != '\n') {
        if ((c = getc(r->in)) == EOF)
            return replay_bad(r->fault, r->offset, "the line ends early");
        char one = (char)c;
        (void)ek_buf_add(&r->page, &one, 1);
        if (r->page.len > LINE_MOST)
            return replay_bad(r->fault, r->offset, "the line is longer than 64 KiB");
    }
    r->offset += r->page.len;
    return ek_buf_ok(&r->page) ? ITEM_HEAD : -ENOMEM;
}

/* Reads a head line, or one poll with its page. Returns what it was, or a negative code. */
static int next_item(struct replay *r, uint64_t *at_us)
{
    char head[HEAD_MOST];
    uint64_t len = 0;
    ek_buf_clear(&r->page);
    if (!fgets(head, sizeof(head), r->in))
        return ferror(r->in) ? -EIO : ITEM_END;
    if (head[0] == '#')
        return read_head(r, head);
    const char *p = head + 1;
    if (head[0] != '@' || !read_u64(&p, ' ', at_us) || !read_u64(&p, '\n', &len))
        return replay_bad(r->fault, r->offset,
                          "no line '@<microseconds> <bytes>'; make recordings with --record");
    if (len > PROMTEXT_MOST)
        return replay_bad(r->fault, r->offset, "the page is longer than 4 MiB");
    r->offset += strlen(head);
    return read_bytes(r, (size_t)len);
}

static void fill_bounds(struct policy_params *p, const struct policy_params *from)
{
    p->seqs_min = p->seqs_min ? p->seqs_min : from->seqs_min;
    p->seqs_max = p->seqs_max ? p->seqs_max : from->seqs_max;
    p->tokens_min = p->tokens_min ? p->tokens_min : from->tokens_min;
    p->tokens_max = p->tokens_max ? p->tokens_max : from->tokens_max;
    if (p->seqs_min > p->seqs_max)
        p->seqs_min = p->seqs_max;
    if (p->tokens_min > p->tokens_max)
        p->tokens_min = p->tokens_max;
}

static int set_params(struct replay *r, const struct policy_params *recorded)
{
    struct policy_params p = r->setup->fixed ? r->setup->params : *recorded, defaults;
    policy_defaults(&defaults);
    fill_bounds(&p, recorded);
    p.queue_start_s = recorded->queue_start_s;
    p.reserve_start = recorded->reserve_start;
    p.queue_outside = recorded->queue_outside;
    fill_bounds(&p, &defaults);
    int result = r->policy ? policy_set(r->policy, &p) : policy_new(&p, &r->policy);
    return result == -EINVAL
               ? replay_bad(r->fault, r->offset, "constants that contradict each other")
               : result;
}

/* The change that the page before led to was written, or was not. */
static void replay_settle(struct replay *r, bool ok)
{
    if (r->due)
        policy_applied(r->policy, &r->change, ok);
    r->due = false;
}

static int take_head(struct replay *r)
{
    struct record_head head;
    char what[200];
    int result = record_head_parse(r->page.data + 1, r->page.len - 1, &r->recorded, &head, what,
                                   sizeof(what));
    if (result == -EBADMSG)
        return replay_bad(r->fault, r->offset, what);
    if (result < 0)
        return result;
    const struct dialect *d = dialect_find(head.engine);
    if (!d)
        return replay_bad(r->fault, r->offset, "an engine that this evenkeeld does not know");
    r->dialect = d;
    replay_settle(r, !head.write_failed);
    if (head.fresh) {
        policy_free(r->policy);
        r->policy = NULL;
        r->last = (struct sample){0};
    }
    result = set_params(r, &head.params);
    if (result < 0)
        return result;
    if (head.limit[KNOB_SEQS] || head.limit[KNOB_TOKENS])
        policy_limits(r->policy, head.limit[KNOB_SEQS], head.limit[KNOB_TOKENS]);
    for (int k = 0; k < KNOB_COUNT; k++)
        policy_pin(r->policy, (enum knob)k, head.pinned[k]);
    if (head.ready_us) {
        policy_restart(r->policy, head.ready_us);
        r->last = (struct sample){0}; /* as scrape_start() does */
    }
    return 0;
}

/* The first page decides by which constants, if no head line came before it. */
static int replay_begin(struct replay *r, uint64_t at_us)
{
    bool headless = !r->policy;
    int result = headless ? set_params(r, &r->setup->params) : 0;
    if (result < 0)
        return result;
    if (r->setup->seqs || r->setup->tokens)
        policy_limits(r->policy, r->setup->seqs, r->setup->tokens);
    if (headless)
        policy_restart(r->policy, at_us);
    r->begun = true;
    return 0;
}

static int print_decision(struct replay *r, struct decision *d, FILE *out)
{
    const char *name = r->setup->server   ? r->setup->server
                       : r->recorded.name ? r->recorded.name
                                          : "replay";
    ek_buf_clear(&r->line);
    if (decision_json(d, name, &r->line) < 0)
        return -ENOMEM;
    return fprintf(out, "%s\n", r->line.data) < 0 ? -EIO : 0;
}

static int take_page(struct replay *r, uint64_t at_us, FILE *out)
{
    struct sample s;
    int result = r->begun ? 0 : replay_begin(r, at_us);
    if (result < 0)
        return result;
    if (r->page.len)
        sample_parse(r->dialect, r->page.data, r->page.len, at_us, &s);
    else
        sample_missing(at_us, &s);
    sample_compare(&s, &r->last);
    replay_settle(r, true);
    struct decision d = policy_step(r->policy, &s, at_us);
    if (d.act) {
        d.applied = true;
        r->change = d;
        r->due = true;
    }
    if (s.good)
        r->last = s;
    return d.kind == ACT_NONE ? 0 : print_decision(r, &d, out);
}

int replay_run(const struct replay_setup *setup, FILE *in, FILE *out, struct ek_fault *fault)
{
    struct replay r = {.setup = setup, .fault = fault, .in = in, .dialect = setup->dialect};
    uint64_t at_us = 0;
    int result = config_server_defaults(&r.recorded);
    while (result >= 0 && (result = next_item(&r, &at_us)) > ITEM_END)
        result = result == ITEM_HEAD ? take_head(&r) : take_page(&r, at_us, out);
    ek_buf_done(&r.page);
    ek_buf_done(&r.line);
    policy_free(r.policy);
    server_config_done(&r.recorded);
    return result;
}
