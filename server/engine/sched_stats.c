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
    st->blocks_total = s->blocks.total - 1 - s->blocks.retired;
    st->blocks_used = s->blocks.referenced - s->migrant_count;
    st->device_blocks = s->device_blocks;
    st->blocks_cached = s->blocks.cached.count;
    st->blocks_free = s->blocks.free.count;
    st->evictions = s->blocks.evictions;
    st->host_blocks_total = s->host.on ? s->host.blocks.total - 1 : 0;
    st->host_blocks_used = s->host.blocks.referenced;
    st->host_blocks_cached = s->host.blocks.cached.count;
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
    uint32_t oldest = s->queue[QUEUE_AGE].head;
    st->oldest_wait_us = 0;
    if (oldest != SCHED_NONE && now_us > s->entries[oldest].req->queued_us)
        st->oldest_wait_us = now_us - s->entries[oldest].req->queued_us;
    st->step_started_us = s->flying > 0 ? s->flights[s->flight_first].planned_us : 0;
    st->copy_rate = s->copy_rate;
    st->prefill_rate = s->prefill_known ? s->prefill_rate : 0;
    st->admission_paused = s->paused;
    st->evicted_age = s->blocks.evicted_age;
    st->largest_gap_us = largest_gap(s, now_us);
    *ret_stats = *st;
}

static const char *check_queue(const struct sched *s, enum queue_id q)
{
    uint32_t n = 0, prev = SCHED_NONE, preempted = 0;
    uint64_t tokens = 0;

    for (uint32_t i = s->queue[q].head; i != SCHED_NONE; i = s->entries[i].in[q].next) {
        const struct entry *e = &s->entries[i];
        if (n++ > s->entry_count || e->state != ENTRY_WAITING || e->in[q].prev != prev)
            return "a queue is broken";
        if (prev != SCHED_NONE &&
            !(q == QUEUE_AGE ? s->entries[prev].number < e->number : sched_before(s, prev, i)))
            return "a queue is out of order";
        preempted += e->admitted;
        tokens += e->admitted ? 0 : e->req->ask.prompt_tokens;
        prev = i;
    }
    if (n != s->waiting_count || preempted != s->preempted_count || tokens != s->waiting_tokens ||
        prev != s->queue[q].tail)
        return "a queue's counts are wrong";
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
    return blocks_check(&s->blocks, s->recount);
}

const char *sched_check(struct sched *s)
{
    const char *wrong = check_queue(s, QUEUE_POLICY);

    if (!wrong)
        wrong = check_queue(s, QUEUE_AGE);
    if (!wrong)
        wrong = check_running(s);
    if (!wrong)
        wrong = check_seats(s);
    if (!wrong)
        wrong = prefix_check(&s->prefix, &s->blocks);
    if (!wrong)
        wrong = host_check(s);
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
