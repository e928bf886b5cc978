/*
 * What is refused for the wait: a request that has waited for the whole queue deadline, its own or
 * that of all.
 *
 * That alone chooses badly under lasting overload. Then every request that gets to the head of the
 * queue has waited for nearly that long, so one that does not fit at once is refused, and the next
 * one that does is served: small prompts instead of large ones, however long their answers. So
 * while the head lacks blocks,
 *
 *   - it is refused after three quarters of the deadline if it is expected to cost more than the
 *     mean of its tenant's requests: several others are served for it. Else it keeps its turn
 *     until the deadline.
 *   - what waits behind it is refused after nine tenths: what is left of the deadline is for the
 *     turn of the one that is the next head.
 *
 * Cost is blocks times time, what the pool is short of: the tokens that it holds, summed over the
 * steps of its answer, whose length growth.h expects. The mean is its tenant's own, so that no
 * tenant is refused because others ask for less. Where priority is the policy no head is refused
 * early: it is the most important one.
 *
 * Without a deadline, or while the head lacks something else than blocks, nothing of this holds.
 */
#include <errno.h>

#include "server/engine/sched.h"

#define SCAN_MOST 64u /* waiting entries looked at in a step, each for what is its own */
#define COST_OF   100 /* requests that the mean is of */

void sched_refuse_note(struct sched *s, const struct entry *e)
{
    double *mean = &s->tenants.at[e->tenant].cost, cost = sched_foresee_cost(&s->growth, e);

    *mean = *mean > 0 ? *mean + (cost - *mean) / COST_OF : cost;
}

static void refuse_refuse(struct sched *s, uint32_t entry, uint64_t now_us)
{
    s->stats.refused_deadline++;
    sched_end(s, entry, REQ_FIN_ERROR, -ETIMEDOUT, now_us);
}

/* The head if it lacked blocks when it was looked at last, SCHED_NONE if not. */
static uint32_t find_blocked(const struct sched *s)
{
    uint32_t head = sched_head(s);

    return head != SCHED_NONE && s->entries.at[head].number == s->admission.blocked_number
               ? head
               : SCHED_NONE;
}

/* How long the blocked head may wait. */
static uint64_t head_wait(const struct sched *s, const struct entry *head, uint64_t most_us)
{
    bool costs = !s->entries.priority_policy &&
                 sched_foresee_cost(&s->growth, head) > s->tenants.at[head->tenant].cost;

    return costs ? most_us / 4 * 3 : most_us;
}

/* The age queue is in order of arrival, and all but the head wait for equally long. */
static void refuse_late(struct sched *s, uint64_t most_us, uint64_t now_us)
{
    uint32_t head = find_blocked(s), next;
    uint64_t others_us = head != SCHED_NONE ? most_us / 10 * 9 : most_us;

    if (head != SCHED_NONE)
        most_us = head_wait(s, &s->entries.at[head], most_us);
    for (uint32_t i = s->entries.age.head; i != SCHED_NONE; i = next) {
        const struct entry *e = &s->entries.at[i];
        next = e->in[QUEUE_AGE].next;
        if (e->admitted)
            continue;
        bool late = now_us >= e->req->queued_us + (i == head ? most_us : others_us);
        if (late)
            refuse_refuse(s, i, now_us);
        else if (i != head)
            break;
    }
}

/* Deadlines of requests, and answers that stand still, are looked for a piece of the queue at a
 * time. */
void sched_expire(struct sched *s, uint64_t now_us)
{
    if (s->value[LIMIT_QUEUE_DEADLINE] != 0)
        refuse_late(s, s->value[LIMIT_QUEUE_DEADLINE], now_us);
    if (s->entries.scan == SCHED_NONE)
        s->entries.scan = s->entries.age.head;
    for (uint32_t n = 0; n < SCAN_MOST && s->entries.scan != SCHED_NONE; n++) {
        uint32_t i = s->entries.scan;
        struct entry *e = &s->entries.at[i];
        s->entries.scan = e->in[QUEUE_AGE].next;
        sched_note_stall(&s->stats, e, now_us);
        if (!e->admitted && e->req->ask.deadline_us != 0 && now_us >= e->req->ask.deadline_us)
            refuse_refuse(s, i, now_us);
    }
}
