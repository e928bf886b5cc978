/*
 * Tool calls in text, see toolcall.h. Here: the way through the states, and the styles whose calls
 * are JSON objects. Objects are scanned byte by byte, so that cuts cannot matter.
 */
#include "server/text/answer/toolcall.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const begin_marks[] = {[TOOLS_NONE] = "",
                                          [TOOLS_HERMES] = "<tool_call>",
                                          [TOOLS_LLAMA3_JSON] = "<|python_tag|>",
                                          [TOOLS_MISTRAL] = "[TOOL_CALLS]",
                                          [TOOLS_QWEN3_CODER] = "<tool_call>",
                                          [TOOLS_PYTHONIC] = "<|python_start|>",
                                          [TOOLS_OPENAI] = ""};

static const char *const style_names[] = {[TOOLS_NONE] = "",
                                          [TOOLS_HERMES] = "hermes",
                                          [TOOLS_LLAMA3_JSON] = "llama3_json",
                                          [TOOLS_MISTRAL] = "mistral",
                                          [TOOLS_QWEN3_CODER] = "qwen3_coder",
                                          [TOOLS_PYTHONIC] = "pythonic",
                                          [TOOLS_OPENAI] = "openai"};

enum toolstyle toolstyle_find(const char *name)
{
    if (name && strcmp(name, "llama4_pythonic") == 0)
        return TOOLS_PYTHONIC; /* it has Llama 4's mark */
    for (int i = TOOLS_HERMES; name && i <= TOOLS_OPENAI; i++) {
        if (strcmp(name, style_names[i]) == 0)
            return (enum toolstyle)i;
    }
    return TOOLS_NONE;
}

const char *toolstyle_name(enum toolstyle style)
{
    return style_names[style];
}

bool tool_full(const struct toolcalls *t)
{
    return t->count == TOOLCALL_MOST;
}

int tool_begin(struct toolcalls *t, const char *name, size_t len)
{
    if (t->count == t->cap) {
        uint32_t cap = t->cap ? t->cap * 2 : 2;
        struct toolcall *more = realloc(t->call, cap * sizeof(*more));
        if (!more)
            return -ENOMEM;
        t->call = more;
        t->cap = cap;
    }
    struct toolcall c = {.name = strndup(name, len)};
    if (!c.name)
        return -ENOMEM;
    t->call[t->count++] = c;
    t->open = true;
    return 0;
}

int tool_args(struct toolcalls *t, const char *bytes, size_t len)
{
    return ek_buf_add(&t->call[t->count - 1].args, bytes, len);
}

void tool_drop(struct toolcalls *t, size_t n)
{
    ek_buf_drop(&t->held, n);
    t->looked = 0;
    t->runs = 0;
}

int tool_word(const struct toolcalls *t, size_t at, const char *word)
{
    size_t have = t->held.len - at, n = strlen(word);
    size_t both = have < n ? have : n;
    if (both && memcmp(t->held.data + at, word, both) != 0)
        return -1;
    return have >= n;
}

static void pass_on(struct toolcalls *t, size_t n, struct ek_buf *text)
{
    if (n == 0)
        return;
    (void)ek_buf_add(text, t->held.data, n);
    tool_drop(t, n);
    t->midst = true;
}

int tool_text(struct toolcalls *t, struct ek_buf *text, enum toolstate then)
{
    size_t n = t->looked ? t->looked : 1;
    pass_on(t, n < t->held.len ? n : t->held.len, text);
    t->state = then;
    t->listed = t->listing = false;
    return TOOL_MORE;
}

size_t tool_blanks(struct toolcalls *t, size_t at)
{
    uint32_t k = 0;
    size_t to = at;
    for (; k < TOOLCALL_RUNS && k < t->runs; k++) {
        if (t->run[k].from == at) {
            to = t->run[k].to;
            break;
        }
    }
    while (to < t->held.len && tool_blank(t->held.data[to]))
        to++;
    if (k < TOOLCALL_RUNS) {
        t->run[k].from = at;
        t->run[k].to = to;
        t->runs += k == t->runs;
    }
    return to;
}

static void begin_scan(struct toolcalls *t)
{
    t->state = TOOL_HEAD;
    t->scanning = t->listing = false;
    t->scan = (struct toolscan){0};
}

/* ---- outside of calls ---- */

/* How many bytes are text for certain; *ret_mark: a marker follows them. */
static size_t plain(struct toolcalls *t, const char *mark, bool *ret_mark)
{
    /* Blanks ahead of a call are nobody's, and no mark begins with one. */
    size_t blanks = t->midst ? 0 : tool_blanks(t, 0);
    const char *p = t->held.data;
    size_t len = t->held.len, n = strlen(mark);
    const char *at = memmem(p + blanks, len - blanks, mark, n);
    *ret_mark = at != NULL;
    if (at) {
        len = (size_t)(at - p);
    } else {
        size_t k = len - blanks < n ? len - blanks : n - 1;
        while (k > 0 && memcmp(p + len - k, mark, k) != 0)
            k--;
        len -= k;
    }
    return blanks == len ? 0 : len;
}

/* Styles whose calls have a marker. Qwen3-Coder often leaves its first one out. */
static int look_for_mark(struct toolcalls *t, struct ek_buf *text)
{
    const char *mark = begin_marks[t->style];
    bool found = false, other = false;
    size_t n = t->held.len ? plain(t, mark, &found) : 0;
    if (t->style == TOOLS_QWEN3_CODER && !t->marked && t->held.len) {
        size_t m = plain(t, tool_qwen_mark, &other);
        if (other && (!found || m < n))
            mark = tool_qwen_mark;
        n = found && !other ? n : other && !found ? m : m < n ? m : n;
        found = found || other;
    }
    pass_on(t, n, text);
    if (!found)
        return TOOL_WAIT;
    t->looked = tool_blanks(t, 0) + strlen(mark);
    begin_scan(t);
    return TOOL_MORE;
}

/* Styles where the whole answer is calls. */
static int look_at_begin(struct toolcalls *t, struct ek_buf *text)
{
    size_t at = tool_blanks(t, 0);
    const char *mark = begin_marks[t->style];
    int word = tool_word(t, at, mark);
    if (at == t->held.len || word == 0)
        return TOOL_WAIT;
    if (word > 0)
        at = tool_blanks(t, at + strlen(mark));
    if (at == t->held.len)
        return TOOL_WAIT;
    if (t->held.data[at] != (t->style == TOOLS_PYTHONIC ? '[' : '{')) {
        t->looked = at;
        return tool_text(t, text, TOOL_PLAIN);
    }
    t->looked = at;
    begin_scan(t);
    return TOOL_MORE;
}

/* Compares the beginning of the answer with that of a call of one tool, as the grammar writes it,
 * in a style without marks. As tool_word(), or -ENOMEM. */
static int begins_call(const struct toolcalls *t, const json_t *tool)
{
    const json_t *name = json_object_get(json_object_get(tool, "function"), "name");
    struct ek_buf head = {0};
    bool python = t->style == TOOLS_PYTHONIC;
    if (json_string_length(name) >= TOOLCALL_NAME_LEN)
        return -1; /* nothing that is called so becomes a call */
    (void)ek_buf_puts(&head, python ? "[" : "{\"name\": \"");
    if (python)
        (void)ek_buf_puts(&head, json_string_value(name));
    else
        (void)ek_buf_json(&head, json_string_value(name), json_string_length(name));
    (void)ek_buf_puts(&head, python ? "(" : "\", \"parameters\": ");
    int r = ek_buf_ok(&head) ? tool_word(t, 0, head.data) : -ENOMEM;
    ek_buf_done(&head);
    return r;
}

/* Whether the answer is calls or the form, which is known from its first bytes: what belongs to
 * the form is passed on as it comes, whatever it holds. */
static int look_at_either(struct toolcalls *t, struct ek_buf *text)
{
    bool row = t->style == TOOLS_LLAMA3_JSON || t->style == TOOLS_PYTHONIC;
    int best = tool_word(t, 0, begin_marks[t->style]);
    for (size_t i = 0; row && best <= 0 && i < json_array_size(t->tools); i++) {
        int one = begins_call(t, json_array_get(t->tools, i));
        if (one == -ENOMEM)
            return one;
        best = one > best ? one : best;
    }
    if (best == 0)
        return TOOL_WAIT;
    if (best > 0)
        return row ? look_at_begin(t, text) : look_for_mark(t, text);
    t->state = TOOL_PLAIN;
    return TOOL_MORE;
}

/* ---- JSON objects ---- */

static void scan_string(struct toolscan *s, char c)
{
    if (s->escaped) {
        s->escaped = false;
    } else if (c == '\\') {
        s->escaped = true;
    } else if (c == '"') {
        s->string = false;
        s->has_name = s->has_name || (s->depth == 1 && s->value && strcmp(s->key, "name") == 0);
        s->keyed = s->depth == 1 && !s->value;
        return;
    }
    if (s->depth != 1)
        return;
    if (!s->value && s->key_len + 1 < sizeof(s->key))
        s->key[s->key_len++] = c;
    else if (s->value && strcmp(s->key, "name") == 0 && s->name_len < sizeof(s->name))
        s->name[s->name_len++] = c;
}

static bool is_args_key(const struct toolscan *s)
{
    return strcmp(s->key, "arguments") == 0 || strcmp(s->key, "parameters") == 0;
}

/* A byte of the object at place `at` of it. True when the object ends with it. */
static bool scan_byte(struct toolscan *s, char c, size_t at)
{
    if (s->string) {
        scan_string(s, c);
    } else if (c == '"') {
        s->string = true;
        if (s->depth == 1 && !s->value)
            memset(s->key, s->key_len = 0, sizeof(s->key));
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
static int read_name(const struct toolscan *s, char **ret_name)
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
    int r = tool_full(t) ? -EBADMSG : read_name(&t->scan, &name);
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
    return tool_text(t, text, t->style == TOOLS_LLAMA3_JSON ? TOOL_PLAIN : TOOL_OUTSIDE);
}

static int grow_args(struct toolcalls *t)
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

/* What else the object holds is nobody's. */
static int skip_rest(struct toolcalls *t)
{
    size_t n = 0;
    bool over = false;
    while (n < t->held.len && !over)
        over = scan_byte(&t->scan, t->held.data[n++], 1);
    tool_drop(t, n);
    t->state = over ? TOOL_TAIL : TOOL_REST;
    return over ? TOOL_MORE : TOOL_WAIT;
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
    int r = tool_begin(t, t->held.data + begin, end - begin);
    if (r < 0)
        return r;
    /* as if it were a member of an object that ends with it */
    t->scan = (struct toolscan){.depth = 1, .value = true, .key = "arguments"};
    t->bare = true;
    t->state = TOOL_ARGS;
    tool_drop(t, at);
    return TOOL_MORE;
}

/* ---- the steps ---- */

/* Where the object begins, in t->begin: TOOL_MORE; or it does not, or not yet. */
static int find_object(struct toolcalls *t, struct ek_buf *text)
{
    size_t at = tool_blanks(t, 0);
    if (!t->listed && tool_word(t, at, begin_marks[t->style]) > 0)
        at = tool_blanks(t, at + strlen(begin_marks[t->style]));
    if (at < t->held.len && t->style == TOOLS_MISTRAL && !t->listed && t->held.data[at] == '[') {
        at = tool_blanks(t, at + 1);
        t->listing = true;
    }
    if (at >= t->held.len)
        return TOOL_WAIT;
    if (t->held.data[at] != '{') {
        bool named = t->style == TOOLS_MISTRAL && !t->listed && !t->listing;
        return named ? mistral_named(t, at, text) : tool_text(t, text, TOOL_OUTSIDE);
    }
    t->begin = t->looked = at;
    t->scanning = true;
    return TOOL_MORE;
}

static int step_head(struct toolcalls *t, struct ek_buf *text)
{
    switch (t->style) {
    case TOOLS_NONE:
    case TOOLS_OPENAI: return TOOL_WAIT;
    case TOOLS_QWEN3_CODER: return tool_qwen_head(t, text);
    case TOOLS_PYTHONIC: return tool_python_list(t, text);
    case TOOLS_HERMES:
    case TOOLS_LLAMA3_JSON:
    case TOOLS_MISTRAL: break;
    }
    return t->scanning ? scan_head(t, text) : find_object(t, text);
}

/* Behind a call: its end marker, or what leads to the next one. */
static int step_tail(struct toolcalls *t, struct ek_buf *text)
{
    size_t at = tool_blanks(t, 0);
    t->midst = false;
    if (at == t->held.len)
        return TOOL_WAIT;
    char c = t->held.data[at];
    if (t->style == TOOLS_MISTRAL && t->listed) {
        t->listed = c == ',';
        t->looked = 0;
        if (c == ',' || c == ']')
            tool_drop(t, at + 1);
        if (c == ',') {
            begin_scan(t);
            return TOOL_MORE;
        }
    } else if (t->style == TOOLS_LLAMA3_JSON) {
        if (c != ';' && c != ',')
            return tool_text(t, text, TOOL_PLAIN);
        tool_drop(t, at + 1);
    } else if (t->style == TOOLS_HERMES || t->style == TOOLS_QWEN3_CODER) {
        int word = tool_word(t, at, "</tool_call>");
        if (word == 0)
            return TOOL_WAIT;
        if (word > 0)
            tool_drop(t, at + strlen("</tool_call>"));
    }
    t->state = TOOL_OUTSIDE;
    return TOOL_MORE;
}

static int step(struct toolcalls *t, struct ek_buf *text)
{
    switch (t->state) {
    case TOOL_OUTSIDE:
        if (t->either && t->count == 0)
            return look_at_either(t, text);
        return t->style == TOOLS_LLAMA3_JSON || t->style == TOOLS_PYTHONIC ? look_at_begin(t, text)
                                                                           : look_for_mark(t, text);
    case TOOL_PLAIN: pass_on(t, t->held.len, text); return TOOL_WAIT;
    case TOOL_HEAD: return step_head(t, text);
    case TOOL_ARGS: return grow_args(t);
    case TOOL_REST: return skip_rest(t);
    case TOOL_PARAMS: return tool_qwen_params(t, false);
    case TOOL_TAIL: return step_tail(t, text);
    }
    return TOOL_WAIT;
}

int toolcalls_push(struct toolcalls *t, const char *bytes, size_t len, struct ek_buf *text)
{
    int more = TOOL_MORE;
    (void)ek_buf_add(&t->held, bytes, len);
    if (!ek_buf_ok(&t->held))
        return -ENOMEM;
    while (more > 0 && t->held.len > 0)
        more = step(t, text);
    return more < 0 ? more : ek_buf_ok(text) ? 0 : -ENOMEM;
}

int toolcalls_end(struct toolcalls *t, struct ek_buf *text)
{
    int r = t->state == TOOL_PARAMS ? tool_qwen_params(t, true) : 0;
    bool inside = t->state == TOOL_ARGS || t->state == TOOL_REST || t->state == TOOL_PARAMS;
    if (r < 0)
        return r;
    size_t blanks = tool_blanks(t, 0);
    if (inside || (t->state == TOOL_TAIL && t->held.len > 0 && blanks < t->held.len))
        ek_buf_clear(&t->held); /* of a call that was cut off, or its end marker */
    else if (t->midst || t->count == 0 || blanks < t->held.len)
        pass_on(t, t->held.len, text);
    ek_buf_clear(&t->held);
    t->open = false;
    return ek_buf_ok(text) ? 0 : -ENOMEM;
}

void toolcalls_done(struct toolcalls *t)
{
    for (uint32_t i = 0; i < t->count; i++) {
        free(t->call[i].name);
        ek_buf_done(&t->call[i].args);
    }
    free(t->call);
    ek_buf_done(&t->held);
    *t = (struct toolcalls){0};
}
