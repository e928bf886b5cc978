/*
 * The limit search of `evenkeelctl bench-fit`: from a careful limit of running sequences upward in
 * small steps until the KV cache is used as wanted or something suffers, then halving between the
 * last good limit and the first bad one. Pure: measured steps in, the next limit out.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define LIMIT_SEARCH_STEPS_MOST 256

struct limit_search_step {
    uint32_t limit;
    double usage; /* of the KV cache, upper quartile of the samples, 0 to 1 */
    double running, waiting;
    double tokens_s, preemptions_s;
    double gap_s;  /* between tokens, 95 of 100 below; negative: not known */
    double ttft_s; /* with the time in the queue, which a full load makes long */
    bool harm;     /* set by limit_search_note() */
};

enum limit_search_end {
    LIMIT_SEARCH_ON,      /* go on with limit_search_next() */
    LIMIT_SEARCH_USED,    /* the cache is used as wanted */
    LIMIT_SEARCH_HARM,    /* one more suffers */
    LIMIT_SEARCH_CEILING, /* the server takes no more */
    LIMIT_SEARCH_IDLE,    /* the load does not fill the limit */
    LIMIT_SEARCH_HELD,    /* requests wait, yet no more of them run: not the limit holds them */
    LIMIT_SEARCH_LONG     /* LIMIT_SEARCH_STEPS_MOST */
};

struct limit_search_params {
    uint32_t start, step, ceiling;
    double use_low, use_high; /* where it wants to come to: 0.85 to 0.90 */
    double preemptions_most;  /* a second */
    double gap_most_s;        /* promise, 0 = none */
    double loss;              /* share of the best tokens/s whose lack is harm */
};

struct limit_search {
    struct limit_search_params p;
    struct limit_search_step steps[LIMIT_SEARCH_STEPS_MOST];
    uint32_t count, next;
    uint32_t good,
        bad;         /* the highest limit known to be good, the lowest known to be bad; 0 = none */
    uint32_t losses; /* steps in a row that were slower than the best */
    double best_tokens_s;
    enum limit_search_end end, limit_by; /* limit_by: why `bad` is bad */
    char why[120];                       /* what ended it or what suffered */
};

void limit_search_init(struct limit_search *c, const struct limit_search_params *p);
/* The limit to try now, LIMIT_SEARCH_ON only. */
uint32_t limit_search_next(const struct limit_search *c);
void limit_search_note(struct limit_search *c, const struct limit_search_step *step);
/* The highest limit without harm and within the wanted use; 0 if there was none. */
uint32_t limit_search_keep(const struct limit_search *c);
/* The lowest limit with nearly (97 %) the tokens a second of the best: from there on more sequences
 * only wait for each other. 0 if there was none. */
uint32_t limit_search_knee(const struct limit_search *c);
/* The step at a limit, NULL if it was not tried. */
const struct limit_search_step *limit_search_at(const struct limit_search *c, uint32_t limit);
const char *limit_search_end_text(enum limit_search_end e);
