/* What the answers of a run amount to. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

struct bench_answer {
    double begin_s, first_s, end_s; /* since the start; first_s of the first token */
    uint32_t tokens, pieces;
    bool ok;
};

struct distribution {
    double p50, p90, p99, most;
};

struct summary {
    uint32_t done, failed, good;
    uint64_t tokens;
    double seconds, tokens_per_s, requests_per_s, goodput; /* good answers a second */
    struct distribution ttft, gap, per_token, latency;     /* seconds */
};

struct slo {
    double ttft_s, gap_s;
};

/* gaps: seconds between two events of one answer, sorted by this. 0 or -ENOMEM. */
int summarize(const struct bench_answer *answers, uint32_t count, double *gaps, size_t gap_count,
              const struct slo *slo, struct summary *ret_summary);
int summary_print(const struct summary *s, const struct slo *slo);
int summary_rows(const struct summary *s, const char *prefix, json_t *rows);
