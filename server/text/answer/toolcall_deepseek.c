/*
 * Calls of DeepSeek V3 and R1 (with a type, and their arguments in a fence of Markdown) and of V3.1
 * (a name and its arguments), between marks of their own:
 *
 *     V3    calls_begin (call_begin function sep NAME newline ```json newline {...} newline ```
 *           call_end)+ calls_end
 *     V3.1  calls_begin (call_begin NAME sep {...} call_end)+ calls_end
 *
 * The arguments are passed on as they come. Blanks between the parts are dropped.
 */
#include <string.h>

#include "server/text/answer/toolcall.h"

static const char call_begin[] = "<｜tool▁call▁begin｜>", call_end[] = "<｜tool▁call▁end｜>";
static const char calls_end[] = "<｜tool▁calls▁end｜>", separator[] = "<｜tool▁sep｜>";
static const char fence[] = "```", language[] = "json";

/* Behind a word that may stand at `at`, and blanks; held.len when that cannot be said yet. */
static size_t deepseek_skip(struct toolcalls *t, size_t at, const char *word)
{
    at = tool_blanks(t, at);
    int there = at < t->held.len ? tool_word(t, at, word) : 0;
    return there < 0 ? at : there == 0 ? t->held.len : tool_blanks(t, at + strlen(word));
}

/* Where the bytes at `from` end: before the separator, at a line's end where `line` says so.
 * *ret_next: behind the mark. 1, 0 = not there yet, -1 = longer than a name can be. */
static int deepseek_word(const struct toolcalls *t, size_t from, bool line, size_t *ret_end,
                         size_t *ret_next)
{
    const char *p = t->held.data + from;
    size_t len = t->held.len - from, mark = line ? 1 : strlen(separator);
    const char *at = line ? memchr(p, '\n', len) : memmem(p, len, separator, mark);
    *ret_end = at ? from + (size_t)(at - p) : t->held.len;
    *ret_next = *ret_end + mark;
    if (at && *ret_end - from < TOOLCALL_NAME_LEN)
        return 1;
    return at || len >= TOOLCALL_NAME_LEN + mark ? -1 : 0;
}

/* The name, in [*ret_from, *ret_to), and what is behind it. As deepseek_word(). */
static int deepseek_name(struct toolcalls *t, size_t at, size_t *ret_from, size_t *ret_to,
                         size_t *ret_next)
{
    int there = deepseek_word(t, at, false, ret_to, ret_next);
    *ret_from = at;
    if (there > 0 && t->style == TOOLS_DEEPSEEK_V3) {
        *ret_from = *ret_next; /* what came was the type */
        there = deepseek_word(t, *ret_from, true, ret_to, ret_next);
    }
    while (there > 0 && *ret_from < *ret_to && tool_blank(t->held.data[*ret_from]))
        ++*ret_from;
    while (there > 0 && *ret_to > *ret_from && tool_blank(t->held.data[*ret_to - 1]))
        --*ret_to;
    return there;
}

int tool_deepseek_head(struct toolcalls *t, struct ek_buf *text)
{
    size_t at = tool_behind_mark(t), from, to, next;
    int there = at < t->held.len ? tool_word(t, at, call_begin) : 0;
    if (there > 0)
        there = deepseek_name(t, at + strlen(call_begin), &from, &to, &next);
    if (there == 0)
        return TOOL_WAIT;
    bool named = there > 0 && from < to && !memchr(t->held.data + from, '\0', to - from);
    if (!named || tool_full(t))
        return tool_text(t, text, TOOL_OUTSIDE);
    if (t->style == TOOLS_DEEPSEEK_V3)
        next = deepseek_skip(t, deepseek_skip(t, next, fence), language);
    next = tool_blanks(t, next < t->held.len ? next : t->held.len);
    if (next == t->held.len)
        return TOOL_WAIT;
    if (t->held.data[next] != '{')
        return tool_text(t, text, TOOL_OUTSIDE);
    t->listed = true;
    return tool_json_named(t, t->held.data + from, to - from, next);
}

/* Behind the arguments: the fence, the marks, the next call. What else is there is text. */
int tool_deepseek_tail(struct toolcalls *t)
{
    static const char *const ends[] = {fence, call_end, calls_end};
    const size_t fences = t->style == TOOLS_DEEPSEEK_V3 ? 0 : 1; /* left out */
    return tool_section_tail(t, ends + fences, 3 - fences, call_begin);
}
