/*
 * Reads a log of any length through the catalog, in bounded memory: which failures are in it, how
 * often, where, with which numbers, from which ranks, and in which life of the server (a log may
 * hold several starts). Pure: fed with bytes.
 *
 * What is told first is what explains most: a cause outranks what follows from it, whatever stands
 * first; what the decisive line says (the last exception of the process that failed first, see
 * trace.h) outranks what is said beside it; a warning outranks only what follows from a cause; what
 * the last life says outranks what older ones said, unless it only says that something died.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "supervisor/doctor/catalog.h"
#include "supervisor/doctor/finding.h"
#include "supervisor/doctor/phase.h"

struct doctor_scan;

/* The catalog must outlive it. 0 or -ENOMEM. */
int doctor_scan_new(const struct doctor_catalog *c, struct doctor_scan **ret_scan);
void doctor_scan_free(struct doctor_scan *s);
/* What is known from elsewhere when the log does not say; before feeding. */
void doctor_scan_phase(struct doctor_scan *s, enum doctor_phase phase);
void doctor_scan_feed(struct doctor_scan *s, const char *bytes, size_t len);
/* What is fed next is of another file of the same log. */
void doctor_scan_next_file(struct doctor_scan *s);
/* After the last byte: what was found, the main finding first. Valid until the scan is freed.
 * -ENOMEM. */
int doctor_scan_finish(struct doctor_scan *s, const struct doctor_finding **ret_findings,
                       uint32_t *ret_count);
/* The decisive line of the log, and the kind of failure that it looks like. */
struct doctor_decisive {
    uint64_t line;              /* 0: nothing in the log says how it failed */
    bool known;                 /* an entry of the catalog explains the log */
    enum doctor_class probably; /* DOCTOR_CLASSES: it does not even say that */
    const char *text;           /* the scan's */
};
/* After doctor_scan_finish(). */
struct doctor_decisive doctor_scan_decisive(const struct doctor_scan *s);

uint64_t doctor_scan_lines(const struct doctor_scan *s);
uint32_t doctor_scan_lives(const struct doctor_scan *s); /* starts seen */
