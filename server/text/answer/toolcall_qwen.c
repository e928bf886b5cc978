/*
 * Calls that have an element for each parameter, its value as plain text: those of Qwen3-Coder,
 * of Seed-OSS and MiMo, which differ in the marks and lines around them, of GLM 4.5 and later, of
 * MiniMax M2, dots, DeepSeek from V3.2 on, Step 3, Kimi K3 and Hy3, where several stand in one
 * section, and of MiniCPM 5, which has none. What type a value has is said
 * by the tool's schema; a value that is not of it stays a string. Each parameter goes into the
 * arguments when it is complete.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/text/answer/toolcall.h"

const char tool_qwen_mark[] = "<function=";

/* Of a parameter: key KEY key_end value VALUE value_end. Of a call: what it ends with. */
struct element_marks {
    const char *key, *key_end, *value, *value_end, *call_end;
    bool lines; /* a line's end at both ends of a value is dropped, and it ends before the next
                   key or the end of the call, too */
};
static const struct element_marks qwen_marks = {"<parameter=",  ">",           "",
                                                "</parameter>", "</function>", true};
static const struct element_marks glm_marks = {"<arg_key>",    "</arg_key>",   "<arg_value>",
                                               "</arg_value>", "</tool_call>", false};
/* Of a section of calls that begin with their name in quotes and `name_end`. `ends` may stand
 * behind a call; the last one ends the section, `second_end` one of the style's second mark.
 * DeepSeek's parameters say whether they are texts, and Kimi K3's: where `text` and `other` stand
 * in a key. */
static const struct invoke_marks {
    const char *invoke, *name_end, *ends[2], *second_end;
    struct element_marks of;
    const char *text, *other;
} invokes[] = {
    [TOOLS_MINIMAX_M2] =
        {
            .invoke = "<invoke name=",
            .name_end = ">",
            .ends = {"</minimax:tool_call>"},
            .of = {"<parameter name=", ">", "", "</parameter>", "</invoke>", false},
        },
    [TOOLS_DOTS] =
        {
            .invoke = "<invoke name=",
            .name_end = ">",
            .ends = {"</dots_function_call>"},
            .of = {"<parameter name=", ">", "", "</parameter>", "</invoke>", false},
        },
    [TOOLS_DEEPSEEK_V32] =
        {
            .invoke = "<｜DSML｜invoke name=",
            .name_end = ">",
            .ends = {"</｜DSML｜function_calls>"},
            .second_end = "</｜DSML｜tool_calls>",
            .of = {"<｜DSML｜parameter name=", ">", "", "</｜DSML｜parameter>", "</｜DSML｜invoke>",
                   false},
            .text = "string=\"true\"",
            .other = "string=\"false\"",
        },
    [TOOLS_DEEPSEEK_V41] =
        {
            .invoke = "<｜DSML｜ invoke name=",
            .name_end = ">",
            .ends = {"</｜DSML｜ calls>"},
            .of = {"<｜DSML｜ parameter name=", ">", "", "</｜DSML｜ parameter>",
                   "</｜DSML｜ invoke>", false},
            .text = "string=\"true\"",
            .other = "string=\"false\"",
        },
    [TOOLS_STEP3] =
        {
            .invoke = "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=",
            .name_end = ">",
            .ends = {"<｜tool_call_end｜>", "<｜tool_calls_end｜>"},
            .of = {"<steptml:parameter name=", ">", "", "</steptml:parameter>", "</steptml:invoke>",
                   false},
        },
    [TOOLS_MINICPM5] =
        {
            .invoke = "", /* the name is behind the mark that the style begins with */
            .name_end = ">",
            .ends = {""},
            .of = {"<param name=", ">", "", "</param>", "</function>", false},
        },
    [TOOLS_KIMI_K3] =
        {
            .invoke = "<|open|>call tool=",
            .name_end = "<|sep|>",
            .ends = {"<|close|>tools<|sep|>", "<|close|>message<|sep|>"},
            .of = {"<|open|>argument key=", "<|sep|>", "", "<|close|>argument<|sep|>",
                   "<|close|>call<|sep|>", false},
            .text = "type=\"string\"",
            .other = "type=\"",
        },
};
static const char cdata[] = "<![CDATA[", cdata_end[] = "]]></param>"; /* a text of MiniCPM 5 */
/* Of Hy3, and of its preview. */
static const struct hy_marks {
    const char *section_end, *call, *sep;
    struct element_marks of;
} hy_marks[] = {
    {"</tool_calls:opensource>",
     "<tool_call:opensource>",
     "<tool_sep:opensource>",
     {"<arg_key:opensource>", "</arg_key:opensource>", "<arg_value:opensource>",
      "</arg_value:opensource>", "</tool_call:opensource>", false}},
    {"</tool_calls>",
     "<tool_call>",
     "<tool_sep>",
     {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>", false}}};
#define MARK_MOST  (sizeof("<｜DSML｜ parameter name=") - 1) /* the longest of them */
#define TYPES_MOST 256u /* of a schema, that a value is compared with */

/* Of the styles of toolstyle_invokes() alone. */
static const struct invoke_marks *invoke_of(const struct toolcalls *t)
{
    return &invokes[t->style];
}

static const struct element_marks *marks_of(const struct toolcalls *t)
{
    return t->style == TOOLS_GLM45       ? &glm_marks
           : t->style == TOOLS_HY_V3     ? &hy_marks[t->second].of
           : toolstyle_invokes(t->style) ? &invoke_of(t)->of
                                         : &qwen_marks;
}

/* What stands between the quotes that the text begins with: others may follow. */
static void take_quoted(const char **text, size_t *len)
{
    const char *end = *len >= 2 && **text == '"' ? memchr(*text + 1, '"', *len - 1) : NULL;
    if (end) {
        ++*text;
        *len = (size_t)(end - *text);
    }
}

/* MiniMax M2 writes names in quotes, and may leave them out. */
static void unquote(const char **text, size_t *len)
{
    const char c = *len >= 2 ? **text : '\0';
    if ((c == '"' || c == '\'') && (*text)[*len - 1] == c) {
        ++*text;
        *len -= 2;
    }
}

/* A call has begun, its parameters are behind the first n held bytes. */
static int begin_elements(struct toolcalls *t, const char *name, size_t len, size_t n)
{
    int r = tool_begin(t, name, len);
    if (r == 0)
        r = tool_args(t, "{", 1);
    if (r < 0)
        return r;
    tool_drop(t, n);
    t->state = TOOL_PARAMS;
    return TOOL_MORE;
}

/* NAME, then a key or the end of the call. */
int tool_glm_head(struct toolcalls *t, struct ek_buf *text)
{
    size_t at = tool_behind_mark(t), to = at;
    while (to < t->held.len && to - at <= TOOLCALL_NAME_LEN && !strchr("<{\n", t->held.data[to]))
        to++;
    size_t next = to < t->held.len ? tool_blanks(t, to) : to;
    int key = next < t->held.len ? tool_word(t, next, glm_marks.key) : 0;
    int end = next < t->held.len ? tool_word(t, next, glm_marks.call_end) : 0;
    bool named = to > at && to - at < TOOLCALL_NAME_LEN && !tool_full(t);
    if ((to == at && to < t->held.len) || to - at >= TOOLCALL_NAME_LEN)
        named = false;
    else if (key <= 0 && end <= 0 && (key == 0 || end == 0))
        return TOOL_WAIT;
    while (to > at && tool_blank(t->held.data[to - 1]))
        to--;
    if (!named || (key < 0 && end < 0) || to == at || memchr(t->held.data + at, '\0', to - at))
        return tool_text(t, text, TOOL_OUTSIDE);
    return begin_elements(t, t->held.data + at, to - at, next);
}

/* <tool_call> <function=NAME>, or only the latter */
int tool_qwen_head(struct toolcalls *t, struct ek_buf *text)
{
    const char *p = t->held.data;
    size_t at = tool_blanks(t, 0);
    if (tool_word(t, at, toolstyle_begin(t->style)) > 0)
        at = tool_blanks(t, at + strlen(toolstyle_begin(t->style)));
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
    return begin_elements(t, p + name, len, name + len + 1);
}

/* The section's mark, <invoke name="NAME">, of which a further call has the latter alone. */
int tool_invoke_head(struct toolcalls *t, struct ek_buf *text)
{
    const struct invoke_marks *m = invoke_of(t);
    size_t at = tool_behind_mark(t);
    int word = at < t->held.len ? tool_word(t, at, m->invoke) : 0;
    if (word == 0)
        return TOOL_WAIT;
    const size_t from = at + strlen(m->invoke);
    const char *name = t->held.data + from;
    const size_t n = strlen(m->name_end);
    const char *end = word > 0 ? memmem(name, t->held.len - from, m->name_end, n) : NULL;
    if (word > 0 && !end && t->held.len - from < TOOLCALL_NAME_LEN + n)
        return TOOL_WAIT;
    size_t len = end ? (size_t)(end - name) : 0;
    const size_t next = from + len + n;
    if (len > TOOLCALL_NAME_LEN) /* in pieces its end would not have been waited for */
        len = 0;
    if (t->style == TOOLS_KIMI_K3)
        take_quoted(&name, &len); /* its number is behind it */
    else
        unquote(&name, &len);
    if (len == 0 || len >= TOOLCALL_NAME_LEN || memchr(name, '\0', len) || tool_full(t))
        return tool_text(t, text, TOOL_OUTSIDE);
    t->listed = true;
    return begin_elements(t, name, len, next);
}

int tool_invoke_tail(struct toolcalls *t)
{
    const struct invoke_marks *m = invoke_of(t);
    if (t->second)
        return tool_section_tail(t, &m->second_end, 1, m->invoke);
    return tool_section_tail(t, m->ends, m->ends[1] ? 2 : 1, m->invoke);
}

/* <tool_calls> <tool_call> NAME <tool_sep>, of which a further call lacks the first. */
int tool_hy_head(struct toolcalls *t, struct ek_buf *text)
{
    const struct hy_marks *m = &hy_marks[t->second];
    size_t at = tool_behind_mark(t);
    int word = at < t->held.len ? tool_word(t, at, m->call) : 0;
    if (word == 0)
        return TOOL_WAIT;
    const size_t from = tool_blanks(t, at + strlen(m->call)), n = strlen(m->sep);
    if (word > 0 && from >= t->held.len)
        return TOOL_WAIT;
    const char *name = t->held.data + from;
    const char *end = word > 0 ? memmem(name, t->held.len - from, m->sep, n) : NULL;
    if (word > 0 && !end && t->held.len - from < TOOLCALL_NAME_LEN + n)
        return TOOL_WAIT;
    size_t len = end ? (size_t)(end - name) : 0;
    const size_t next = from + len + n;
    while (len > 0 && tool_blank(name[len - 1]))
        len--;
    if (len == 0 || len >= TOOLCALL_NAME_LEN || memchr(name, '\0', len) || tool_full(t))
        return tool_text(t, text, TOOL_OUTSIDE);
    t->listed = true;
    return begin_elements(t, name, len, next);
}

int tool_hy_tail(struct toolcalls *t)
{
    const struct hy_marks *m = &hy_marks[t->second];
    const char *const ends[] = {m->section_end};
    return tool_section_tail(t, ends, 1, m->call);
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

/* The tools are looked through once a call. */
const json_t *tool_schema_of(struct toolcalls *t, const char *key, size_t key_len)
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
static bool toolcall_qwen_fits(const json_t *j, const json_t *schema, int depth, uint32_t *left)
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
        if (toolcall_qwen_fits(j, json_array_get(any, i), depth - 1, left))
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
    bool is = j && ek_buf_ok(&out) && toolcall_qwen_fits(j, schema, 4, &types);
    int r = out.failed ? -ENOMEM : is;
    json_decref(j);
    if (r == 1)
        *ret_json = out;
    else
        ek_buf_done(&out);
    return r;
}

/* A parameter, whose value is JSON or a text. */
static int put_value(struct toolcalls *t, const char *key, size_t key_len, const char *value,
                     size_t len, bool json)
{
    struct ek_buf *args = &t->call[t->count - 1].args;
    (void)ek_buf_puts(args, args->len > 1 ? ", \"" : "\"");
    (void)ek_buf_json(args, key, key_len);
    (void)ek_buf_puts(args, json ? "\": " : "\": \"");
    (void)(json ? ek_buf_add(args, value, len) : ek_buf_json(args, value, len));
    (void)ek_buf_puts(args, json ? "" : "\"");
    return ek_buf_ok(args) ? 0 : -ENOMEM;
}

int tool_put_param(struct toolcalls *t, const char *key, size_t key_len, const char *value,
                   size_t len)
{
    struct ek_buf typed = {0};
    const json_t *schema = tool_schema_of(t, key, key_len);
    int r = schema ? read_typed(value, len, schema, &typed) : 0;
    if (r >= 0)
        r = typed.len > 0 ? put_value(t, key, key_len, typed.data, typed.len, true)
                          : put_value(t, key, key_len, value, len, false);
    ek_buf_done(&typed);
    return r;
}

/* "NAME" string="true" or type="string": a text whatever it looks like; "false" or another type:
 * JSON, where it is some. */
static int put_told(struct toolcalls *t, const char *key, size_t key_len, const char *value,
                    size_t len)
{
    const char *text = invoke_of(t)->text, *other = invoke_of(t)->other;
    const char *quote = key_len > 1 && *key == '"' ? memchr(key + 1, '"', key_len - 1) : NULL;
    if (!quote)
        return tool_put_param(t, key, key_len, value, len);
    const char *name = key + 1, *rest = quote + 1;
    const size_t rest_len = key_len - (size_t)(rest - key), name_len = (size_t)(quote - name);
    bool json = false;
    if (!memmem(rest, rest_len, text, strlen(text))) {
        json_error_t e;
        if (!memmem(rest, rest_len, other, strlen(other)))
            return tool_put_param(t, name, name_len, value, len);
        json_t *j = json_loadb(value, len, JSON_DECODE_ANY, &e);
        if (!j && json_error_code(&e) == json_error_out_of_memory)
            return -ENOMEM;
        json = j != NULL;
        json_decref(j);
    }
    return put_value(t, name, name_len, value, len, json);
}

/* The end of the value at `from`: before its end mark, or of a value of lines what must come behind
 * it; NULL if it is not there yet. *ret_next: behind the mark. What was looked at before is not
 * looked at again, but for the part of a mark that it may end with. */
static const char *value_end(struct toolcalls *t, size_t from, size_t *ret_next)
{
    const char *p = t->held.data, *first = NULL;
    const struct element_marks *m = marks_of(t);
    const bool raw = t->style == TOOLS_MINICPM5 && tool_word(t, from, cdata) > 0;
    const char *const ends[] = {raw ? cdata_end : m->value_end, m->key, m->call_end};
    if (t->looked > from + MARK_MOST)
        from = t->looked - MARK_MOST;
    t->looked = t->held.len;
    for (size_t i = 0; i < (m->lines ? 3 : 1); i++) {
        const char *at = memmem(p + from, t->held.len - from, ends[i], strlen(ends[i]));
        if (at && (!first || at < first)) {
            first = at;
            *ret_next = (size_t)(at - p) + (i == 0 ? strlen(ends[0]) : 0);
        }
    }
    return first;
}

/* The key at `key` and the mark of its value: then its value is what is scanned. TOOL_MORE, or
 * TOOL_WAIT, or -EBADMSG when no value follows the key. */
static int find_value(struct toolcalls *t, size_t key)
{
    const struct element_marks *m = marks_of(t);
    const char *p = t->held.data;
    size_t back = strlen(m->key_end) - 1, from = t->looked > key + back ? t->looked - back : key;
    const char *found = memmem(p + from, t->held.len - from, m->key_end, back + 1);
    t->looked = t->held.len;
    if (!found)
        return TOOL_WAIT;
    t->key_end = (size_t)(found - p);
    size_t value = t->key_end + back + 1;
    if (*m->value) {
        value = tool_blanks(t, value);
        int there = value < t->held.len ? tool_word(t, value, m->value) : 0;
        t->looked = t->key_end + back; /* to be found again */
        if (there <= 0)
            return there < 0 ? -EBADMSG : TOOL_WAIT;
        value += strlen(m->value);
    }
    t->begin = t->looked = value;
    t->scanning = true;
    return TOOL_MORE;
}

static int close_call(struct toolcalls *t)
{
    t->open = t->scanning = false;
    t->state = TOOL_TAIL;
    return tool_args(t, "}", 1);
}

/* A value of MiniCPM 5 in [*value, *to), whose end mark is behind it. */
static void drop_cdata(const char *held, size_t len, size_t *value, size_t *to)
{
    const size_t open = sizeof(cdata) - 1, close = strlen("]]>"), n = sizeof(cdata_end) - 1;
    const bool whole = len - *to >= n && memcmp(held + *to, cdata_end, n) == 0;
    if (*to - *value < open || memcmp(held + *value, cdata, open) != 0)
        return;
    *value += open;
    if (!whole && *to - *value >= close && memcmp(held + *to - close, "]]>", close) == 0)
        *to -= close;
}

/* One parameter. `over` = nothing comes any more. */
static int read_param(struct toolcalls *t, size_t at, bool over)
{
    const struct element_marks *m = marks_of(t);
    const char *p = t->held.data;
    size_t key = at + strlen(m->key), next = t->held.len;
    int r = t->scanning ? TOOL_MORE : find_value(t, key);
    if (r == -EBADMSG) {
        r = close_call(t);
        return r < 0 ? r : TOOL_MORE;
    }
    if (r == TOOL_WAIT)
        return r;
    size_t value = t->begin;
    const char *end = value_end(t, value, &next);
    if (!end && !over)
        return TOOL_WAIT;
    if (!end && !m->lines) { /* only its end mark is missing */
        end = memmem(p + value, t->held.len - value, m->call_end, strlen(m->call_end));
        next = end ? (size_t)(end - p) : next;
    }
    t->scanning = false;
    size_t to = end ? (size_t)(end - p) : t->held.len;
    bool first = value < to && p[value] == '\n', last = value < to && p[to - 1] == '\n';
    if (t->style == TOOLS_SEED_OSS) /* its template adds no lines: both are there, or none */
        first = last = first && last && to - value > 1;
    if (m->lines && first && t->style != TOOLS_MIMO)
        value++;
    if (m->lines && last && value < to && t->style != TOOLS_MIMO)
        to--;
    if (t->style == TOOLS_MINICPM5)
        drop_cdata(p, t->held.len, &value, &to);
    const char *named = p + key;
    size_t named_len = t->key_end - key;
    const bool told = toolstyle_invokes(t->style) && invoke_of(t)->text;
    if (toolstyle_invokes(t->style) && !told)
        unquote(&named, &named_len);
    r = (told ? put_told : tool_put_param)(t, named, named_len, p + value, to - value);
    if (r < 0)
        return r;
    tool_drop(t, next);
    return TOOL_MORE;
}

int tool_qwen_params(struct toolcalls *t, bool over)
{
    const struct element_marks *m = marks_of(t);
    size_t at = tool_blanks(t, 0);
    bool some = at < t->held.len;
    int param = some ? tool_word(t, at, m->key) : 0;
    int end = some ? tool_word(t, at, m->call_end) : 0;
    if (param > 0) {
        int r = read_param(t, at, over);
        if (r < 0 || !over || t->state != TOOL_PARAMS)
            return r;
        return r == TOOL_MORE ? tool_qwen_params(t, over) : close_call(t);
    }
    if (end > 0)
        tool_drop(t, at + strlen(m->call_end));
    if (end <= 0 && !over && (param == 0 || end == 0))
        return TOOL_WAIT;
    int r = close_call(t); /* also when something else comes */
    return r < 0 ? r : TOOL_MORE;
}
