/*
 * Places among the running are shared by weight between tenants (tenants.h): who gives one up for
 * whom. plan.c asks at the head of each plan.
 */
#include "server/engine/sched.h"

/* Most slots are free again sooner, and what gives one up is read once more. */
#define SLOT_WAIT_US 200000u
#define SLOT_PART    16u /* of what was read again: it makes that before it gives up one more */

/* Whether an entry has waited long enough for a slot, and for nothing else that is known. */
static bool lacks_slot(const struct sched *s, const struct entry *e, uint64_t now_us)
{
    uint64_t since = e->waits_us != 0 ? e->waits_us : e->req->queued_us;

    if (!e->admitted && admission_is_full(s))
        return false; /* it would get none */
    /* above a lowered limit none would be free */
    return s->entries.running_count == s->value[LIMIT_RUNNING_SEQS] &&
           now_us >= since + SLOT_WAIT_US;
}

/* What a preemption took of it had to be read again, and it has made few tokens since: short
 * requests, one after the other, would have the same one read without an end. */
static bool is_back_of_late(const struct entry *e)
{
    return (uint64_t)(e->known - e->lost) * SLOT_PART < e->reread;
}

/* Who gives its slot to that entry, by its place among the running: the last one of the tenant that
 * has most of them for its weight, when that has more than the entry's would have with it.
 * SCHED_NONE: it has its part, or all others come before it by priority. */
static uint32_t choose_yielding(struct sched *s, const struct entry *head)
{
    struct tenants *t = &s->tenants;
    uint32_t yielding = SCHED_NONE;
    uint64_t most = 0;

    for (uint32_t i = 0; i < t->count; i++)
        t->at[i].held = 0;
    for (uint32_t i = 0; i < s->entries.running_count; i++)
        t->at[entries_running(&s->entries, i)->tenant].held++;
    uint64_t mine = t->at[head->tenant].held; /* one is its part, however small its weight */
    uint64_t with = mine == 0 ? 0 : (mine + 1) * t->at[head->tenant].price;
    for (uint32_t i = s->entries.running_count; i-- > 1;) {
        const struct entry *e = entries_running(&s->entries, i);
        const struct tenant *x = &t->at[e->tenant];
        bool before =
            entries_ranked(&s->entries, e, head) && e->req->ask.priority < head->req->ask.priority;
        bool ahead = tenants_standing(t, e->tenant) > tenants_standing(t, head->tenant);
        uint64_t without = x->held > 0 ? (uint64_t)(x->held - 1) * x->price : 0;
        if (before || !ahead || is_back_of_late(e) || without < with || without <= most)
            continue;
        most = without;
        yielding = i;
    }
    return yielding;
}

void sched_make_way(struct sched *s, struct plan *p)
{
    uint32_t head = s->tenants.count > 1 && s->suspects == 0 ? sched_head(s) : SCHED_NONE;

    if (head == SCHED_NONE || !lacks_slot(s, &s->entries.at[head], p->now_us))
        return;
    uint32_t yielding = choose_yielding(s, &s->entries.at[head]);
    if (yielding == SCHED_NONE)
        return;
    const struct entry *e = entries_running(&s->entries, yielding);
    if (!admission_fits_with(s, &s->entries.at[head], s->slots.at[e->slot].own))
        return;
    sched_preempt(s, p, yielding, true);
}
