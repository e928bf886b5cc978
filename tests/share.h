/*
 * How much of a long test runs. `make check` has a share of the cases, under the sanitizers a
 * smaller one, another one each day; `make check-deep` and everything else has them all.
 *
 *   EVENKEEL_SHARE=N   one case in N (all when it is not set)
 *   EVENKEEL_DAY=D     which one, so that D to D + N - 1 are all of them (0 when it is not set)
 *
 * A test numbers its cases from any number on, through nested loops too: the same number is the
 * same case each day. What takes no time should run each day.
 */
#ifndef TESTS_SHARE_H
#define TESTS_SHARE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* The value of a variable; `otherwise` when it is not set or not a number. */
static inline uint64_t share_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    char *end = NULL;
    const uint64_t n = text ? strtoull(text, &end, 10) : 0;

    return text && end != text && *end == '\0' ? n : otherwise;
}

/* The first case from this one on that runs. */
static inline uint64_t share_next(uint64_t number)
{
    const uint64_t n = share_number("EVENKEEL_SHARE", 1), day = share_number("EVENKEEL_DAY", 0);

    return n < 2 ? number : number + (n - (number + day) % n) % n;
}

/* Whether this case runs. */
static inline bool share_takes(uint64_t number)
{
    return share_next(number) == number;
}

#endif
