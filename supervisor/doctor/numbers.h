/*
 * Numbers by name, as a log or a server gave them: what was asked for, what was free, what a limit
 * is set to. Sizes are in bytes and know that they are. Pure, fixed memory.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DOCTOR_NUMBERS_MOST 48
#define DOCTOR_NAME_MOST    32

struct doctor_number {
    char name[DOCTOR_NAME_MOST];
    double value;
    bool bytes; /* a size */
};

struct doctor_numbers {
    struct doctor_number at[DOCTOR_NUMBERS_MOST];
    uint32_t count;
};

/* Sets or replaces; when full, new names are dropped. */
void doctor_numbers_set(struct doctor_numbers *n, const char *name, double value, bool bytes);
const struct doctor_number *doctor_numbers_find(const struct doctor_numbers *n, const char *name);
/* "vllm_version": its value is doctor_version()'s, not a number of the log. */
bool doctor_numbers_versioned(const char *name);
/* "is_loading": a fact, 1 when its expression matched; not shown. */
bool doctor_numbers_silent(const char *name);
/* As doctor_lookup_fn; ctx is a struct doctor_numbers. */
bool doctor_numbers_lookup(const void *ctx, const char *name, double *ret_value);
/* "1,234", "2.00 GiB", "512M", "97.5%": value and whether a unit made it a size. False if it is no
 * number; other text behind it does not matter. */
bool doctor_number_read(const char *text, size_t len, double *ret_value, bool *ret_bytes);
/* "2.00 GiB", "256", "0.85": as people write it. */
const char *doctor_number_text(double value, bool bytes, char text[32]);
