/*
 * The catalog against its own examples: each must be named by the entry that holds it, and by no
 * other before it. For `evenkeelctl diagnose --test` and the unit tests. Pure.
 */
#pragma once

#include "supervisor/doctor/catalog.h"

struct selftest_result {
    const struct doctor_signature *of; /* the entry that holds the example */
    const struct doctor_example *example;
    const struct doctor_signature *named; /* what the scan tells first, NULL: nothing */
    bool right;
};

/* fn is called for each example, in the catalog's order. 0 or -ENOMEM. */
int doctor_selftest(const struct doctor_catalog *c,
                    void (*fn)(void *ctx, const struct selftest_result *r), void *ctx);
