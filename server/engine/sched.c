/*
 * The scheduler as a whole: making it, what fits, live limits. How requests come and end is in
 * entries.c, planning in plan.c, share.c and admit.c, results in results.c, the pool's size in
 * pool.c.
 */
#include "server/engine/sched.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "server/engine/kvlog.h"

void sched_ceiling(const struct engine_params *p, struct ek_step_ceiling *ret_ceiling)
{
    uint64_t table = ((uint64_t)p->max_model_len + p->block_size - 1) / p->block_size;
    uint64_t entries = table * p->max_seqs;

    *ret_ceiling = (struct ek_step_ceiling){
        .rows = p->max_batched_tokens,
        .seqs = p->max_seqs,
        .entries = entries > UINT32_MAX ? UINT32_MAX : (uint32_t)entries,
        .copies = host_copies((uint32_t)table) + states_copies(p->max_seqs, p->states),
        /* one slot with everything, at the least: each step has room for one */
        .words = p->max_model_len + (p->vocab + 31) / 32 + 2 * EK_BIAS_MOST + EK_BANNED_MOST +
                 EK_BAD_WORDS + EK_STEP_SCORES,
        .scores = EK_STEP_SCORES,
    };
}

static bool sizes_ok(const struct engine_params *p)
{
    return p->max_seqs > 0 && p->max_seqs <= UINT32_MAX / 64 && p->max_model_len > 0 &&
           p->max_model_len < INT32_MAX && p->block_size > 0 && p->blocks >= 2 &&
           (p->offload_blocks == 0 || p->offload_blocks < p->host_blocks) && p->vocab < INT32_MAX &&
           (p->states == 0 || (p->states >= p->max_seqs && p->host_blocks < 2)) &&
           p->max_batched_tokens >= p->max_seqs && p->depth >= 1 && p->depth <= SCHED_DEPTH &&
           (uint64_t)p->max_model_len * p->max_seqs / p->block_size < UINT32_MAX;
}

/* A blocks_forget_fn; ctx is the scheduler. */
static void forget_block(void *ctx, uint32_t id)
{
    struct sched *s = ctx;

    states_forget(&s->states, id);
    prefix_forget(&s->prefix, id);
}

static int take_tables(struct sched *s, const struct engine_params *p, uint32_t entries)
{
    const uint32_t table_most = (p->max_model_len + p->block_size - 1) / p->block_size;
    const uint32_t most = p->blocks > p->host_blocks ? p->blocks : p->host_blocks;

    s->share.readers = calloc(p->max_seqs, sizeof(*s->share.readers));
    s->scratch.tokens = calloc(p->block_size, sizeof(*s->scratch.tokens));
    s->scratch.recount = calloc(most, sizeof(*s->scratch.recount));
    if (!s->share.readers || !s->scratch.tokens || !s->scratch.recount)
        return -ENOMEM;
    int r = entries_init(&s->entries, entries, p->max_seqs, p->priority_policy);
    if (r == 0)
        r = slots_init(&s->slots, p->max_seqs, table_most, p->block_size);
    if (r == 0)
        r = flights_init(&s->flights, p->max_seqs);
    if (r == 0)
        r = pool_init(&s->pool, p->blocks, host_copies(table_most));
    if (r == 0)
        r = admission_init(&s->admission, table_most);
    if (r == 0)
        r = prefix_init(&s->prefix, p->blocks, p->block_size, p->hash_secret);
    if (r == 0)
        r = blocks_init(&s->blocks, p->blocks, forget_block, s);
    if (r == 0)
        r = states_init(&s->states, p->max_seqs, p->states, p->blocks);
    if (r != 0)
        return r;
    s->states.every = p->states_every != 0 ? p->states_every : STATES_EVERY;
    s->blocks.evicted = offload_evicted;
    s->blocks.evicted_ctx = s;
    r = host_init(s, p);
    s->prefix.log = s->host.names.log = p->kvlog;
    s->prefix.tier = KV_DEVICE;
    s->host.names.tier = KV_HOST;
    return r;
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
    s->fixed = (struct sched_fixed){
        .max_seqs = p->max_seqs,
        .max_rows = p->max_batched_tokens,
        .max_model_len = p->max_model_len,
        .block_size = p->block_size,
        .depth = p->depth,
        .stretched_above = p->stretched_above,
        .prompt_rows = p->prompt_rows,
        .share_least = p->share_least != 0 ? p->share_least : SHARE_LEAST,
    };
    sched_ceiling(p, &s->fixed.ceiling);
    s->recorder = p->recorder;
    s->rates.prices.longest = p->max_model_len;
    s->rates.gap_us = p->gap_us;
    pace_init(&s->rates.pace, p->prompt_rows);
    uint64_t queue = p->limits.ceiling[LIMIT_QUEUED_REQS];
    if (queue == 0 || queue > UINT32_MAX / 4)
        queue = SCHED_QUEUE_ANY;
    r = take_tables(s, p, (uint32_t)queue + SCHED_ENTRIES_BESIDE * p->max_seqs);
    if (r != 0)
        goto out;

    tenants_init(&s->tenants, SCHED_NONE);
    tally_init(&s->stats, p->max_model_len);
    sched_foresee_init(s);
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
    entries_done(&s->entries);
    slots_done(&s->slots);
    flights_done(&s->flights);
    pool_done(&s->pool);
    admission_done(&s->admission);
    blocks_done(&s->blocks);
    prefix_done(&s->prefix);
    host_done(&s->host);
    states_done(&s->states);
    free(s->share.readers);
    free(s->scratch.tokens);
    free(s->scratch.recount);
    free(s);
}

uint64_t sched_blocks_needed(const struct sched *s, const struct req_ask *ask)
{
    uint64_t tokens = (uint64_t)ask->prompt_tokens + ask->max_new_tokens - 1;
    return (tokens + s->fixed.block_size - 1) / s->fixed.block_size;
}

int sched_fit(const struct sched *s, const struct req_ask *ask, struct ek_fault *fault)
{
    uint64_t tokens = (uint64_t)ask->prompt_tokens + ask->max_new_tokens;
    uint64_t need = sched_blocks_needed(s, ask);
    uint32_t have = s->pool.accept - 1;

    if (tokens > s->fixed.max_model_len)
        return ek_fault_set(fault, "max_tokens",
                            "%u prompt tokens and %u new ones were asked for, but this model's "
                            "maximum context length is %u tokens: shorten the prompt or lower "
                            "max_tokens",
                            ask->prompt_tokens, ask->max_new_tokens, s->fixed.max_model_len);
    if (need > have)
        return ek_fault_set(fault, "max_tokens",
                            "%u prompt tokens and %u new ones need %llu KV blocks of %u tokens, "
                            "but the pool has %u: shorten the prompt or lower max_tokens, or give "
                            "the server more KV memory",
                            ask->prompt_tokens, ask->max_new_tokens, (unsigned long long)need,
                            s->fixed.block_size, have);
    return 0;
}

/* A cap in blocks for a share of the pool in parts per million; 0 = none. */
static uint32_t blocks_of_share(const struct pool *p, uint64_t share)
{
    if (share == 0 || share >= 1000000u)
        return 0;
    return (uint32_t)((uint64_t)(p->limit - 1) * share / 1000000u + 1);
}

void sched_limits(struct sched *s, const struct limits *l, uint64_t now_us)
{
    memcpy(s->value, l->value, sizeof(s->value));
    sched_pool_limit(s, s->value[LIMIT_KV_BLOCKS], now_us);

    blocks_cap(&s->blocks, blocks_of_share(&s->pool, s->value[LIMIT_CACHED_SHARE]),
               blocks_of_share(&s->pool, s->value[LIMIT_SALT_SHARE]), now_us);
    host_cap(&s->host, s->value[LIMIT_SALT_SHARE], now_us);
    if (s->value[LIMIT_PREFIX_CACHING] == 0 && s->prefix.count + s->host.names.count > 0)
        sched_reset_prefix(s);
    admission_again(&s->admission);
}

void sched_reset_prefix(struct sched *s)
{
    struct kvlog *log = s->prefix.log;

    s->prefix.log = s->host.names.log = NULL; /* one record says it all */
    blocks_forget_all(&s->blocks);
    if (s->host.on)
        blocks_forget_all(&s->host.blocks);
    s->prefix.log = s->host.names.log = log;
    if (log)
        kvlog_cleared(log);
    /* A name stands for a whole prefix: without its beginning a chain is never found. */
    for (uint32_t i = 0; i < s->entries.running_count; i++) {
        struct slot *t = &s->slots.at[s->entries.at[s->entries.running[i]].slot];
        slot_drop_snapshot(t, &s->states); /* its block gets no name any more */
        t->quiet = true;
    }
    admission_again(&s->admission);
}
