/*
 * A running server, judged by two readings of its /metrics: the numbers that the operations guides
 * print (blocks, utilization, how many more requests fit), and rules over them: each says whether
 * it applies, why, with the values, and what to set. Works on vLLM's names, which evenkeel-server
 * has too, in their older spellings as well, and on SGLang's and llama-server's. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "supervisor/doctor/catalog.h"
#include "supervisor/doctor/numbers.h"
#include "supervisor/engines/sample.h"

#define LIVE_BUCKETS 32
#define LIVE_RULES   16

struct live_hist {
    uint32_t buckets;
    double bound[LIVE_BUCKETS], hits[LIVE_BUCKETS]; /* cumulative, over all series */
    double sum, count;
};

/* One reading. What is not on the page is negative. */
struct live_page {
    double running, waiting, usage, blocks, block_size, cached_blocks;
    double preemptions, prompt_tokens, output_tokens, queries, hits, good, bad, refused;
    double limit_seqs, limit_tokens, share;
    bool prefix_caching_off;
    struct live_hist hist[HIST_COUNT];
    uint32_t samples; /* of the families that are known */
};

void live_read(const char *page, size_t len, struct live_page *ret_page);
/* The engines of a page in their order, at most `most`. Returns how many. */
uint32_t live_parts(const char *page, size_t len, struct sample_part *ret_parts, uint32_t most);
/* The same as live_read() of one of them; series without the labels belong to each. */
void live_read_part(const char *page, size_t len, const struct sample_part *part,
                    struct live_page *ret_page);
/* The value that so many of the observations are below; -1 without any. before may be NULL: since
 * the server began. Within a bucket it is interpolated. */
double live_quantile(const struct live_hist *now, const struct live_hist *before, double q);
/* Numbers of a reading for the rules: total_blocks, used_blocks, free_blocks, blocks_per_request,
 * room_requests, usage, ttft_p95, len_p95, ... before may be NULL (no rates). */
void live_numbers(const struct live_page *now, const struct live_page *before, double seconds,
                  double max_model_len, struct doctor_numbers *ret_numbers);

enum live_state { LIVE_UNKNOWN, LIVE_FINE, LIVE_APPLIES };

struct live_finding {
    const char *id;
    enum live_state state;
    const struct doctor_text *title, *text, *remedy; /* templates for doctor_tell() */
    const char *flag;
    bool has_value;
    char value[32];
};

/* All rules in their order; those without their numbers are LIVE_UNKNOWN. Returns how many. */
uint32_t live_judge(const struct doctor_numbers *n, struct live_finding ret_findings[LIVE_RULES]);

/* Several replicas: which is farthest from the median of the others and in what. Sets numbers
 * imbalance, imbalance_replica (index from 1), imbalance_what (enum live_measure),
 * imbalance_median, imbalance_value of `n`. */
enum live_measure { LIVE_BY_RUNNING, LIVE_BY_USAGE, LIVE_BY_TTFT, LIVE_BY_ITL };
void live_compare(const struct live_page *pages, uint32_t count, struct doctor_numbers *n);
