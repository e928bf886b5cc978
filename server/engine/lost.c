/*
 * A device that was lost with all that was on it, and another in its place. The scheduler knows
 * every token of every request, and what is sampled depends on seed and position alone, so every
 * request goes on with the text it would have had (engine.c calls this, see revive.c).
 *
 * What took the device away may have been a request: one that makes the program fail would end
 * device after device. So each request of that step is a suspect, runs alone until a step with it
 * went well, and is the cause if the device ends in the same way again meanwhile. If it ends in
 * another way that may have been chance, such as a card that falls off the bus just then: it runs
 * alone once more, and is the cause if there is no third step that goes well. So it is with each
 * loss of an engine over several machines that may be that of another node. That costs the others
 * the time in which each suspect's tokens are read again, and a step; where the end came from
 * outside no request is suspected.
 */
#include <assert.h>
#include <errno.h>

#include "server/engine/sched.h"

void sched_failing(struct sched *s)
{
    for (uint32_t i = 0; i < s->flights.count; i++) {
        const struct flight *f = &s->flights.at[flights_place(&s->flights, i)];
        for (uint32_t k = 0; k < f->seqs; k++) {
            struct entry *e = &s->entries.at[f->seq[k].entry];
            if (e->number == f->seq[k].number)
                e->in_flight = true;
        }
    }
}

void sched_replay(struct sched *s, uint32_t at, uint64_t now_us)
{
    struct entry *e = entries_running(&s->entries, at);

    e->lost = s->slots.at[e->slot].settled;
    e->replayed = true;
    e->yielded = false;
    e->lost_us = e->lost_us != 0 ? e->lost_us : now_us;
    e->req->replays++;
    request_note(e->req, REQ_MET_REPLAY, now_us);
    sched_give_slot(s, at, now_us);
}

uint32_t sched_lost(struct sched *s, bool host_stays, uint64_t now_us)
{
    uint32_t replayed = s->entries.running_count;

    sched_failing(s);
    while (s->flights.count > 0)
        sched_cancel(s, 0, now_us);
    for (uint32_t at = s->entries.running_count; at > 0; at--)
        sched_replay(s, at - 1, now_us);
    if (host_stays)
        host_kept(s, now_us);
    else
        replayed += host_drop_swapped(s, now_us);
    s->host.copy_count = 0;
    s->states.copy_count = 0;
    if (host_stays)
        blocks_forget_all(&s->blocks);
    else
        sched_reset_prefix(s);
    admission_again(&s->admission);
    return replayed;
}

/* A tenant's third such request, its sixth and so on are told once more. */
static void note_poison(struct sched *s, uint32_t tenant)
{
    struct tenant *t = &s->tenants.at[tenant];

    s->stats.poisons++;
    t->poisons++;
    s->stats.poison_tenants += t->poisons % SCHED_POISONS == 0;
}

/* Whether it alone can have been the cause of this end, too. */
static bool is_cause(const struct entry *e, uint32_t fault)
{
    return fault != 0 && e->in_flight && e->suspect && (e->failed_alone || e->fault == fault);
}

void sched_found(struct sched *s, uint32_t fault, uint64_t now_us)
{
    uint32_t next;

    for (uint32_t i = s->entries.age.head; i != SCHED_NONE; i = next) {
        struct entry *e = &s->entries.at[i];
        next = e->in[QUEUE_AGE].next;
        bool cause = is_cause(e, fault);
        if (fault != 0 && e->in_flight) {
            e->failed_alone = e->suspect;
            s->suspects += !e->suspect;
            e->suspect = true;
            e->fault = fault;
        }
        e->in_flight = false;
        if (cause) {
            note_poison(s, e->tenant);
            sched_end(s, i, REQ_FIN_ERROR, -ENOTRECOVERABLE, now_us);
        }
    }
}

uint32_t sched_suspect(const struct entries *all)
{
    uint32_t i = all->age.head;

    if (all->running_count > 0)
        return SCHED_NONE;
    while (i != SCHED_NONE && !all->at[i].suspect)
        i = all->at[i].in[QUEUE_AGE].next;
    return i;
}

void sched_cleared(struct sched *s, struct entry *e)
{
    s->suspects -= e->suspect;
    e->suspect = e->failed_alone = false;
}
