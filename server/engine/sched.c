/*
 * Entries and seats: how requests come, end and get their results. Planning is in plan.c.
 */
#include "server/engine/sched.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "server/engine/tally.h"

#define RATE_WEIGHT 0.2 /* of a new sample in the measured prefill rate */

void sched_ceiling(const struct engine_params *p, struct ek_step_ceiling *ret_ceiling)
{
    uint64_t table = ((uint64_t)p->max_model_len + p->block_size - 1) / p->block_size;
    uint64_t entries = table * p->max_seqs;

    *ret_ceiling = (struct ek_step_ceiling){
        .rows = p->max_batched_tokens,
        .seqs = p->max_seqs,
        .entries = entries > UINT32_MAX ? UINT32_MAX : (uint32_t)entries,
        .copies = swap_copies((uint32_t)table),
    };
}

static bool sizes_ok(const struct engine_params *p)
{
    return p->max_seqs > 0 && p->max_seqs <= UINT32_MAX / 64 && p->max_model_len > 0 &&
           p->max_model_len < INT32_MAX && p->block_size > 0 && p->blocks >= 2 &&
           p->max_batched_tokens >= p->max_seqs && p->depth >= 1 && p->depth <= SCHED_DEPTH &&
           (uint64_t)p->max_model_len * p->max_seqs / p->block_size < UINT32_MAX;
}

static int take_tables(struct sched *s, const struct engine_params *p)
{
    s->entries = calloc(s->entry_count, sizeof(*s->entries));
    s->free_entries = calloc(s->entry_count, sizeof(*s->free_entries));
    s->seats = calloc(s->max_seqs, sizeof(*s->seats));
    s->tables = calloc((size_t)s->max_seqs * s->table_most, sizeof(*s->tables));
    s->free_seats = calloc(s->max_seqs, sizeof(*s->free_seats));
    s->leaving = calloc(s->max_seqs, sizeof(*s->leaving));
    s->running = calloc(s->max_seqs, sizeof(*s->running));
    s->scratch = calloc(s->block_size, sizeof(*s->scratch));
    s->recount = calloc(p->blocks, sizeof(*s->recount));
    if (!s->entries || !s->free_entries || !s->seats || !s->tables || !s->free_seats ||
        !s->leaving || !s->running || !s->scratch || !s->recount)
        return -ENOMEM;
    for (uint32_t i = 0; i < SCHED_DEPTH; i++) {
        s->flights[i].seq = calloc(s->max_seqs, sizeof(*s->flights[i].seq));
        if (!s->flights[i].seq)
            return -ENOMEM;
    }
    int r = prefix_init(&s->prefix, p->blocks, p->block_size, p->hash_secret);
    if (r == 0)
        r = blocks_init(&s->blocks, p->blocks, prefix_forget, &s->prefix);
    return r != 0 ? r : swap_init(s, p->host_blocks);
}

int sched_new(const struct engine_params *p, struct sched **ret_sched)
{
    int r = -EINVAL;
    struct sched *s = NULL;

    if (!sizes_ok(p))
        goto out;
    r = -ENOMEM;
    s = calloc(1, sizeof(*s));
    if (!s)
        goto out;
    s->max_seqs = p->max_seqs;
    s->max_rows = p->max_batched_tokens;
    s->max_model_len = p->max_model_len;
    s->block_size = p->block_size;
    s->table_most = (p->max_model_len + p->block_size - 1) / p->block_size;
    s->depth = p->depth;
    s->priority_policy = p->priority_policy;
    uint64_t queue = p->limits.ceiling[LIMIT_QUEUED_REQS];
    if (queue == 0 || queue > UINT32_MAX / 4)
        queue = SCHED_QUEUE_ANY;
    s->entry_count = (uint32_t)queue + 3 * p->max_seqs;
    r = take_tables(s, p);
    if (r != 0)
        goto out;

    for (uint32_t i = 0; i < s->entry_count; i++)
        s->free_entries[s->free_entry_count++] = s->entry_count - 1 - i;
    for (uint32_t i = 0; i < s->max_seqs; i++) {
        s->seats[i].entry = SCHED_NONE;
        s->free_seats[s->free_seat_count++] = s->max_seqs - 1 - i;
    }
    for (uint32_t q = 0; q < QUEUE_COUNT; q++)
        s->queue[q] = (struct queue){SCHED_NONE, SCHED_NONE};
    s->scan = SCHED_NONE;
    s->next_number = 1;
    s->next_lease = 1;
    s->next_step = 1;
    tally_init(&s->stats, p->max_model_len);
    s->stats.block_bytes = p->block_bytes;
    sched_limits(s, &p->limits, 0);

    *ret_sched = s;
    s = NULL;
out:
    sched_free(s);
    return r;
}

void sched_free(struct sched *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; s->entries && i < s->entry_count; i++)
        if (s->entries[i].state != ENTRY_FREE)
            request_unref(s->entries[i].req);
    for (uint32_t i = 0; i < SCHED_DEPTH; i++)
        free(s->flights[i].seq);
    blocks_done(&s->blocks);
    prefix_done(&s->prefix);
    swap_done(&s->swap);
    free(s->entries);
    free(s->free_entries);
    free(s->seats);
    free(s->tables);
    free(s->free_seats);
    free(s->leaving);
    free(s->running);
    free(s->scratch);
    free(s->recount);
    free(s);
}

/* Of the whole request. The last token is never read again, so it needs no place in the cache. */
static uint64_t blocks_needed(const struct sched *s, const struct req_ask *ask)
{
    uint64_t tokens = (uint64_t)ask->prompt_tokens + ask->max_new_tokens - 1;
    return (tokens + s->block_size - 1) / s->block_size;
}

int sched_fit(const struct sched *s, const struct req_ask *ask, struct ek_fault *fault)
{
    uint64_t tokens = (uint64_t)ask->prompt_tokens + ask->max_new_tokens;
    uint64_t need = blocks_needed(s, ask);
    uint32_t have = s->pool_blocks - 1;

    if (tokens > s->max_model_len)
        return ek_fault_set(fault, "max_tokens",
                            "%u prompt tokens and %u new ones were asked for, but this model's "
                            "maximum context length is %u tokens: shorten the prompt or lower "
                            "max_tokens",
                            ask->prompt_tokens, ask->max_new_tokens, s->max_model_len);
    if (need > have)
        return ek_fault_set(fault, "max_tokens",
                            "%u prompt tokens and %u new ones need %llu KV blocks of %u tokens, "
                            "but the pool has %u: shorten the prompt or lower max_tokens, or give "
                            "the server more KV memory",
                            ask->prompt_tokens, ask->max_new_tokens, (unsigned long long)need,
                            s->block_size, have);
    return 0;
}

int32_t sched_token(const struct entry *e, uint32_t position)
{
    const struct req_ask *ask = &e->req->ask;

    return position < ask->prompt_tokens ? ask->prompt[position]
                                         : e->req->out[position - ask->prompt_tokens].id;
}

bool sched_before(const struct sched *s, uint32_t a, uint32_t b)
{
    const struct entry *x = &s->entries[a], *y = &s->entries[b];

    if (s->priority_policy && x->req->ask.priority != y->req->ask.priority)
        return x->req->ask.priority < y->req->ask.priority;
    return x->number < y->number;
}

static bool comes_before(const struct sched *s, enum queue_id q, uint32_t a, uint32_t b)
{
    return q == QUEUE_AGE ? s->entries[a].number < s->entries[b].number : sched_before(s, a, b);
}

/* A new entry belongs near the tail, a preempted one near the head: search from that end. */
static void queue_insert(struct sched *s, enum queue_id q, uint32_t entry)
{
    struct entry *e = &s->entries[entry];
    struct queue *l = &s->queue[q];
    uint32_t next = SCHED_NONE, prev = SCHED_NONE;

    if (e->admitted) {
        next = l->head;
        while (next != SCHED_NONE && comes_before(s, q, next, entry))
            next = s->entries[next].in[q].next;
        prev = next == SCHED_NONE ? l->tail : s->entries[next].in[q].prev;
    } else {
        prev = l->tail;
        while (prev != SCHED_NONE && comes_before(s, q, entry, prev))
            prev = s->entries[prev].in[q].prev;
        next = prev == SCHED_NONE ? l->head : s->entries[prev].in[q].next;
    }
    e->in[q].prev = prev;
    e->in[q].next = next;
    *(prev == SCHED_NONE ? &l->head : &s->entries[prev].in[q].next) = entry;
    *(next == SCHED_NONE ? &l->tail : &s->entries[next].in[q].prev) = entry;
}

static void queue_remove(struct sched *s, enum queue_id q, uint32_t entry)
{
    const struct entry *e = &s->entries[entry];
    struct queue *l = &s->queue[q];
    uint32_t prev = e->in[q].prev, next = e->in[q].next;

    *(prev == SCHED_NONE ? &l->head : &s->entries[prev].in[q].next) = next;
    *(next == SCHED_NONE ? &l->tail : &s->entries[next].in[q].prev) = prev;
}

void sched_enqueue(struct sched *s, uint32_t entry)
{
    struct entry *e = &s->entries[entry];

    e->state = ENTRY_WAITING;
    for (uint32_t q = 0; q < QUEUE_COUNT; q++)
        queue_insert(s, (enum queue_id)q, entry);
    s->waiting_count++;
    if (e->admitted)
        s->preempted_count++;
    else
        s->waiting_tokens += e->req->ask.prompt_tokens;
}

void sched_dequeue(struct sched *s, uint32_t entry)
{
    const struct entry *e = &s->entries[entry];

    if (s->scan == entry)
        s->scan = e->in[QUEUE_AGE].next;
    for (uint32_t q = 0; q < QUEUE_COUNT; q++)
        queue_remove(s, (enum queue_id)q, entry);
    s->waiting_count--;
    if (e->admitted)
        s->preempted_count--;
    else
        s->waiting_tokens -= e->req->ask.prompt_tokens;
}

int sched_submit(struct sched *s, struct request *r, uint64_t now_us)
{
    if (s->free_entry_count == 0)
        return -EBUSY;
    uint32_t entry = s->free_entries[--s->free_entry_count];
    s->entries[entry] = (struct entry){
        .req = r,
        .number = s->next_number++,
        .seat = SCHED_NONE,
        .known = r->ask.prompt_tokens,
        .swapped = {.table = SWAP_NONE},
    };
    r->entry = entry;
    if (r->queued_us == 0)
        r->queued_us = now_us;
    atomic_store_explicit(&r->state, REQ_WAITING, memory_order_release);
    sched_enqueue(s, entry);
    /* The pool may have been made smaller since the door was passed. */
    uint64_t need = blocks_needed(s, &r->ask) + 1;
    if (need > s->blocks.usable && need <= s->blocks.total)
        blocks_resize(&s->blocks, (uint32_t)need, now_us);
    return 0;
}

void sched_grown(struct sched *s, uint32_t seat)
{
    struct seat *t = &s->seats[seat];
    const uint32_t *end = sched_table(s, seat) + t->blocks;
    bool adjacent = t->blocks > 0 && end[0] == end[-1] + 1;

    t->blocks++;
    t->adjacent += adjacent;
    s->held_blocks++;
    s->held_adjacent += adjacent;
}

static void free_seat(struct sched *s, uint32_t seat, uint64_t now_us)
{
    struct seat *t = &s->seats[seat];
    const uint32_t *table = sched_table(s, seat);

    s->held_blocks -= t->blocks;
    s->held_adjacent -= t->adjacent;
    for (uint32_t i = t->blocks; i > 0; i--) /* the deepest first: it is evicted first */
        blocks_give(&s->blocks, table[i - 1], now_us);
    *t = (struct seat){.entry = SCHED_NONE};
    s->free_seats[s->free_seat_count++] = seat;
}

void sched_leave(struct sched *s, uint32_t seat, uint64_t now_us)
{
    s->seats[seat].entry = SCHED_NONE;
    if (s->seats[seat].inflight == 0)
        free_seat(s, seat, now_us);
    else
        s->leaving[s->leaving_count++] = seat;
}

/* A step in flight that used the seat is over. */
static void seat_landed(struct sched *s, uint32_t seat, uint64_t now_us)
{
    struct seat *t = &s->seats[seat];

    assert(t->inflight > 0);
    if (--t->inflight > 0 || t->entry != SCHED_NONE)
        return;
    for (uint32_t i = 0; i < s->leaving_count; i++) {
        if (s->leaving[i] != seat)
            continue;
        s->leaving[i] = s->leaving[--s->leaving_count];
        break;
    }
    free_seat(s, seat, now_us);
}

/* What a preemption took is back, or nobody wants it any more. */
static void note_recovery(struct sched *s, struct entry *e, uint64_t now_us)
{
    if (e->lost_us != 0 && now_us > e->lost_us)
        s->stats.preemption_lost_us += now_us - e->lost_us;
    e->lost_us = 0;
}

void sched_end(struct sched *s, uint32_t entry, enum req_finish how, int error, uint64_t now_us)
{
    struct entry *e = &s->entries[entry];
    struct request *r = e->req;

    if (e->state == ENTRY_WAITING) {
        sched_dequeue(s, entry);
        swap_drop(s, e, now_us);
    } else {
        uint32_t i = 0;
        while (s->running[i] != entry)
            i++;
        s->running_count--;
        memmove(s->running + i, s->running + i + 1, (s->running_count - i) * sizeof(*s->running));
        sched_leave(s, e->seat, now_us);
    }
    if (e->admitted)
        s->admitted_count--;
    note_recovery(s, e, now_us);
    e->state = ENTRY_FREE;
    e->number = 0;
    e->req = NULL;
    s->free_entries[s->free_entry_count++] = entry;

    r->finish = how;
    r->error = how == REQ_FIN_ERROR ? error : 0;
    r->done_us = now_us;
    r->entry = SCHED_NONE;
    tally_done(&s->stats, r, e->last_token_us);
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
    while (s->running_count > 0)
        sched_end(s, s->running[s->running_count - 1], how, error, now_us);
    while (s->queue[QUEUE_AGE].tail != SCHED_NONE)
        sched_end(s, s->queue[QUEUE_AGE].tail, how, error, now_us);
}

void sched_fit_pool(struct sched *s, uint64_t now_us)
{
    uint32_t usable = s->pool_blocks;

    for (uint32_t i = 0; i < s->entry_count && usable < s->blocks.usable; i++) {
        if (s->entries[i].state == ENTRY_FREE)
            continue;
        uint64_t need = blocks_needed(s, &s->entries[i].req->ask) + 1;
        if (need > usable)
            usable = (uint32_t)need;
    }
    if (usable != s->blocks.usable)
        blocks_resize(&s->blocks, usable, now_us);
}

/* A cap in blocks for a share of the pool in parts per million; 0 = none. */
static uint32_t blocks_of_share(const struct sched *s, uint64_t share)
{
    if (share == 0 || share >= 1000000u)
        return 0;
    return (uint32_t)((uint64_t)(s->pool_blocks - 1) * share / 1000000u + 1);
}

void sched_limits(struct sched *s, const struct limits *l, uint64_t now_us)
{
    memcpy(s->value, l->value, sizeof(s->value));
    uint64_t pool = s->value[LIMIT_KV_BLOCKS];
    s->pool_blocks = pool < 1 || pool >= s->blocks.total ? s->blocks.total : (uint32_t)pool + 1;
    sched_fit_pool(s, now_us);

    blocks_cap(&s->blocks, blocks_of_share(s, s->value[LIMIT_CACHED_SHARE]),
               blocks_of_share(s, s->value[LIMIT_SALT_SHARE]), now_us);
    if (s->value[LIMIT_PREFIX_CACHING] == 0 && s->prefix.count > 0)
        sched_reset_prefix(s);
    s->blocked_number = 0;
}

void sched_reset_prefix(struct sched *s)
{
    blocks_forget_all(&s->blocks);
    /* A name stands for a whole prefix: without its beginning a chain is found by nobody. */
    for (uint32_t i = 0; i < s->running_count; i++)
        s->seats[s->entries[s->running[i]].seat].quiet = true;
    s->blocked_number = 0;
}

/* Gives names to blocks that have become full, so that others can share them. */
static void name_blocks(struct sched *s, const struct entry *e, uint32_t seat)
{
    struct seat *t = &s->seats[seat];
    const uint32_t *table = sched_table(s, seat);

    if (s->value[LIMIT_PREFIX_CACHING] == 0 || t->quiet)
        return;
    while ((t->named + 1) * s->block_size <= t->settled) {
        for (uint32_t i = 0; i < s->block_size; i++)
            s->scratch[i] = sched_token(e, t->named * s->block_size + i);
        struct prefix_name name =
            prefix_hash(&s->prefix, t->tail, e->req->ask.cache_salt, s->scratch);
        uint32_t id = table[t->named];
        if (prefix_add(&s->prefix, id, name, t->tail, s->scratch))
            blocks_name(&s->blocks, id, e->req->ask.cache_salt);
        t->tail = name;
        t->named++;
    }
}

static void note_gap(struct sched *s, uint64_t gap_us, uint64_t now_us)
{
    uint64_t second = now_us / EK_US_PER_S;

    for (; s->gap_second < second; s->gap_second++) {
        if (second - s->gap_second > 10)
            s->gap_second = second - 10;
        s->gap_us[(s->gap_second + 1) % 10] = 0;
    }
    if (gap_us > s->gap_us[second % 10])
        s->gap_us[second % 10] = gap_us;
}

static void append_token(struct sched *s, struct entry *e, const struct ek_result_seq *got,
                         uint32_t i, uint64_t now_us)
{
    struct request *r = e->req;
    uint32_t n = atomic_load_explicit(&r->out_count, memory_order_relaxed);
    struct req_token *t = &r->out[n];
    uint32_t top = got->top < r->ask.top ? got->top : r->ask.top;

    *t = (struct req_token){.id = got->token[i], .logprob = got->logit[i] - got->lse, .top = top};
    for (uint32_t k = 0; k < top; k++)
        r->top_at[(size_t)n * r->ask.top + k] =
            (struct req_top){.id = got->top_id[k], .logprob = got->top_logit[k] - got->lse};
    e->known++;
    s->stats.generation_tokens++;
    if (n == 0) {
        r->first_token_us = now_us;
        tally_first_token(&s->stats, r);
    } else if (i == 0) {
        uint64_t gap = now_us > e->last_token_us ? now_us - e->last_token_us : 0;
        tally_gap(&s->stats, gap);
        note_gap(s, gap, now_us);
    }
    e->last_token_us = now_us;
    s->news |= 1u << r->ask.worker % ENGINE_WORKERS_MOST;
    atomic_store_explicit(&r->out_count, n + 1, memory_order_release);
}

static bool stops_at(const struct req_ask *ask, int32_t token, uint32_t produced)
{
    if (produced < ask->min_tokens)
        return false;
    for (uint32_t i = 0; i < ask->stop_count; i++)
        if (ask->stop_ids[i] == token)
            return true;
    return false;
}

static void apply_tokens(struct sched *s, uint32_t entry, const struct ek_result_seq *got,
                         uint64_t now_us)
{
    struct entry *e = &s->entries[entry];
    const struct req_ask *ask = &e->req->ask;
    uint32_t count = got->tokens < EK_STEP_TOKENS ? got->tokens : EK_STEP_TOKENS;

    for (uint32_t i = 0; i < count; i++) {
        append_token(s, e, got, i, now_us);
        uint32_t produced = e->known - ask->prompt_tokens;
        if (stops_at(ask, got->token[i], produced)) {
            e->req->stop_token = got->token[i];
            sched_end(s, entry, REQ_FIN_STOP, 0, now_us);
            return;
        }
        if (produced >= ask->max_new_tokens) {
            sched_end(s, entry, REQ_FIN_LENGTH, 0, now_us);
            return;
        }
    }
}

static void mix_rate(double *rate, double sample)
{
    *rate = *rate == 0 ? sample : *rate + RATE_WEIGHT * (sample - *rate);
}

static void measure_rates(struct sched *s, const struct flight *f, uint64_t copy_us,
                          uint64_t now_us)
{
    if (f->copies > 0 && copy_us > 0)
        mix_rate(&s->copy_rate, f->copies * 1e6 / (double)copy_us);
    uint64_t from = f->planned_us > s->applied_us ? f->planned_us : s->applied_us;

    s->applied_us = now_us;
    if (f->prefill_rows == 0 || now_us <= from)
        return;
    mix_rate(&s->prefill_rate, f->prefill_rows * 1e6 / (double)(now_us - from));
}

void sched_apply(struct sched *s, const struct ek_result *result, uint64_t now_us)
{
    struct flight *f = &s->flights[s->flight_first];

    assert(s->flying > 0 && result->step == f->id && result->seqs == f->seqs);
    for (uint32_t i = 0; i < f->seqs; i++) {
        const struct flight_seq *q = &f->seq[i];
        struct entry *e = &s->entries[q->entry];
        bool live = e->number == q->number;

        /* In this order: the token completes what is known, naming reads it, the end frees. */
        if (live) {
            e->pending -= q->sample;
            s->seats[q->seat].settled = q->first + q->rows;
            if (q->first + q->rows >= e->lost)
                note_recovery(s, e, now_us);
            name_blocks(s, e, q->seat);
            if (q->sample)
                apply_tokens(s, q->entry, &result->seq[i], now_us);
        }
        seat_landed(s, q->seat, now_us);
    }
    measure_rates(s, f, result->copy_us, now_us);
    s->stats.steps++;
    s->stats.last_step_us = now_us;
    ek_hist_observe(&s->stats.iteration_tokens, f->rows);
    f->id = 0;
    s->flight_first = (s->flight_first + 1) % SCHED_DEPTH;
    s->flying--;
}

void sched_cancel(struct sched *s, int blame, uint64_t now_us)
{
    assert(s->flying > 0);
    struct flight *f = &s->flights[(s->flight_first + s->flying - 1) % SCHED_DEPTH];
    uint32_t worst = SCHED_NONE, worst_rows = 0;

    for (uint32_t i = 0; i < f->seqs; i++) {
        const struct flight_seq *q = &f->seq[i];
        struct entry *e = &s->entries[q->entry];
        if (e->number == q->number) {
            e->pending -= q->sample;
            if (e->state == ENTRY_RUNNING && s->seats[e->seat].lease == q->lease) {
                e->computed = q->sure;
                if (s->seats[q->seat].settled > q->sure)
                    s->seats[q->seat].settled = q->sure;
                s->seats[q->seat].set_due |= q->set;
            } else if (e->swapped.tokens > q->sure) {
                e->swapped.tokens = q->sure; /* the rest of what was saved never came to be */
            }
            if (q->rows >= worst_rows) { /* of equals the one that came last */
                worst = q->entry;
                worst_rows = q->rows;
            }
        }
        seat_landed(s, q->seat, now_us);
    }
    swap_cancel(s, f->id, now_us);
    f->id = 0;
    s->flying--;
    if (blame != 0 && worst != SCHED_NONE)
        sched_end(s, worst, REQ_FIN_ERROR, blame, now_us);
}

uint32_t sched_take_news(struct sched *s)
{
    uint32_t news = s->news;
    s->news = 0;
    return news;
}
