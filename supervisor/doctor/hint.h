/*
 * What kind a decisive line looks like when no entry's expression knows it: its words, and where in
 * the code it was raised. A hint that names an entry is sure enough to tell it; the others are told
 * as probable. Pure.
 */
#pragma once

#include "supervisor/doctor/catalog.h"
#include "supervisor/doctor/trace.h"

/* The first hint whose expression is in the text, NULL: none. match: pcre2_match_data, context:
 * pcre2_match_context. */
const struct doctor_hint *doctor_hint_of(const struct doctor_catalog *c, const char *text,
                                         void *match, void *context);
#define DOCTOR_HINT_TEXT (TRACE_TEXT + 3 * TRACE_FRAME + 12)
/* A process's last exception as hints and helps see it: the line, then "@" and the engine's deepest
 * frame, ">" and the deepest of all, "<" and that of an installed package, each on its own line. */
void doctor_hint_text(const struct trace_process *p, char ret_text[DOCTOR_HINT_TEXT]);
/* The first hint for that. */
const struct doctor_hint *doctor_hint_of_process(const struct doctor_catalog *c,
                                                 const struct trace_process *p, void *match,
                                                 void *context);
