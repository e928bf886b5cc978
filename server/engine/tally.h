/*
 * What requests add to the counters and histograms: definitions and buckets as in vLLM, so that the
 * same dashboards fit. Time to first token starts when the front end had the request; queue time
 * ends at the first step; what a preemption costs after that lands in prefill or decode time.
 */
#pragma once

#include <stdint.h>

struct engine_stats;
struct request;

/* Largest inter-token gap of each of the last seconds. */
#define GAPS_SECONDS 10u

struct gaps {
    uint64_t us[GAPS_SECONDS]; /* of a second, at its number % GAPS_SECONDS */
    uint64_t second;           /* the last one that was begun */
};

void gaps_note(struct gaps *g, uint64_t gap_us, uint64_t now_us);
uint64_t gaps_largest(const struct gaps *g, uint64_t now_us);

/* Sets the buckets; length buckets are 1, 2, 5, 10, ... up to max_model_len. */
void tally_init(struct engine_stats *st, uint32_t max_model_len);
void tally_first_token(struct engine_stats *st, const struct request *r);
void tally_gap(struct engine_stats *st, const struct request *r, uint64_t gap_us, uint64_t now_us);
/* `finish`, `done_us` and the output are final; last_token_us = 0 when none came. */
void tally_done(struct engine_stats *st, struct request *r, uint64_t last_token_us);
