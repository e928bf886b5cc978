/* Thinking and answer, see reasoning.h. */
#include "server/text/answer/reasoning.h"

#include <errno.h>
#include <string.h>

static const char open_mark[] = "<think>", close_mark[] = "</think>";

enum thinkstyle thinkstyle_find(const char *name)
{
    if (name && strcmp(name, "deepseek_r1") == 0)
        return THINK_ALWAYS;
    if (name && strcmp(name, "openai_gptoss") == 0)
        return THINK_HARMONY;
    return name && strcmp(name, "qwen3") == 0 ? THINK_TAGS : THINK_NONE;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool ends_in(const char *p, size_t len, const char *mark)
{
    size_t n = strlen(mark);
    return len >= n && memcmp(p + len - n, mark, n) == 0;
}

void reasoning_begin(struct reasoning *r, enum thinkstyle style, const char *prompt, size_t len)
{
    while (len > 0 && is_blank(prompt[len - 1]))
        len--;
    bool opened = ends_in(prompt, len, open_mark), closed = ends_in(prompt, len, close_mark);
    *r = (struct reasoning){.style = closed ? THINK_NONE : style};
    r->inside = r->begun = opened && style != THINK_NONE;
}

/* The answer's beginning: is it thinking? True when that is known. */
static bool find_begin(struct reasoning *r)
{
    size_t at = 0, n = strlen(open_mark);
    while (at < r->held.len && is_blank(r->held.data[at]))
        at++;
    size_t have = r->held.len - at, both = have < n ? have : n;
    bool same = both == 0 || memcmp(r->held.data + at, open_mark, both) == 0;
    if (same && have < n)
        return false;
    if (same)
        ek_buf_drop(&r->held, at + n);
    r->inside = same || r->style == THINK_ALWAYS;
    r->after = same; /* blanks behind the mark */
    r->begun = true;
    return true;
}

/* Thinking up to its mark, or what cannot be a part of one. */
static int take_thought(struct reasoning *r, struct ek_buf *thought)
{
    const char *p = r->held.data;
    size_t n = strlen(close_mark), len = r->held.len;
    const char *mark = memmem(p, len, close_mark, n);
    if (mark) {
        len = (size_t)(mark - p);
    } else {
        size_t k = len < n ? len : n - 1;
        while (k > 0 && memcmp(p + len - k, close_mark, k) != 0)
            k--;
        len -= k;
        while (len > 0 && is_blank(p[len - 1]))
            len--; /* before the mark they are nobody's */
    }
    size_t trimmed = len;
    while (mark && trimmed > 0 && is_blank(p[trimmed - 1]))
        trimmed--;
    int code = ek_buf_add(thought, p, trimmed);
    ek_buf_drop(&r->held, mark ? len + n : len);
    if (mark) {
        r->inside = false;
        r->after = true;
    }
    return code;
}

static void drop_blanks(struct reasoning *r)
{
    size_t n = 0;
    while (n < r->held.len && is_blank(r->held.data[n]))
        n++;
    ek_buf_drop(&r->held, n);
    r->after = r->after && r->held.len == 0;
}

int reasoning_push(struct reasoning *r, const char *bytes, size_t len, struct ek_buf *thought,
                   struct ek_buf *text)
{
    int code = ek_buf_add(&r->held, bytes, len);
    if (code == 0 && r->style != THINK_NONE && !r->begun && !find_begin(r))
        return 0;
    if (code == 0 && r->after)
        drop_blanks(r);
    if (code == 0 && r->inside && r->held.len)
        code = take_thought(r, thought);
    if (code == 0 && !r->inside && r->after)
        drop_blanks(r);
    if (code == 0 && !r->inside && r->held.len) {
        code = ek_buf_add(text, r->held.data, r->held.len);
        ek_buf_clear(&r->held);
    }
    return code;
}

int reasoning_end(struct reasoning *r, struct ek_buf *thought, struct ek_buf *text)
{
    bool thinks = r->inside || (r->style == THINK_ALWAYS && !r->begun);
    size_t len = r->held.len;
    while (thinks && len > 0 && is_blank(r->held.data[len - 1]))
        len--;
    int code = len ? ek_buf_add(thinks ? thought : text, r->held.data, len) : 0;
    ek_buf_clear(&r->held);
    return code;
}

void reasoning_done(struct reasoning *r)
{
    ek_buf_done(&r->held);
}
