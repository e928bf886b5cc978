/*
 * The table of remedies by program and module: which of the catalog's helps fit a failure, by its
 * class, its lines and where they were raised. Pure.
 */
#pragma once

#include "supervisor/doctor/catalog.h"
#include "supervisor/doctor/numbers.h"
#include "supervisor/doctor/trace.h"

#define HELP_LINES 3

struct help_question {
    const char *id; /* of the entry that names it */
    enum doctor_class cls;
    const struct doctor_numbers *numbers; /* with the facts of the log */
    const char *said[HELP_LINES];         /* the lines that it was found by */
    uint32_t said_count;
    const struct trace_process *raised; /* whose last exception it is, NULL: not known */
};

/* Returns how many. match: pcre2_match_data, context: pcre2_match_context. */
uint32_t doctor_help_find(const struct doctor_catalog *c, const struct help_question *of,
                          void *match, void *context,
                          const struct doctor_help *ret_helps[DOCTOR_HELPED_MOST]);
