/*
 * The samples of the last seconds and what decisions ask of them. A flagged value never counts: a
 * missing sample is unknown, not zero. Lengths are seconds, never numbers of polls. Pure; memory is
 * taken once.
 *
 * Questions return false when the samples cannot answer (fewer than WINDOW_NEED good values) and
 * then leave the result as it was. `last_s` looks only at the newest part; 0 = all of the window.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "supervisor/engines/sample.h"

#define WINDOW_NEED 4

struct window;

/* slots: most samples held; older ones leave first. Returns 0, -EINVAL or -ENOMEM. */
int window_new(double span_s, uint32_t slots, struct window **ret_window);
void window_free(struct window *w);
void window_clear(struct window *w);
/* A sample not newer than the newest is ignored. */
void window_push(struct window *w, const struct sample *s);

uint32_t window_count(const struct window *w);                      /* all samples in it */
const struct sample *window_at(const struct window *w, uint32_t i); /* 0 = oldest */
uint32_t window_good(const struct window *w, enum signal_id i); /* unflagged values of a signal */
/* Seconds between the oldest and the newest unflagged value; 0 with fewer than two. */
double window_covered_s(const struct window *w, enum signal_id i);

/* Share of the values that are >= level. */
bool window_above(const struct window *w, enum signal_id i, double level, double last_s,
                  double *ret_share);
/* Quantile of a gauge over time, q in 0..1 (0.5 median, 1 maximum), nearest rank. */
bool window_gauge(const struct window *w, enum signal_id i, double q, double last_s,
                  double *ret_value);
/* Growth of a counter and the same per second. A fall is a reset: that step counts for nothing.
 * Needs two values. */
bool window_delta(const struct window *w, enum signal_id i, double last_s, double *ret_delta);
bool window_rate(const struct window *w, enum signal_id i, double last_s, double *ret_per_s);
/* A limit counts as reached from this share of it on: what runs dips below it whenever a request
 * ends before the next one is admitted, and a page is read between two steps. */
#define WINDOW_REACHED 0.9
static inline bool window_reached(double running, double limit)
{
    return running >= WINDOW_REACHED * limit;
}
/* Share of the samples that reach the limit with waiting > 0: it binds. */
bool window_binding(const struct window *w, double limit, double last_s, double *ret_share);
/* Preemptions inferred per second: requests that left `running` without having finished while
 * those waiting for capacity did not get fewer. A lower bound, for engines whose own counter is
 * late. */
bool window_lost(const struct window *w, double last_s, double *ret_per_s);

/* HIST_TTFT or HIST_ITL. Quantile from the growth of the buckets over the window, linear inside a
 * bucket; in the last bucket its lower bound. False below 20 observations. */
bool window_latency(const struct window *w, enum hist_id h, double q, double *ret_s);
