/*
 * Whether a planned restart may happen now: at most so many within a day, so far apart, inside the
 * operator's hours. Times are wall clock, because they are kept across boots; an entry in the
 * future counts as now. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

void planned_note(struct planned_log *log, uint64_t wall_us);
void planned_undo(struct planned_log *log); /* the last one did not happen */
/* urgent: the hours do not count, the budget does. minute: of the local day. ret_why is a sentence
 * when it may not. */
enum planned_verdict planned_check(const struct planned_log *log, const struct planned_params *p,
                                   uint64_t wall_us, int minute, bool urgent, char *ret_why,
                                   size_t size);
/* Whether text is such a list; -EINVAL if not. ret_inside may be NULL. */
int planned_hours(const char *text, int minute, bool *ret_inside);
