/* Counts in patterns and in both notations of grammars. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A decimal number at s[*at], which moves behind it; one above `most` is most + 1. False where no
 * digit is. */
static inline bool digits_read(const char *s, size_t len, size_t *at, uint32_t most,
                               uint32_t *ret_n)
{
    size_t from = *at;
    uint64_t n = 0;

    while (*at < len && s[*at] >= '0' && s[*at] <= '9') {
        n = n * 10 + (uint64_t)(s[(*at)++] - '0');
        n = n > most ? (uint64_t)most + 1 : n;
    }
    *ret_n = (uint32_t)n;
    return *at > from;
}
