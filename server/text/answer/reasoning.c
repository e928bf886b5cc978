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
    const bool tags = name && (strcmp(name, "qwen3") == 0 || strcmp(name, "glm45") == 0);
    return tags ? THINK_TAGS : THINK_NONE;
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

/* How many blanks the held bytes begin with. There may be very many, which come one by one: each is
 * looked at once. */
static size_t blanks_held(struct reasoning *r)
{
    while (r->blanks < r->held.len && is_blank(r->held.data[r->blanks]))
        r->blanks++;
    return r->blanks;
}

static void drop_held(struct reasoning *r, size_t n)
{
    ek_buf_drop(&r->held, n);
    r->blanks = 0;
}

/* The answer's beginning: is it thinking? True when that is known. */
static bool find_begin(struct reasoning *r)
{
    size_t at = blanks_held(r), n = strlen(open_mark);
    size_t have = r->held.len - at, both = have < n ? have : n;
    bool same = both == 0 || memcmp(r->held.data + at, open_mark, both) == 0;
    if (same && have < n)
        return false;
    if (same)
        drop_held(r, at + n);
    r->inside = same || r->style == THINK_ALWAYS;
    r->after = same; /* blanks behind the mark */
    r->begun = true;
    return true;
}

/* Thinking up to its mark, or what cannot be a part of one. */
static int take_thought(struct reasoning *r, struct ek_buf *thought)
{
    const char *p = r->held.data;
    size_t blanks = blanks_held(r), n = strlen(close_mark), len = r->held.len;
    const char *mark = memmem(p + blanks, len - blanks, close_mark, n);
    if (mark) {
        len = (size_t)(mark - p);
    } else {
        size_t k = len - blanks < n ? len - blanks : n - 1;
        while (k > 0 && memcmp(p + len - k, close_mark, k) != 0)
            k--;
        len -= k;
    }
    /* Blanks before the mark are nobody's; what is held may be nothing else. */
    size_t said = len > blanks ? len : 0;
    while (said > 0 && is_blank(p[said - 1]))
        said--;
    int code = ek_buf_add(thought, p, said);
    if (mark || said > 0)
        drop_held(r, mark ? len + n : said);
    if (mark) {
        r->inside = false;
        r->after = true;
    }
    return code;
}

static void drop_blanks(struct reasoning *r)
{
    drop_held(r, blanks_held(r));
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
        drop_held(r, r->held.len);
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
