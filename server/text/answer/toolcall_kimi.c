/*
 * Calls as Kimi K2 writes them: behind the mark of a section each has its own, an id that has the
 * name in it (functions.get_weather:0), and the arguments as JSON. The section may end in a mark.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/text/answer/toolcall.h"

static const char call_begin[] = "<|tool_call_begin|>", call_end[] = "<|tool_call_end|>";
static const char arguments[] = "<|tool_call_argument_begin|>";
static const char section_end[] = "<|tool_calls_section_end|>";
static const char prefix[] = "functions.";

/* The id without the blanks around it. */
static void id_in(const char *held, size_t *from, size_t *to)
{
    while (*from < *to && tool_blank(held[*from]))
        ++*from;
    while (*to > *from && tool_blank(held[*to - 1]))
        --*to;
}

/* Whether the id is one that the template shows again: it has a number behind a colon. */
static bool is_id(const char *id, size_t len)
{
    const char *colon = memrchr(id, ':', len);
    if (!colon || colon == id || colon + 1 == id + len)
        return false;
    for (const char *c = colon + 1; c < id + len; c++)
        if (*c < '0' || *c > '9')
            return false;
    return true;
}

/* The name in the id: without what stands before it, its number and blanks. */
static void name_in(const char *held, size_t *from, size_t *to)
{
    const char *colon = memchr(held + *from, ':', *to - *from);
    if (colon)
        *to = (size_t)(colon - held);
    while (*to > *from && tool_blank(held[*to - 1]))
        --*to;
    if (*to - *from >= strlen(prefix) && memcmp(held + *from, prefix, strlen(prefix)) == 0)
        *from += strlen(prefix);
}

int tool_kimi_head(struct toolcalls *t, struct ek_buf *text)
{
    size_t at = tool_behind_mark(t);
    int there = at < t->held.len ? tool_word(t, at, call_begin) : 0;
    if (there == 0)
        return TOOL_WAIT;
    if (there < 0 || tool_full(t))
        return tool_text(t, text, TOOL_OUTSIDE);
    size_t from = at + strlen(call_begin), len = t->held.len - from, n = strlen(arguments);
    const char *mark = memmem(t->held.data + from, len, arguments, n);
    if (!mark && len < TOOLCALL_NAME_LEN + n)
        return TOOL_WAIT;
    size_t to = mark ? (size_t)(mark - t->held.data) : from, next = to + n;
    id_in(t->held.data, &from, &to);
    const size_t id = from, id_len = to - from;
    name_in(t->held.data, &from, &to);
    bool named =
        from < to && to - from < TOOLCALL_NAME_LEN && !memchr(t->held.data + from, '\0', to - from);
    if (!named)
        return tool_text(t, text, TOOL_OUTSIDE);
    next = tool_blanks(t, next);
    if (next == t->held.len)
        return TOOL_WAIT;
    if (t->held.data[next] != '{')
        return tool_text(t, text, TOOL_OUTSIDE);
    t->listed = true;
    char own[TOOLCALL_NAME_LEN + sizeof(prefix)]; /* the held bytes are dropped */
    const bool numbered = id_len < sizeof(own) && is_id(t->held.data + id, id_len);
    if (numbered)
        memcpy(own, t->held.data + id, id_len);
    int r = tool_json_named(t, t->held.data + from, to - from, next);
    return r > 0 && numbered && tool_named(t, own, id_len) < 0 ? -ENOMEM : r;
}

/* Behind the arguments: the marks, the next call. What else is there is text. */
int tool_kimi_tail(struct toolcalls *t)
{
    static const char *const ends[] = {call_end, section_end};
    return tool_section_tail(t, ends, 2, call_begin);
}
