/*
 * What a scan has found of one signature in a log: the lines that say it, its numbers, and what
 * they weigh. scan.c gathers it line by line, resolve.c and weigh.c judge it once the log is read.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "supervisor/doctor/catalog.h"
#include "supervisor/doctor/numbers.h"
#include "supervisor/doctor/phase.h"

#define DOCTOR_EVIDENCE_MOST 3
#define DOCTOR_EVIDENCE_TEXT 480
#define DOCTOR_FLAG          48
#define DOCTOR_ENGINES       16 /* of data parallelism; more share places */

#define DOCTOR_CONSEQUENCE 20u /* ranks below: what follows from a cause, or a remark */

struct doctor_evidence {
    uint64_t line; /* from 1 */
    char text[DOCTOR_EVIDENCE_TEXT];
};

struct doctor_finding {
    const struct doctor_signature *signature;
    enum doctor_class cls; /* DEVICE_OOM resolved where it can be */
    enum doctor_phase phase;
    uint64_t count, first_line, last_line;
    uint64_t ranks;                     /* a bit per rank below 64 */
    uint32_t of_engine[DOCTOR_ENGINES]; /* of the count, by the number that its lines name */
    uint32_t rank;   /* the signature's, or above that of one which it is more exact than */
    bool decisive;   /* the decisive line is one of its lines */
    bool firm;       /* in a line that is no warning and no remark */
    bool happened;   /* in a line that does more than name an option about it */
    bool explains;   /* firm, or of a class for which warnings are enough */
    bool raised;     /* in a line that says how something failed, see doctor_level_raises() */
    bool outlived;   /* the same start came to serve after its last line */
    bool probable;   /* its evidence is weak: the kind is told as probable, see weigh.h */
    bool may_pass;   /* that evidence leaves room for a cause that the next start may not meet */
    uint32_t life;   /* the last start in which it was seen */
    uint32_t starts; /* in how many of them */
    uint32_t evidence_count;
    struct doctor_evidence evidence[DOCTOR_EVIDENCE_MOST]; /* the first two and the last */
    struct doctor_numbers numbers;                         /* with the facts of the log */
    const struct doctor_help *help[DOCTOR_HELPED_MOST];    /* of its program and module */
    uint32_t help_count;
    char flag[DOCTOR_FLAG]; /* "--max-num-seqs": the flag that its line names, "": none or many */
};

/* Adds a line to its evidence. */
void doctor_finding_keep(struct doctor_finding *f, uint64_t line, const char *text);
/* The place in of_engine that the numbers name; false: they name no engine. */
bool doctor_finding_engine(const struct doctor_numbers *n, uint32_t *ret_at);
/* Whether it was said as often as its entry asks for, by one engine where they are told apart. */
bool doctor_finding_often(const struct doctor_finding *f, const struct doctor_signature *s);
