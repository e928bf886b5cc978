/*
 * Live limits. A change is checked as a whole against a copy; the copy replaces the original only
 * when every field and the relation between fields hold.
 */
#include "server/engine/limits.h"

#include <stdio.h>
#include <string.h>

#include "common/err.h"

/* clang-format off */
const struct limit_info limit_table[LIMIT_COUNT] = {
    [LIMIT_RUNNING_SEQS] = {
        .name = "max_num_running_seqs", .scale = 1, .whole = true,
        .option = "max-num-seqs", .flag = "max-num-seqs",
        .help = "Most sequences that run at once; lowering lets them finish"},
    [LIMIT_BATCHED_TOKENS] = {
        .name = "max_num_batched_tokens", .scale = 1, .whole = true,
        .option = "max-num-batched-tokens", .flag = "max-num-batched-tokens",
        .help = "Most tokens in one step"},
    [LIMIT_QUEUED_REQS] = {
        .name = "max_num_queued_reqs", .scale = 1, .whole = true,
        .option = "max-num-queued-reqs", .flag = "max-num-queued-reqs",
        .help = "Most requests that wait for their first step"},
    [LIMIT_QUEUED_TOKENS] = {
        .name = "max_num_queued_tokens", .scale = 1, .whole = true,
        .option = "max-num-queued-tokens", .flag = "max-num-queued-tokens",
        .help = "Most prompt tokens that wait"},
    [LIMIT_QUEUE_DEADLINE] = {
        .name = "queue_deadline_s", .scale = 1e6, .option = "queue-deadline",
        .help = "A request that waited so long without a step is refused; 0 is never"},
    [LIMIT_WATERMARK] = {
        .name = "watermark", .scale = 1e6, .option = "watermark",
        .help = "Share of blocks kept free when a request is admitted beside others"},
    [LIMIT_CACHED_SHARE] = {
        .name = "cached_share", .scale = 1e6,
        .help = "Most of the pool that unused prefix blocks may keep; 0 is no limit"},
    [LIMIT_KV_BLOCKS] = {
        .name = "num_kv_blocks", .scale = 1, .whole = true, .flag = "kv-cache-memory-bytes",
        .help = "Blocks of the KV pool that may be used"},
    [LIMIT_ADMISSION_HIGH] = {
        .name = "admission_high", .scale = 1e6, .option = "admission-high",
        .help = "Share of the pool in use above which no new request is admitted; 0 is off"},
    [LIMIT_ADMISSION_LOW] = {
        .name = "admission_low", .scale = 1e6, .option = "admission-low",
        .help = "Share of the pool in use below which admission goes on"},
    [LIMIT_PREFIX_CACHING] = {
        .name = "prefix_caching", .scale = 1, .whole = true, .option = "enable-prefix-caching",
        .help = "1 keeps and reuses blocks of equal beginnings, 0 does not"},
    [LIMIT_SALT_SHARE] = {
        .name = "cached_share_per_salt", .scale = 1e6, .option = "cached-share-per-salt",
        .help = "Most of the pool that unused prefix blocks of one cache salt may keep; 0 is no "
                "limit"},
    [LIMIT_STALLED_SHARE] = {
        .name = "stalled_share", .scale = 1e6, .option = "stalled-share",
        .help = "Share of answers that may stand still for another's growth: a request is admitted "
                "only where all that run have room to grow; 0 is off"},
    [LIMIT_LONG_PREFILL] = {
        .name = "long_prefill_token_threshold", .scale = 1, .whole = true,
        .option = "long-prefill-token-threshold",
        .help = "Most tokens that one step reads of one prompt; 0 is no limit"},
};
/* clang-format on */

bool limits_are_set_by(const char *option)
{
    for (uint32_t i = 0; i < LIMIT_COUNT; i++)
        if (limit_table[i].option && strcmp(limit_table[i].option, option) == 0)
            return true;
    return false;
}

static double limits_outside(enum limit_id id, uint64_t value)
{
    return (double)value / limit_table[id].scale;
}

static int check_bounds(const struct limits *l, enum limit_id id, uint64_t value,
                        struct ek_fault *fault)
{
    const char *name = limit_table[id].name;

    if (value < l->floor[id])
        return ek_fault_set(fault, name, "%s is %.15g, below its least value %.15g: raise it", name,
                            limits_outside(id, value), limits_outside(id, l->floor[id]));
    if (l->ceiling[id] == 0 || value <= l->ceiling[id])
        return 0;
    const char *flag = limit_table[id].flag;
    return ek_fault_set(fault, name, "%s is %.15g, above its ceiling %.15g: lower it%s%s", name,
                        limits_outside(id, value), limits_outside(id, l->ceiling[id]),
                        flag ? ", or restart the server with a larger --" : "", flag ? flag : "");
}

static int check_together(const struct limits *l, struct ek_fault *fault)
{
    uint64_t seqs = l->value[LIMIT_RUNNING_SEQS], tokens = l->value[LIMIT_BATCHED_TOKENS];

    if (tokens < seqs)
        return ek_fault_set(fault, limit_table[LIMIT_BATCHED_TOKENS].name,
                            "max_num_batched_tokens is %llu, below max_num_running_seqs %llu: each "
                            "running sequence needs one token a step; raise it, or lower "
                            "max_num_running_seqs to %llu in the same change",
                            (unsigned long long)tokens, (unsigned long long)seqs,
                            (unsigned long long)tokens);
    if (l->value[LIMIT_ADMISSION_HIGH] != 0 &&
        l->value[LIMIT_ADMISSION_LOW] > l->value[LIMIT_ADMISSION_HIGH])
        return ek_fault_set(fault, limit_table[LIMIT_ADMISSION_LOW].name,
                            "admission_low is %.15g, above admission_high %.15g: lower it, or "
                            "set admission_high to 0",
                            limits_outside(LIMIT_ADMISSION_LOW, l->value[LIMIT_ADMISSION_LOW]),
                            limits_outside(LIMIT_ADMISSION_HIGH, l->value[LIMIT_ADMISSION_HIGH]));
    return 0;
}

/* What holds again after a change that runs out at `until_us`. Of changes that run out, one on top
 * of the other, the longer one is kept; below them is what was set for good. */
static void limits_remember(struct limits *l, uint32_t i, uint64_t until_us)
{
    if (l->expires_us[i] == 0)
        l->lasting[i] = l->value[i];
    if (l->expires_us[i] > l->before_until_us[i]) {
        l->before[i] = l->value[i];
        l->before_until_us[i] = l->expires_us[i];
    }
    if (l->before_until_us[i] <= until_us)
        l->before_until_us[i] = 0; /* it has run out by then */
}

int limits_apply(struct limits *l, const struct limits_change *c, uint64_t now_us,
                 struct ek_fault *fault)
{
    if (c->generation != 0 && c->generation != l->generation) {
        (void)ek_fault_set(fault, "generation",
                           "generation is %llu, but the limits are at %llu: read them again",
                           (unsigned long long)c->generation, (unsigned long long)l->generation);
        return EK_ESTALE;
    }
    if (c->set == 0 || c->set >> LIMIT_COUNT != 0)
        return ek_fault_set(fault, "", "no limit to change was named");

    struct limits next = *l;
    uint64_t expires_us = 0;
    if (c->expires_in_us != 0)
        expires_us =
            c->expires_in_us > UINT64_MAX - now_us ? UINT64_MAX : now_us + c->expires_in_us;
    for (uint32_t i = 0; i < LIMIT_COUNT; i++) {
        if (!(c->set & 1u << i))
            continue;
        int r = check_bounds(l, (enum limit_id)i, c->value[i], fault);
        if (r != 0)
            return r;
        if (expires_us == 0)
            next.before_until_us[i] = 0;
        else
            limits_remember(&next, i, expires_us);
        next.value[i] = c->value[i];
        next.changed_us[i] = now_us;
        next.expires_us[i] = expires_us;
        snprintf(next.changed_by[i], sizeof(next.changed_by[i]), "%.*s", (int)sizeof(c->origin) - 1,
                 c->origin);
    }
    int r = check_together(&next, fault);
    if (r != 0)
        return r;

    next.generation++;
    snprintf(next.origin, sizeof(next.origin), "%.*s", (int)sizeof(c->origin) - 1, c->origin);
    snprintf(next.reason, sizeof(next.reason), "%.*s", (int)sizeof(c->reason) - 1, c->reason);
    *l = next;
    return 0;
}

/* What came back must still go together with what stays. */
static void limits_settle(struct limits *l)
{
    uint64_t *v = l->value;

    if (v[LIMIT_BATCHED_TOKENS] < v[LIMIT_RUNNING_SEQS])
        v[LIMIT_RUNNING_SEQS] = v[LIMIT_BATCHED_TOKENS];
    if (v[LIMIT_ADMISSION_HIGH] != 0 && v[LIMIT_ADMISSION_LOW] > v[LIMIT_ADMISSION_HIGH])
        v[LIMIT_ADMISSION_LOW] = v[LIMIT_ADMISSION_HIGH];
}

bool limits_expire(struct limits *l, uint64_t now_us)
{
    uint64_t next_us = limits_next_expiry(l);

    if (next_us == 0 || now_us < next_us)
        return false;
    for (uint32_t i = 0; i < LIMIT_COUNT; i++) {
        if (l->expires_us[i] == 0 || now_us < l->expires_us[i])
            continue;
        bool longer = now_us < l->before_until_us[i];
        l->value[i] = longer ? l->before[i] : l->lasting[i];
        l->expires_us[i] = longer ? l->before_until_us[i] : 0;
        l->before_until_us[i] = 0;
        l->changed_us[i] = now_us;
        snprintf(l->changed_by[i], sizeof(l->changed_by[i]), "expired");
    }
    limits_settle(l);
    l->generation++;
    snprintf(l->origin, sizeof(l->origin), "expired");
    snprintf(l->reason, sizeof(l->reason), "a change ran out");
    return true;
}

uint64_t limits_next_expiry(const struct limits *l)
{
    uint64_t next_us = 0;

    for (uint32_t i = 0; i < LIMIT_COUNT; i++)
        if (l->expires_us[i] != 0 && (next_us == 0 || l->expires_us[i] < next_us))
            next_us = l->expires_us[i];
    return next_us;
}
