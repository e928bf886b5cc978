/*
 * How fast the device is, measured from steps that are done: copies between tiers, reading of
 * prompts, and a whole step. From that it is decided whether bringing blocks is faster than
 * computing them, and when the next step is best planned. Pure; part of the scheduler's state.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/engine/pace.h"
#include "server/engine/price.h"

#define LATE_LEAST_US 30000u /* a step that takes less is not waited for to plan the next one */
#define LATE_PART     16u    /* this part of its time is left when the next one is planned */
#define GAP_PART      200u   /* or none, where the gap is at most this part of the step; */
#define GAP_SHARED_PART                                                                            \
    20u /* or this one, of a step that reads prompts of one of several tenants */

struct flight;

struct rates {
    double copy;             /* blocks a second, 0 = not measured yet */
    double prefill;          /* prompt tokens a second, 0 = not measured yet */
    bool prefill_known;      /* by a step that took all of the budget; else it is more */
    uint32_t gap_us;         /* see struct engine_params; set once */
    uint64_t applied_us;     /* when the last result came */
    bool late;               /* it had lain there: the step behind it began before that */
    uint64_t landed_took_us; /* how long that step took, */
    uint32_t landed_rows;    /* and its rows; 0 = there was none yet */
    struct pace pace;        /* how large a step has to be */
    struct prices prices;    /* what a row costs by where it stands */
};

/* A step with rows is done. Of one whose time is not known nothing is learned. */
void rates_landed(struct rates *r, const struct flight *f, uint64_t copy_us, uint64_t now_us);
/* Whether so many copies take no longer than computing the tokens; true while that is not known. */
bool rates_copies_pay(const struct rates *r, uint32_t copies, uint32_t tokens);
/* When to plan the step after this one, which is alone in flight: 0 = now, UINT64_MAX = when it is
 * done. */
uint64_t rates_plan_after(const struct rates *r, const struct flight *f);
