/*
 * Calls as a Python list: [f(x=1, y="a"), g()]. The whole list is held until its bracket closes,
 * then read; what is no list of calls with literals stays text.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/hex.h"
#include "server/text/answer/toolcall.h"
#include "server/text/utf8.h"

#define PYTHON_DEPTH 32

struct python_reader {
    const char *at, *end;
    bool failed; /* no call */
};

static void skip_blanks(struct python_reader *r)
{
    while (r->at < r->end && tool_blank(*r->at))
        r->at++;
}

static bool toolcall_python_take(struct python_reader *r, char c)
{
    skip_blanks(r);
    if (r->at == r->end || *r->at != c)
        return false;
    r->at++;
    return true;
}

static bool is_word_byte(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!first && ((c >= '0' && c <= '9') || c == '.'));
}

static size_t read_word(struct python_reader *r, const char **ret_word)
{
    skip_blanks(r);
    *ret_word = r->at;
    while (r->at < r->end && is_word_byte(*r->at, r->at == *ret_word))
        r->at++;
    return (size_t)(r->at - *ret_word);
}

/* \xHH, \uHHHH and \UHHHHHHHH. */
static bool put_code(struct python_reader *r, struct ek_buf *out)
{
    static const char kinds[] = "xuU";
    static const int digits[] = {2, 4, 8};
    const char *kind = r->at < r->end && *r->at ? strchr(kinds, *r->at) : NULL;
    uint32_t code = 0;
    int n = kind ? digits[kind - kinds] : 0;
    if (!kind || r->end - r->at <= n)
        return false;
    for (int i = 1; i <= n; i++) {
        int v = ek_hex_digit(r->at[i]);
        if (v < 0 || code > 0x10ffff)
            return false;
        code = code * 16 + (uint32_t)v;
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) /* half a pair stays as written */
        return false;
    char bytes[UTF8_MOST];
    size_t len = utf8_put(bytes, code);
    r->at += n + 1;
    (void)ek_buf_add(out, bytes, len);
    return true;
}

static bool put_escape(struct python_reader *r, struct ek_buf *out)
{
    static const char from[] = "nrtbf\\'\"", to[] = "\n\r\t\b\f\\'\"";
    const char *known = r->at < r->end ? strchr(from, *r->at) : NULL;
    if (!known || !*known)
        return put_code(r, out);
    r->at++;
    (void)ek_buf_add(out, &to[known - from], 1);
    return true;
}

static void read_string(struct python_reader *r, struct ek_buf *out)
{
    struct ek_buf text = {0};
    char quote = *r->at++;
    bool closed = false;
    while (r->at < r->end && !closed) {
        char c = *r->at++;
        closed = c == quote;
        if (c == '\\' && !put_escape(r, &text))
            (void)ek_buf_add(&text, "\\", 1);
        else if (c != '\\' && !closed)
            (void)ek_buf_add(&text, &c, 1);
    }
    r->failed = r->failed || !closed;
    out->failed = out->failed || !ek_buf_ok(&text);
    (void)ek_buf_puts(out, "\"");
    (void)ek_buf_json(out, text.data ? text.data : "", text.len);
    (void)ek_buf_puts(out, "\"");
    ek_buf_done(&text);
}

static void toolcall_python_read_number(struct python_reader *r, struct ek_buf *out)
{
    const char *from = r->at;
    while (r->at < r->end && strchr("+-.eE0123456789", *r->at))
        r->at++;
    json_t *j = json_loadb(from, (size_t)(r->at - from), JSON_DECODE_ANY, NULL);
    r->failed = r->failed || !json_is_number(j);
    json_decref(j);
    (void)ek_buf_add(out, from, (size_t)(r->at - from));
}

static void read_value(struct python_reader *r, struct ek_buf *out, int depth);

/* [a, b], (a, b) or {"k": v}: `key` = members have keys. */
static void read_many(struct python_reader *r, struct ek_buf *out, int depth, char close, bool key)
{
    bool first = true;
    r->at++;
    (void)ek_buf_puts(out, key ? "{" : "[");
    while (!r->failed && !toolcall_python_take(r, close)) {
        if (!first && !toolcall_python_take(r, ','))
            r->failed = true;
        else if (!first && toolcall_python_take(r, close))
            break; /* a comma at the end */
        if (!first)
            (void)ek_buf_puts(out, ", ");
        first = false;
        skip_blanks(r);
        if (key && (r->at == r->end || (*r->at != '"' && *r->at != '\'')))
            r->failed = true;
        read_value(r, out, depth - 1);
        if (!key)
            continue;
        r->failed = r->failed || !toolcall_python_take(r, ':');
        (void)ek_buf_puts(out, ": ");
        read_value(r, out, depth - 1);
    }
    (void)ek_buf_puts(out, key ? "}" : "]");
}

static void read_value(struct python_reader *r, struct ek_buf *out, int depth)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    const char *word;
    skip_blanks(r);
    if (r->failed || r->at == r->end || depth == 0) {
        r->failed = true;
        return;
    }
    switch (*r->at) {
    case '"':
    case '\'': read_string(r, out); return;
    case '[': read_many(r, out, depth, ']', false); return;
    case '(': read_many(r, out, depth, ')', false); return;
    case '{': read_many(r, out, depth, '}', true); return;
    }
    if (strchr("+-.0123456789", *r->at)) {
        toolcall_python_read_number(r, out);
        return;
    }
    size_t len = read_word(r, &word);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (len == strlen(words[i][0]) && memcmp(word, words[i][0], len) == 0) {
            (void)ek_buf_puts(out, words[i][1]);
            return;
        }
    }
    r->failed = true;
}

bool tool_python_value(const char *text, size_t len, struct ek_buf *out)
{
    struct python_reader r = {text, text + len, false};
    read_value(&r, out, PYTHON_DEPTH);
    skip_blanks(&r);
    return !r.failed && r.at == r.end;
}

/* name(key=value, ...): 0, or -ENOMEM; r->failed when it is none. */
static int read_call(struct python_reader *r, struct toolcalls *t)
{
    struct ek_buf args = {0};
    const char *name, *key;
    size_t len = read_word(r, &name);
    bool first = true;
    r->failed = r->failed || len == 0 || len >= TOOLCALL_NAME_LEN ||
                !toolcall_python_take(r, '(') || tool_full(t);
    (void)ek_buf_puts(&args, "{");
    while (!r->failed && !toolcall_python_take(r, ')')) {
        r->failed = !first && !toolcall_python_take(r, ',');
        size_t key_len = read_word(r, &key);
        r->failed = r->failed || key_len == 0 || !toolcall_python_take(r, '=');
        (void)ek_buf_puts(&args, first ? "\"" : ", \"");
        (void)ek_buf_json(&args, key, key_len);
        (void)ek_buf_puts(&args, "\": ");
        read_value(r, &args, PYTHON_DEPTH);
        first = false;
    }
    int code = ek_buf_puts(&args, "}") < 0 ? -ENOMEM : 0;
    if (code == 0 && !r->failed)
        code = tool_begin(t, name, len);
    if (code == 0 && !r->failed)
        code = tool_args(t, args.data, args.len);
    ek_buf_done(&args);
    return code;
}

/* Forgets the calls from number `from` on. */
static void python_forget(struct toolcalls *t, uint32_t from)
{
    while (t->count > from) {
        struct toolcall *c = &t->call[--t->count];
        free(c->name);
        ek_buf_done(&c->args);
    }
}

/* Looks on for the bracket that closes the list. True when it is there: looked is behind it. */
static bool find_end(struct toolcalls *t)
{
    struct toolscan *s = &t->scan; /* key[0] = the quote of the string that it is in */
    while (t->looked < t->held.len) {
        char c = t->held.data[t->looked++];
        if (s->string) {
            if (!s->escaped && c == s->key[0])
                s->string = false;
            s->escaped = !s->escaped && c == '\\';
        } else if (c == '"' || c == '\'') {
            s->string = true;
            s->key[0] = c;
        } else if (strchr("[({", c) && c) {
            s->depth++;
        } else if (strchr("])}", c) && c && (s->depth == 0 || --s->depth == 0)) {
            return true;
        }
    }
    return false;
}

/* What was tried is no call. */
static int python_text(struct toolcalls *t, struct ek_buf *text)
{
    return tool_text(t, text, t->style == TOOLS_PYTHONIC ? TOOL_PLAIN : TOOL_OUTSIDE);
}

int tool_python_list(struct toolcalls *t, struct ek_buf *text)
{
    uint32_t before = t->count;
    int code = 0;
    if (!t->scanning)
        t->begin = t->looked;
    t->scanning = true;
    if (!find_end(t))
        return TOOL_WAIT;
    struct python_reader r = {t->held.data + t->begin + 1, t->held.data + t->looked - 1, false};
    do
        code = read_call(&r, t);
    while (code == 0 && !r.failed && toolcall_python_take(&r, ','));
    skip_blanks(&r);
    t->open = false;
    if (code < 0)
        return code;
    if (r.failed || r.at != r.end) {
        python_forget(t, before);
        return python_text(t, text);
    }
    tool_drop(t, t->looked);
    t->state = TOOL_TAIL;
    return TOOL_MORE;
}

/* The same list behind a mark. */
int tool_lfm_head(struct toolcalls *t, struct ek_buf *text)
{
    if (!t->scanning) {
        size_t at = tool_behind_mark(t);
        if (at >= t->held.len)
            return TOOL_WAIT;
        t->looked = at;
        if (t->held.data[at] != '[')
            return python_text(t, text);
    }
    return tool_python_list(t, text);
}

/* A call on each line behind a mark, up to the mark that ends them. Each is read when its bracket
 * closes. */
int tool_olmo_head(struct toolcalls *t, struct ek_buf *text)
{
    if (!t->scanning) {
        size_t at = tool_behind_mark(t);
        int end = at < t->held.len ? tool_word(t, at, toolstyle_end(t->style)) : 0;
        if (end == 0)
            return TOOL_WAIT;
        if (end > 0 && t->listed) { /* the tail takes it */
            tool_drop(t, at);
            t->listed = false;
            t->state = TOOL_TAIL;
            return TOOL_MORE;
        }
        t->begin = t->looked = at;
        if (!is_word_byte(t->held.data[at], true))
            return python_text(t, text);
        t->scanning = true;
    }
    if (!find_end(t))
        return t->scan.depth == 0 && t->looked - t->begin > TOOLCALL_NAME_LEN ? python_text(t, text)
                                                                              : TOOL_WAIT;
    struct python_reader r = {t->held.data + t->begin, t->held.data + t->looked, false};
    int code = read_call(&r, t);
    t->open = false;
    if (code < 0)
        return code;
    if (r.failed)
        return python_text(t, text);
    tool_drop(t, t->looked);
    t->midst = false;
    tool_begin_head(t);
    t->listed = true;
    return TOOL_MORE;
}
