/*
 * The memory plan. What is fixed (weights, activations, tables, swap pool) is taken first; the KV
 * pool gets what is left of the share, or what was asked for by name, which like in vLLM may exceed
 * the share but not the memory. Sums saturate: a plan
 * that overflows does not fit. When it does not fit, the cheapest setting that makes it fit is
 * named with its value, worked out here rather than found by trial.
 */
#include "common/memplan.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"

#define GIB              (1ull << 30)
#define RANKS_TIMES      16u  /* more cards than so many times those there are are not advised */
#define UTILIZATION_MOST 0.99 /* suggested; the rest of the machine needs something too */

/* A plan being made. */
struct plan_making {
    const struct memplan_params *p;
    const struct ek_plan *need;
    struct memplan plan;
    uint64_t fixed_bytes;  /* all items but the KV pool and its tables, those in the share */
    uint64_t unit_bytes;   /* of one more block, in the share */
    uint64_t least_blocks; /* for one request of max_model_len */
    uint64_t asked_blocks; /* by a setting, 0 = what is left */
    uint64_t most_blocks;  /* a slot number must fit 32 bits */
    uint64_t limit_bytes;  /* the share, or all memory for a pool that was asked for */
    struct ek_fault *fault;
};

uint64_t memplan_add(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t mul(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint32_t ranks_of(const struct memplan_params *p)
{
    return p->ranks > 0 ? p->ranks : 1;
}

/* Those whose weights in host memory are on this machine. */
static uint32_t ranks_here(const struct memplan_params *p)
{
    return p->ranks_here > 0 ? p->ranks_here : ranks_of(p);
}

static uint64_t memplan_share_of(uint64_t memory_bytes, double utilization)
{
    double share = (double)memory_bytes * utilization;
    if (memory_bytes == UINT64_MAX)
        memory_bytes--; /* a sum that was saturated never fits */
    /* 2^64 and more cannot be converted; rounding must not give more than there is. */
    if (!(share < (double)memory_bytes))
        return memory_bytes;
    return (uint64_t)share < memory_bytes ? (uint64_t)share : memory_bytes;
}

/* ---- what makes sense at all ---- */

static int memplan_check(const struct memplan_params *p, const struct ek_plan *need,
                         uint32_t model_len, struct ek_fault *fault)
{
    if (!(p->utilization > 0 && p->utilization <= 1))
        return ek_fault_set(fault, "gpu-memory-utilization",
                            "--gpu-memory-utilization %g must be above 0 and at most 1",
                            p->utilization);
    if (p->block_size == 0)
        return ek_fault_set(fault, "block-size", "--block-size must be at least 1; leave it out");
    if (p->blocks_override == 1)
        return ek_fault_set(fault, "num-gpu-blocks-override",
                            "--num-gpu-blocks-override 1 leaves no block for requests, since block "
                            "0 is never given out; set it to 2 or more");
    if (p->blocks_override > 0 && p->kv_cache_bytes > 0)
        return ek_fault_set(fault, "num-gpu-blocks-override",
                            "--num-gpu-blocks-override and --kv-cache-memory-bytes both size the "
                            "KV cache; leave one out");
    if (need->block_bytes == 0 || model_len == 0)
        return ek_fault_set(fault, "model",
                            "the model has no KV cache or no length; correct its config.json");
    if (p->max_model_len > model_len)
        return ek_fault_set(fault, "max-model-len",
                            "--max-model-len %u is more than the model's %u tokens; set it to %u "
                            "or less",
                            p->max_model_len, model_len, model_len);
    return 0;
}

/* ---- what to change when it does not fit ---- */

/* The smallest utilization in steps of 0.01 whose share is `bytes`, or 0 when there is none. */
static double utilization_for(const struct memplan_params *p, uint64_t bytes)
{
    if (bytes > p->memory_bytes)
        return 0;
    double steps = ceil((double)bytes / (double)p->memory_bytes * 100);
    while (steps <= UTILIZATION_MOST * 100 &&
           memplan_share_of(p->memory_bytes, steps / 100) < bytes)
        steps += 1;
    return steps <= UTILIZATION_MOST * 100 ? steps / 100 : 0;
}

/* Settings that size the KV pool: a pool that was asked for, or the length of a request. */
static bool remedy_pool(const struct plan_making *m, char *text, size_t size)
{
    uint64_t bb = m->plan.block_bytes, limit = m->limit_bytes;
    uint64_t blocks = limit > m->fixed_bytes ? (limit - m->fixed_bytes) / m->unit_bytes : 0;
    uint64_t bs = m->p->block_size;
    if (m->asked_blocks > 0 && blocks >= m->least_blocks) {
        if (m->p->blocks_override)
            (void)snprintf(text, size, "lower --num-gpu-blocks-override to %" PRIu64, blocks);
        else
            (void)snprintf(text, size, "lower --kv-cache-memory-bytes to %" PRIu64, blocks * bb);
        return true;
    }
    if (m->asked_blocks == 0 && m->p->max_model_len > 0 && blocks >= 2) {
        (void)snprintf(text, size, "lower --max-model-len to %" PRIu64, (blocks - 1) * bs);
        return true;
    }
    return false;
}

/* The tiers in host memory, the one that is easier to do without first. */
static const struct {
    enum memplan_item item;
    const char *flag;
} tier_table[] = {{MEMPLAN_OFFLOAD, "kv-offloading-size"}, {MEMPLAN_SWAP, "swap-space"}};
#define TIERS (sizeof(tier_table) / sizeof(tier_table[0]))

/* The flag of a tier that is as large as what is missing, NULL when there is none. */
static const char *remedy_tier(const struct plan_making *m, uint64_t short_bytes, char *text,
                               size_t size)
{
    for (size_t i = 0; i < TIERS; i++) {
        uint64_t bytes = m->plan.bytes[tier_table[i].item];
        if (bytes == 0 || bytes < short_bytes)
            continue;
        /* In GiB, rounded down to two decimals. */
        double left = floor((double)(bytes - short_bytes) / (double)GIB * 100) / 100;
        (void)snprintf(text, size, "lower --%s to %.2f", tier_table[i].flag, left);
        return tier_table[i].flag;
    }
    return NULL;
}

/* Fewer snapshots of recurrent state, where so many were asked for. */
static bool remedy_snapshots(const struct plan_making *m, uint64_t short_bytes, char *text,
                             size_t size)
{
    const uint64_t one = m->need->state_bytes;

    if (m->p->snapshots <= 0 || one == 0 || mul(one, m->plan.snapshots) < short_bytes)
        return false;
    const uint64_t less = short_bytes / one + (short_bytes % one != 0);
    (void)snprintf(text, size, "lower --state-snapshots to %" PRIu64, m->plan.snapshots - less);
    return true;
}

/* Activations and slots grow with tokens and sequences at most in proportion, so cutting both by
 * the same factor is enough. */
static bool remedy_step(const struct plan_making *m, uint64_t short_bytes, char *text, size_t size)
{
    uint64_t step = memplan_add(m->need->activation_bytes, m->need->slot_bytes);
    step = memplan_add(step, mul(m->need->state_bytes, m->p->states));
    if (step <= short_bytes)
        return false;
    double keep = (double)(step - short_bytes) / (double)step;
    uint32_t tokens = (uint32_t)floor(m->p->max_num_batched_tokens * keep);
    uint32_t seqs = (uint32_t)floor(m->p->max_num_seqs * keep);
    if (tokens == 0 || seqs == 0)
        return false;
    (void)snprintf(text, size, "lower --max-num-batched-tokens to %u and --max-num-seqs to %u",
                   tokens, seqs);
    return true;
}

/* More weights in host memory: what is missing, and what buffers for them and the last matrix that
 * does not fit the number any more may take. */
static void remedy_offload(const struct plan_making *m, uint64_t short_bytes, char *text,
                           size_t size)
{
    const struct ek_plan *n = m->need;
    uint64_t more =
        memplan_add(short_bytes, memplan_add(n->staging_most_bytes, n->staging_most_bytes / 2));
    uint64_t all = memplan_add(more, n->host_weight_bytes - n->staging_bytes);

    const uint64_t host = m->p->host_memory_bytes;

    if (all > n->offload_most_bytes || (host > 0 && mul(all, ranks_here(m->p)) > host))
        return;
    (void)snprintf(text, size, ", --cpu-offload-gb %.2f (slow)",
                   ceil((double)all / (double)GIB * 100) / 100);
}

/* Another model, another card, or more of them: twice as many until what they divide fits. */
static void remedy_model(const struct plan_making *m, uint64_t need_bytes, char *text, size_t size)
{
    const uint64_t fixed = m->need->overhead_bytes, limit = m->limit_bytes;
    const uint64_t divided = need_bytes > fixed ? need_bytes - fixed : 0;
    const uint32_t ranks = ranks_of(m->p);
    const uint32_t stages = m->p->stages > 0 ? m->p->stages : 1;
    char needs[24], more[64] = "", host[48] = "";

    remedy_offload(m, need_bytes - limit, host, sizeof(host));
    for (uint32_t times = 2; m->p->host_apart && times <= RANKS_TIMES && !*more; times *= 2) {
        if (memplan_add(fixed, divided / times) > limit)
            continue;
        (void)snprintf(more, sizeof(more), ", --tensor-parallel-size %u on as many cards",
                       times * ranks);
        if (stages > 1)
            (void)snprintf(more, sizeof(more), ", --tensor-parallel-size %u on %u cards",
                           times * ranks / stages, times * ranks);
    }
    (void)snprintf(text, size, "use a smaller model%s%s or %s at least %s", more, host,
                   m->p->host_apart ? "a device with" : "give it memory of",
                   memplan_size_text(memplan_add(need_bytes, need_bytes / 10), needs));
}

static int no_fit(const struct plan_making *m, uint64_t need_bytes)
{
    const struct memplan_params *p = m->p;
    uint64_t short_bytes = need_bytes - m->limit_bytes;
    bool of_share = m->asked_blocks == 0;
    char needs[24], share[24], memory[24], lacks[24], limit[96], first[192] = "", second[128] = "";
    const char *field = "gpu-memory-utilization", *tier = NULL;

    double utilization = of_share ? utilization_for(p, need_bytes) : 0;
    if (utilization > 0)
        (void)snprintf(second, sizeof(second), "raise --gpu-memory-utilization to %.2f",
                       utilization);
    if (remedy_pool(m, first, sizeof(first)))
        field = p->blocks_override  ? "num-gpu-blocks-override"
                : p->kv_cache_bytes ? "kv-cache-memory-bytes"
                                    : "max-model-len";
    else if (!p->host_apart && (tier = remedy_tier(m, short_bytes, first, sizeof(first))))
        field = tier;
    else if (remedy_snapshots(m, short_bytes, first, sizeof(first)))
        field = "state-snapshots";
    else if (remedy_step(m, short_bytes, first, sizeof(first)))
        field = "max-num-batched-tokens";
    else if (!*second)
        remedy_model(m, need_bytes, first, sizeof(first));

    (void)memplan_size_text(p->memory_bytes, memory);
    if (of_share)
        (void)snprintf(limit, sizeof(limit), "the share is %s (%.2f of %s)",
                       memplan_size_text(m->plan.share_bytes, share), p->utilization, memory);
    else
        (void)snprintf(limit, sizeof(limit), "the memory is %s", memory);
    ek_fault_write(m->fault, field, "The plan needs %s but %s: %s too much; %s%s%s",
                   memplan_size_text(need_bytes, needs), limit,
                   memplan_size_text(short_bytes, lacks), first, *first && *second ? " or " : "",
                   second);
    return -E2BIG;
}

/* The pool that a setting asks for is smaller than one request of --max-model-len. */
static int pool_too_small(const struct plan_making *m)
{
    const struct memplan_params *p = m->p;
    uint64_t bb = m->plan.block_bytes, longest = 0;
    if (m->asked_blocks > 1)
        longest = (m->asked_blocks - 1) * p->block_size;
    const char *flag = p->blocks_override ? "num-gpu-blocks-override" : "kv-cache-memory-bytes";
    uint64_t has = p->blocks_override ? p->blocks_override : p->kv_cache_bytes;
    uint64_t want = p->blocks_override ? m->least_blocks : mul(m->least_blocks, bb);
    char lower[80] = "";
    if (longest > 0)
        (void)snprintf(lower, sizeof(lower), " or lower --max-model-len to %" PRIu64, longest);
    ek_fault_write(m->fault, flag,
                   "--%s %" PRIu64 " is too little for one request of %u token%s, which needs "
                   "%" PRIu64 " blocks with block 0; raise it to %" PRIu64 "%s",
                   flag, has, p->max_model_len ? p->max_model_len : 1,
                   p->max_model_len ? "s (--max-model-len)" : "", m->least_blocks, want,
                   p->max_model_len ? lower : "");
    return -E2BIG;
}

/* ---- the plan ---- */

/* Blocks of the host tier. One of them is block 0, which alone holds nothing. */
static void fill_tiers(struct plan_making *m)
{
    /* a block of a tier is one of each rank */
    uint64_t bb = mul(m->plan.block_bytes, ranks_of(m->p)), most = m->most_blocks;
    uint64_t swap = m->p->swap_bytes / bb, offload = m->p->offload_bytes / bb;

    swap = swap < 2 ? 0 : swap < most ? swap : most;
    offload = offload < most - swap ? offload : most - swap;
    if (swap + offload < 2)
        offload = 0;
    m->plan.host_blocks = (uint32_t)(swap + offload);
    m->plan.offload_blocks = (uint32_t)(swap > 0 || offload == 0 ? offload : offload - 1);
    m->plan.bytes[MEMPLAN_SWAP] = swap * bb;
    m->plan.bytes[MEMPLAN_OFFLOAD] = offload * bb;
}

static void fill_snapshots(struct plan_making *m, uint32_t snapshots)
{
    if (m->need->state_bytes == 0)
        return;
    m->plan.snapshots = snapshots;
    m->plan.bytes[MEMPLAN_STATES] = mul(m->need->state_bytes, (uint64_t)m->p->states + snapshots);
}

/* Where no number is given: two for each sequence, but no more than a quarter of what would be
 * the pool's, and what a request of max_model_len leaves of it. */
static uint32_t choose_snapshots(const struct plan_making *m)
{
    const uint64_t left = m->limit_bytes > m->fixed_bytes ? m->limit_bytes - m->fixed_bytes : 0;
    const uint64_t kept =
        mul(m->asked_blocks > 0 ? m->asked_blocks : m->least_blocks, m->unit_bytes);
    uint64_t pool = m->asked_blocks > 0 ? kept : left;

    if (m->need->state_bytes == 0 || left <= kept)
        return 0;
    if (m->asked_blocks == 0 && m->p->kv_most_bytes > 0 && pool > m->p->kv_most_bytes)
        pool = m->p->kv_most_bytes;
    uint64_t room = left - kept < pool / 4 ? left - kept : pool / 4;
    uint64_t most = room / m->need->state_bytes;
    return most < 2ull * m->p->states ? (uint32_t)most : 2 * m->p->states;
}

static void fill_fixed(struct plan_making *m)
{
    const struct memplan_params *p = m->p;
    uint64_t *bytes = m->plan.bytes;
    bytes[MEMPLAN_WEIGHTS] = m->need->weight_bytes;
    bytes[MEMPLAN_STAGING] = m->need->staging_bytes;
    bytes[MEMPLAN_HOST_WEIGHTS] = mul(m->need->host_weight_bytes, ranks_here(p));
    bytes[MEMPLAN_FILES] = p->file_bytes;
    bytes[MEMPLAN_ACTIVATIONS] = m->need->activation_bytes;
    bytes[MEMPLAN_SLOTS] = m->need->slot_bytes;
    bytes[MEMPLAN_STATES] = mul(m->need->state_bytes, p->states);
    if (p->snapshots > 0)
        fill_snapshots(m, (uint32_t)p->snapshots);
    bytes[MEMPLAN_TABLES] = p->table_bytes;
    bytes[MEMPLAN_HOST] = p->host_bytes;
    bytes[MEMPLAN_OVERHEAD] = m->need->overhead_bytes;

    fill_tiers(m);
    bytes[MEMPLAN_TABLES] =
        memplan_add(bytes[MEMPLAN_TABLES], mul(m->plan.host_blocks, p->block_table_bytes));
    m->unit_bytes = memplan_add(m->plan.block_bytes, p->host_apart ? 0 : p->block_table_bytes);

    for (int i = 0; i < MEMPLAN_ITEMS; i++)
        if (!memplan_apart(p, (enum memplan_item)i))
            m->fixed_bytes = memplan_add(m->fixed_bytes, bytes[i]);
    if (p->snapshots < 0) {
        fill_snapshots(m, choose_snapshots(m));
        m->fixed_bytes = memplan_add(m->fixed_bytes, mul(m->need->state_bytes, m->plan.snapshots));
    }
}

/* What lies beside a GPU's share must fit the host. */
static int check_host(const struct plan_making *m)
{
    const struct memplan_params *p = m->p;
    uint64_t tiers = memplan_add(m->plan.bytes[MEMPLAN_SWAP], m->plan.bytes[MEMPLAN_OFFLOAD]);
    uint64_t weights = m->plan.bytes[MEMPLAN_HOST_WEIGHTS];
    char needs[24], memory[24], lower[64];

    if (!p->host_apart || p->host_memory_bytes == 0)
        return 0;
    uint64_t need = memplan_add(m->plan.bytes[MEMPLAN_TABLES], m->plan.bytes[MEMPLAN_HOST]);
    need = memplan_add(need, m->plan.bytes[MEMPLAN_FILES]);
    need = memplan_add(need, memplan_add(tiers, weights));
    if (need <= p->host_memory_bytes)
        return 0;
    (void)memplan_size_text(need, needs);
    (void)memplan_size_text(p->host_memory_bytes, memory);
    const uint64_t lacks = need - p->host_memory_bytes;
    const char *tier = remedy_tier(m, lacks, lower, sizeof(lower));
    if (!tier && weights > lacks) {
        tier = "cpu-offload-gb";
        (void)snprintf(lower, sizeof(lower), "lower --%s to %.2f", tier,
                       floor((double)(weights - lacks) / ranks_here(p) / (double)GIB * 100) / 100);
    }
    if (tier)
        ek_fault_write(m->fault, tier, "The plan needs %s of host memory but there are %s; %s",
                       needs, memory, lower);
    else
        ek_fault_write(m->fault, "max-connections",
                       "The plan needs %s of host memory but there are %s; lower "
                       "--max-connections or --max-num-seqs",
                       needs, memory);
    return -E2BIG;
}

static int fill_pool(struct plan_making *m, uint32_t model_len)
{
    const struct memplan_params *p = m->p;
    uint64_t bb = m->plan.block_bytes, bs = p->block_size;
    if (m->asked_blocks == 0 && p->kv_cache_bytes > 0)
        return pool_too_small(m); /* not even one block */
    if (m->asked_blocks > 0 && m->asked_blocks < m->least_blocks)
        return pool_too_small(m);

    uint64_t least = m->asked_blocks ? m->asked_blocks : m->least_blocks;
    uint64_t need_bytes = memplan_add(m->fixed_bytes, mul(least, m->unit_bytes));
    if (need_bytes > m->limit_bytes)
        return no_fit(m, need_bytes);

    uint64_t blocks = m->asked_blocks;
    if (blocks == 0) {
        blocks = (m->plan.share_bytes - m->fixed_bytes) / m->unit_bytes;
        if (p->kv_most_bytes > 0 && blocks > p->kv_most_bytes / bb)
            blocks = p->kv_most_bytes / bb;
        if (blocks < m->least_blocks)
            blocks = m->least_blocks; /* what was asked for wins over the default bound */
    }
    if (blocks > m->most_blocks)
        blocks = m->most_blocks;

    uint64_t longest = (blocks - 1) * bs;
    uint32_t fitted = longest < model_len ? (uint32_t)longest : model_len;
    m->plan.blocks = (uint32_t)blocks;
    m->plan.bytes[MEMPLAN_KV] = blocks * bb;
    m->plan.bytes[MEMPLAN_TABLES] =
        memplan_add(m->plan.bytes[MEMPLAN_TABLES], mul(blocks, p->block_table_bytes));
    m->plan.max_model_len = p->max_model_len ? p->max_model_len : fitted;
    uint64_t per_request = (m->plan.max_model_len + bs - 1) / bs;
    m->plan.concurrency = (double)(blocks - 1) / (double)per_request;
    if (m->asked_blocks == 0 && m->need->host_weight_bytes > m->need->staging_bytes) {
        uint64_t gained = (m->need->host_weight_bytes - m->need->staging_bytes) / m->unit_bytes;
        m->plan.gained_blocks = (uint32_t)(gained < blocks ? gained : blocks);
    }
    return 0;
}

int memplan_make(const struct memplan_params *p, const struct ek_plan *need, uint32_t model_len,
                 struct memplan *ret_plan, struct ek_fault *fault)
{
    int r = memplan_check(p, need, model_len, fault);
    if (r < 0)
        return r;
    uint64_t tokens = p->max_model_len ? p->max_model_len : 1;
    struct plan_making m = {
        .p = p,
        .need = need,
        .plan = {.share_bytes = memplan_share_of(p->memory_bytes, p->utilization),
                 .block_bytes = need->block_bytes},
        .least_blocks = (tokens + p->block_size - 1) / p->block_size + 1,
        .asked_blocks =
            p->blocks_override ? p->blocks_override : p->kv_cache_bytes / need->block_bytes,
        .most_blocks = UINT32_MAX / p->block_size,
        .fault = fault,
    };
    if (m.asked_blocks > m.most_blocks || m.least_blocks > m.most_blocks)
        return ek_fault_set(fault, "block-size",
                            "the KV cache would have more than %" PRIu64 " blocks of %u tokens; "
                            "lower --num-gpu-blocks-override, --kv-cache-memory-bytes or "
                            "--max-model-len",
                            m.most_blocks, p->block_size);
    m.limit_bytes = m.asked_blocks ? memplan_share_of(p->memory_bytes, 1) : m.plan.share_bytes;
    fill_fixed(&m);
    r = fill_pool(&m, model_len);
    if (r == 0)
        r = check_host(&m);
    if (r < 0)
        return r;
    *ret_plan = m.plan;
    return 0;
}
