/*
 * The budget and the hours of planned restarts; servers/upkeep.c asks before one and notes it
 * after. A restart that was noted and then did not happen is taken back (planned_undo()).
 */
#include "supervisor/law/planned.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void planned_note(struct planned_log *log, uint64_t wall_us)
{
    if (log->count == PLANNED_KEPT) {
        memmove(log->wall_us, log->wall_us + 1, (PLANNED_KEPT - 1) * sizeof(log->wall_us[0]));
        log->count--;
    }
    log->wall_us[log->count++] = wall_us;
}

void planned_undo(struct planned_log *log)
{
    log->count -= log->count > 0;
}

/* "HH:MM", 00:00 to 24:00; the end in *ret_end. -1 if it is none. */
static int minute_of(const char *s, const char **ret_end)
{
    int v[4];
    for (int i = 0; i < 5; i++) {
        if (i == 2 ? s[i] != ':' : s[i] < '0' || s[i] > '9')
            return -1;
        if (i != 2)
            v[i > 2 ? i - 1 : i] = s[i] - '0';
    }
    int hour = v[0] * 10 + v[1], minute = v[2] * 10 + v[3];
    *ret_end = s + 5;
    return minute > 59 || hour > 24 || (hour == 24 && minute) ? -1 : hour * 60 + minute;
}

int planned_hours(const char *text, int minute, bool *ret_inside)
{
    bool inside = strcmp(text, "any") == 0;
    const char *s = text;
    if (!inside && strcmp(text, "never") != 0) {
        for (;; s++) {
            int from = minute_of(s, &s);
            if (from < 0 || *s++ != '-')
                return -EINVAL;
            int to = minute_of(s, &s);
            if (to < 0 || (*s != ',' && *s != '\0'))
                return -EINVAL;
            inside |= from < to ? minute >= from && minute < to : minute >= from || minute < to;
            if (*s == '\0')
                break;
        }
    }
    if (ret_inside)
        *ret_inside = inside;
    return 0;
}

enum planned_verdict planned_check(const struct planned_log *log, const struct planned_params *p,
                                   uint64_t wall_us, int minute, bool urgent, char *ret_why,
                                   size_t size)
{
    uint32_t recent = 0;
    double last_s = PLANNED_DAY_S;
    bool inside = false;
    if (wall_us < log->off_until_us) {
        (void)snprintf(ret_why, size, "the last restart for memory did not help: none for %.1f h",
                       (double)(log->off_until_us - wall_us) / 3.6e9);
        return PLANNED_OFF;
    }
    for (uint32_t i = 0; i < log->count; i++) {
        double ago_s = wall_us > log->wall_us[i] ? (double)(wall_us - log->wall_us[i]) / 1e6 : 0;
        recent += ago_s < PLANNED_DAY_S;
        last_s = ago_s < last_s ? ago_s : last_s;
    }
    if (recent >= p->budget) {
        (void)snprintf(ret_why, size, "%u of %u planned restarts within a day are used", recent,
                       p->budget);
        return PLANNED_BUDGET;
    }
    if (recent > 0 && last_s < p->apart_s) {
        (void)snprintf(ret_why, size, "the last planned restart was %.0f min ago, less than %.0f",
                       last_s / 60, p->apart_s / 60);
        return PLANNED_BUDGET;
    }
    if (!urgent && (planned_hours(p->hours, minute, &inside) < 0 || !inside)) {
        (void)snprintf(ret_why, size, "outside of restart_hours, %.60s", p->hours);
        return PLANNED_HOURS;
    }
    return PLANNED_OK;
}
