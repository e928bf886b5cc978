/*
 * How the writers of the page tell a family by its number (metric_names.h): one value, a histogram,
 * or rows that differ by one label.
 */
#pragma once

#include <stddef.h>

#include "common/metrics.h"

void metrics_one(struct ek_expo *e, int id, double value);
void metrics_hist(struct ek_expo *e, int id, const struct ek_hist *h);
/* With what names the requests that fell into its buckets; NULL is nothing. */
void metrics_hist_by(struct ek_expo *e, int id, const struct ek_hist *h,
                     const struct ek_exemplars *x);

/* A family with one label: rows of {value of the label, number}. */
struct metrics_row {
    const char *label;
    double value;
};

void metrics_rows(struct ek_expo *e, int id, const char *label, const struct metrics_row *row,
                  size_t count);
#define METRICS_ROWS(e, id, label, ...)                                                            \
    metrics_rows(e, id, label, (const struct metrics_row[]){__VA_ARGS__},                          \
                 sizeof((const struct metrics_row[]){__VA_ARGS__}) / sizeof(struct metrics_row))
