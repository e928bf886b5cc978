/*
 * Writes a report: build/reports/<target>.json, one row for each measured cell.
 *
 *   {"target", "commit", "machine": {...}, "rows": [{"cell", "value", "unit", "goal", "met"}]}
 *
 * COMMIT in the environment is the commit, else "unknown". Benchmarks and long tests only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct report {
    FILE *file;
    bool first;
};

/* Strings are plain names: nothing in them needs escaping. */
struct report_cell {
    const char *cell;
    double value;
    const char *unit;
    const char *goal; /* as a JSON number, NULL = none */
    int met;          /* with a goal: 1 or 0 */
};

/* 0 or a negative code, which is said on stderr. */
int report_open(struct report *r, const char *target, const char *path);
void report_cell(struct report *r, const struct report_cell *c);
/* -EIO when not all could be written. */
int report_close(struct report *r);
