/*
 * What the charts show: one row a second for two hours, in a ring of 4-byte numbers. Unknown values
 * are NaN and become null. Rows carry their own time, so a gap stays a gap.
 */
#pragma once

#include <stdint.h>

struct ek_buf;

#define HISTORY_ROWS   7200
#define HISTORY_STEP_S 1

enum history_column {
    HIST_KV_USAGE,
    HIST_RUNNING,
    HIST_WAITING,
    HIST_LIMIT_SEQS,
    HIST_LIMIT_TOKENS,
    HIST_PREEMPTION_RATE,
    HIST_GEN_TPS,
    HIST_PROMPT_TPS,
    HIST_TTFT_P99,
    HIST_ITL_P99,
    HIST_QUEUE_OLDEST,
    HIST_CACHED,
    HISTORY_COLUMNS
};

struct history {
    uint32_t at_s[HISTORY_ROWS]; /* wall clock */
    float value[HISTORY_ROWS][HISTORY_COLUMNS];
    uint32_t next, count;
};

/* As in the JSON: "kv_usage". */
const char *history_name(enum history_column c);
/* A row less than HISTORY_STEP_S after the newest replaces nothing and is dropped. */
void history_push(struct history *h, uint64_t wall_us, const float value[HISTORY_COLUMNS]);
/* {"step_s","columns","rows"}: rows after since_s, oldest first, every `every`-th. 0 or -ENOMEM. */
int history_json(const struct history *h, uint32_t since_s, uint32_t every, struct ek_buf *out);
