/*
 * A step of its own for who has just come, while another tenant has most of the running requests.
 *
 * A first token is there when the whole step is computed in which the prompt ends. Where rows are
 * what steps take time for, as on a processor, the answers of a tenant with many requests make that
 * step several times as long as the prompt of another one with few. Computed without them it costs
 * the fixed part of a step once more, and all that they lose is that part: their next tokens are
 * computed right after it. So a prompt that is read whole in one step gets that step for its tenant
 * alone, when
 *
 *   - its tenant would have fewer slots for its weight with it than another one has, reads no other
 *     prompt, and is due to be admitted anyway,
 *   - the rows that others would have in it take longer than the fixed part of a step,
 *   - and such steps have cost no more than PACE_LOSS of the time: after one the next is due when
 *     its fixed part is that part of what has passed. So no two follow each other.
 *
 * What small steps take is learned (rates.h); where it does not depend on their rows, as on devices
 * that read weights for longer than they compute, there are no such steps. By priority there are
 * none either: who is more important is left out of no step. plan.c asks. Pure, no allocation.
 */
#include "server/engine/sched.h"

/* What those of other tenants that decode take of a step. */
static double others_us(const struct sched *s, uint32_t tenant)
{
    double us = 0;

    for (uint32_t i = 0; i < s->entries.running_count; i++) {
        const struct entry *e = entries_running(&s->entries, i);
        uint32_t want = sched_rows_wanted(e);
        if (e->tenant == tenant || want == 0 || !sched_is_decode(e, want))
            continue;
        us += want * s->rates.small.row_us +
              (want == 1 ? s->rates.small.context_us * (e->computed + 1) : 0);
    }
    return us;
}

/* Whether it would have less than another one, for its weight, with one slot more. */
static bool has_less(const struct tenants *t, uint32_t tenant)
{
    uint64_t with = (t->at[tenant].held + 1ull) * t->at[tenant].price;

    for (uint32_t i = 0; i < t->count; i++)
        if (i != tenant && (uint64_t)t->at[i].held * t->at[i].price > with)
            return true;
    return false;
}

/* Rows of those of a tenant that run; many where one of them reads a prompt, too. */
static uint64_t rows_of(const struct sched *s, uint32_t tenant)
{
    uint64_t rows = 0;

    for (uint32_t i = 0; i < s->entries.running_count; i++) {
        const struct entry *e = entries_running(&s->entries, i);
        uint32_t want = sched_rows_wanted(e);
        if (e->tenant == tenant && want > 0)
            rows += sched_is_decode(e, want) ? want : UINT32_MAX;
    }
    return rows;
}

/* Whether one that waits is new, and a step of its tenant alone reads it to its end. */
static bool is_short(const struct sched *s, const struct plan *p, const struct entry *e)
{
    uint64_t cap = s->value[LIMIT_LONG_PREFILL], beside = rows_of(s, e->tenant);

    return !e->admitted && !e->req->ask.score && (cap == 0 || e->known <= cap) &&
           beside + e->known <= p->budget &&
           (int64_t)beside + price_of(&p->price, 0, e->known) <= p->work;
}

uint32_t sched_newcomer(struct sched *s, const struct plan *p)
{
    const struct line *l = &s->rates.small;
    const struct tenants *t = &s->tenants;
    uint32_t head = p->several ? sched_head(s) : SCHED_NONE, best = SCHED_NONE;

    if (head == SCHED_NONE || !l->known || p->spread || p->preempted || s->suspects > 0 ||
        s->entries.priority_policy ||
        (s->share.own_us != 0 && (double)(p->now_us - s->share.own_us) * PACE_LOSS < l->fixed_us))
        return SCHED_NONE;
    uint64_t least = tenants_standing(t, s->entries.at[head].tenant);
    bool waits = s->admission.blocked_number == s->entries.at[head].number; /* for blocks */
    sched_count_held(s, false);
    for (uint32_t i = 1; i < t->count; i++) {
        uint32_t its = t->at[i].queue.head;
        if (its == SCHED_NONE || tenants_standing(t, i) > least || (waits && its != head) ||
            !has_less(t, i) || !is_short(s, p, &s->entries.at[its]) ||
            others_us(s, i) <= l->fixed_us)
            continue;
        if (best == SCHED_NONE ||
            s->entries.at[its].number < s->entries.at[t->at[best].queue.head].number)
            best = i;
    }
    return best;
}
