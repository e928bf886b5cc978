/*
 * Numbers that a run collects one by one, to be told as quantiles: gaps between tokens (serve.c),
 * times to the first one and of the host (schedsim.c, tests/bench/plant.c).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Begins as {0}; `at` is freed by samples_done. */
struct samples {
    double *at;
    size_t count, room;
    bool failed; /* without memory: samples are missing */
};

void samples_push(struct samples *s, double value);
void samples_done(struct samples *s);

/* Ascending. */
void sort_numbers(double *values, size_t n);
/* The value at share `q` (0 to 1) of n sorted ones; NAN of none. */
double quantile(const double *sorted, size_t n, double q);
