/*
 * The flowchart of the operations guides as ordered questions with the answers found: did it fail
 * at start, in a burst, after long running by fragmentation, or by its prefix cache. Pure; shown by
 * `evenkeelctl diagnose` and on evenkeeld's page after a failure.
 */
#pragma once

#include <stdbool.h>

#include "supervisor/doctor/catalog.h"
#include "supervisor/doctor/numbers.h"
#include "supervisor/doctor/phase.h"

enum doctor_question { ASK_STARTUP, ASK_BURST, ASK_CHRONIC, ASK_PREFIX, DOCTOR_QUESTIONS };
enum doctor_reply { REPLY_NO, REPLY_YES, REPLY_UNKNOWN };

struct doctor_step {
    enum doctor_reply answer;
    const struct doctor_text *why; /* what the answer rests on, NULL: nothing is known */
};

/* Whether the questions make sense for the class: it is about memory. */
bool doctor_flow_applies(enum doctor_class cls);
/* All steps; after a yes the later questions are no longer open. Numbers used: requested, free,
 * reserved, hit_rate_percent, cached_percent. */
void doctor_flow(enum doctor_class cls, enum doctor_phase phase, const struct doctor_numbers *n,
                 struct doctor_step ret_steps[DOCTOR_QUESTIONS]);
const char *doctor_question(enum doctor_question q, enum doctor_lang lang);
const char *doctor_answer(enum doctor_reply a, enum doctor_lang lang);
/* What the guides do where the question is answered with yes. */
const char *doctor_advice(enum doctor_question q, enum doctor_lang lang);
