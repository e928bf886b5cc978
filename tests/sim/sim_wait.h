/*
 * How long the next one to be admitted waits, however large it is beside its tenant's part of the
 * blocks: sim_engine.c looks at it after each plan, in worlds where no step fails, no limit moves
 * and no mask is late.
 *
 * While it is not admitted no other one is, so those that run get fewer, and each of them gets on
 * by a row in each step in which nobody goes without. What gives way does not come back before it.
 * So it waits for no more such steps than the longest of those has rows to go that run when its
 * turn comes, and those in flight. In the others blocks are on their way or the budget is spent;
 * check_pace() bounds these.
 */
#pragma once

#include "tests/sim/sim_world.h"

/* Rows until the last token of the longest that runs. */
static inline uint32_t longest_rest(const struct sched *c)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < c->entries.running_count; i++) {
        const struct entry *e = entries_running(&c->entries, i);
        uint32_t rest = e->req->ask.prompt_tokens + e->req->ask.max_new_tokens - e->computed;
        most = rest > most ? rest : most;
    }
    return most;
}

/* Whether one that runs could have had a row in the newest step and has none. */
static inline bool goes_without(const struct sched *c)
{
    const struct flight *f = &c->flights.at[flights_newest(&c->flights)];
    uint32_t could = 0, have = 0;

    for (uint32_t i = 0; i < f->seqs; i++)
        have += c->entries.at[f->seq[i].entry].state == ENTRY_RUNNING;
    for (uint32_t i = 0; i < c->entries.running_count; i++) {
        const struct entry *e = entries_running(&c->entries, i);
        bool in = false;
        for (uint32_t k = 0; k < f->seqs && !in; k++)
            in = f->seq[k].entry == c->entries.running[i];
        could += in || sched_rows_wanted(e) > 0;
    }
    return have < could;
}

/* Whether it needs more blocks than its tenant's part beside those that have work. */
static inline bool is_large(const struct sim *s, const struct entry *e)
{
    const struct sched *c = s->sched;
    double weights = 0;

    for (uint32_t i = 0; i < s->tenants; i++) {
        bool runs = false;
        for (uint32_t k = 0; k < c->entries.running_count; k++)
            runs |= entries_running(&c->entries, k)->tenant == i;
        weights += runs || c->tenants.at[i].active > 0 ? 1.0 / s->price[i] : 0;
    }
    return slots_blocks_for(&c->slots, e->known) * weights * s->price[e->tenant] >
           c->blocks.usable - 1;
}

/* Before each plan: another one may have had its turn meanwhile, as who ran was served. */
static inline void look_at_head(struct sim *s)
{
    uint32_t head = sched_head(s->sched);

    if (head == SCHED_NONE || s->sched->entries.at[head].number != s->head.number)
        s->head.number = 0;
}

/* After each plan; `lease`: the next one when it began. */
static inline void check_head(struct sim *s, uint32_t rows, uint64_t lease)
{
    const struct sched *c = s->sched;
    uint32_t head = sched_head(c);
    const struct entry *e = head != SCHED_NONE ? &c->entries.at[head] : NULL;

    if (!s->quiet)
        return;
    if (!e || admission_is_full(c) || e->number != s->head.number) {
        s->head.number = e && !admission_is_full(c) ? e->number : 0;
        s->head.most = longest_rest(c);
        s->head.steps = 0;
        s->head.large = e && is_large(s, e);
        return;
    }
    if (c->slots.next_lease != lease)
        fail(s, "another one is admitted before the one whose turn it is");
    s->head.steps += rows > 0 && !goes_without(c);
    s->waited_large += s->head.large && s->head.steps == 2;
    if (s->head.steps > s->head.most + s->p.depth)
        fail(s, "the next one waits longer than the longest of those that run");
}
