/*
 * Matches the catalog's hints against the decisive line of a log, with the place where it was
 * raised appended on lines of their own ("@" the frame of the engine itself, ">" the innermost of
 * all, "<" that of an installed package). scan.c asks after no signature has matched; the first
 * hint that fits counts.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "supervisor/doctor/hint.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>

const struct doctor_hint *doctor_hint_of(const struct doctor_catalog *c, const char *text,
                                         void *match, void *context)
{
    for (uint32_t i = 0; i < c->hint_count; i++) {
        if (pcre2_match(c->hints[i].code, (PCRE2_SPTR)text, strlen(text), 0, 0, match, context) >=
            0)
            return &c->hints[i];
    }
    return NULL;
}

void doctor_hint_text(const struct trace_process *p, char ret_text[DOCTOR_HINT_TEXT])
{
    (void)snprintf(ret_text, DOCTOR_HINT_TEXT, "%s\n@%s\n>%s\n<%s", p->text, p->where.own,
                   p->where.inner, p->where.package);
}

const struct doctor_hint *doctor_hint_of_process(const struct doctor_catalog *c,
                                                 const struct trace_process *p, void *match,
                                                 void *context)
{
    char text[DOCTOR_HINT_TEXT];
    doctor_hint_text(p, text);
    return doctor_hint_of(c, text, match, context);
}
