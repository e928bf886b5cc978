/*
 * The pool's size while the server runs. The limit says how many blocks may be used; the device
 * follows: memory above the end goes back to the system once it is not in use, and is taken again
 * before blocks there are given. What lies above the end moves below it in a step that has copies
 * and no rows: tables name the new places only when that step is done, so a failure changes
 * nothing.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/engine/sched.h"

#define RETRY_US 1000000u /* after a failure */

int pool_init(struct pool *p, uint32_t blocks, uint32_t copies)
{
    p->device = blocks;
    p->migrants = calloc(copies, sizeof(*p->migrants));
    return p->migrants ? 0 : -ENOMEM;
}

void pool_done(struct pool *p)
{
    free(p->migrants);
}

void sched_pool_resizable(struct sched *s)
{
    s->pool.resizable = true;
}

void sched_accept_limit(struct sched *s, uint64_t kv_blocks)
{
    s->pool.accept =
        kv_blocks < 1 || kv_blocks >= s->blocks.total ? s->blocks.total : (uint32_t)kv_blocks + 1;
}

void sched_pool_limit(struct sched *s, uint64_t kv_blocks, uint64_t now_us)
{
    sched_accept_limit(s, kv_blocks);
    s->pool.limit = s->pool.accept;
    sched_fit_pool(s, now_us);
}

/* The pool may have been made smaller since the request was accepted. */
void sched_pool_needs(struct sched *s, uint64_t blocks, uint64_t now_us)
{
    if (blocks > s->pool.device)
        s->pool.retry_us = 0; /* it gets the memory now, or ends */
    if (blocks > s->blocks.usable)
        sched_fit_pool(s, now_us);
}

void sched_fit_pool(struct sched *s, uint64_t now_us)
{
    uint32_t wanted = s->pool.floor > s->pool.limit ? s->pool.floor : s->pool.limit;

    for (uint32_t i = 0; i < s->entries.count && wanted < s->blocks.total; i++) {
        if (s->entries.at[i].state == ENTRY_FREE)
            continue;
        uint64_t need = sched_blocks_needed(s, &s->entries.at[i].req->ask) + 1;
        if (need > wanted)
            wanted = (uint32_t)need;
    }
    s->pool.wanted = wanted;
    uint32_t usable = wanted < s->pool.device ? wanted : s->pool.device;
    if (usable != s->blocks.usable)
        blocks_resize(&s->blocks, usable, now_us);
}

static bool may_try(const struct pool *p, uint64_t now_us)
{
    return p->resizable && now_us >= p->retry_us;
}

/* Copies that have to be done before the device may lose its blocks above the end. */
static bool must_move(const struct sched *s)
{
    uint32_t above = blocks_above(&s->blocks);

    return s->pool.device > s->blocks.usable && (above > 0 || s->host.copy_count > 0) &&
           above <= blocks_available(&s->blocks);
}

uint32_t sched_pool_due(const struct sched *s, uint64_t now_us)
{
    if (!may_try(&s->pool, now_us))
        return 0;
    if (s->pool.wanted > s->pool.device)
        return s->pool.wanted;
    bool shrinks = s->pool.device > s->blocks.usable && blocks_above(&s->blocks) == 0 &&
                   s->host.copy_count == 0;
    return shrinks ? s->blocks.usable : 0;
}

bool sched_pool_holds(const struct sched *s, uint64_t now_us)
{
    return s->pool.migrant_count > 0 ||
           (may_try(&s->pool, now_us) && (sched_pool_due(s, now_us) != 0 || must_move(s)));
}

void sched_pool_done(struct sched *s, uint32_t blocks, int code, uint64_t now_us)
{
    assert(s->flights.count == 0);
    if (code == -ENOTSUP) { /* the limit holds all the same, the memory stays */
        s->pool.resizable = false;
        return;
    }
    s->pool.error = code;
    s->pool.retry_us = code == 0 ? 0 : now_us + RETRY_US;
    *(code == 0 ? &s->stats.pool_resizes : &s->stats.pool_resize_failures) += 1;
    if (code == 0)
        s->pool.device = blocks;
    for (uint32_t i = 0; code != 0 && i < s->entries.count; i++)
        if (s->entries.at[i].state != ENTRY_FREE &&
            sched_blocks_needed(s, &s->entries.at[i].req->ask) + 1 > s->pool.device)
            sched_end(s, i, REQ_FIN_ERROR, code, now_us);
    sched_fit_pool(s, now_us);
    admission_again(&s->admission);
}

void sched_pool_floor(struct sched *s, uint32_t blocks, uint64_t now_us)
{
    s->pool.floor = blocks < s->blocks.total ? blocks : s->blocks.total;
    s->pool.error = 0;
    s->pool.retry_us = 0;
    sched_fit_pool(s, now_us);
}

bool sched_migrate(struct sched *s, uint64_t now_us, struct ek_step *step)
{
    struct host *h = &s->host;

    if (!may_try(&s->pool, now_us) || !must_move(s))
        return false;
    assert(s->flights.count == 0 && s->pool.migrant_count == 0);
    for (uint32_t id = s->blocks.usable; id < s->pool.device; id++) {
        uint32_t to;
        if (s->blocks.at[id].refs == 0)
            continue;
        if (h->copy_count >= h->most)
            break; /* the rest goes with the next one */
        h->held = 1;
        int r = blocks_take(&s->blocks, now_us, &to);
        h->held = 0;
        assert(r == 0);
        s->pool.migrants[s->pool.migrant_count] = (struct ek_block_copy){
            .from = id, .to = to, .from_tier = EK_TIER_DEVICE, .to_tier = EK_TIER_DEVICE};
        host_copy(h, s->pool.migrants[s->pool.migrant_count++]);
    }
    struct flight *f = flights_begin(&s->flights, now_us);
    ek_step_layout(step, &s->fixed.ceiling);
    step->id = f->id;
    host_write(&s->host, step);
    f->copies = step->copies;
    return true;
}

void sched_migrated(struct sched *s, bool done, uint64_t now_us)
{
    uint32_t count = s->pool.migrant_count;

    if (!done)
        s->pool.retry_us = now_us + RETRY_US;
    memset(s->scratch.recount, 0, s->blocks.total * sizeof(*s->scratch.recount));
    s->pool.migrant_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t from = s->pool.migrants[i].from, to = s->pool.migrants[i].to;
        if (!done || s->blocks.at[from].refs == 0) { /* it is not needed any more */
            blocks_give(&s->blocks, to, now_us);
            continue;
        }
        if (s->blocks.at[from].named)
            prefix_move(&s->prefix, from, to);
        states_move(&s->states, from, to);
        blocks_move(&s->blocks, from, to);
        s->scratch.recount[from] = to;
        s->stats.migrated_blocks++;
    }
    if (done && count > 0)
        slots_rename(&s->slots, s->scratch.recount);
}
