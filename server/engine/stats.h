/*
 * What the scheduler and the engine count: plain fields, whose names for the outside are known to
 * server/net/metrics_engine.c alone. The scheduler fills most of them, the engine adds its own.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/metrics.h"
#include "server/engine/price.h"
#include "server/engine/request.h"
#include "server/engine/tenants.h"

/* What keeps the first waiting request from being admitted. */
enum engine_held {
    HELD_NONE,      /* none waits, or they came after the last step was planned */
    HELD_LIMIT,     /* as many run as may */
    HELD_TOKENS,    /* the step's token budget, or what else a step carries, is used up */
    HELD_PREEMPTED, /* an entry was preempted or lacks a block: those that were in go first */
    HELD_PAUSED,    /* the high mark paused admission */
    HELD_BLOCKS,    /* it does not fit now, with the watermark left over */
    HELD_GROWTH,    /* it fits now, but not with what the running ones are expected to grow */
    HELD_COPIES,    /* its blocks are on their way from the host tier */
    HELD_COUNT
};

enum engine_drain { ENGINE_SERVING, ENGINE_DRAINING, ENGINE_DRAINED };

/* Of one tenant; the tokens are those that its counter counted. */
struct tenant_stat {
    uint64_t prompts, outputs, preemptions, poisons;
    uint64_t masks; /* tokens that they count for */
    uint64_t ahead; /* see tenants_ahead() */
    uint32_t stamp; /* whose numbers these are */
};

/* STARTING: another one is being loaded; RELEASED: an operator asked for that. */
enum engine_device { ENGINE_DEVICE_THERE, ENGINE_DEVICE_STARTING, ENGINE_DEVICE_RELEASED };

/* By what a device was lost: what was computed; a signal from outside; a step without end; a lack
 * of memory; a device that failed while its process went on. */
enum engine_cause {
    ENGINE_LOST_FAULT,
    ENGINE_LOST_ENDED,
    ENGINE_LOST_HANG,
    ENGINE_LOST_OOM,
    ENGINE_LOST_DEVICE,
    ENGINE_LOST_CAUSES
};

/* Of devices that were lost and replaced. */
struct engine_revivals {
    uint64_t lost[ENGINE_LOST_CAUSES];
    uint64_t planned;       /* on purpose */
    uint64_t cut;           /* requests that ended since there was none for too long */
    uint64_t requests;      /* computed again */
    uint64_t last_pause_us; /* in which nothing was computed; */
    struct ek_hist pause;   /* all of them, in seconds */
    uint64_t judged, alone; /* losses with a verdict from outside, and without one */
};

static inline uint64_t engine_losses(const struct engine_revivals *r)
{
    uint64_t sum = 0;

    for (int i = 0; i < ENGINE_LOST_CAUSES; i++)
        sum += r->lost[i];
    return sum;
}

/* Blocks of cached prefixes that went to a file, and that came from it. */
struct engine_warmth {
    uint64_t saved, restored, damaged;
};

/* Numbers for metrics, a consistent copy. Counters only grow. */
struct engine_stats {
    uint32_t running, waiting, preempted;                           /* waiting includes preempted */
    uint32_t blocks_total, blocks_used, blocks_cached, blocks_free; /* block 0 excluded */
    uint32_t host_blocks_total, host_blocks_used, host_blocks_cached;
    bool has_states;                          /* the model has recurrent state */
    uint32_t snapshots_total, snapshots_used; /* of recurrent state */
    uint64_t snapshots_taken, snapshots_evicted, snapshot_hits;
    uint32_t device_blocks; /* that the device has memory for, block 0 included */
    uint64_t pool_resizes, pool_resize_failures, migrated_blocks;
    uint64_t waste_tokens;   /* empty slots of last blocks */
    uint64_t used_tokens;    /* tokens held by live requests */
    uint64_t queued_tokens;  /* prompt tokens waiting */
    uint64_t oldest_wait_us; /* age of the oldest waiting request */
    uint64_t untaken_us;     /* of the oldest one that the engine has not looked at, 0 = none */
    uint64_t steps, last_step_us; /* count, and when the last one ended (monotonic) */
    uint64_t step_started_us;     /* start of the oldest step in flight, 0 = none */
    uint64_t prompt_tokens, generation_tokens;
    uint64_t cached_tokens; /* of prompt_tokens: both count with a request's first token */
    uint64_t prefix_queries, prefix_hits; /* tokens */
    uint64_t preemptions, recomputed_tokens, evictions;
    uint64_t replayed_tokens; /* computed again since the device was lost with them */
    uint64_t swapped_out_blocks, swapped_in_blocks;
    uint64_t swap_shared_blocks; /* of preempted ones: in the host tier already, not copied */
    uint64_t offload_out_blocks, offload_in_blocks; /* evicted prefixes */
    uint64_t offload_hits;      /* prompt tokens found in the host tier, part of prefix_hits */
    uint64_t offload_evictions; /* prefixes that left the host tier for others */
    uint64_t offloads_declined; /* times that computing is faster than copying */
    uint64_t block_bytes;
    uint64_t preemptions_swap, preemptions_recompute; /* by what became of the cache's content */
    uint64_t swaps_declined;        /* of the latter: there was room, but computing is faster */
    uint64_t slots_yielded;         /* for their slot alone, to another tenant's */
    uint64_t blocks_yielded;        /* for their blocks, to another tenant's */
    uint64_t yielded_tokens;        /* computed again for that */
    uint64_t preemption_lost_us;    /* from preemptions until what was lost is back */
    double copy_rate, prefill_rate; /* blocks and tokens a second, 0 = not known */
    uint64_t window_queries, window_hits; /* prefix tokens, of the last 1,000 admitted */
    uint64_t table_pairs, table_adjacent; /* neighbours in block tables, and in memory too */
    double request_blocks;                /* average, of running ones */
    uint64_t fit_average, fit_longest;    /* how many more requests the pool would hold */
    bool admission_paused;
    uint64_t admission_pauses;
    uint64_t shared_steps; /* steps that were small for other tenants' requests */
    uint32_t step_rows;    /* of prompts in a step, see pace.h; */
    double step_fixed_us, step_row_us, step_context_us; /* its cost, 0 = not known */
    struct price price;                                 /* and what rows cost by where they stand */
    double caution;                      /* of admissions, in standard deviations of growth */
    uint64_t stalls, admissions_put_off; /* see foresee.c */
    enum engine_held held;
    uint32_t held_needed, held_available; /* HELD_BLOCKS, HELD_GROWTH: blocks, now */
    uint32_t expected_blocks; /* HELD_GROWTH: to which a request grows, average of it and others */
    uint32_t expected_fit;    /* so many of that size fit */
    struct ek_hist evicted_age;
    uint64_t finished[REQ_FIN_KINDS];
    uint64_t refused_queue, refused_tokens, refused_deadline, refused_drain, refused_fit;
    uint64_t refused_away;
    uint64_t largest_gap_us; /* inter-token gap, largest of the last 10 s */
    enum engine_drain drain;
    struct ek_hist ttft, itl, tpot, e2e, queue_time, inference_time, prefill_time, decode_time;
    struct ek_hist prompt_len, generation_len, max_tokens_param, iteration_tokens;
    struct ek_hist request_preemptions;
    struct ek_hist answers, longest_answer;      /* of a prompt with all its answers */
    struct ek_exemplars ttft_by, itl_by, e2e_by; /* requests by name */
    uint64_t jump_forward_tokens; /* output tokens that a grammar left no choice about */
    uint64_t masks, mask_us;      /* of constrained rows, and the time to find them */
    uint64_t masks_put_off;       /* rows whose mask took longer than a step may */
    uint64_t masks_refused;       /* requests that ended since their masks take too long */
    struct tenant_stat tenant[TENANTS_MOST];
    uint64_t plan_us, wait_us; /* host time of planning, time waited for the backend */
    struct engine_revivals revivals;
    struct engine_warmth warmth;
    bool replaceable; /* the device is in a process of its own */
    enum engine_device device;
    bool released;           /* on purpose; until another one is loaded, too */
    uint64_t away_us;        /* for so long there has been none */
    bool away_long;          /* longer than requests wait for one */
    uint64_t poisons;        /* requests that ended since the device does with them, */
    uint64_t poison_tenants; /* and how often that was the third, sixth and so on of a tenant */
    uint32_t suspects;       /* requests that run alone, see lost.c */
};

/* Of the oldest step in flight, 0 = none is. */
static inline uint64_t engine_step_age_us(const struct engine_stats *s, uint64_t now_us)
{
    return s->step_started_us && now_us > s->step_started_us ? now_us - s->step_started_us : 0;
}

/* For how long the engine has not come back: from a step, or to a request that came since it last
 * looked. 0 = it is there, or has nothing to do. */
static inline uint64_t engine_stuck_us(const struct engine_stats *s, uint64_t now_us)
{
    uint64_t step_us = engine_step_age_us(s, now_us);

    return step_us > s->untaken_us ? step_us : s->untaken_us;
}
