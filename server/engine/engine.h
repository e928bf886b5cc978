/*
 * The engine: a thread that plans step n+1 while step n runs on the backend. It alone owns
 * sequences, blocks and the device. Others meet it in three places: the submit queue, a request's
 * output, the limits mailbox. It does not know HTTP: after each step it calls `deliver` once for
 * every worker that has news.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/metrics.h"
#include "kernels/backend.h"
#include "server/engine/limits.h"
#include "server/engine/request.h"

struct ek_fault;
struct engine;
struct kvlog;

#define ENGINE_WORKERS_MOST 16u

/* Called by the engine thread; must not block. */
typedef void (*engine_deliver_fn)(void *ctx, uint32_t worker);
/* Called once by the engine thread when it cannot go on: exit code and one sentence. */
typedef void (*engine_dead_fn)(void *ctx, int exit_code, const char *why);

struct engine_params {
    uint32_t max_seqs, max_batched_tokens; /* ceilings */
    uint32_t max_model_len;
    uint32_t block_size, blocks, host_blocks; /* block 0 included */
    uint32_t offload_blocks;  /* of the host blocks: for evicted prefixes; < host_blocks */
    uint32_t stretched_above; /* the model's frequencies change with the length of prompts longer
                                 than this (dynamic rope), 0 = they do not */
    uint32_t vocab, hidden;   /* hidden: width of a state, 0 = embeddings are not offered */
    uint32_t depth;           /* steps in flight, 1 or 2 */
    bool priority_policy;
    uint64_t block_bytes; /* of one KV block, for the numbers */
    uint64_t hash_secret[2];
    uint64_t step_deadline_us; /* a step that takes longer is a hang: exit code 74; 0 = off */
    struct limits limits;      /* start values and ceilings */
    struct kvlog *kvlog;       /* what the prefix cache gains and loses, outlives it; or NULL */
    engine_deliver_fn deliver;
    engine_dead_fn dead;
    void *ctx;
};

/* What keeps the first waiting request from being admitted. */
enum engine_held {
    HELD_NONE,      /* nobody waits, or they came after the last step was planned */
    HELD_LIMIT,     /* as many run as may */
    HELD_TOKENS,    /* the step's token budget, or what else a step carries, is used up */
    HELD_PREEMPTED, /* somebody was preempted or lacks a block: those who were in go first */
    HELD_PAUSED,    /* the high mark paused admission */
    HELD_BLOCKS,    /* it does not fit now, with the watermark left over */
    HELD_GROWTH,    /* it fits now, but not with what all who run are expected to grow */
    HELD_COPIES,    /* its blocks are on their way from the host tier */
    HELD_COUNT
};

enum engine_drain { ENGINE_SERVING, ENGINE_DRAINING, ENGINE_DRAINED };

/* Numbers for metrics, a consistent copy. Counters only grow. */
struct engine_stats {
    uint32_t running, waiting, preempted;                           /* waiting includes preempted */
    uint32_t blocks_total, blocks_used, blocks_cached, blocks_free; /* block 0 excluded */
    uint32_t host_blocks_total, host_blocks_used, host_blocks_cached;
    uint32_t device_blocks; /* that the device has memory for, block 0 included */
    uint64_t pool_resizes, pool_resize_failures, migrated_blocks;
    uint64_t waste_tokens;        /* empty slots of last blocks */
    uint64_t used_tokens;         /* tokens held by live requests */
    uint64_t queued_tokens;       /* prompt tokens waiting */
    uint64_t oldest_wait_us;      /* age of the oldest waiting request */
    uint64_t steps, last_step_us; /* count, and when the last one ended (monotonic) */
    uint64_t step_started_us;     /* start of the oldest step in flight, 0 = none */
    uint64_t prompt_tokens, generation_tokens;
    uint64_t cached_tokens; /* of prompt_tokens: both count with a request's first token */
    uint64_t prefix_queries, prefix_hits; /* tokens */
    uint64_t preemptions, recomputed_tokens, evictions;
    uint64_t swapped_out_blocks, swapped_in_blocks;
    uint64_t swap_shared_blocks; /* of preempted ones: in the host tier already, not copied */
    uint64_t offload_out_blocks, offload_in_blocks; /* evicted prefixes */
    uint64_t offload_hits;      /* prompt tokens found in the host tier, part of prefix_hits */
    uint64_t offload_evictions; /* prefixes that left the host tier for others */
    uint64_t offloads_declined; /* times that computing is faster than copying */
    uint64_t block_bytes;
    uint64_t preemptions_swap, preemptions_recompute; /* by what became of the cache's content */
    uint64_t swaps_declined;        /* of the latter: there was room, but computing is faster */
    uint64_t preemption_lost_us;    /* from preemptions until what was lost is back */
    double copy_rate, prefill_rate; /* blocks and tokens a second, 0 = not known */
    uint64_t window_queries, window_hits; /* prefix tokens, of the last 1,000 admitted */
    uint64_t table_pairs, table_adjacent; /* neighbours in block tables, and in memory too */
    double request_blocks;                /* average, of running ones */
    uint64_t fit_average, fit_longest;    /* how many more requests the pool would hold */
    bool admission_paused;
    uint64_t admission_pauses;
    double caution;                      /* of admissions, in standard deviations of growth */
    uint64_t stalls, admissions_put_off; /* see foresee.c */
    enum engine_held held;
    uint32_t held_needed, held_available; /* HELD_BLOCKS, HELD_GROWTH: blocks, now */
    uint32_t expected_blocks; /* HELD_GROWTH: to which a request grows, average of it and others */
    uint32_t expected_fit;    /* so many of that size fit */
    struct ek_hist evicted_age;
    uint64_t finished[REQ_FIN_KINDS];
    uint64_t refused_queue, refused_tokens, refused_deadline, refused_drain, refused_fit;
    uint64_t largest_gap_us; /* inter-token gap, largest of the last 10 s */
    enum engine_drain drain;
    struct ek_hist ttft, itl, tpot, e2e, queue_time, inference_time, prefill_time, decode_time;
    struct ek_hist prompt_len, generation_len, max_tokens_param, iteration_tokens;
    struct ek_hist request_preemptions;
    struct ek_exemplars ttft_by, itl_by, e2e_by; /* requests by name */
    uint64_t forced_tokens;    /* output tokens that a grammar left no choice about */
    uint64_t masks, mask_us;   /* of constrained rows, and the time to find them */
    uint64_t masks_put_off;    /* rows whose mask took longer than a step may */
    uint64_t masks_refused;    /* requests that ended since nobody can afford their masks */
    uint64_t plan_us, wait_us; /* host time of planning, time waited for the backend */
};

/* Ceilings of the steps that an engine with these parameters makes; `blocks` is not used, so that
 * the plan of memory can ask before it knows them. What main gives to the backend's plan(). */
void engine_ceiling(const struct engine_params *p, struct ek_step_ceiling *ret_ceiling);

/* The device is loaded and its KV pool open. The thread starts at once. */
int engine_new(const struct engine_params *p, const struct ek_backend *backend,
               struct ek_device *device, struct engine **ret_engine, struct ek_fault *fault);
/* Stops at once: what still runs ends with REQ_FIN_ABORT. NULL is fine. */
void engine_free(struct engine *e);

/* Takes a reference on success. -EBUSY (queue full, predicted wait over the deadline) and
 * -ESHUTDOWN (draining) with *ret_retry_after_s; -EBADMSG when it can never fit. Any thread. */
int engine_submit(struct engine *e, struct request *r, uint32_t *ret_retry_after_s,
                  struct ek_fault *fault);
/* The HTTP side wants it to end: REQ_FIN_STOP or REQ_FIN_ABORT. Its blocks are free at the next
 * step. Any thread, any time before the last unref. */
void engine_finish(struct engine *e, struct request *r, enum req_finish how);

/* Forgets all cached prefixes before the next step is planned. Running requests keep their blocks
 * but offer them to nobody. */
void engine_reset_prefix_cache(struct engine *e);
void engine_stats(struct engine *e, struct engine_stats *ret_stats);
void engine_limits(struct engine *e, struct limits *ret_limits);
/* As limits_apply(). A larger pool is refused with EK_EDEVMEM when the device has no memory for it;
 * to know, this waits for the steps in flight (-EBUSY when they take too long). */
int engine_limits_apply(struct engine *e, const struct limits_change *c, struct limits *ret_limits,
                        struct ek_fault *fault);
/* Running and queued requests finish; new ones get -ESHUTDOWN if `shut`, else they are taken as
 * before (from connections that are open: no new ones come). At deadline_us (a time of
 * ek_now_us(), 0 = never) the rest ends with REQ_FIN_DEADLINE. */
void engine_drain(struct engine *e, uint64_t deadline_us, bool shut);
void engine_resume(struct engine *e);
