/*
 * What the scheduler shows: gauges beside its counters, and a recount of everything for tests.
 */
#include <string.h>

#include "server/engine/sched.h"

/* How the tables lie in memory, and how many more would fit: of the average running one (without
 * any: of the longest), and of the longest possible. */
static void gauge_room(const struct sched *s, struct engine_stats *st)
{
    uint32_t slots = s->entries.running_count + s->slots.leaving_count,
             room = blocks_available(&s->blocks);

    st->table_adjacent = s->slots.held_adjacent;
    st->table_pairs =
        s->slots.held_blocks - (s->slots.held_blocks < slots ? s->slots.held_blocks : slots);
    st->request_blocks = slots > 0 ? (double)s->slots.held_blocks / slots : 0;
    st->fit_longest = room / s->slots.table_most;
    st->fit_average =
        st->request_blocks > 0 ? (uint64_t)(room / st->request_blocks) : st->fit_longest;
}

void sched_stats(struct sched *s, uint64_t now_us, struct engine_stats *ret_stats)
{
    struct engine_stats *st = &s->stats;

    st->running = s->entries.running_count;
    st->waiting = s->entries.waiting_count;
    st->held = s->entries.waiting_count > 0 ? s->admission.held : HELD_NONE;
    st->preempted = s->entries.preempted_count;
    st->suspects = s->suspects;
    st->blocks_total = s->blocks.total - 1 - s->blocks.retired;
    st->blocks_used = s->blocks.referenced - s->pool.migrant_count;
    st->device_blocks = s->pool.device;
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
    st->queued_tokens = s->entries.waiting_tokens;
    st->waste_tokens = 0;
    st->used_tokens = 0;
    for (uint32_t i = 0; i < s->entries.running_count; i++) {
        const struct entry *e = entries_running(&s->entries, i);
        uint32_t held = e->known + e->pending,
                 room = s->slots.at[e->slot].blocks * s->fixed.block_size;
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
    uint32_t oldest = s->entries.age.head;
    st->oldest_wait_us = 0;
    if (oldest != SCHED_NONE && now_us > s->entries.at[oldest].req->queued_us)
        st->oldest_wait_us = now_us - s->entries.at[oldest].req->queued_us;
    st->step_started_us = s->flights.count > 0 ? s->flights.at[s->flights.first].planned_us : 0;
    st->copy_rate = s->rates.copy;
    st->step_rows =
        sched_prompts_within(&s->fixed, pace_budget(&s->rates.pace, sched_budget(s), 0), 0);
    st->step_fixed_us = s->rates.pace.line.known ? s->rates.pace.line.fixed_us : 0;
    st->step_row_us = s->rates.pace.line.known ? s->rates.pace.line.row_us : 0;
    st->step_context_us = s->rates.pace.line.known ? s->rates.pace.line.context_us : 0;
    st->price = s->rates.prices.now;
    st->prefill_rate = s->rates.prefill_known ? s->rates.prefill : 0;
    st->admission_paused = s->admission.paused;
    st->evicted_age = s->blocks.evicted_age;
    st->largest_gap_us = gaps_largest(&s->gaps, now_us);
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

    for (uint32_t i = l->head; i != SCHED_NONE; i = s->entries.at[i].in[q].next) {
        const struct entry *e = &s->entries.at[i];
        if (sum->n++ > s->entries.count || e->state != ENTRY_WAITING || e->in[q].prev != prev)
            return "a queue is broken";
        if (q == QUEUE_POLICY && l != &s->tenants.at[e->tenant].queue)
            return "an entry waits in another tenant's queue";
        if (prev != SCHED_NONE && !(q == QUEUE_AGE ? s->entries.at[prev].number < e->number
                                                   : entries_before(&s->entries, prev, i)))
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
    const char *wrong = q == QUEUE_AGE ? check_list(s, q, &s->entries.age, &sum) : NULL;

    for (uint32_t i = 0; i < s->tenants.count && q == QUEUE_POLICY && !wrong; i++)
        wrong = check_list(s, q, &s->tenants.at[i].queue, &sum);
    if (!wrong &&
        (sum.n != s->entries.waiting_count || sum.preempted != s->entries.preempted_count ||
         sum.tokens != s->entries.waiting_tokens))
        wrong = "a queue's counts are wrong";
    return wrong;
}

/* What each tenant has to do, by its live entries. */
static const char *check_tenants(const struct sched *s)
{
    uint32_t active[TENANTS_MOST] = {0};
    uint64_t due[TENANTS_MOST] = {0};

    for (uint32_t i = 0; i < s->entries.count; i++) {
        const struct entry *e = &s->entries.at[i];
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

static const char *check_running(const struct sched *s)
{
    for (uint32_t i = 0; i < s->entries.running_count; i++) {
        const struct entry *e = entries_running(&s->entries, i);
        if (e->state != ENTRY_RUNNING || s->slots.at[e->slot].entry != s->entries.running[i])
            return "a running entry has no slot";
        if (e->computed > e->known + e->pending || e->rows != 0 || e->pending > s->flights.count)
            return "a running entry's counts are wrong";
        if (i > 0 && !entries_before(&s->entries, s->entries.running[i - 1], s->entries.running[i]))
            return "running entries are out of order";
    }
    return NULL;
}

/* What each slot has for itself, by the recount of references. */
static const char *check_own(const struct sched *s)
{
    for (uint32_t i = 0; i < s->fixed.max_seqs; i++) {
        const uint32_t *table = slots_table(&s->slots, i);
        uint32_t own = 0;
        for (uint32_t k = 0; k < s->slots.at[i].blocks; k++)
            own += s->scratch.recount[table[k]] == 1;
        if (own != s->slots.at[i].own)
            return "the blocks that a slot has for itself are wrong";
    }
    return NULL;
}

static const char *check_slots(struct sched *s)
{
    uint32_t taken = 0, leaving = 0, inflight = 0, flown = 0;
    uint64_t held = 0, adjacent = 0;

    memset(s->scratch.recount, 0, s->blocks.total * sizeof(*s->scratch.recount));
    for (uint32_t i = 0; i < s->fixed.max_seqs; i++) {
        const struct slot *t = &s->slots.at[i];
        const uint32_t *table = slots_table(&s->slots, i);
        taken += t->entry != SCHED_NONE;
        leaving += t->entry == SCHED_NONE && t->inflight > 0;
        inflight += t->inflight;
        for (uint32_t k = 0; k < t->blocks; k++) {
            if (table[k] == 0 || table[k] >= s->pool.device)
                return "a table names a block that does not exist";
            s->scratch.recount[table[k]]++;
            if (t->entry != SCHED_NONE && s->blocks.at[table[k]].named &&
                s->blocks.at[table[k]].salt != sched_owner(&s->entries.at[t->entry]))
                return "a block belongs to another salt";
            held++;
            adjacent += k > 0 && table[k] == table[k - 1] + 1;
        }
    }
    for (uint32_t i = 0; i < s->pool.migrant_count; i++)
        s->scratch.recount[s->pool.migrants[i].to]++;
    for (uint32_t i = 0; i < s->flights.count; i++)
        flown += s->flights.at[flights_place(&s->flights, i)].seqs;
    if (taken != s->entries.running_count || leaving != s->slots.leaving_count ||
        inflight != flown || taken + leaving + s->slots.free_count != s->fixed.max_seqs)
        return "the slots do not add up";
    if (held != s->slots.held_blocks || adjacent != s->slots.held_adjacent)
        return "the sums over block tables are wrong";
    const char *wrong = check_own(s);
    return wrong ? wrong : blocks_check(&s->blocks, s->scratch.recount);
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
        wrong = check_slots(s);
    if (!wrong)
        wrong = prefix_check(&s->prefix, &s->blocks);
    if (!wrong)
        wrong = host_check(s);
    if (!wrong)
        wrong = snapshot_check(s);
    if (!wrong)
        wrong = admission_check(s);
    if (!wrong && s->value[LIMIT_PREFIX_CACHING] == 0 && s->prefix.count + s->host.names.count > 0)
        wrong = "blocks have names though the prefix cache is off";
    if (!wrong &&
        s->stats.preemptions_swap + s->stats.preemptions_recompute != s->stats.preemptions)
        wrong = "preemptions by reason do not add up";
    if (!wrong && (s->blocks.usable > s->pool.device || s->pool.device > s->blocks.total))
        wrong = "blocks are given that the device has no memory for";
    if (!wrong && s->entries.free_count + s->entries.running_count + s->entries.waiting_count !=
                      s->entries.count)
        wrong = "the entries do not add up";
    return wrong;
}
