/*
 * What is noted in an ask and read out of it (ask.h), by the readers of fields and by prompt.c.
 */
#include "server/api/ask.h"

#include <stdio.h>
#include <string.h>

void openai_ignore(struct openai_ask *a, const char *inside, const char *name)
{
    static const char fine[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    static const char more[] = ", ...";
    size_t len = strlen(a->ignored), in = strlen(inside), n = strlen(name);
    bool plain = n > 0 && n <= 64 && strspn(name, fine) == n; /* it is told in a header */
    if (len >= sizeof(more) && strcmp(a->ignored + len + 1 - sizeof(more), more) == 0)
        return;
    for (const char *at = a->ignored; *at; at += strspn(at, ", ")) {
        size_t have = strcspn(at, ",");
        if (have == in + n && memcmp(at, inside, in) == 0 && memcmp(at + in, name, n) == 0)
            return;
        at += have;
    }
    if (!plain || len + 2 + in + n + sizeof(more) > sizeof(a->ignored))
        (void)snprintf(a->ignored + len, sizeof(a->ignored) - len, "%s", more + (len ? 0 : 2));
    else
        (void)snprintf(a->ignored + len, sizeof(a->ignored) - len, "%s%s%s", len ? ", " : "",
                       inside, name);
}

struct openai_prompt openai_prompt(const struct openai_ask *a, uint32_t i)
{
    const json_t *p = a->prompt;
    if (json_is_array(p) && !json_is_integer(json_array_get(p, 0)))
        p = json_array_get(p, i);
    if (json_is_string(p))
        return (struct openai_prompt){json_string_value(p), json_string_length(p), NULL};
    return (struct openai_prompt){NULL, 0, p};
}
