/*
 * Allocation failures for unit tests: every allocation of the code under test goes through these
 * wrappers (-Wl,--wrap). The allocation loop fails the 1st, 2nd, ... one until the call succeeds:
 *
 *     for (long n = 1;; n++) {
 *         alloc_fail_at(n);
 *         int r = thing_new(..., &t);
 *         if (!alloc_failed()) { alloc_fail_at(0); assert_int_equal(r, 0); break; }
 *         assert_int_equal(r, -ENOMEM);   (and: object unchanged, nothing leaked)
 *     }
 */
#pragma once

#include <stdbool.h>

void alloc_fail_at(long n);      /* the n-th allocation from now on returns NULL; 0 = none does */
bool alloc_failed(void);         /* whether it did; also stops injecting */
unsigned long alloc_count(void); /* allocations since the program began */
unsigned long alloc_bytes(void); /* and the bytes that they asked for */
