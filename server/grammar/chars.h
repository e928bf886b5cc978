/* Sets of code points: sorted ranges that neither touch nor overlap. Surrogates are never in one.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHARS_MOST 192u /* ranges */
#define CHARS_LAST 0x10ffffu

struct chars {
    struct {
        uint32_t lo, hi;
    } at[CHARS_MOST];
    uint32_t count;
    bool failed; /* there were too many ranges */
};

void chars_add(struct chars *c, uint32_t lo, uint32_t hi);
void chars_add_all(struct chars *c, const struct chars *other);
void chars_negate(struct chars *c);
/* Keeps what is in both. */
void chars_keep(struct chars *c, const struct chars *other);
bool chars_has(const struct chars *c, uint32_t cp);

/* Reads `count` hexadecimal digits at *at and moves behind them. NULL, or what is wrong at *at. */
const char *chars_digits(const char *text, size_t len, uint32_t count, size_t *at,
                         uint32_t *ret_value);
/* The same, and they are a character's. */
const char *chars_hex(const char *text, size_t len, uint32_t count, size_t *at, uint32_t *ret_cp);
