/*
 * Whether a planned restart may happen now: at most so many within a day, so far apart, inside the
 * operator's hours. Times are wall clock, because they are kept across boots; an entry in the
 * future counts as now. And of what: where the engine has a process of its own, and what wore out
 * lies there, that process alone, for which no request has to finish first. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "supervisor/law/reasons.h"

#define PLANNED_KEPT  8
#define PLANNED_DAY_S 86400.0

struct planned_log {
    uint64_t wall_us[PLANNED_KEPT]; /* oldest first */
    uint32_t count;
    uint64_t off_until_us; /* no restart for memory until then: the last one did not help */
};

struct planned_params {
    uint32_t budget; /* within a day; 0 = never */
    double apart_s;
    const char *hours; /* "any", "never", "02:00-05:30,22:00-01:00" in local time */
};

enum planned_verdict { PLANNED_OK, PLANNED_BUDGET, PLANNED_HOURS, PLANNED_OFF };

/* Whether it is enough to start the engine's process again. Blocks that are not given back are the
 * server's own. grows_there: what grows is mostly that process's memory. */
static inline bool planned_of_engine(enum reason reason, bool engine_process, bool grows_there)
{
    return engine_process &&
           (reason == REASON_FRAG_CHRONIC || (reason == REASON_MEMORY_GROWS && grows_there));
}

void planned_note(struct planned_log *log, uint64_t wall_us);
void planned_undo(struct planned_log *log); /* the last one did not happen */
/* urgent: the hours do not count, the budget does. minute: of the local day. ret_why is a sentence
 * when it may not. */
enum planned_verdict planned_check(const struct planned_log *log, const struct planned_params *p,
                                   uint64_t wall_us, int minute, bool urgent, char *ret_why,
                                   size_t size);
/* Whether text is such a list; -EINVAL if not. ret_inside may be NULL. */
int planned_hours(const char *text, int minute, bool *ret_inside);
