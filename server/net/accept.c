/*
 * Reads Accept headers: which form of an answer a client prefers (accept.h). Called by health.c for
 * the page of metrics.
 */
#include "server/net/accept.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define BLANK " \t"

/* Whether the parameters of an item (";a=b;q=0") have a weight of 0. */
static bool is_refused(const char *p, const char *end)
{
    while (p < end && (p = memchr(p, ';', (size_t)(end - p)))) {
        p++;
        p += strspn(p, BLANK);
        if (p + 1 < end && (*p == 'q' || *p == 'Q') && p[1] == '=')
            return !(strtod(p + 2, NULL) > 0);
    }
    return false;
}

bool accept_has(const char *list, const char *what)
{
    size_t n = strlen(what);
    while (list && *list) {
        list += strspn(list, BLANK ",");
        const char *end = list + strcspn(list, ",");
        if (strcspn(list, BLANK ",;") == n && strncasecmp(list, what, n) == 0)
            return !is_refused(list + n, end);
        list = end;
    }
    return false;
}
