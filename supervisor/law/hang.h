/*
 * Tells a hang from a slow answer. Pure.
 *
 * A server is suspect when it had work and no counter of steps or tokens moved for `hang_s`, when
 * one body or form was being read for that long, or when its page could not be read at all. Work is
 * also what its API has taken and its engine has not: one that stands still takes nothing, so it
 * seems idle. A suspect is not yet hung: only a request of one token that fails too (the canary,
 * the caller's part) is the second proof. A single running request at five tokens per second is
 * slow, not hung. Nor is one whose engine's process is being loaded, or released: it bounds that
 * wait itself.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "supervisor/engines/sample.h"

struct hang {
    uint64_t moved_us; /* when it last made progress, or had nothing to do; 0 = not known yet */
    uint64_t read_us;  /* when it was last read */
    uint64_t begun_us; /* hang_start() */
    double progress;   /* sum of the counters then */
};

/* A process that is stopped (by a signal, a debugger) is waited for, each time as long. */
enum halt { HALT_NO, HALT_BEGINS, HALT_WAITS, HALT_TOO_LONG };
/* state: of /proc/PID/stat. *since_us: 0 at first. */
enum halt halt_step(uint64_t *since_us, char state, uint64_t now_us, double most_s);

/* HANG_READING: a body or a form is being read by a thread that does not come back, whatever the
 * engine does. */
enum hang_kind { HANG_NO, HANG_NO_PROGRESS, HANG_NO_ANSWER, HANG_READING };

/* A thread that has read one thing for this long is lost, whatever the canary says: a server ends
 * itself at a third of it. */
#define HANG_LOST_S 90.0

/* One body or form has been read for HANG_LOST_S. */
bool hang_lost(const struct sample *s);
/* Its engine's process is away, and it knows. */
bool hang_away(const struct sample *s);
void hang_start(struct hang *h, uint64_t now_us);
/* Takes a sample in; *ret_for_s is how long nothing has moved. */
enum hang_kind hang_step(struct hang *h, const struct sample *s, uint64_t now_us, double hang_s,
                         double *ret_for_s);
