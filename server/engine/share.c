/*
 * How the prompts that are being read share a step.
 *
 * First come, first served lets one long prompt take every step until it is read, and whoever comes
 * behind it waits, be its own prompt ever so short. The mean wait is least when whoever has least
 * left goes first (Schrage, "A proof of the optimality of the shortest remaining processing time
 * discipline", 1968), but then a long one starves under a stream of short ones. Here both hold at
 * once. Of the rows that the decodes leave over:
 *
 *   - the first in line (oldest; by priority: most important) of those who still read gets half,
 *   - each other one gets one row, so that it is in the step,
 *   - the rest goes to whoever has least left to read, the first in line among them.
 *
 * So a short prompt is read in the step that finds it, or as soon as those shorter than it leave
 * room. And nobody is starved: until a prompt is read, whoever is first in line is it or came
 * before it, and gets half of all steps. So it is read within twice the steps that first come,
 * first served would take for it and all before it, whatever comes later. Nothing is left idle for
 * that: every row goes to somebody as long as anybody can use it.
 *
 * Whoever waits is admitted in its order as long as the law has rows for it in this step. It may
 * have none, and another one behind it in the queue would; so up to SHARE_OPEN prompts are read at
 * a time even so. More would hold blocks for long without using them, which others need to grow.
 *
 * A request that comes back after a preemption has its prompt and answer to read, one that is
 * scored has rows with scores, of which a step takes few, and one for an embedding is a prompt
 * without an answer: all are prompts here. Half of the scores are the first one's as well.
 *
 * long_prefill_token_threshold caps what one prompt gets of a step, as in vLLM: steps are shorter
 * beside a long prompt then, at the price of its speed.
 *
 * Which rows a token is computed beside changes no bit of it, so the law is free.
 */
#include "server/engine/sched.h"

#define SHARE_OPEN 4u /* prompts that are read at a time though the step is too small for them */

/* Tokens that it has yet to read; at most that while it waits. */
static uint32_t unread(const struct entry *e)
{
    uint32_t want = sched_rows_wanted(e);
    bool saved = e->state == ENTRY_WAITING && e->swapped.table != HOST_NONE;

    return saved && e->swapped.tokens < want ? want - e->swapped.tokens : want;
}

/* What one step may read of it. */
static uint32_t chunk(const struct sched *s, const struct entry *e)
{
    uint64_t most = s->value[LIMIT_LONG_PREFILL];
    uint32_t want = sched_rows_wanted(e);

    return most != 0 && most < want ? (uint32_t)most : want;
}

/* Whether `a` is to be done before `b`. */
static bool goes_before(const struct sched *s, uint32_t a, uint32_t b)
{
    const struct entry *x = &s->entries[a], *y = &s->entries[b];
    uint32_t left = unread(x), right = unread(y);

    if (s->priority_policy && x->req->ask.priority != y->req->ask.priority)
        return x->req->ask.priority < y->req->ask.priority;
    return left != right ? left < right : x->number < y->number;
}

/* Whether it is in the step and could use more rows. */
static bool still_reads(const struct sched *s, const struct entry *e)
{
    return e->rows > 0 && chunk(s, e) > e->rows;
}

static void note_reader(const struct sched *s, struct plan *p, const struct entry *e)
{
    if (!still_reads(s, e))
        return;
    p->reading++;
    p->unread += chunk(s, e) - e->rows;
}

void sched_share_first(struct sched *s, struct plan *p)
{
    bool first = true;

    for (uint32_t i = 0; i < s->running_count && p->budget > 0; i++) {
        const struct entry *e = &s->entries[s->running[i]];
        uint32_t want = sched_rows_wanted(e), most = chunk(s, e);
        if (want == 0 || sched_is_decode(e, want))
            continue;
        uint32_t half = first ? p->budget - p->budget / 2 : 1, kept = first ? p->scores / 2 : 0;
        p->scores -= kept;
        sched_plan_rows(s, p, s->running[i], most < half ? most : half);
        p->scores += kept;
        first = false;
    }
    p->reading = 0;
    p->unread = 0;
    for (uint32_t i = 0; i < s->running_count; i++)
        note_reader(s, p, &s->entries[s->running[i]]);
}

bool sched_share_has_turn(const struct sched *s, const struct plan *p, uint32_t entry)
{
    uint64_t before = 0;

    if (p->budget == 0)
        return false;
    if (p->unread < p->budget || p->reading < SHARE_OPEN)
        return true;
    for (uint32_t i = 0; i < s->running_count; i++) {
        const struct entry *e = &s->entries[s->running[i]];
        if (still_reads(s, e) && goes_before(s, s->running[i], entry))
            before += chunk(s, e) - e->rows;
    }
    return before < p->budget;
}

void sched_share_admitted(struct sched *s, struct plan *p, struct entry *e)
{
    e->rows = 1;
    sched_charge(p, e, true);
    note_reader(s, p, e);
}

/* As many rows as it can use, are left and can be sent; its blocks are there. */
static void raise_rows(struct sched *s, struct plan *p, uint32_t entry)
{
    struct entry *e = &s->entries[entry];
    const struct seat *t = &s->seats[e->seat];
    uint32_t before = e->rows, most = chunk(s, e);

    (void)sched_grow(s, e->seat, e->computed + most, p->now_us); /* or it reads less */
    uint32_t room = t->blocks * s->block_size - e->computed;
    sched_refund(p, e, t->set_due);
    most = most < room ? most : room;
    most = most < p->budget ? most : p->budget;
    most = sched_rows_that_fit(p, e, most, t->set_due);
    e->rows = most > before ? most : before;
    sched_charge(p, e, t->set_due);
}

void sched_share_rest(struct sched *s, struct plan *p)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < s->running_count && p->budget > 0; i++) {
        uint32_t entry = s->running[i], at = count;
        if (!still_reads(s, &s->entries[entry]))
            continue;
        for (count++; at > 0 && goes_before(s, entry, s->readers[at - 1]); at--)
            s->readers[at] = s->readers[at - 1];
        s->readers[at] = entry;
    }
    for (uint32_t i = 0; i < count && p->budget > 0; i++)
        raise_rows(s, p, s->readers[i]);
}
