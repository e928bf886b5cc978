/*
 * What the scheduler shows: gauges beside its counters, and a recount of everything for tests.
 */
#include <string.h>

#include "common/clock.h"
#include "server/engine/sched.h"

static uint64_t largest_gap(const struct sched *s, uint64_t now_us)
{
    uint64_t most = 0, second = now_us / EK_US_PER_S;

    for (uint32_t i = 0; i < 10; i++) {
        /* Seconds that have passed since the last gap are still to be cleared. */
        uint64_t at = s->gap_second >= i ? s->gap_second - i : 0;
        if (second - at < 10 && s->gap_us[at % 10] > most)
            most = s->gap_us[at % 10];
    }
    return most;
}

/* How the tables lie in memory, and how many more would fit: of the average running one (without
 * any: of the longest), and of the longest possible. */
static void gauge_room(const struct sched *s, struct engine_stats *st)
{
    uint32_t seats = s->running_count + s->leaving_count, room = blocks_available(&s->blocks);

    st->table_adjacent = s->held_adjacent;
    st->table_pairs = s->held_blocks - (s->held_blocks < seats ? s->held_blocks : seats);
    st->request_blocks = seats > 0 ? (double)s->held_blocks / seats : 0;
    st->fit_longest = room / s->table_most;
    st->fit_average =
        st->request_blocks > 0 ? (uint64_t)(room / st->request_blocks) : st->fit_longest;
}

void sched_stats(struct sched *s, uint64_t now_us, struct engine_stats *ret_stats)
{
    struct engine_stats *st = &s->stats;

    st->running = s->running_count;
    st->waiting = s->waiting_count;
    st->held = s->waiting_count > 0 ? s->held : HELD_NONE;
    st->preempted = s->preempted_count;
    st->suspects = s->suspects;
    st->blocks_total = s->blocks.total - 1 - s->blocks.retired;
    st->blocks_used = s->blocks.referenced - s->migrant_count;
    st->device_blocks = s->device_blocks;
    st->blocks_cached = s->blocks.cached.count;
    st->blocks_free = s->blocks.free.count;
    st->evictions = s->blocks.evictions;
    st->host_blocks_total = s->host.on ? s->host.blocks.usable - 1 : 0;
    st->host_blocks_used = s->host.blocks.referenced;
    st->host_blocks_cached = s->host.blocks.cached.count;
    st->has_states = s->states.on;
    st->snapshots_total = s->states.count;
    st->snapshots_used = s->states.kept + s->states.pending;
    st->snapshots_taken = s->states.taken;
    st->snapshots_evicted = s->states.evicted;
    st->snapshot_hits = s->states.used;
    st->offload_evictions = s->host.blocks.evictions;
    st->queued_tokens = s->waiting_tokens;
    st->waste_tokens = 0;
    st->used_tokens = 0;
    for (uint32_t i = 0; i < s->running_count; i++) {
        const struct entry *e = &s->entries[s->running[i]];
        uint32_t held = e->known + e->pending, room = s->seats[e->seat].blocks * s->block_size;
        st->used_tokens += e->computed;
        st->waste_tokens += room > held ? room - held : 0;
    }
    gauge_room(s, st);
    uint64_t least = tenants_least(&s->tenants);
    for (uint32_t i = 0; i < s->tenants.count; i++) {
        const struct tenant *t = &s->tenants.at[i];
        st->tenant[i] = (struct tenant_stat){.stamp = t->stamp,
                                             .prompts = t->prompts,
                                             .outputs = t->outputs,
                                             .masks = t->masks / TENANT_MASK,
                                             .preemptions = t->preemptions,
                                             .poisons = t->poisons,
                                             .ahead = tenants_ahead(&s->tenants, i, least)};
    }
    uint32_t oldest = s->age.head;
    st->oldest_wait_us = 0;
    if (oldest != SCHED_NONE && now_us > s->entries[oldest].req->queued_us)
        st->oldest_wait_us = now_us - s->entries[oldest].req->queued_us;
    st->step_started_us = s->flying > 0 ? s->flights[s->flight_first].planned_us : 0;
    st->copy_rate = s->copy_rate;
    st->step_rows = pace_budget(&s->pace, sched_budget(s), 0);
    st->step_fixed_us = s->pace.known ? s->pace.fixed_us : 0;
    st->step_row_us = s->pace.known ? s->pace.row_us : 0;
    st->step_context_us = s->pace.known ? s->pace.context_us : 0;
    st->prefill_rate = s->prefill_known ? s->prefill_rate : 0;
    st->admission_paused = s->paused;
    st->evicted_age = s->blocks.evicted_age;
    st->largest_gap_us = largest_gap(s, now_us);
    *ret_stats = *st;
}

struct listed {
    uint32_t n, preempted;
    uint64_t tokens;
};

/* Adds what is in the list to the counts. */
static const char *check_list(const struct sched *s, enum queue_id q, const struct queue *l,
                              struct listed *sum)
{
    uint32_t prev = SCHED_NONE;

    for (uint32_t i = l->head; i != SCHED_NONE; i = s->entries[i].in[q].next) {
        const struct entry *e = &s->entries[i];
        if (sum->n++ > s->entry_count || e->state != ENTRY_WAITING || e->in[q].prev != prev)
            return "a queue is broken";
        if (q == QUEUE_POLICY && l != &s->tenants.at[e->tenant].queue)
            return "an entry waits in another tenant's queue";
        if (prev != SCHED_NONE &&
            !(q == QUEUE_AGE ? s->entries[prev].number < e->number : sched_before(s, prev, i)))
            return "a queue is out of order";
        sum->preempted += e->admitted;
        sum->tokens += e->admitted ? 0 : e->req->ask.prompt_tokens;
        prev = i;
    }
    return prev == l->tail ? NULL : "a queue has another end";
}

static const char *check_queue(const struct sched *s, enum queue_id q)
{
    struct listed sum = {0};
    const char *wrong = q == QUEUE_AGE ? check_list(s, q, &s->age, &sum) : NULL;

    for (uint32_t i = 0; i < s->tenants.count && q == QUEUE_POLICY && !wrong; i++)
        wrong = check_list(s, q, &s->tenants.at[i].queue, &sum);
    if (!wrong && (sum.n != s->waiting_count || sum.preempted != s->preempted_count ||
                   sum.tokens != s->waiting_tokens))
        wrong = "a queue's counts are wrong";
    return wrong;
}

/* What each tenant has to do, by its live entries. */
static const char *check_tenants(const struct sched *s)
{
    uint32_t active[TENANTS_MOST] = {0};
    uint64_t due[TENANTS_MOST] = {0};

    for (uint32_t i = 0; i < s->entry_count; i++) {
        const struct entry *e = &s->entries[i];
        if (e->state == ENTRY_FREE)
            continue;
        active[e->tenant] += e->active;
        due[e->tenant] += e->admitted ? e->req->ask.prompt_tokens - e->paid : 0;
        if (e->state == ENTRY_WAITING && !e->active)
            return "an entry waits and its tenant has no work";
        if (e->state == ENTRY_RUNNING && e->active && e->pending > 0)
            return "a request that is read samples";
    }
    for (uint32_t i = 0; i < TENANTS_MOST; i++)
        if (active[i] != s->tenants.at[i].active || due[i] != s->tenants.at[i].due)
            return "what a tenant has to do is wrong";
    return NULL;
}

static const char *check_window(const struct sched *s)
{
    uint64_t queries = 0, hits = 0;

    for (uint32_t i = 0; i < SCHED_WINDOW; i++) {
        queries += s->window[i].queries;
        hits += s->window[i].hits;
    }
    if (queries != s->stats.window_queries || hits != s->stats.window_hits || hits > queries)
        return "the window of prefix hits is wrong";
    return s->value[LIMIT_PREFIX_CACHING] == 0 && s->prefix.count + s->host.names.count > 0
               ? "blocks have names though the prefix cache is off"
               : NULL;
}

static const char *check_running(const struct sched *s)
{
    for (uint32_t i = 0; i < s->running_count; i++) {
        const struct entry *e = &s->entries[s->running[i]];
        if (e->state != ENTRY_RUNNING || s->seats[e->seat].entry != s->running[i])
            return "a running entry has no seat";
        if (e->computed > e->known + e->pending || e->rows != 0 || e->pending > s->flying)
            return "a running entry's counts are wrong";
        if (i > 0 && !sched_before(s, s->running[i - 1], s->running[i]))
            return "running entries are out of order";
    }
    return NULL;
}

/* What each seat has for itself, by the recount of references. */
static const char *check_own(const struct sched *s)
{
    for (uint32_t i = 0; i < s->max_seqs; i++) {
        const uint32_t *table = sched_table(s, i);
        uint32_t own = 0;
        for (uint32_t k = 0; k < s->seats[i].blocks; k++)
            own += s->recount[table[k]] == 1;
        if (own != s->seats[i].own)
            return "the blocks that a seat has for itself are wrong";
    }
    return NULL;
}

static const char *check_seats(struct sched *s)
{
    uint32_t taken = 0, leaving = 0, inflight = 0, flown = 0;
    uint64_t held = 0, adjacent = 0;

    memset(s->recount, 0, s->blocks.total * sizeof(*s->recount));
    for (uint32_t i = 0; i < s->max_seqs; i++) {
        const struct seat *t = &s->seats[i];
        const uint32_t *table = sched_table(s, i);
        taken += t->entry != SCHED_NONE;
        leaving += t->entry == SCHED_NONE && t->inflight > 0;
        inflight += t->inflight;
        for (uint32_t k = 0; k < t->blocks; k++) {
            if (table[k] == 0 || table[k] >= s->device_blocks)
                return "a table names a block that does not exist";
            s->recount[table[k]]++;
            if (t->entry != SCHED_NONE && s->blocks.at[table[k]].named &&
                s->blocks.at[table[k]].salt != sched_owner(&s->entries[t->entry]))
                return "a block belongs to another salt";
            held++;
            adjacent += k > 0 && table[k] == table[k - 1] + 1;
        }
    }
    for (uint32_t i = 0; i < s->migrant_count; i++)
        s->recount[s->migrants[i].to]++;
    for (uint32_t i = 0; i < s->flying; i++)
        flown += s->flights[(s->flight_first + i) % SCHED_DEPTH].seqs;
    if (taken != s->running_count || leaving != s->leaving_count || inflight != flown ||
        taken + leaving + s->free_seat_count != s->max_seqs)
        return "the seats do not add up";
    if (held != s->held_blocks || adjacent != s->held_adjacent)
        return "the sums over block tables are wrong";
    const char *wrong = check_own(s);
    return wrong ? wrong : blocks_check(&s->blocks, s->recount);
}

const char *sched_check(struct sched *s)
{
    const char *wrong = check_queue(s, QUEUE_POLICY);

    if (!wrong)
        wrong = check_queue(s, QUEUE_AGE);
    if (!wrong)
        wrong = check_tenants(s);
    if (!wrong)
        wrong = check_running(s);
    if (!wrong)
        wrong = check_seats(s);
    if (!wrong)
        wrong = prefix_check(&s->prefix, &s->blocks);
    if (!wrong)
        wrong = host_check(s);
    if (!wrong)
        wrong = snapshot_check(s);
    if (!wrong)
        wrong = check_window(s);
    if (!wrong &&
        s->stats.preemptions_swap + s->stats.preemptions_recompute != s->stats.preemptions)
        wrong = "preemptions by reason do not add up";
    if (!wrong && (s->blocks.usable > s->device_blocks || s->device_blocks > s->blocks.total))
        wrong = "blocks are given that the device has no memory for";
    if (!wrong && s->free_entry_count + s->running_count + s->waiting_count != s->entry_count)
        wrong = "the entries do not add up";
    return wrong;
}
