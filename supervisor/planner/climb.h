/*
 * The climb of `evenkeelctl bench-fit`: from a careful limit of running sequences upward in small
 * steps until the KV cache is used as wanted or something suffers, then halving between the last
 * good limit and the first bad one. Pure: measured steps in, the next limit out.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define CLIMB_STEPS_MOST 256

struct climb_step {
    uint32_t limit;
    double usage; /* of the KV cache, upper quartile of the samples, 0 to 1 */
    double running, waiting;
    double tokens_s, preemptions_s;
    double gap_s;  /* between tokens, 95 of 100 below; negative: not known */
    double ttft_s; /* with the time in the queue, which a full load makes long */
    bool harm;     /* set by climb_note() */
};

enum climb_end {
    CLIMB_ON,      /* go on with climb_next() */
    CLIMB_USED,    /* the cache is used as wanted */
    CLIMB_HARM,    /* one more suffers */
    CLIMB_CEILING, /* the server takes no more */
    CLIMB_IDLE,    /* the load does not fill the limit */
    CLIMB_HELD,    /* requests wait, yet no more of them run: not the limit holds them */
    CLIMB_LONG     /* CLIMB_STEPS_MOST */
};

struct climb_params {
    uint32_t start, step, ceiling;
    double use_low, use_high; /* where it wants to come to: 0.85 to 0.90 */
    double preemptions_most;  /* a second */
    double gap_most_s;        /* promise, 0 = none */
    double loss;              /* share of the best tokens/s whose lack is harm */
};

struct climb {
    struct climb_params p;
    struct climb_step steps[CLIMB_STEPS_MOST];
    uint32_t count, next;
    uint32_t good,
        bad;         /* the highest limit known to be good, the lowest known to be bad; 0 = none */
    uint32_t losses; /* steps in a row that were slower than the best */
    double best_tokens_s;
    enum climb_end end, limit_by; /* limit_by: why `bad` is bad */
    char why[120];                /* what ended it or what suffered */
};

void climb_init(struct climb *c, const struct climb_params *p);
/* The limit to try now, CLIMB_ON only. */
uint32_t climb_next(const struct climb *c);
void climb_note(struct climb *c, const struct climb_step *step);
/* The highest limit without harm and within the wanted use; 0 if there was none. */
uint32_t climb_keep(const struct climb *c);
/* The lowest limit with nearly (97 %) the tokens a second of the best: from there on more sequences
 * only wait for each other. 0 if there was none. */
uint32_t climb_knee(const struct climb *c);
/* The step at a limit, NULL if it was not tried. */
const struct climb_step *climb_at(const struct climb *c, uint32_t limit);
const char *climb_end_text(enum climb_end e);
