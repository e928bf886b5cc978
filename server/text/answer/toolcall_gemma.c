/*
 * Calls in the style of Gemma 4 and FunctionGemma: call:NAME{key:value,...} between marks. Texts
 * stand between marks of their own, keys inside of objects may; the rest is as in JSON, and what is
 * none of that is a text, too. Each parameter goes into the arguments when it is complete.
 */
#include <errno.h>
#include <string.h>

#include "server/text/answer/toolcall.h"

static const char call_word[] = "call:";
#define GEMMA_DEPTH 32

/* ---- values ---- */

/* The mark at both ends of a text. */
static const char *gemma_quote(const struct toolcalls *t)
{
    return t->style == TOOLS_FUNCTIONGEMMA ? "<escape>" : "<|\"|>";
}

struct gemma_reader {
    const char *at, *end, *quote;
};

static bool gemma_quoted(const struct gemma_reader *r)
{
    const size_t n = strlen(r->quote);
    return (size_t)(r->end - r->at) >= n && memcmp(r->at, r->quote, n) == 0;
}

static void gemma_skip(struct gemma_reader *r)
{
    while (r->at < r->end && (tool_blank(*r->at) || *r->at == ','))
        r->at++;
}

static void gemma_put_text(const char *text, size_t len, struct ek_buf *out)
{
    (void)ek_buf_puts(out, "\"");
    (void)ek_buf_json(out, text, len);
    (void)ek_buf_puts(out, "\"");
}

/* Behind the opening quote: up to the closing one, or the end. */
static void gemma_text(struct gemma_reader *r, struct ek_buf *out)
{
    const size_t n = strlen(r->quote);
    const char *from = r->at + n;
    const char *to = memmem(from, (size_t)(r->end - from), r->quote, n);
    r->at = to ? to + n : r->end;
    gemma_put_text(from, (size_t)((to ? to : r->end) - from), out);
}

/* A number, true, false or null as it is written; the rest is a text. */
static void gemma_bare(const char *from, size_t len, struct ek_buf *out)
{
    while (len > 0 && tool_blank(from[len - 1]))
        len--;
    json_t *j = json_loadb(from, len, JSON_DECODE_ANY, NULL);
    bool plain = j && !json_is_string(j) && !json_is_object(j) && !json_is_array(j);
    json_decref(j);
    if (plain)
        (void)ek_buf_add(out, from, len);
    else if (len == 4 && memcmp(from, "None", 4) == 0) /* as the template writes null */
        (void)ek_buf_puts(out, "null");
    else
        gemma_put_text(from, len, out);
}

static void gemma_value(struct gemma_reader *r, int depth, struct ek_buf *out);

static void gemma_key(struct gemma_reader *r, struct ek_buf *out)
{
    if (gemma_quoted(r)) {
        gemma_text(r, out);
    } else {
        const char *from = r->at;
        while (r->at < r->end && *r->at != ':' && *r->at != '}')
            r->at++;
        size_t len = (size_t)(r->at - from);
        while (len > 0 && tool_blank(from[len - 1]))
            len--;
        gemma_put_text(from, len, out);
    }
    while (r->at < r->end && (tool_blank(*r->at) || *r->at == ':'))
        r->at++;
}

/* What stands between brackets. What is not closed ends with the text. */
static void gemma_many(struct gemma_reader *r, char close, int depth, struct ek_buf *out)
{
    bool first = true;
    r->at++;
    (void)ek_buf_add(out, close == '}' ? "{" : "[", 1);
    for (gemma_skip(r); r->at < r->end && *r->at != close; gemma_skip(r)) {
        (void)ek_buf_puts(out, first ? "" : ", ");
        first = false;
        if (close == '}') {
            gemma_key(r, out);
            (void)ek_buf_puts(out, ": ");
        }
        gemma_value(r, depth - 1, out);
    }
    r->at += r->at < r->end;
    (void)ek_buf_add(out, &close, 1);
}

static void gemma_value(struct gemma_reader *r, int depth, struct ek_buf *out)
{
    if (r->at < r->end && gemma_quoted(r)) {
        gemma_text(r, out);
    } else if (depth > 0 && r->at < r->end && (*r->at == '{' || *r->at == '[')) {
        gemma_many(r, *r->at == '{' ? '}' : ']', depth, out);
    } else {
        const char *from = r->at;
        while (r->at < r->end && !strchr(",}]", *r->at))
            r->at++;
        if (r->at == from && r->at < r->end)
            r->at++; /* a bracket that closes nothing */
        gemma_bare(from, (size_t)(r->at - from), out);
    }
}

/* ---- calls ---- */

/* Behind the mark: call:NAME{ with or without its word, and no blank in the name. */
int tool_gemma_head(struct toolcalls *t, struct ek_buf *text)
{
    size_t at = tool_behind_mark(t);
    int word = at < t->held.len ? tool_word(t, at, call_word) : 0;
    if (word == 0)
        return TOOL_WAIT;
    if (word > 0)
        at += strlen(call_word);
    else if (t->held.data[at] == ':')
        at++;
    else
        return tool_text(t, text, TOOL_OUTSIDE);
    size_t end = at;
    while (end < t->held.len && end - at < TOOLCALL_NAME_LEN && !strchr("{(<", t->held.data[end]))
        end++;
    if (end == t->held.len)
        return TOOL_WAIT;
    size_t len = end - at;
    while (len > 0 && tool_blank(t->held.data[at + len - 1]))
        len--;
    bool named = len > 0 && len < TOOLCALL_NAME_LEN && !memchr(t->held.data + at, '\0', len);
    if (!named || t->held.data[end] != '{' || tool_full(t))
        return tool_text(t, text, TOOL_OUTSIDE);
    int r = tool_begin(t, t->held.data + at, len);
    if (r == 0)
        r = tool_args(t, "{", 1);
    if (r < 0)
        return r;
    tool_drop(t, end + 1);
    t->state = TOOL_PARAMS;
    return TOOL_MORE;
}

/* Looks on for the end of the value that begins at t->begin: a comma or a bracket outside of its
 * texts and brackets. True when it is there, at t->looked. */
static bool gemma_end(struct toolcalls *t)
{
    struct toolscan *s = &t->scan;
    const char *quote = gemma_quote(t);
    while (t->looked < t->held.len) {
        char c = t->held.data[t->looked];
        int mark = c == '<' ? tool_word(t, t->looked, quote) : -1;
        if (mark == 0)
            return false;
        if (mark > 0) {
            s->string = !s->string;
            t->looked += strlen(quote);
            continue;
        }
        if (!s->string && s->depth == 0 && (c == ',' || c == '}' || c == ']'))
            return true;
        if (!s->string && (c == '{' || c == '['))
            s->depth++;
        if (!s->string && (c == '}' || c == ']'))
            s->depth--;
        t->looked++;
    }
    return false;
}

/* Whether the tool takes this parameter for a text, whatever it looks like. */
static bool gemma_wants_text(struct toolcalls *t, const char *key, size_t len)
{
    const char *type = json_string_value(json_object_get(tool_schema_of(t, key, len), "type"));
    return type && strcmp(type, "string") == 0;
}

/* The value in [t->begin, to) under its key in [at, t->key_end). */
static int gemma_put(struct toolcalls *t, size_t at, size_t to)
{
    struct ek_buf *args = &t->call[t->count - 1].args;
    const char *p = t->held.data, *key = p + at;
    const char *quote = gemma_quote(t);
    const size_t n = strlen(quote);
    size_t len = t->key_end - at;
    struct gemma_reader r = {p + t->begin, p + to, quote};
    if (len >= 2 * n && memcmp(key, quote, n) == 0) {
        key += n;
        len -= 2 * n;
    }
    while (len > 0 && tool_blank(key[len - 1]))
        len--;
    while (r.at < r.end && tool_blank(*r.at))
        r.at++;
    bool quoted = gemma_quoted(&r), bare = !quoted && (r.at == r.end || !strchr("{[", *r.at));
    const char *from = r.at + (quoted ? n : 0), *end = r.end;
    while (end > from && !quoted && tool_blank(end[-1]))
        end--;
    if (quoted) {
        const char *close = memmem(from, (size_t)(end - from), quote, n);
        end = close ? close : end;
    }
    if (quoted || (bare && gemma_wants_text(t, key, len)))
        return tool_put_param(t, key, len, from, (size_t)(end - from));
    (void)ek_buf_puts(args, args->len > 1 ? ", " : "");
    gemma_put_text(key, len, args);
    (void)ek_buf_puts(args, ": ");
    gemma_value(&r, GEMMA_DEPTH, args);
    return ek_buf_ok(args) ? 0 : -ENOMEM;
}

static int gemma_close(struct toolcalls *t)
{
    t->open = false;
    t->state = TOOL_TAIL;
    return tool_args(t, "}", 1);
}

/* Where the key at `at` ends: before its colon, or before the bracket that ends the arguments: then
 * it has no value. A bracket between marks is the key's. False when it does not end yet. */
static bool gemma_find_key(struct toolcalls *t, size_t at)
{
    size_t to = t->looked > at ? t->looked : at;
    const char *quote = gemma_quote(t);
    bool quoted = to > at ? t->scan.string : tool_word(t, at, quote) > 0;
    if (to == at && tool_word(t, at, quote) == 0)
        return false;
    if (to == at && quoted)
        to += strlen(quote);
    for (; to < t->held.len && t->held.data[to] != ':'; to++) {
        int mark = quoted && t->held.data[to] == '<' ? tool_word(t, to, quote) : -1;
        if (mark == 0)
            break;
        if (mark > 0)
            quoted = false;
        else if (!quoted && t->held.data[to] == '}')
            break;
    }
    t->looked = to;
    t->scan.string = quoted;
    if (to == t->held.len || t->held.data[to] == '<')
        return false;
    t->key_end = to;
    t->begin = t->looked = to + (t->held.data[to] == ':');
    t->scan = (struct toolscan){0};
    t->scanning = true;
    return true;
}

int tool_gemma_params(struct toolcalls *t, bool over)
{
    size_t at = tool_blanks(t, 0);
    int r = 0;
    bool end = at < t->held.len && !t->scanning && tool_word(t, at, toolstyle_end(t->style)) > 0;
    if (!t->scanning && at < t->held.len && t->held.data[at] == ',') {
        tool_drop(t, at + 1);
        return over ? tool_gemma_params(t, over) : TOOL_MORE;
    }
    if (!t->scanning && at < t->held.len && t->held.data[at] == '}') {
        tool_drop(t, at + 1);
        end = true;
    } else if (!end && at < t->held.len && (t->scanning || gemma_find_key(t, at))) {
        bool whole = gemma_end(t);
        if (!whole && !over)
            return TOOL_WAIT;
        size_t to = whole ? t->looked : t->held.len;
        r = gemma_put(t, at, to);
        t->scanning = false;
        tool_drop(t, whole && t->held.data[to] == ']' ? to + 1 : to);
        if (r == 0 && over)
            return tool_gemma_params(t, over);
        return r < 0 ? r : TOOL_MORE;
    }
    if (!end && !over)
        return TOOL_WAIT;
    r = gemma_close(t);
    return r < 0 ? r : TOOL_MORE;
}
