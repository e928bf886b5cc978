/*
 * Sets the limits of START_LIMITS_ENV when the stack starts (start.c), before a request is taken.
 * evenkeeld writes the variable (supervisor/servers/command_line.c). A bad word is warned of and
 * left out, because a server that runs with fewer limits kept is better than one that does not
 * start.
 */
#include "server/start_limits.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "common/promtext.h"
#include "server/engine/limits.h"

static int find_limit(const char *name, size_t len)
{
    int i = 0;
    while (i < LIMIT_COUNT &&
           (strlen(limit_table[i].name) != len || memcmp(limit_table[i].name, name, len) != 0))
        i++;
    return i;
}

/* One NAME=VALUE. */
static bool start_limits_take(const char *word, size_t len, const struct limits *l,
                              struct limits_change *c)
{
    const char *is = memchr(word, '=', len);
    size_t name = is ? (size_t)(is - word) : 0, rest = is ? len - name - 1 : 0;
    int i = is ? find_limit(word, name) : LIMIT_COUNT;
    double v = 0;
    if (i == LIMIT_COUNT || promtext_number(is + 1, rest, &v) != rest || !(v >= 0 && v < 1e12))
        return false;
    uint64_t value = (uint64_t)llround(v * limit_table[i].scale);
    if (l->ceiling[i] && value > l->ceiling[i])
        value = l->ceiling[i];
    c->value[i] = value > l->floor[i] ? value : l->floor[i];
    c->set |= 1u << i;
    return true;
}

void start_limits(const char *text, struct limits *l)
{
    struct limits_change c = {.origin = "evenkeeld", .reason = "kept from the process before"};
    struct ek_fault fault = {0};
    for (const char *at = text ? text : ""; *at;) {
        size_t len = strcspn(at, ",");
        if (len > 0 && !start_limits_take(at, len, l, &c))
            ek_log(EK_LOG_WARNING, START_LIMITS_ENV ": '%.*s' is no limit with a value",
                   (int)(len < 80 ? len : 80), at);
        at += len + (at[len] == ',');
    }
    if (c.set == 0)
        return;
    if (limits_apply(l, &c, ek_now_us(), &fault) < 0) {
        ek_log(EK_LOG_WARNING, START_LIMITS_ENV ": %s", fault.msg);
        return;
    }
    for (int i = 0; i < LIMIT_COUNT; i++) {
        if (c.set & (1u << i))
            ek_log(EK_LOG_NOTICE, "Limit %s is %.12g from the start (%s)", limit_table[i].name,
                   (double)l->value[i] / limit_table[i].scale, c.reason);
    }
}
