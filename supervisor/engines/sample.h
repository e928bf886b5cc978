/*
 * One reading of a server: the dozen series that decisions use, each with a validity flag, taken
 * from a parsed metrics page by the engine's dialect. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "supervisor/engines/signals.h"

struct dialect;
struct promtext_sample;

enum sample_flag {
    SAMPLE_MISSING = 1, /* no answer, or no such series */
    SAMPLE_STALE = 2,   /* nothing moved for SAMPLE_STALE_S while requests run */
    SAMPLE_NAN = 4,
    SAMPLE_RANGE = 8,  /* outside what the signal can be */
    SAMPLE_RESET = 16, /* a counter went down or the process is another one */
    SAMPLE_TRUNCATED = 32,
    SAMPLE_SLOW = 64
};

#define SAMPLE_BUCKETS 24
#define SAMPLE_STALE_S 15

/* Cumulative buckets of a latency histogram. */
struct sample_hist {
    uint32_t count; /* 0 = no such histogram, or it is not monotone */
    double bound[SAMPLE_BUCKETS], hits[SAMPLE_BUCKETS]; /* the last bound may be +Inf */
};

struct sample {
    uint64_t at_us;
    bool good; /* the page was fetched and parsed */
    double value[SIG_COUNT];
    uint8_t flags[SIG_COUNT];
    uint16_t series[SIG_COUNT]; /* how many series gave the value: fewer than before = MISSING */
    uint64_t same_since_us; /* since when the page has not moved while requests ran; 0 = it has */
    struct sample_hist ttft, itl;
};

/* One engine of a page: vLLM labels its series with model_name and engine. */
struct sample_part {
    char model[96], engine[24]; /* "" where the page does not say */
};

/* Reads a page. A page that is no exposition at all gives good = false. Never fails otherwise. */
void sample_parse(const struct dialect *d, const char *page, size_t len, uint64_t at_us,
                  struct sample *ret_sample);
/* The same of one engine of the page; series without the labels belong to each. part NULL = all. */
void sample_parse_part(const struct dialect *d, const struct sample_part *part, const char *page,
                       size_t len, uint64_t at_us, struct sample *ret_sample);
/* Whether a line of a page is of that engine; part NULL = of any. */
bool sample_belongs(const struct sample_part *part, const struct promtext_sample *s);
/* Compares with the last good sample before: sets RESET, STALE and MISSING series. prev may be
 * NULL, or not good: then nothing is compared. */
void sample_compare(struct sample *s, const struct sample *prev);
static inline bool sample_has(const struct sample *s, enum signal_id i)
{
    return s->good && s->flags[i] == 0;
}
/* A poll without an answer: good = false, every signal MISSING. */
void sample_missing(uint64_t at_us, struct sample *ret_sample);
