/*
 * Parses --since for evenkeelctl (args.c and verb_events.c). Local times go through mktime(), which
 * knows the hours that a change of summer time leaves out or repeats; the present time is a
 * parameter, so that the tests need no clock.
 */
#include "supervisor/ctl/since.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"

#define MOST_S 4000000000u /* of any figure: 126 years */

static uint64_t unit_s(char c)
{
    switch (c) {
    case 's': return 1;
    case 'm': return 60;
    case 'h': return 3600;
    case 'd': return 86400;
    case 'w': return 604800;
    }
    return 0;
}

/* "1d12h", "90" for seconds. */
static bool ago(const char *text, uint64_t *ret_s)
{
    uint64_t sum = 0;
    if (!*text)
        return false;
    while (*text) {
        uint64_t v = 0, unit = 1;
        if (*text < '0' || *text > '9')
            return false;
        for (; *text >= '0' && *text <= '9'; text++) {
            v = v * 10 + (uint64_t)(*text - '0');
            if (v > MOST_S)
                return false;
        }
        if (*text) {
            unit = unit_s(*text++);
            if (unit == 0)
                return false;
        }
        sum += v * unit;
        if (sum > MOST_S)
            return false;
    }
    *ret_s = sum;
    return true;
}

/* Midnight `days` before today, or with a time of day. */
static time_t day(time_t now, int days, const struct tm *of_day)
{
    struct tm tm;
    if (!localtime_r(&now, &tm))
        return 0;
    tm.tm_mday -= days;
    tm.tm_hour = of_day ? of_day->tm_hour : 0;
    tm.tm_min = of_day ? of_day->tm_min : 0;
    tm.tm_sec = of_day ? of_day->tm_sec : 0;
    tm.tm_isdst = -1;
    return mktime(&tm);
}

/* What follows a time: nothing, Z or +01:00. */
static bool zoned(const char *rest, struct tm *tm, time_t *ret_t)
{
    unsigned hours, minutes;
    if (!*rest) {
        tm->tm_isdst = -1;
        *ret_t = mktime(tm);
        return true;
    }
    time_t t = timegm(tm);
    if (strcmp(rest, "Z") != 0) {
        bool east = *rest == '+';
        const char *d = rest + 1;
        if ((!east && *rest != '-') || strlen(d) != 5 || d[2] != ':' ||
            strspn(d, "0123456789:") != 5 || d[0] == ':' || d[1] == ':' || d[3] == ':' ||
            d[4] == ':')
            return false;
        hours = (unsigned)(d[0] - '0') * 10 + (unsigned)(d[1] - '0');
        minutes = (unsigned)(d[3] - '0') * 10 + (unsigned)(d[4] - '0');
        time_t off = (time_t)hours * 3600 + (time_t)minutes * 60;
        t += east ? -off : off;
    }
    *ret_t = t;
    return true;
}

static bool date(const char *text, time_t *ret_t)
{
    static const char *const forms[] = {"%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M",
                                        "%Y-%m-%d %H:%M", "%Y-%m-%d"};
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        struct tm tm = {0};
        const char *rest = strptime(text, forms[i], &tm);
        if (rest && zoned(rest, &tm, ret_t))
            return true;
    }
    return false;
}

static bool of_day(const char *text, time_t now, time_t *ret_t)
{
    struct tm tm = {0};
    const char *rest = strptime(text, "%H:%M:%S", &tm);
    if (!rest) {
        tm = (struct tm){0};
        rest = strptime(text, "%H:%M", &tm);
    }
    if (!rest || *rest)
        return false;
    time_t t = day(now, 0, &tm);
    *ret_t = t > now ? day(now, 1, &tm) : t;
    return true;
}

int since_parse(const char *text, time_t now, uint64_t *ret_s, struct ek_fault *fault)
{
    uint64_t s;
    time_t t = 0;
    if (strcmp(text, "0") == 0) {
        *ret_s = 0;
        return 0;
    }
    if (text[0] == '@' && strspn(text + 1, "0123456789") == strlen(text + 1) && ago(text + 1, &s))
        t = (time_t)s;
    else if (ago(text, &s))
        t = (time_t)s < now ? now - (time_t)s : 1;
    else if (strcmp(text, "today") == 0)
        t = day(now, 0, NULL);
    else if (strcmp(text, "yesterday") == 0)
        t = day(now, 1, NULL);
    else if (!date(text, &t) && !of_day(text, now, &t))
        t = 0;
    if (t <= 0)
        return ek_fault_set(fault, "--since",
                            "--since takes 30m, 2h, 3d, today, yesterday, 14:05 or "
                            "2026-11-22T14:05, not '%.60s'.",
                            text);
    *ret_s = (uint64_t)t;
    return 0;
}
