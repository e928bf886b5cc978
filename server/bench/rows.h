/*
 * What a measurement leaves behind: rows of cell, median, unit, spread and what it is held against,
 * printed as lines and written as JSON:
 *
 *   {"target", "commit", "machine": {...},
 *    "rows": [{"cell", "value", "unit", "spread": [least, most], "peer", "peer_value", "ratio"}]}
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

struct ek_fault;

#define ROWS_MOST_REPEATS 99u

struct spread {
    double median, least, most;
};

struct row {
    const char *cell, *unit;
    struct spread value;
    const char *peer; /* what it is held against, NULL = nothing */
    double peer_value;
};

/* Of 1 to ROWS_MOST_REPEATS values. */
struct spread spread_of(const double *values, uint32_t n);

/* Appends to the array. 0 or -ENOMEM. */
int rows_add(json_t *rows, const struct row *row);
/* What is known of the machine: name of the processor, cores. NULL without memory. */
json_t *rows_machine(void);
/* Writes the report; takes over `machine`, borrows `rows`. 0, or -EBADMSG with a fault. */
int rows_write(const char *path, const char *target, const char *commit, json_t *machine,
               json_t *rows, struct ek_fault *fault);
