/*
 * Calls whose arguments are a JSON object: inside of the object that is the call, in lists of such,
 * or behind a name of their own. Objects are scanned byte by byte, so that cuts cannot matter.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/text/answer/toolcall.h"

/* Whether the value of the key that was read is the call's name. */
static bool is_name_key(const struct toolscan *s)
{
    return strcmp(s->key, s->name_key ? s->name_key : "name") == 0;
}

/* Whether the call's name is the key of its arguments. */
static bool is_keyed(const struct toolscan *s)
{
    return s->name_key && *s->name_key == '\0';
}

static void scan_string(struct toolscan *s, char c)
{
    if (s->escaped) {
        s->escaped = false;
    } else if (c == '\\') {
        s->escaped = true;
    } else if (c == '"') {
        s->string = false;
        s->keyed = s->depth == 1 && !s->value;
        s->has_name = s->has_name ||
                      (s->depth == 1 && (is_keyed(s) ? !s->value : s->value && is_name_key(s)));
        return;
    }
    if (s->depth != 1)
        return;
    if ((is_keyed(s) ? !s->value : s->value && is_name_key(s)) && s->name_len < sizeof(s->name))
        s->name[s->name_len++] = c;
    else if (!s->value && s->key_len + 1 < sizeof(s->key))
        s->key[s->key_len++] = c;
}

static bool is_args_key(const struct toolscan *s)
{
    return is_keyed(s) || strcmp(s->key, "arguments") == 0 || strcmp(s->key, "parameters") == 0;
}

static void begin_key(struct toolscan *s)
{
    memset(s->key, s->key_len = 0, sizeof(s->key));
    if (is_keyed(s)) {
        s->name_len = 0;
        s->has_name = false;
    }
}

/* A byte of the object at place `at` of it. True when the object ends with it. */
static bool scan_byte(struct toolscan *s, char c, size_t at)
{
    if (s->string) {
        scan_string(s, c);
    } else if (c == '"') {
        s->string = true;
        if (s->depth == 1 && !s->value)
            begin_key(s);
    } else if (c == '{' || c == '[') {
        if (s->depth == 1 && c == '{' && s->value && is_args_key(s) && !s->args_at)
            s->args_at = at;
        s->bad = s->bad || (s->depth == 1 && !s->value);
        s->depth++;
    } else if (c == '}' || c == ']') {
        s->depth--;
        if (s->depth == 1 && s->args_at && !s->args_end)
            s->args_end = at + 1;
    } else if (c == ':' && s->depth == 1) {
        s->bad = s->bad || !s->keyed;
        s->value = true;
    } else if (c == ',' && s->depth == 1) {
        s->value = s->keyed = false;
    } else if (s->depth == 1 && !s->value && !tool_blank(c)) {
        s->bad = true;
    }
    return s->depth == 0;
}

/* The scanned name as text: 0 with *ret_name (the caller frees), -EBADMSG, -ENOMEM. */
static int toolcall_json_read_name(const struct toolscan *s, char **ret_name)
{
    char quoted[TOOLCALL_NAME_LEN + 2] = "\"";
    if (!s->has_name || s->name_len == 0 || s->name_len == sizeof(s->name))
        return -EBADMSG;
    memcpy(quoted + 1, s->name, s->name_len);
    quoted[s->name_len + 1] = '"';
    json_error_t e;
    json_t *j = json_loadb(quoted, s->name_len + 2, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (!j)
        return json_error_code(&e) == json_error_out_of_memory ? -ENOMEM : -EBADMSG;
    int r = strlen(json_string_value(j)) == json_string_length(j) ? 0 : -EBADMSG;
    if (r == 0) {
        *ret_name = strdup(json_string_value(j));
        r = *ret_name ? 0 : -ENOMEM;
    }
    json_decref(j);
    return r;
}

static int begin_named(struct toolcalls *t)
{
    char *name = NULL;
    int r = tool_full(t) ? -EBADMSG : toolcall_json_read_name(&t->scan, &name);
    if (r == 0)
        r = tool_begin(t, name, strlen(name));
    free(name);
    return r;
}

/* The object turned out to be a call: with what is there of its arguments. */
static int accept_call(struct toolcalls *t, size_t args_len)
{
    int r = begin_named(t);
    if (r == 0)
        r = tool_args(t, t->held.data + t->begin + t->scan.args_at, args_len);
    if (r < 0)
        return r;
    tool_drop(t, t->looked);
    t->listed = t->listed || t->listing;
    t->listing = false;
    return TOOL_MORE;
}

/* Up to where the object is known to be a call, or not. */
static int scan_head(struct toolcalls *t, struct ek_buf *text)
{
    struct toolscan *s = &t->scan;
    bool over = false;
    int r = TOOL_WAIT;
    while (t->looked < t->held.len && !over && !s->bad && r == TOOL_WAIT) {
        size_t at = t->looked - t->begin;
        over = scan_byte(s, t->held.data[t->looked++], at);
        if (s->args_at == at && at > 0 && s->has_name) {
            t->state = TOOL_ARGS;
            r = accept_call(t, 1);
        } else if (over && s->has_name && s->args_end) { /* the name came last */
            t->state = TOOL_TAIL;
            r = accept_call(t, s->args_end - s->args_at);
            t->open = false;
        }
    }
    if (r == TOOL_MORE || r == -ENOMEM || (r == TOOL_WAIT && !over && !s->bad))
        return r;
    return tool_text(t, text, toolstyle_whole(t->style) ? TOOL_PLAIN : TOOL_OUTSIDE);
}

int tool_json_args(struct toolcalls *t)
{
    struct toolscan *s = &t->scan;
    size_t n = 0;
    while (n < t->held.len && !s->args_end)
        (void)scan_byte(s, t->held.data[n++], 1); /* any place but 0 will do */
    int r = tool_args(t, t->held.data, n);
    if (r < 0)
        return r;
    tool_drop(t, n);
    if (!s->args_end)
        return TOOL_WAIT;
    t->open = false;
    t->state = t->bare ? TOOL_TAIL : TOOL_REST;
    t->bare = false;
    return TOOL_MORE;
}

/* What else the object holds is dropped. */
int tool_json_rest(struct toolcalls *t)
{
    size_t n = 0;
    bool over = false;
    while (n < t->held.len && !over)
        over = scan_byte(&t->scan, t->held.data[n++], 1);
    tool_drop(t, n);
    t->state = over ? TOOL_TAIL : TOOL_REST;
    return over ? TOOL_MORE : TOOL_WAIT;
}

int tool_json_named(struct toolcalls *t, const char *name, size_t len, size_t at)
{
    int r = tool_begin(t, name, len);
    if (r < 0)
        return r;
    /* as if it were a member of an object that ends with it */
    t->scan = (struct toolscan){.depth = 1, .value = true, .key = "arguments"};
    t->bare = true;
    t->state = TOOL_ARGS;
    tool_drop(t, at);
    return TOOL_MORE;
}

/* ---- mistral: a name in front of the arguments ---- */

static bool is_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

/* name{...}, name[ARGS]{...}, name[CALL_ID]id[ARGS]{...} */
static int mistral_named(struct toolcalls *t, size_t begin, struct ek_buf *text)
{
    size_t end = begin, at;
    while (end < t->held.len && is_name_byte(t->held.data[end]))
        end++;
    at = end;
    if (at < t->held.len && t->held.data[at] == '[' && tool_word(t, at, "[CALL_ID]") >= 0) {
        if (tool_word(t, at, "[CALL_ID]") == 0)
            return TOOL_WAIT;
        for (at += strlen("[CALL_ID]"); at < t->held.len && is_name_byte(t->held.data[at]);)
            at++;
    }
    if (at < t->held.len && tool_word(t, at, "[ARGS]") == 0)
        return TOOL_WAIT;
    if (at < t->held.len && tool_word(t, at, "[ARGS]") > 0)
        at += strlen("[ARGS]");
    at = tool_blanks(t, at);
    if (at == t->held.len)
        return at - begin > 2 * TOOLCALL_NAME_LEN ? tool_text(t, text, TOOL_OUTSIDE) : TOOL_WAIT;
    if (t->held.data[at] != '{' || end == begin || end - begin >= TOOLCALL_NAME_LEN || tool_full(t))
        return tool_text(t, text, TOOL_OUTSIDE);
    return tool_json_named(t, t->held.data + begin, end - begin, at);
}

/* Where the object begins, in t->begin: TOOL_MORE; or it does not, or not yet. */
static int find_object(struct toolcalls *t, struct ek_buf *text)
{
    size_t at = tool_blanks(t, 0);
    const char *mark = toolstyle_begin(t->style), *second = toolstyle_second(t->style);
    if (!t->listed && *second && tool_word(t, at, second) > 0)
        mark = second;
    if (!t->listed && tool_word(t, at, mark) > 0)
        at = tool_blanks(t, at + strlen(mark));
    bool lists = toolstyle_lists(t->style);
    if (at < t->held.len && lists && !t->listed && t->held.data[at] == '[') {
        at = tool_blanks(t, at + 1);
        t->listing = true;
    }
    if (at >= t->held.len)
        return TOOL_WAIT;
    if (t->held.data[at] != '{') {
        bool named = t->style == TOOLS_MISTRAL && !t->listed && !t->listing;
        return named ? mistral_named(t, at, text)
                     : tool_text(t, text, toolstyle_whole(t->style) ? TOOL_PLAIN : TOOL_OUTSIDE);
    }
    t->begin = t->looked = at;
    t->scanning = true;
    return TOOL_MORE;
}

int tool_json_head(struct toolcalls *t, struct ek_buf *text)
{
    return t->scanning ? scan_head(t, text) : find_object(t, text);
}
