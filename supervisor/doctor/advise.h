/*
 * What helps against a finding, in order: the ladder that evenkeeld climbs for its class, computed
 * from the log's numbers with the sum shown (common/ladder.h), then the entry's own remedies and
 * those of the program and module that it happened in (help.h), first those of the more exact. A
 * flag that the engine's version does not have is left out, and so is a step that cannot help.
 * Pure.
 */
#pragma once

#include <stdint.h>

#include "supervisor/doctor/tell.h"

struct doctor_finding;

#define DOCTOR_ADVICE_MOST 16u

/* Returns how many. */
uint32_t doctor_advise_for(const struct doctor_finding *f,
                           struct doctor_advice ret_advice[DOCTOR_ADVICE_MOST]);
