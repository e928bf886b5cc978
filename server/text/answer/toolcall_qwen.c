/*
 * Calls in the style of Qwen3-Coder: a parameter per element, its value as plain text. What type a
 * value has is said by the tool's schema; a value that is not of it stays a string. Each parameter
 * goes into the arguments when it is complete.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/text/answer/toolcall.h"

const char tool_qwen_mark[] = "<function=";
static const char parameter_mark[] = "<parameter=";
static const char function_end[] = "</function>", parameter_end[] = "</parameter>";
#define MARK_MOST  (sizeof(parameter_end) - 1) /* the longest of the marks */
#define TYPES_MOST 256u                        /* of a schema, that a value is compared with */

/* <tool_call> <function=NAME>, or only the latter */
int tool_qwen_head(struct toolcalls *t, struct ek_buf *text)
{
    const char *p = t->held.data;
    size_t at = tool_blanks(t, 0);
    if (tool_word(t, at, "<tool_call>") > 0)
        at = tool_blanks(t, at + strlen("<tool_call>"));
    int word = at < t->held.len ? tool_word(t, at, tool_qwen_mark) : 0;
    if (word == 0)
        return TOOL_WAIT;
    size_t name = at + strlen(tool_qwen_mark);
    const char *end = word > 0 ? memchr(p + name, '>', t->held.len - name) : NULL;
    if (word > 0 && !end && t->held.len - name < TOOLCALL_NAME_LEN)
        return TOOL_WAIT;
    size_t len = end ? (size_t)(end - p) - name : 0;
    if (len == 0 || len >= TOOLCALL_NAME_LEN || memchr(p + name, '\0', len) || tool_full(t))
        return tool_text(t, text, TOOL_OUTSIDE);
    int r = tool_begin(t, p + name, len);
    if (r == 0)
        r = tool_args(t, "{", 1);
    if (r < 0)
        return r;
    tool_drop(t, name + len + 1);
    t->state = TOOL_PARAMS;
    return TOOL_MORE;
}

/* What the request's tools say about the parameters of the last call; NULL when they do not. */
static const json_t *find_params(const struct toolcalls *t)
{
    const char *name = t->call[t->count - 1].name;
    for (size_t i = 0; i < json_array_size(t->tools); i++) {
        const json_t *fn = json_object_get(json_array_get(t->tools, i), "function");
        const char *own = json_string_value(json_object_get(fn, "name"));
        if (own && strcmp(own, name) == 0)
            return json_object_get(json_object_get(fn, "parameters"), "properties");
    }
    return NULL;
}

/* The schema of a parameter; NULL for none. The tools are looked through once a call. */
static const json_t *schema_of(struct toolcalls *t, const char *key, size_t key_len)
{
    if (t->params_of != t->count)
        t->params = find_params(t);
    t->params_of = t->count;
    return json_object_getn(t->params, key, key_len);
}

static bool is_type(const json_t *j, const char *type)
{
    return strcmp(type, "integer") == 0   ? json_is_integer(j)
           : strcmp(type, "number") == 0  ? json_is_number(j)
           : strcmp(type, "boolean") == 0 ? json_is_boolean(j)
           : strcmp(type, "object") == 0  ? json_is_object(j)
           : strcmp(type, "array") == 0   ? json_is_array(j)
           : strcmp(type, "null") == 0    ? json_is_null(j)
                                          : false; /* strings are as they are written */
}

/* Whether the value is of the type, or of one of the types, that the schema names. A value that is
 * none of the first so many (`left`) stays a string: a model may write very many values. */
static bool fits(const json_t *j, const json_t *schema, int depth, uint32_t *left)
{
    const json_t *type = json_object_get(schema, "type"), *one;
    const json_t *any = json_object_get(schema, "anyOf");
    if (json_is_string(type))
        return is_type(j, json_string_value(type));
    for (size_t i = 0; i < json_array_size(type) && *left > 0; i++) {
        one = json_array_get(type, i);
        --*left;
        if (json_is_string(one) && is_type(j, json_string_value(one)))
            return true;
    }
    if (!any)
        any = json_object_get(schema, "oneOf");
    for (size_t i = 0; depth > 0 && i < json_array_size(any) && *left > 0; i++) {
        --*left;
        if (fits(j, json_array_get(any, i), depth - 1, left))
            return true;
    }
    return false;
}

/* The value as JSON if it is written as JSON or Python and is of the type: 1 with *ret_json (freed
 * by the caller), 0, or -ENOMEM. */
static int read_typed(const char *value, size_t len, const json_t *schema, struct ek_buf *ret_json)
{
    struct ek_buf out = {0};
    uint32_t types = TYPES_MOST;
    json_t *j = json_loadb(value, len, JSON_DECODE_ANY, NULL);
    if (j) {
        (void)ek_buf_add(&out, value, len); /* numbers stay as they were written */
    } else if (tool_python_value(value, len, &out)) {
        j = json_loadb(out.data, out.len, JSON_DECODE_ANY, NULL);
    }
    bool is = j && ek_buf_ok(&out) && fits(j, schema, 4, &types);
    int r = out.failed ? -ENOMEM : is;
    json_decref(j);
    if (r == 1)
        *ret_json = out;
    else
        ek_buf_done(&out);
    return r;
}

static int put_param(struct toolcalls *t, const char *key, size_t key_len, const char *value,
                     size_t len)
{
    struct ek_buf *args = &t->call[t->count - 1].args, typed = {0};
    const json_t *schema = schema_of(t, key, key_len);
    int r = schema ? read_typed(value, len, schema, &typed) : 0;
    if (r < 0)
        return r;
    (void)ek_buf_puts(args, args->len > 1 ? ", \"" : "\"");
    (void)ek_buf_json(args, key, key_len);
    (void)ek_buf_puts(args, "\": ");
    if (r > 0) {
        (void)ek_buf_add(args, typed.data, typed.len);
    } else {
        (void)ek_buf_puts(args, "\"");
        (void)ek_buf_json(args, value, len);
        (void)ek_buf_puts(args, "\"");
    }
    ek_buf_done(&typed);
    return ek_buf_ok(args) ? 0 : -ENOMEM;
}

static int close_call(struct toolcalls *t)
{
    t->open = false;
    t->state = TOOL_TAIL;
    return tool_args(t, "}", 1);
}

/* The end of the value at `from`: before its end mark, or what must come behind it; NULL if it is
 * not there yet. *ret_next: behind the mark. What was looked at before is not looked at again, but
 * for the part of a mark that it may end with. */
static const char *value_end(struct toolcalls *t, size_t from, size_t *ret_next)
{
    const char *p = t->held.data, *first = NULL;
    const char *const ends[] = {parameter_end, parameter_mark, function_end};
    if (t->looked > from + MARK_MOST)
        from = t->looked - MARK_MOST;
    t->looked = t->held.len;
    for (size_t i = 0; i < 3; i++) {
        const char *at = memmem(p + from, t->held.len - from, ends[i], strlen(ends[i]));
        if (at && (!first || at < first)) {
            first = at;
            *ret_next = (size_t)(at - p) + (i == 0 ? strlen(ends[0]) : 0);
        }
    }
    return first;
}

/* One parameter. `over` = nothing comes any more. */
static int read_param(struct toolcalls *t, size_t at, bool over)
{
    const char *p = t->held.data;
    size_t key = at + strlen(parameter_mark), next = t->held.len;
    if (!t->scanning) { /* its value is what is scanned, once its key is whole */
        size_t from = t->looked > key ? t->looked : key;
        const char *found = memchr(p + from, '>', t->held.len - from);
        t->looked = t->held.len;
        if (!found)
            return TOOL_WAIT;
        t->begin = t->looked = (size_t)(found - p) + 1;
        t->scanning = true;
    }
    size_t value = t->begin;
    const char *key_end = p + value - 1;
    const char *end = value_end(t, value, &next);
    if (!end && !over)
        return TOOL_WAIT;
    t->scanning = false;
    size_t to = end ? (size_t)(end - p) : t->held.len;
    if (value < to && p[value] == '\n')
        value++;
    if (value < to && p[to - 1] == '\n')
        to--;
    int r = put_param(t, p + key, (size_t)(key_end - p) - key, p + value, to - value);
    if (r < 0)
        return r;
    tool_drop(t, next);
    return TOOL_MORE;
}

int tool_qwen_params(struct toolcalls *t, bool over)
{
    size_t at = tool_blanks(t, 0);
    bool some = at < t->held.len;
    int param = some ? tool_word(t, at, parameter_mark) : 0;
    int end = some ? tool_word(t, at, function_end) : 0;
    if (param > 0) {
        int r = read_param(t, at, over);
        if (r != TOOL_MORE || !over)
            return r < 0 || !over ? r : close_call(t);
        return tool_qwen_params(t, over);
    }
    if (end > 0)
        tool_drop(t, at + strlen(function_end));
    if (end <= 0 && !over && (param == 0 || end == 0))
        return TOOL_WAIT;
    int r = close_call(t); /* also when something else comes */
    return r < 0 ? r : TOOL_MORE;
}
