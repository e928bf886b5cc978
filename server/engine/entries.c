/*
 * Entries and their queues: how requests come, wait, run, leave and end. Called by the scheduler's
 * files.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/engine/record.h"
#include "server/engine/sched.h"
#include "server/engine/tally.h"

int entries_init(struct entries *l, uint32_t count, uint32_t max_seqs, bool priority_policy)
{
    l->count = count;
    l->priority_policy = priority_policy;
    l->age = (struct queue){SCHED_NONE, SCHED_NONE};
    l->scan = SCHED_NONE;
    l->next_number = 1;
    l->at = calloc(count, sizeof(*l->at));
    l->free = calloc(count, sizeof(*l->free));
    l->running = calloc(max_seqs, sizeof(*l->running));
    if (!l->at || !l->free || !l->running)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++)
        l->free[l->free_count++] = count - 1 - i;
    return 0;
}

void entries_done(struct entries *l)
{
    for (uint32_t i = 0; l->at && i < l->count; i++)
        if (l->at[i].state != ENTRY_FREE)
            request_unref(l->at[i].req);
    free(l->at);
    free(l->free);
    free(l->running);
}

bool entries_before(const struct entries *l, uint32_t a, uint32_t b)
{
    const struct entry *x = &l->at[a], *y = &l->at[b];

    if (entries_ranked(l, x, y))
        return x->req->ask.priority < y->req->ask.priority;
    return x->number < y->number;
}

uint32_t entries_place(const struct entries *l, uint32_t entry)
{
    uint32_t at = 0;

    while (l->running[at] != entry)
        at++;
    return at;
}

int32_t sched_token(const struct entry *e, uint32_t position)
{
    const struct req_ask *ask = &e->req->ask;

    return position < ask->prompt_tokens ? ask->prompt[position]
                                         : e->req->out[position - ask->prompt_tokens].id;
}

static bool comes_before(const struct entries *l, enum queue_id q, uint32_t a, uint32_t b)
{
    return q == QUEUE_AGE ? l->at[a].number < l->at[b].number : entries_before(l, a, b);
}

static struct queue *queue_of(struct sched *s, enum queue_id q, const struct entry *e)
{
    return q == QUEUE_AGE ? &s->entries.age : &s->tenants.at[e->tenant].queue;
}

/* A new entry belongs near the tail, a preempted one near the head: search from that end. */
static void queue_insert(struct sched *s, enum queue_id q, uint32_t entry)
{
    struct entry *e = &s->entries.at[entry];
    struct queue *l = queue_of(s, q, e);
    uint32_t next = SCHED_NONE, prev = SCHED_NONE;

    if (e->admitted) {
        next = l->head;
        while (next != SCHED_NONE && comes_before(&s->entries, q, next, entry))
            next = s->entries.at[next].in[q].next;
        prev = next == SCHED_NONE ? l->tail : s->entries.at[next].in[q].prev;
    } else {
        prev = l->tail;
        while (prev != SCHED_NONE && comes_before(&s->entries, q, entry, prev))
            prev = s->entries.at[prev].in[q].prev;
        next = prev == SCHED_NONE ? l->head : s->entries.at[prev].in[q].next;
    }
    e->in[q].prev = prev;
    e->in[q].next = next;
    *(prev == SCHED_NONE ? &l->head : &s->entries.at[prev].in[q].next) = entry;
    *(next == SCHED_NONE ? &l->tail : &s->entries.at[next].in[q].prev) = entry;
}

static void queue_remove(struct sched *s, enum queue_id q, uint32_t entry)
{
    const struct entry *e = &s->entries.at[entry];
    struct queue *l = queue_of(s, q, e);
    uint32_t prev = e->in[q].prev, next = e->in[q].next;

    *(prev == SCHED_NONE ? &l->head : &s->entries.at[prev].in[q].next) = next;
    *(next == SCHED_NONE ? &l->tail : &s->entries.at[next].in[q].prev) = prev;
}

static void sched_enqueue(struct sched *s, uint32_t entry)
{
    struct entry *e = &s->entries.at[entry];

    e->state = ENTRY_WAITING;
    for (uint32_t q = 0; q < QUEUE_COUNT; q++)
        queue_insert(s, (enum queue_id)q, entry);
    s->entries.waiting_count++;
    if (!e->active)
        tenants_begin(&s->tenants, e->tenant);
    e->active = true;
    if (e->admitted)
        s->entries.preempted_count++;
    else
        s->entries.waiting_tokens += e->req->ask.prompt_tokens;
}

static void sched_dequeue(struct sched *s, uint32_t entry)
{
    const struct entry *e = &s->entries.at[entry];

    if (s->entries.scan == entry)
        s->entries.scan = e->in[QUEUE_AGE].next;
    for (uint32_t q = 0; q < QUEUE_COUNT; q++)
        queue_remove(s, (enum queue_id)q, entry);
    s->entries.waiting_count--;
    if (e->admitted)
        s->entries.preempted_count--;
    else
        s->entries.waiting_tokens -= e->req->ask.prompt_tokens;
}

void sched_take_slot(struct sched *s, uint32_t entry, uint32_t slot)
{
    struct entry *e = &s->entries.at[entry];

    assert(e->pending == 0);
    sched_dequeue(s, entry);
    e->state = ENTRY_RUNNING;
    e->slot = slot;
}

void entries_run(struct entries *l, uint32_t entry)
{
    uint32_t i = l->running_count++;

    for (; i > 0 && entries_before(l, entry, l->running[i - 1]); i--)
        l->running[i] = l->running[i - 1];
    l->running[i] = entry;
    atomic_store_explicit(&l->at[entry].req->state, REQ_RUNNING, memory_order_release);
}

void entries_admit(struct entries *l, struct entry *e)
{
    e->admitted = true;
    l->admitted_count++;
}

/* It runs no more. */
static void stop_running(struct entries *l, uint32_t at)
{
    l->running_count--;
    memmove(l->running + at, l->running + at + 1, (l->running_count - at) * sizeof(*l->running));
}

int sched_submit(struct sched *s, struct request *r, uint64_t now_us)
{
    if (s->entries.free_count == 0)
        return -EBUSY;
    uint32_t entry = s->entries.free[--s->entries.free_count];
    s->entries.at[entry] = (struct entry){
        .req = r,
        .number = s->entries.next_number++,
        .slot = SCHED_NONE,
        .tenant = tenants_meet(&s->tenants, &r->ask.tenant),
        .known = r->ask.prompt_tokens,
        .swapped = {.table = HOST_NONE},
    };
    r->entry = entry;
    if (r->queued_us == 0)
        r->queued_us = now_us;
    atomic_store_explicit(&r->state, REQ_WAITING, memory_order_release);
    record_arrived(s->recorder, r, s->entries.at[entry].number, now_us);
    sched_enqueue(s, entry);
    sched_refuse_note(s, &s->entries.at[entry]);
    sched_pool_needs(s, sched_blocks_needed(s, &r->ask) + 1, now_us);
    return 0;
}

void sched_give_slot(struct sched *s, uint32_t at, uint64_t now_us)
{
    uint32_t entry = s->entries.running[at];
    struct entry *e = &s->entries.at[entry];

    stop_running(&s->entries, at);
    e->computed = 0;
    e->waits_us = now_us;
    e->awaits_mask = false;
    slots_leave(&s->slots, &s->blocks, &s->states, e->slot, now_us);
    e->slot = SCHED_NONE;
    atomic_store_explicit(&e->req->state, REQ_PREEMPTED, memory_order_release);
    sched_enqueue(s, entry);
}

void sched_recovered(struct engine_stats *stats, struct entry *e, uint64_t now_us)
{
    if (e->lost_us != 0 && now_us > e->lost_us)
        stats->preemption_lost_us += now_us - e->lost_us;
    e->lost_us = 0;
}

void sched_end(struct sched *s, uint32_t entry, enum req_finish how, int error, uint64_t now_us)
{
    struct entry *e = &s->entries.at[entry];
    struct request *r = e->req;
    uint64_t number = e->number;

    if (e->state == ENTRY_WAITING) {
        sched_dequeue(s, entry);
        swap_drop(s, e, now_us);
    } else {
        stop_running(&s->entries, entries_place(&s->entries, entry));
        slots_leave(&s->slots, &s->blocks, &s->states, e->slot, now_us);
    }
    if (e->active)
        tenants_end(&s->tenants, e->tenant);
    sched_cleared(s, e);
    if (e->admitted) {
        tenants_read(&s->tenants, e->tenant, r->ask.prompt_tokens - e->paid, 0);
        s->entries.admitted_count--;
        sched_answered(s, e, how);
    }
    sched_recovered(&s->stats, e, now_us);
    e->state = ENTRY_FREE;
    e->number = 0;
    e->req = NULL;
    s->entries.free[s->entries.free_count++] = entry;

    r->finish = how;
    r->error = how == REQ_FIN_ERROR ? error : 0;
    r->done_us = now_us;
    r->entry = SCHED_NONE;
    tally_done(&s->stats, r, e->last_token_us);
    record_ended(s->recorder, r, number);
    s->news |= 1u << r->ask.worker % ENGINE_WORKERS_MOST;
    atomic_store_explicit(&r->state, REQ_DONE, memory_order_release);
    request_unref(r);
}

void sched_finish(struct sched *s, struct request *r, enum req_finish how, int error,
                  uint64_t now_us)
{
    if (r->entry != SCHED_NONE)
        sched_end(s, r->entry, how, error, now_us);
}

void sched_finish_all(struct sched *s, enum req_finish how, int error, uint64_t now_us)
{
    while (s->entries.running_count > 0)
        sched_end(s, s->entries.running[s->entries.running_count - 1], how, error, now_us);
    while (s->entries.age.tail != SCHED_NONE)
        sched_end(s, s->entries.age.tail, how, error, now_us);
}
