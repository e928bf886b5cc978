/*
 * The law of share.c by cost, from what came of it, for worlds in which rows deep in a prompt are
 * dear: as check_share() of sim_checks.h has it by tokens, where each row costs one. Rows are
 * whole, and a chunk is never smaller than what reads a prompt well, so what is demanded is that
 * not one row more would have fit, or that there are no more than these few.
 */
#pragma once

#include "tests/sim/sim_checks.h"

/* The prompts of the newest step by what their rows cost. */
struct cost_shares {
    const struct flight *f;
    const struct flight_seq *leader, *first; /* in line; `first` goes on after the step, or NULL */
    uint32_t rows, most;                     /* of the step: tokens, and the cost */
    uint32_t left, places;                   /* tokens that nobody has, and those for prompts */
    uint32_t ending, half, others;
    uint32_t single, well; /* one row of each that goes on; the dearest chunk that reads one well */
    uint32_t grain;        /* the dearest row that one which goes on could have next */
    int64_t work, spare;   /* for prompts, and what is left of it */
    bool mixed;            /* as in token_shares */
};

static inline uint32_t cost_of(const struct sim *s, const struct flight_seq *q, uint32_t rows)
{
    uint32_t want = wanted(s, q);
    const struct req_ask *ask = &s->sched->entries.at[q->entry].req->ask;
    bool decode = want == 1 || (want <= SCHED_JUMP_FORWARD + 1 && q->first >= ask->prompt_tokens);

    return decode ? rows : price_of(&s->dear, q->first, rows);
}

/* Rows of it that are few for what a step may cost, but read it well. */
static inline uint32_t least_rows(const struct sim *s, const struct flight_seq *q, uint32_t rows)
{
    uint32_t least = price_least(&s->dear, q->first, rows);

    least = least < rows / 4 ? least : rows / 4;
    return least > 1 ? least : 1;
}

static inline void count_cost(const struct sim *s, const struct flight_seq *q, uint64_t lease,
                              struct cost_shares *h)
{
    bool ends = ends_here(s, q, lease);
    uint32_t cost = cost_of(s, q, q->rows), least = least_rows(s, q, h->rows);

    h->spare -= cost;
    h->ending += ends ? cost : 0;
    uint32_t well = cost_of(s, q, least < q->rows ? least : q->rows);
    h->well = well > h->well ? well : h->well;
    if (ends || wanted(s, q) == 1)
        return;
    h->single += cost_of(s, q, 1);
    uint32_t next = cost_of(s, q, q->rows + 1) - cost;
    h->grain = next > h->grain ? next : h->grain;
    if (reads(s, q))
        *(q == h->first ? &h->half : &h->others) += cost;
}

static inline struct cost_shares add_costs(struct sim *s, uint32_t rows, uint64_t lease)
{
    const struct sched *c = s->sched;
    uint32_t most = step_most(s);
    bool half = c->rates.prices.planned % PRICE_EXPLORE == PRICE_EXPLORE / 2;
    const struct token_shares t = add_shares(s, rows, lease);
    struct cost_shares h = {.f = &c->flights.at[flights_newest(&c->flights)],
                            .leader = t.leader,
                            .first = t.first,
                            .rows = most,
                            .left = t.left,
                            .places = t.places,
                            .mixed = t.mixed,
                            .most = half ? most - most / 2 : most};

    h.work = h.most > most - t.places ? h.most - (most - t.places) : 0;
    if (h.leader) {
        uint32_t well = cost_of(s, h.leader, least_rows(s, h.leader, most));
        well = price_least(&s->dear, h.leader->first, most) > 0 && most >= 4 ? well : 0;
        h.most = well > h.most ? well : h.most;
        h.work = 2 * (int64_t)well > h.work ? 2 * (int64_t)well : h.work;
    }
    h.spare = h.work + (most - t.places);
    for (uint32_t i = 0; i < h.f->seqs; i++)
        count_cost(s, &h.f->seq[i], lease, &h);
    return h;
}

/* What one row more of it costs. */
static inline uint32_t next_cost(const struct sim *s, const struct flight_seq *q)
{
    return cost_of(s, q, q->rows + 1) - cost_of(s, q, q->rows);
}

/* As check_length(). */
static inline uint32_t check_cost(struct sim *s, const struct cost_shares *h)
{
    const struct sched *c = s->sched;
    bool recent = c->share.beside_us != 0 && s->now_us < c->share.beside_us + 1000000u;
    uint32_t cap = (uint32_t)s->limits.value[LIMIT_LONG_PREFILL];
    uint32_t part = (cap != 0 && cap < h->most ? cap : h->most) / 4;
    uint32_t least = s->p.share_least != 0 ? s->p.share_least : SHARE_LEAST;
    uint32_t others = h->others, first, all;
    /* What was added so that the first in line has its half is for those before it. */
    bool longer = h->mixed || h->work > (int64_t)h->most - (h->rows - h->places);

    least = least > part ? least : part;
    all = h->ending > least ? h->ending : least;
    first = h->ending + others > least ? h->ending + others : least;
    if (h->ending == 0) {
        all = recent && h->most - h->most / 6 > least ? h->most - h->most / 6
              : recent                                ? least
                                                      : h->most;
        first = all - (others < all / 2 ? others : all / 2);
    }
    bool bound = h->ending > 0 || recent;
    for (uint32_t i = 0; i < h->f->seqs && !bound && !longer && h->left > 0; i++) {
        const struct flight_seq *q = &h->f->seq[i];
        if (reads(s, q) && q->rows < could_use(s, q) && next_cost(s, q) <= h->spare)
            fail(s, "a step has room by cost that a prompt could use");
    }
    if (h->mixed)
        return bound ? first : UINT32_MAX;
    uint32_t its = h->first ? all / 2 : all;
    its = its > h->single ? its : h->single;
    if (h->ending > 0 && h->ending < h->grain && its < h->most)
        its = h->most; /* it ends with what was left when the others had theirs */
    if (bound && !c->entries.priority_policy && !capped(s) && others > its + h->well)
        fail(s, "prompts that go on make a step dear in which others end");
    if (bound && h->first && h->half > first && h->first->rows > least_rows(s, h->first, h->rows))
        fail(s, "the first in line makes a step dear in which others end");
    return bound ? first : UINT32_MAX;
}

/* As check_lent(). */
static inline uint32_t check_lent_cost(struct sim *s, const struct cost_shares *h)
{
    uint32_t before = s->lent, now = s->sched->share.lent, most = h->ending + h->others;
    uint32_t more = h->first && h->half > most ? (h->half - most) / 2 : 0;

    if (now > before && !h->mixed && now > h->most / 2)
        fail(s, "the first in line lends more than the cost of half a step");
    if (now > before && h->ending == 0)
        fail(s, "the first in line lends to somebody who does not end");
    if (now < before && h->leader && !h->mixed && before - now > more)
        fail(s, "what the first in line has lent is forgotten");
    return now > before ? now - before + more : 0; /* some it has back at once */
}

/* Whether `o` goes short while `q`, which comes after it, has more rows than it has for sure. */
static inline void check_order(struct sim *s, const struct cost_shares *h,
                               const struct flight_seq *q, const struct flight_seq *o)
{
    uint32_t could = could_use(s, o), mine = cost_of(s, q, could_use(s, q));

    if (s->sched->entries.priority_policy || capped(s) || !reads(s, o) || o->rows >= could)
        return;
    if (q->rows <= least_rows(s, q, h->rows) ||
        cost_of(s, q, q->rows) - cost_of(s, q, 1) < next_cost(s, o))
        return;
    if (served_before(s, o) < served_before(s, q))
        fail(s, "a tenant's prompt is read before that of one that was served less");
    if (served_before(s, o) == served_before(s, q) && cost_of(s, o, could) < mine)
        fail(s, "a dearer prompt is read before a cheaper one");
}

/* Whether the first in line has its half, as far as the length of the step allows: what it lends
 * counts, and what it may have is whole rows. */
static inline bool has_half(const struct sim *s, const struct cost_shares *h, uint32_t lent,
                            uint32_t most)
{
    uint32_t could = could_use(s, h->first), room = (h->places + 1) / 2;
    uint32_t half = (uint32_t)(h->work - h->work / 2), rows = could < room ? could : room;

    rows = price_rows(&s->dear, h->first->first, half, rows);
    if (h->left == 0 && h->ending > 0 && h->half >= h->ending + h->others)
        return true; /* it lent tokens, and has more of the cost than all others all the same */
    return h->half + lent >= cost_of(s, h->first, rows) ||
           cost_of(s, h->first, h->first->rows + 1) > most;
}

static inline void check_share_cost(struct sim *s, uint32_t rows, uint64_t lease)
{
    const struct cost_shares h = add_costs(s, rows, lease);
    uint32_t most = check_cost(s, &h), lent = check_lent_cost(s, &h);

    if (!h.mixed && h.spare < 0 && -h.spare > (int64_t)h.single + h.well)
        fail(s, "a step costs more than it may");
    for (uint32_t i = 0; i < h.f->seqs; i++) {
        const struct flight_seq *q = &h.f->seq[i];
        if (q == h.leader || !reads(s, q) || q->rows < 2)
            continue;
        if (h.first && !h.mixed && !has_half(s, &h, lent, most))
            fail(s, "the first prompt in line has not its part of the step's cost");
        bool borrows = lent > 0 && ends_here(s, q, lease); /* of the first one's own */
        for (uint32_t k = 0; k < h.f->seqs && !borrows; k++)
            check_order(s, &h, q, &h.f->seq[k]);
    }
}
