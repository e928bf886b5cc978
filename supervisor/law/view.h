/*
 * The figures that people look at: the newest sample with rates and quantiles over the policy's
 * window. Unknown is NaN. One table names them for the API, the page and evenkeelctl. Pure.
 */
#pragma once

#include "supervisor/engines/sample.h"

struct ek_buf;
struct window;

enum view_id {
    VIEW_KV_USAGE,
    VIEW_RUNNING,
    VIEW_WAITING,
    VIEW_WAITING_CAPACITY,
    VIEW_PREEMPTIONS_TOTAL,
    VIEW_PREEMPTION_RATE,
    VIEW_RECOMPUTED_TOTAL,
    VIEW_GEN_TPS,
    VIEW_PROMPT_TPS,
    VIEW_TTFT_P50,
    VIEW_TTFT_P99,
    VIEW_ITL_P50,
    VIEW_ITL_P99,
    VIEW_MAX_GAP,
    VIEW_QUEUE_OLDEST,
    VIEW_STEP_AGE,
    VIEW_BLOCKS_TOTAL,
    VIEW_BLOCKS_CACHED,
    VIEW_PREFIX_HIT_RATE,
    VIEW_CPU,         /* cores */
    VIEW_DEVICE_BUSY, /* share of the time */
    VIEW_COUNT
};

struct view {
    double value[VIEW_COUNT];
};

void view_unknown(struct view *v);
/* w may be NULL: then rates and quantiles stay unknown. */
void view_take(struct view *v, const struct sample *s, const struct window *w);
const char *view_name(enum view_id i); /* as in the API: "kv_usage" */
/* Appends {"kv_usage":0.5,...} with null for unknown. 0 or -ENOMEM. */
int view_json(const struct view *v, struct ek_buf *out);
