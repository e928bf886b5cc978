/*
 * The last failures of one server, each with its evidence, the four questions of the operations
 * guides with their answers where device memory ran out, and what was done. Kept apart from the
 * decisions, of which there are so many that an old failure would be pushed out. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "supervisor/doctor/flow.h"
#include "supervisor/law/oom.h"

struct ek_buf;

#define FAILURES_KEPT 32

struct failure {
    uint64_t wall_us;
    enum crash_class cls;
    bool starting; /* before it was ready */
    double uptime_s;
    bool asked; /* the questions make sense */
    struct doctor_step steps[DOCTOR_QUESTIONS];
    char rests_on[DOCTOR_QUESTIONS][160]; /* of one read back, whose steps name no text */
    char why[320], next[240];             /* the evidence; what evenkeeld did then */
    const char *remedy;                   /* what helps, a constant; NULL: as in kept_remedy */
    char kept_remedy[240];                /* of one read back */
};

struct failures {
    struct failure at[FAILURES_KEPT];
    uint32_t next, count;
};

void failures_push(struct failures *f, const struct failure *one);
/* 0 = the newest; NULL beyond the oldest. */
const struct failure *failures_at(const struct failures *f, uint32_t i);
/* The first question answered with yes: what follows was not asked any more. DOCTOR_QUESTIONS if
 * there is none. */
uint32_t failure_case(const struct failure *f);
/* Appends one as JSON, without the opening brace. */
void failure_json(const struct failure *f, struct ek_buf *out);
/* Appends a JSON list of at most `most`, newest first. 0 or -ENOMEM. */
int failures_json(const struct failures *f, uint32_t most, struct ek_buf *out);
