/*
 * How the prompts that are being read share a step.
 *
 * First come, first served lets one long prompt take every step until it is read, and the
 * next one waits, however short it is. The mean wait is least when the prompt with the least left
 * goes first (Schrage, "A proof of the optimality of the shortest remaining processing time
 * discipline", 1968), but then a long one starves under a stream of short ones. Here both hold at
 * once. Of the rows that the decodes leave over:
 *
 *   - the first in line (oldest; by priority: most important) of those that still read gets half,
 *   - each other one gets one row, so that it is in the step,
 *   - the rest goes to the one with the least left to read, the first in line among them.
 *
 * So a short prompt is read in the step that finds it, or as soon as those shorter than it leave
 * room. Where a few rows are lacking to end one in this step, the first in line lends them of its
 * half, for else the short one waits for another whole step. It gets them back in steps in which it
 * has more than its half, and is never more than half a step behind. So none is starved: until a
 * prompt is read, the first in line is this one or one that came before it, and gets half of what
 * is read, less half a step. So it is read in twice the time that first come, first served would
 * take for it and all before it, and a step, whatever comes later.
 *
 * A prompt that ends in a step has its first token when the whole step is computed, so such a step
 * is kept short: prompts that go on get less of it, and the rest of the budget stays empty. With E
 * rows of prompts that end in it, the first in line has as many as all others together, and what
 * else goes on has half of E; or both share a quarter of the budget (or of what one prompt may have
 * of a step), if that is more. The first in line still has half of what is read. For a second after
 * such a step those without a prompt that ends are shorter by a sixth: what comes in one waits for
 * its end. And what comes should not wait for two, see sched_plan_after(). Steps without such
 * prompts leave no row empty that a prompt can use.
 *
 * Rows deep in a prompt take longer than those at its beginning (price.h), up to a multiple. So all
 * of the above is counted by cost, as far as it is known: half of the step is half of its time, the
 * prompt with the least left is the one that takes the least, and a step of a long prompt alone is
 * no longer than one of short ones. The budget of tokens stays the most that a step has. A chunk is
 * never so small for its cost that the prompt is read noticeably slower, up to a quarter of the
 * tokens: where that is more than half of the step's cost, the step may cost twice as much, and the
 * first in line still has half.
 *
 * A waiting request is admitted in its order as long as the law has rows for it in this step. It
 * may have none, and another one behind it in the queue would; so up to SHARE_OPEN prompts are read
 * at a time even so. More would hold blocks for long without using them, which others need to grow.
 *
 * A request that comes back after a preemption has its prompt and answer to read, one that is
 * scored has rows with scores, of which a step takes few, and one for an embedding is a prompt
 * without an answer: all are prompts here. Half of the scores are the first one's as well.
 *
 * All of that among the prompts of one tenant. Between several (tenants.h) the tenant that has
 * been served least goes first: the half is for the first in line of that tenant, and the rest for
 * its other prompts, then for those of the next one. As what is served counts, the next step is
 * another tenant's; so each one's prompts are read as if it had its part of the machine for itself,
 * and the bound above holds for that part.
 *
 * long_prefill_token_threshold caps what one prompt gets of a step, as in vLLM: steps are shorter
 * beside a long prompt then, at the price of its speed.
 *
 * Which rows a token is computed beside changes no bit of it, so the law is free.
 */
#include "server/engine/sched.h"

#define SHARE_BESIDE    4u /* this part of the budget goes on beside prompts that end, at least */
#define SHARE_WELL      4u /* of the rows of a step, most that a prompt has in spite of its cost */
#define SHARE_RECENT    6u /* steps are shorter by this part while prompts end beside others */
#define SHARE_RECENT_US 1000000u /* for so long after the last one */

/* Tokens that it has yet to read; at most that while it waits. */
static uint32_t unread(const struct entry *e)
{
    uint32_t want = sched_rows_wanted(e);
    bool saved = e->state == ENTRY_WAITING && e->swapped.table != HOST_NONE;

    return saved && e->swapped.tokens < want ? want - e->swapped.tokens : want;
}

/* What reading that costs. */
static uint32_t cost_of_unread(const struct plan *p, const struct entry *e)
{
    uint32_t left = unread(e);

    return price_of(&p->price, e->computed + sched_rows_wanted(e) - left, left);
}

/* Cost that is left in the step. */
static uint32_t work_left(const struct plan *p)
{
    return p->work > 0 ? (uint32_t)p->work : 0;
}

/* The fewest that read it well; others need room beside it. */
static uint32_t rows_least(const struct plan *p, const struct entry *e)
{
    uint32_t least = price_least(&p->price, e->computed, p->rows), most = p->rows / SHARE_WELL;

    return least < most ? least : most;
}

/* Rows of a prompt that goes on, of at most that cost, or as many as it takes to read it well. */
static uint32_t rows_within(const struct plan *p, const struct entry *e, uint32_t cost,
                            uint32_t rows)
{
    uint32_t within = price_rows(&p->price, e->computed, cost, rows);
    uint32_t most = cost < rows ? cost : rows, least = rows_least(p, e);

    least = least < most ? least : most;
    return within > least ? within : least;
}

/* What one step may read of it. */
static uint32_t chunk(const struct sched *s, const struct entry *e)
{
    uint64_t most = s->value[LIMIT_LONG_PREFILL];
    uint32_t want = sched_rows_wanted(e);

    want = most != 0 && most < want ? (uint32_t)most : want;
    return s->states.on ? snapshot_cut(s, e, want) : want;
}

/* Below 0: the first one's tenant has a turn before the other's, by priority or by what they have
 * been served; above 0: after it. */
static int compare_turns(const struct sched *s, const struct entry *x, const struct entry *y)
{
    uint64_t left = s->tenants.at[x->tenant].served, right = s->tenants.at[y->tenant].served;

    if (entries_ranked(&s->entries, x, y))
        return x->req->ask.priority < y->req->ask.priority ? -1 : 1;
    return left < right ? -1 : left > right;
}

/* Whether `a` is to be done before `b`. */
static bool goes_before(const struct sched *s, const struct plan *p, uint32_t a, uint32_t b)
{
    const struct entry *x = &s->entries.at[a], *y = &s->entries.at[b];
    uint32_t left = cost_of_unread(p, x), right = cost_of_unread(p, y);
    int turns = compare_turns(s, x, y);

    if (turns != 0)
        return turns < 0;
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
    p->unread += sched_cost(p, e, chunk(s, e)) - sched_cost(p, e, e->rows);
}

/* Whether it has prompt to read and nothing of it is planned yet. */
static bool is_reader(const struct entry *e)
{
    uint32_t want = sched_rows_wanted(e);

    return e->rows == 0 && want > 0 && !sched_is_decode(e, want);
}

/* Half of what is left, of the cost and of scores, for the first in line of whose turn it is. */
static void plan_half(struct sched *s, struct plan *p)
{
    uint32_t first = SCHED_NONE, kept = p->scores / 2;

    for (uint32_t i = 0; i < s->entries.running_count; i++) {
        const struct entry *e = entries_running(&s->entries, i);
        if (is_reader(e) && (first == SCHED_NONE || compare_turns(s, e, &s->entries.at[first]) < 0))
            first = s->entries.running[i];
    }
    p->first = first;
    if (first == SCHED_NONE || p->budget == 0)
        return;
    const struct entry *e = &s->entries.at[first];
    uint32_t well = sched_cost(p, e, rows_least(p, e));
    p->most = well > p->most ? well : p->most;
    p->work = 2 * (int64_t)well > p->work ? 2 * (int64_t)well : p->work;
    uint32_t half = work_left(p) - work_left(p) / 2;
    uint32_t most = chunk(s, e), room = p->budget - p->budget / 2;
    uint32_t rows = price_rows(&p->price, e->computed, half, most < room ? most : room);
    p->scores -= kept;
    sched_plan_rows(s, p, first, rows > 0 ? rows : 1);
    p->scores += kept;
}

void sched_share_first(struct sched *s, struct plan *p)
{
    p->at = SCHED_NONE;
    plan_half(s, p);
    for (p->at = 0; p->at < s->entries.running_count && p->budget > 0; p->at++)
        if (is_reader(entries_running(&s->entries, p->at)))
            sched_plan_rows(s, p, s->entries.running[p->at], 1);
    p->at = SCHED_NONE;
    p->reading = 0;
    p->unread = 0;
    for (uint32_t i = 0; i < s->entries.running_count; i++)
        note_reader(s, p, entries_running(&s->entries, i));
}

bool sched_share_has_turn(const struct sched *s, const struct plan *p, uint32_t entry)
{
    uint64_t before = 0;

    if (p->budget == 0)
        return false;
    if (p->unread < work_left(p) || p->reading < SHARE_OPEN)
        return true;
    for (uint32_t i = 0; i < s->entries.running_count; i++) {
        const struct entry *e = entries_running(&s->entries, i);
        if (still_reads(s, e) && goes_before(s, p, s->entries.running[i], entry))
            before += sched_cost(p, e, chunk(s, e)) - sched_cost(p, e, e->rows);
    }
    return before == 0 || before < work_left(p);
}

void sched_share_admitted(struct sched *s, struct plan *p, struct entry *e)
{
    e->rows = 1;
    sched_charge(p, e, true);
    note_reader(s, p, e);
}

/* As many rows as it can use, are left and can be sent, up to `most`; its blocks are there. */
static void raise_rows(struct sched *s, struct plan *p, uint32_t entry, uint32_t most)
{
    struct entry *e = &s->entries.at[entry];
    const struct slot *t = &s->slots.at[e->slot];
    uint32_t before = e->rows;

    (void)slots_grow(&s->slots, &s->blocks, e->slot, e->computed + most,
                     p->now_us); /* or it reads less */
    uint32_t room = t->blocks * s->fixed.block_size - e->computed;
    sched_refund(p, e, t->set_due);
    most = most < room ? most : room;
    most = most < p->budget ? most : p->budget;
    most = sched_rows_that_fit(p, e, most, t->set_due);
    e->rows = most > before ? most : before;
    sched_charge(p, e, t->set_due);
}

/* Adds what the step has of an entry to the sums; a decode that has its rows is in none. */
static void add_rows(struct plan *p, const struct entries *live, uint32_t entry)
{
    const struct entry *e = &live->at[entry];
    uint32_t want = sched_rows_wanted(e);
    bool unanswered = e->known + e->pending == e->req->ask.prompt_tokens;

    if (e->rows < want)
        *(entry == p->first ? &p->half : &p->others) += sched_cost(p, e, e->rows);
    else if (unanswered || !sched_is_decode(e, want))
        p->ending += sched_cost(p, e, e->rows);
}

/* What prompts that go on may cost in the step: the first in line, and the others together. */
static void bound_rows(const struct plan *p, uint32_t *ret_first, uint32_t *ret_others)
{
    uint32_t all = p->ending > p->beside ? p->ending : p->beside, first = p->ending + p->others;

    first = first > p->beside ? first : p->beside;
    if (p->ending == 0) {
        all = p->most - (p->recent ? p->most / SHARE_RECENT : 0);
        all = all > p->beside ? all : p->beside;
        first = all - (p->others < all / 2 ? p->others : all / 2);
    }
    *ret_first = first;
    uint32_t lead = p->half < p->beside ? p->half : p->beside;
    lead = p->ending == 0 && lead > all - all / 2 ? lead : all - all / 2;
    *ret_others = p->half > 0 ? all - lead : all;
    if (p->ending == 0 && !p->recent) {
        *ret_others = UINT32_MAX;
        *ret_first = p->most;
    }
}

static void set_rows(const struct slots *slots, struct plan *p, struct entry *e, uint32_t rows)
{
    bool set_due = slots->at[e->slot].set_due;

    sched_refund(p, e, set_due);
    e->rows = rows;
    sched_charge(p, e, set_due);
}

/* The first in line has so many rows, one at least. */
static void set_half(const struct sched *s, struct plan *p, struct entry *first, uint32_t rows)
{
    set_rows(&s->slots, p, first, rows > 0 ? rows : 1);
    p->half = sched_cost(p, first, first->rows);
}

/* What the first in line keeps when one lacks so much of the step to end in it; 0 = it lends not.
 */
static uint32_t rows_kept(const struct plan *p, const struct entry *first, int64_t cost,
                          uint32_t rows)
{
    cost = cost > 0 ? cost : 0;
    if (cost >= p->half || rows >= first->rows)
        return 0;
    return price_rows(&p->price, first->computed, p->half - (uint32_t)cost, first->rows - rows);
}

/* Rows of the first in line's half for one that goes before it and ends in the step with them. It
 * may lack cost, or tokens where those of the first in line cost more than its half. */
static void borrow(struct sched *s, struct plan *p, uint32_t entry)
{
    struct entry *e = &s->entries.at[entry];
    struct entry *first = p->first != SCHED_NONE ? &s->entries.at[p->first] : NULL;
    uint32_t whole = sched_rows_wanted(e), more = whole - e->rows, had = p->half;
    int64_t cost = (int64_t)sched_cost(p, e, whole) - sched_cost(p, e, e->rows);

    if (entry == p->first || p->half == 0 || (cost <= p->work && more <= p->budget) ||
        chunk(s, e) < whole || sched_wants_scores(e) || !goes_before(s, p, entry, p->first))
        return;
    uint32_t kept = rows_kept(p, first, cost - p->work, more > p->budget ? more - p->budget : 0);
    uint32_t lent = had - sched_cost(p, first, kept);
    if (kept == 0 || s->share.lent + lent > p->most / 2 ||
        slots_grow(&s->slots, &s->blocks, e->slot, e->computed + whole, p->now_us) != 0)
        return;
    s->share.lent += lent;
    set_half(s, p, first, kept);
}

/* What the first in line has above its half of what the step reads, it has back. */
static void pay_back(const struct plan *p, uint32_t *lent)
{
    uint32_t others = p->others + p->ending, more = p->half > others ? (p->half - others) / 2 : 0;

    *lent -= more < *lent ? more : *lent;
    if (p->first == SCHED_NONE)
        *lent = 0;
}

/* Rows of a prompt that goes on when so much more may be spent on it. Where that is nothing it gets
 * none to be read well either: else each prompt would make the step longer. */
static uint32_t rows_with(const struct plan *p, const struct entry *e, uint32_t more, uint32_t rows)
{
    return more > 0 ? rows_within(p, e, sched_cost(p, e, e->rows) + more, rows) : e->rows;
}

/* Raises one that still reads. False when the step is as long as it may be: what comes after it in
 * the order gets no more either. */
static bool share_with(struct sched *s, struct plan *p, uint32_t entry)
{
    struct entry *e = &s->entries.at[entry];
    uint32_t *sum = entry == p->first ? &p->half : &p->others;
    uint32_t before = e->rows, whole = sched_rows_wanted(e), want = chunk(s, e), first, others;
    uint32_t had = sched_cost(p, e, before), lack = sched_cost(p, e, want) - had;

    borrow(s, p, entry);
    bound_rows(p, &first, &others);
    uint32_t most = entry == p->first ? first : others;
    uint32_t room = most > *sum ? most - *sum : 0, left = work_left(p);
    bool goes_on = want < whole || lack > left || want - before > p->budget;
    uint32_t rows = rows_with(p, e, room < left ? room : left, want);
    uint32_t bound = rows_with(p, e, room, want);
    raise_rows(s, p, entry, goes_on ? rows : want);
    p->cut |= goes_on && e->rows < want && room >= left;
    *sum -= had;
    if (e->rows == whole) {
        p->ending += sched_cost(p, e, whole);
        return true;
    }
    bound = bound > before ? bound : before;
    if (e->rows > bound) /* it was to end, but there are no blocks for that */
        set_rows(&s->slots, p, e, bound);
    *sum += sched_cost(p, e, e->rows);
    return room >= left || room >= lack;
}

/* The first in line has no more than that cost; it goes on. */
static void cut_first(struct sched *s, struct plan *p, uint32_t cost)
{
    struct entry *e = &s->entries.at[p->first];

    set_half(s, p, e, rows_within(p, e, cost, e->rows));
}

void sched_share_rest(struct sched *s, struct plan *p)
{
    uint64_t cap = s->value[LIMIT_LONG_PREFILL];
    uint32_t most = cap != 0 && cap < p->most ? (uint32_t)cap : p->most;
    uint32_t count = 0, part = most / SHARE_BESIDE, first, others;

    p->beside = part > s->fixed.share_least ? part : s->fixed.share_least;
    p->recent = s->share.beside_us != 0 && p->now_us < s->share.beside_us + SHARE_RECENT_US;
    for (uint32_t i = 0; i < s->entries.running_count; i++) {
        uint32_t entry = s->entries.running[i], at = count;
        add_rows(p, &s->entries, entry);
        if (p->budget == 0 || !still_reads(s, &s->entries.at[entry]))
            continue;
        for (count++; at > 0 && goes_before(s, p, entry, s->share.readers[at - 1]); at--)
            s->share.readers[at] = s->share.readers[at - 1];
        s->share.readers[at] = entry;
    }
    for (uint32_t i = 0; i < count && p->budget > 0; i++)
        if (!share_with(s, p, s->share.readers[i]))
            break;
    /* The first in line was given its half before it was known what ends in the step. */
    bound_rows(p, &first, &others);
    if (p->half > first)
        cut_first(s, p, first);
    pay_back(p, &s->share.lent);
    if (p->ending > 0 && p->half + p->others > 0)
        s->share.beside_us = p->now_us;
}
