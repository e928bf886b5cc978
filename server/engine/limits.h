/*
 * Ceilings, fixed at start, and live limits that move below them while the server runs. Pure.
 * A write carries the generation it was based on (or 0), is all-or-nothing and is read back.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ek_fault;

enum limit_id {
    LIMIT_RUNNING_SEQS,   /* max_num_running_seqs */
    LIMIT_BATCHED_TOKENS, /* max_num_batched_tokens */
    LIMIT_QUEUED_REQS,    /* max_num_queued_reqs */
    LIMIT_QUEUED_TOKENS,  /* max_num_queued_tokens */
    LIMIT_QUEUE_DEADLINE, /* queue_deadline_s, microseconds inside */
    LIMIT_WATERMARK,      /* watermark, parts per million inside */
    LIMIT_CACHED_SHARE,   /* cached_share, parts per million inside */
    LIMIT_KV_BLOCKS,      /* num_kv_blocks: the pool's size without the null block, 0 = all */
    LIMIT_ADMISSION_HIGH, /* admission_high, parts per million inside, 0 = off */
    LIMIT_ADMISSION_LOW,  /* admission_low, parts per million inside */
    LIMIT_PREFIX_CACHING, /* prefix_caching: 1 or 0 */
    LIMIT_SALT_SHARE,     /* cached_share_per_salt, parts per million inside, 0 = no limit */
    LIMIT_STALLED_SHARE,  /* stalled_share, parts per million inside, 0 = off */
    LIMIT_LONG_PREFILL,   /* long_prefill_token_threshold, 0 = off */
    LIMIT_COUNT
};

struct limit_info {
    const char *name; /* as in the JSON of /v1/runtime_config */
    double scale;     /* value outside = inside / scale */
    bool whole;       /* an integer outside */
    const char *help;
    const char *option; /* without dashes: what it is at start, NULL = no option says it */
    const char *flag;   /* that sets its ceiling at start, NULL = the ceiling is what makes sense */
};

struct limits {
    uint64_t ceiling[LIMIT_COUNT]; /* 0 = no bound of its own */
    uint64_t floor[LIMIT_COUNT];
    uint64_t value[LIMIT_COUNT];
    uint64_t start[LIMIT_COUNT];      /* value at start */
    uint64_t changed_us[LIMIT_COUNT]; /* 0 = never */
    uint64_t expires_us[LIMIT_COUNT]; /* when it goes back to what held before, 0 = never */
    uint64_t lasting[LIMIT_COUNT];    /* set for good before the change that runs out */
    uint64_t before[LIMIT_COUNT];     /* another that runs out, later; until then, 0 = none */
    uint64_t before_until_us[LIMIT_COUNT];
    uint64_t generation;              /* raised by each change */
    char origin[32], reason[96];      /* of the last change */
    char changed_by[LIMIT_COUNT][32]; /* origin of each one's last change, "" = never */
};

struct limits_change {
    uint32_t set; /* bit i: value[i] is given */
    uint64_t value[LIMIT_COUNT];
    uint64_t generation;    /* 0 = whatever it is now */
    uint64_t expires_in_us; /* 0 = for good */
    char origin[32], reason[96];
};

/* The only list of what may change while the server runs. */
extern const struct limit_info limit_table[LIMIT_COUNT];
/* Whether the option of this name sets a live limit's value at start. */
bool limits_are_set_by(const char *option);

/* 0; -EBADMSG with a fault naming field, bound and remedy; EK_ESTALE when the generation differs.
 * On failure nothing has changed. */
int limits_apply(struct limits *l, const struct limits_change *c, uint64_t now_us,
                 struct ek_fault *fault);
/* Each limit whose last change has run out goes back to what that change replaced: another one that
 * has not run out yet, for as long as it has left, else what was set for good; as far as the limits
 * that have not run out allow. True if there was one. */
bool limits_expire(struct limits *l, uint64_t now_us);
/* When the next one runs out, 0 = none does. */
uint64_t limits_next_expiry(const struct limits *l);
