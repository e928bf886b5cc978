/*
 * What an engine and its scheduler are made for: sizes, ceilings and policies, filled once by the
 * server's start, and the functions that it calls. Plain data.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/engine/cache_about.h"
#include "server/engine/limits.h"
#include "server/engine/verdict.h"

struct ek_recorder;
struct kvlog;

#define ENGINE_WORKERS_MOST      16u
#define ENGINE_REVIVALS_MOST     64u
#define ENGINE_REVIVAL_WINDOW_US (600u * 1000000ull)
#define ENGINE_GAP_CPU_US        80u  /* measured, with waking the threads that compute */
#define ENGINE_GAP_CARD_US       250u /* guessed high */
#define SHARE_LEAST              256u /* fewer use most devices badly */

/* Called by the engine thread; must not block. */
typedef void (*engine_deliver_fn)(void *ctx, uint32_t worker);
/* Called once by the engine thread when it cannot go on: exit code and one sentence. */
typedef void (*engine_dead_fn)(void *ctx, int exit_code, const char *why);
/* Called by the engine thread when a device took the place of one that was lost or released: how
 * that ended, NULL where it was asked for; how long nothing was computed, and how many requests are
 * computed again. */
typedef void (*engine_revived_fn)(void *ctx, const char *why, uint64_t pause_us, uint32_t requests);
/* Called by the engine thread when the device was released (`why` NULL), and when another one could
 * not be had, which is tried again. */
typedef void (*engine_away_fn)(void *ctx, const char *why);

/* Called by the engine thread when a restart was refused, for there would be no device after it. */
typedef void (*engine_refused_fn)(void *ctx, const char *why);

/* Called by the engine thread when a device was lost, before another one is begun: true when an
 * answer may come. Must not block. */
typedef bool (*engine_lost_fn)(void *ctx, const struct engine_loss *loss);
/* Called by the engine thread after that: waits so long for the answer. 1 with it; 0: not yet; or a
 * negative errno: none will come. */
typedef int (*engine_verdict_fn)(void *ctx, uint64_t number, uint64_t wait_us,
                                 struct engine_verdict *ret_verdict);
/* Called by the engine thread with what holds from now on. */
typedef void (*engine_judged_fn)(void *ctx, const struct engine_judged *judged);

/* Called when cached prefixes went to the file or came from it, or when that failed (`why`). By the
 * engine thread, by engine_new(), or by engine_keep(). */
struct engine_warm_report {
    bool restored;            /* else saved */
    uint32_t blocks, damaged; /* that came; that were left out */
    uint64_t bytes, took_us;
    const char *why;       /* NULL = it went well */
    const uint8_t *secret; /* restored: that of the owners [WARM_SECRET], NULL = there is no file */
};
typedef void (*engine_warm_fn)(void *ctx, const struct engine_warm_report *report);

/* Where cached prefixes are while there is no device: warm_file.h. */
struct engine_keep {
    const char *path; /* NULL = they are not kept */
    uint64_t most_bytes;
    bool owned;              /* also those of a salt */
    struct warm_about about; /* but for the blocks' sizes */
    engine_warm_fn report;   /* or NULL */
};

struct engine_params {
    uint32_t max_seqs, max_batched_tokens; /* ceilings */
    uint32_t max_model_len;
    uint32_t block_size, blocks, host_blocks; /* block 0 included */
    uint32_t offload_blocks;  /* of the host blocks: for evicted prefixes; < host_blocks */
    uint32_t stretched_above; /* the model's frequencies change with the length of prompts longer
                                 than this (dynamic rope), 0 = they do not */
    uint32_t states;          /* state slots of a model with recurrent state, max_seqs and those of
                                 snapshots; 0 = it has none. There is no host tier then */
    uint32_t states_every;    /* see snapshots.c; 0 = STATES_EVERY */
    uint32_t vocab, hidden;   /* hidden: width of a state, 0 = embeddings are not offered */
    uint32_t depth;           /* steps in flight, 1 or 2 */
    uint32_t gap_us; /* from a result to the next step on the device, where that is planned only
                        then; 0: it never is, as steps overlap (rates.c) */
    uint32_t prompt_rows; /* most of a step for prompts, beside what answers take and some rows
                             more, see sched_prompts_within(); 0 = all of it */
    uint32_t share_least; /* steps are not made shorter than for so many rows of prompts that go
                             on (share.c); 0 = SHARE_LEAST */
    bool priority_policy;
    uint64_t block_bytes; /* of one KV block, for the numbers */
    uint64_t hash_secret[2];
    uint64_t step_deadline_us; /* a step that takes longer is a hang: exit code 74; 0 = off */
    uint32_t revivals;     /* of a lost device, most within ENGINE_REVIVAL_WINDOW_US; 0 = none */
    uint64_t away_most_us; /* requests wait for a device no longer than that; 0 = for ever */
    struct limits limits;  /* start values and ceilings */
    struct engine_keep keep;
    struct kvlog *kvlog;          /* what the prefix cache gains and loses, outlives it; or NULL */
    struct ek_recorder *recorder; /* is told what the engine does, outlives it; or NULL */
    engine_deliver_fn deliver;
    engine_dead_fn dead;
    engine_revived_fn revived; /* or NULL */
    engine_away_fn away;       /* or NULL */
    engine_refused_fn refused; /* or NULL */
    uint64_t verdict_wait_us;  /* since a loss */
    engine_lost_fn lost;       /* or NULL: a loss is not judged */
    engine_verdict_fn verdict; /* with `lost` */
    engine_judged_fn judged;   /* or NULL */
    void *ctx;
};
