/*
 * Places among the running and blocks are shared by weight between tenants (tenants.h): an answer
 * goes on for as long as it likes, so a tenant that has all of them could keep another one out for
 * minutes. As soon as the first in line has waited a moment for a slot, or for blocks, running
 * requests of a tenant that has more of these for its weight give way: those that came last, one
 * for a slot, as many as it takes for blocks, and none where all that may would not be enough. The
 * tenant has as many afterwards, at least, as the other will have, so none of it goes back and
 * forth. A request that needs more blocks than its tenant's part waits for answers to end.
 *
 * What gives way for blocks is not a lack of memory: by itself it would have gone on. A
 * request that finds the pool full would be admitted only where all have room to grow (foresee.c);
 * for that, too, one gives way, and no further one before a moment has passed, since how much room
 * is gained is only an expectation.
 *
 * plan.c asks at the head of each plan. No allocation: the list of those that give way is in
 * `share.readers`, which is of use later in a plan.
 */
#include "server/engine/sched.h"

/* Most slots are free again sooner, and what gives one up is read once more. */
#define SLOT_WAIT_US 200000u
#define SLOT_PART    16u /* of what was read again: it makes that before it gives up one more */

/* Whether an entry has waited long, and would get a slot. */
static bool has_waited(const struct sched *s, const struct entry *e, uint64_t now_us)
{
    uint64_t since = e->waits_us != 0 ? e->waits_us : e->req->queued_us;

    return (e->admitted || !admission_is_full(s)) && now_us >= since + SLOT_WAIT_US;
}

/* What a preemption took of it had to be read again, and it has made few tokens since: short
 * requests, one after the other, would have the same one read without an end. */
static bool is_back_of_late(const struct entry *e)
{
    return (uint64_t)(e->known - e->lost) * SLOT_PART < e->reread;
}

/* Whether a running entry may give way to that one, but for what its tenant has. */
static bool may_give_way(const struct sched *s, const struct entry *e, const struct entry *head)
{
    const struct tenants *t = &s->tenants;

    if (entries_ranked(&s->entries, e, head) && e->req->ask.priority < head->req->ask.priority)
        return false;
    return tenants_standing(t, e->tenant) > tenants_standing(t, head->tenant) &&
           !is_back_of_late(e);
}

void sched_count_held(struct sched *s, bool blocks)
{
    struct tenants *t = &s->tenants;

    for (uint32_t i = 0; i < t->count; i++)
        t->at[i].held = 0;
    for (uint32_t i = 0; i < s->entries.running_count; i++) {
        const struct entry *e = entries_running(&s->entries, i);
        t->at[e->tenant].held += blocks ? s->slots.at[e->slot].own : 1;
    }
}

/* The entry that gives its slot to that one, by its place among the running: the last one of the
 * tenant that has most of them for its weight, when that has more than the entry's would have with
 * it. SCHED_NONE: it has its part, or all others come before it by priority. */
static uint32_t choose_yielding(struct sched *s, const struct entry *head)
{
    struct tenants *t = &s->tenants;
    uint32_t yielding = SCHED_NONE;
    uint64_t most = 0;

    sched_count_held(s, false);
    uint64_t mine = t->at[head->tenant].held; /* one is its part, however small its weight */
    uint64_t with = mine == 0 ? 0 : (mine + 1) * t->at[head->tenant].price;
    for (uint32_t i = s->entries.running_count; i-- > 1;) {
        const struct entry *e = entries_running(&s->entries, i);
        const struct tenant *x = &t->at[e->tenant];
        uint64_t without = (uint64_t)(x->held - 1) * x->price; /* it holds at least e's slot */
        if (!may_give_way(s, e, head) || without < with || without <= most)
            continue;
        most = without;
        yielding = i;
    }
    return yielding;
}

/* The tenant that holds most blocks for its weight, and more than `with`; SCHED_NONE: none. */
static uint32_t choose_tenant(const struct tenants *t, uint64_t with)
{
    uint32_t chosen = SCHED_NONE;
    uint64_t most = with;

    for (uint32_t i = 0; i < t->count; i++) {
        uint64_t holds = (uint64_t)t->at[i].held * t->at[i].price;
        if (holds <= most)
            continue;
        most = holds;
        chosen = i;
    }
    return chosen;
}

/* The entries that give so many blocks to that one, which needs `need`, in share.readers: their
 * number; 0 when all that may are not enough. */
static uint32_t choose_givers(struct sched *s, const struct entry *head, uint64_t need,
                              uint64_t lack)
{
    struct tenants *t = &s->tenants;
    uint32_t count = 0, tenant;
    uint64_t freed = 0;

    sched_count_held(s, true);
    struct tenant *own = &t->at[head->tenant];
    uint64_t with = (own->held + need) * own->price;
    own->held = 0;
    while (freed < lack && (tenant = choose_tenant(t, with)) != SCHED_NONE) {
        struct tenant *x = &t->at[tenant];
        for (uint32_t i = s->entries.running_count; i-- > 1 && freed < lack;) {
            const struct entry *e = entries_running(&s->entries, i);
            uint32_t gives = s->slots.at[e->slot].own;
            if (e->tenant != tenant || gives == 0 || !may_give_way(s, e, head) ||
                (uint64_t)(x->held - gives) * x->price < with)
                continue;
            x->held -= gives;
            freed += gives;
            s->share.readers[count++] = s->entries.running[i];
        }
        x->held = 0; /* it gives no more */
    }
    return freed < lack ? 0 : count;
}

/* Blocks that an entry needs now, as far as is known: what is cached counts where it was looked at.
 * *ret_lack: those that others have to give for it, 0 = none. */
static uint64_t blocks_lacking(struct sched *s, const struct entry *head, uint64_t now_us,
                               uint64_t *ret_lack)
{
    const struct admission *a = &s->admission;
    bool seen = a->blocked_number == head->number;
    uint64_t need = seen ? a->blocked_needed : slots_blocks_for(&s->slots, head->known);
    uint64_t limbo = slots_limbo(&s->slots);

    *ret_lack = 0;
    if (!seen && s->entries.running_count < s->value[LIMIT_RUNNING_SEQS])
        return need; /* it may fit with what is cached: admission looks at it first */
    *ret_lack = admission_lacks(s, head, need);
    if (*ret_lack > 0)
        *ret_lack += s->entries.running_count; /* each may take one before it is admitted */
    else if (seen && a->blocked_held == HELD_GROWTH && now_us >= s->growth_given_us + SLOT_WAIT_US)
        *ret_lack = 1;
    *ret_lack -= limbo < *ret_lack ? limbo : *ret_lack; /* these come by themselves */
    return need;
}

static void give_blocks(struct sched *s, struct plan *p, const struct entry *head)
{
    uint64_t lack, need = blocks_lacking(s, head, p->now_us, &lack);

    uint32_t count = lack > 0 ? choose_givers(s, head, need, lack) : 0;

    if (count > 0 && admission_lacks(s, head, need) == 0)
        s->growth_given_us = p->now_us;
    for (uint32_t i = 0; i < count; i++)
        sched_preempt(s, p, entries_place(&s->entries, s->share.readers[i]), HELD_BLOCKS);
}

void sched_make_way(struct sched *s, struct plan *p)
{
    uint32_t entry = s->tenants.count > 1 && s->suspects == 0 ? sched_head(s) : SCHED_NONE;

    if (entry == SCHED_NONE || !has_waited(s, &s->entries.at[entry], p->now_us))
        return;
    const struct entry *head = &s->entries.at[entry];
    uint64_t lack = admission_lacks(s, head, slots_blocks_for(&s->slots, head->known));
    uint64_t running = s->entries.running_count, most = s->value[LIMIT_RUNNING_SEQS];
    if (running > most || lack == UINT64_MAX)
        return; /* above a lowered limit no slot would be free */
    if (running < most) {
        give_blocks(s, p, head);
        return;
    }
    uint32_t yielding = choose_yielding(s, head);
    if (yielding == SCHED_NONE)
        return;
    if (lack > s->slots.at[entries_running(&s->entries, yielding)->slot].own)
        give_blocks(s, p, head);
    else
        sched_preempt(s, p, yielding, HELD_LIMIT);
}
