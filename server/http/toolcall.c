/* Tool calls in text, see toolcall.h. */
#include "server/http/toolcall.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

static const char begin_mark[] = "<tool_call>", end_mark[] = "</tool_call>";
#define BEGIN_LEN (sizeof(begin_mark) - 1)
#define END_LEN   (sizeof(end_mark) - 1)

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Behind a JSON value that starts at p: strings and brackets are all that matters, the text is
 * known to be valid. */
static const char *skip_value(const char *p, const char *end)
{
    unsigned depth = 0;
    for (; p < end; p++) {
        if (*p == '"') {
            for (p++; p < end && *p != '"'; p++)
                p += *p == '\\';
        } else if (*p == '{' || *p == '[') {
            depth++;
        } else if (*p == '}' || *p == ']') {
            if (depth == 0)
                return p; /* the object around it ends */
            depth--;
        } else if (*p == ',' && depth == 0) {
            return p;
        }
    }
    return end;
}

/* The bytes of member "arguments" of a valid object: numbers stay as the model wrote them. */
static const char *find_arguments(const char *p, const char *end, size_t *ret_len)
{
    static const char key[] = "\"arguments\"";
    p = memchr(p, '{', (size_t)(end - p));
    while (p && p < end && *p != '}') {
        for (p++; p < end && is_blank(*p);)
            p++;
        bool wanted = (size_t)(end - p) >= sizeof(key) && memcmp(p, key, sizeof(key) - 1) == 0;
        const char *from = p, *to = skip_value(p, end);
        if (wanted) {
            from = memchr(p, ':', (size_t)(to - p));
            for (from = from ? from + 1 : to; from < to && is_blank(*from);)
                from++;
            while (to > from && is_blank(to[-1]))
                to--;
            *ret_len = (size_t)(to - from);
            return from;
        }
        p = to;
    }
    return NULL;
}

static int keep_call(struct toolcalls *t, const char *name, const char *args, size_t len)
{
    if (t->count == t->cap) {
        uint32_t cap = t->cap ? t->cap * 2 : 2;
        struct toolcall *more = realloc(t->call, cap * sizeof(*more));
        if (!more)
            return -ENOMEM;
        t->call = more;
        t->cap = cap;
    }
    struct toolcall c = {.name = strdup(name), .args = strndup(args, len), .args_len = len};
    if (!c.name || !c.args) {
        free(c.name);
        free(c.args);
        return -ENOMEM;
    }
    t->call[t->count++] = c;
    return 1;
}

/* 1 = it is a call and is kept, 0 = it is not one, or -ENOMEM. */
static int read_call(struct toolcalls *t, const char *bytes, size_t len)
{
    size_t args_len = 0;
    int r = 0;
    json_error_t e;
    if (t->count == TOOLCALL_MOST)
        return 0;
    json_t *j = json_loadb(bytes, len,
                           JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &e);
    if (!j)
        return json_error_code(&e) == json_error_out_of_memory ? -ENOMEM : 0;
    const json_t *name = json_object_get(j, "name");
    const char *args = find_arguments(bytes, bytes + len, &args_len);
    if (args && json_is_object(json_object_get(j, "arguments")) && json_string_length(name) > 0 &&
        strlen(json_string_value(name)) == json_string_length(name))
        r = keep_call(t, json_string_value(name), args, args_len);
    json_decref(j);
    return r;
}

static void pass_on(struct toolcalls *t, size_t n, struct ek_buf *text)
{
    if (n == 0)
        return;
    (void)ek_buf_add(text, t->held.data, n);
    ek_buf_drop(&t->held, n);
    t->midst = true;
}

/* Outside: how many bytes are text for certain; *ret_mark: a marker follows them. */
static size_t plain(const struct toolcalls *t, bool *ret_mark)
{
    const char *p = t->held.data;
    size_t len = t->held.len, blanks = 0;
    const char *mark = memmem(p, len, begin_mark, BEGIN_LEN);
    *ret_mark = mark != NULL;
    if (mark)
        len = (size_t)(mark - p);
    else {
        size_t k = len < BEGIN_LEN ? len : BEGIN_LEN - 1;
        while (k > 0 && memcmp(p + len - k, begin_mark, k) != 0)
            k--;
        len -= k;
    }
    if (!t->midst) { /* blanks ahead of a call are nobody's */
        while (blanks < len && is_blank(p[blanks]))
            blanks++;
    }
    return blanks == len ? 0 : len;
}

/* One step outside a call. True when there may be more to do. */
static bool step_outside(struct toolcalls *t, struct ek_buf *text)
{
    bool mark = false;
    pass_on(t, t->held.len ? plain(t, &mark) : 0, text);
    if (!mark)
        return false;
    const char *at = memmem(t->held.data, t->held.len, begin_mark, BEGIN_LEN);
    ek_buf_drop(&t->held, (size_t)(at - t->held.data) + BEGIN_LEN);
    t->inside = true;
    t->looked = 0;
    return true;
}

/* What was taken for a call, of n bytes, is text. */
static void stay_text(struct toolcalls *t, size_t n, struct ek_buf *text)
{
    t->inside = false;
    (void)ek_buf_puts(text, begin_mark);
    t->midst = true;
    pass_on(t, n, text);
}

/* One step inside a call: 1 = there may be more to do, 0, or -ENOMEM. */
static int step_inside(struct toolcalls *t, struct ek_buf *text)
{
    const char *p = t->held.data;
    size_t len = t->held.len;
    const char *mark = len ? memmem(p + t->looked, len - t->looked, end_mark, END_LEN) : NULL;
    if (!mark) {
        t->looked = len < END_LEN ? 0 : len - END_LEN + 1;
        return 0;
    }
    size_t n = (size_t)(mark - p);
    int r = read_call(t, p, n);
    if (r < 0)
        return r;
    if (r == 0) {
        stay_text(t, n + END_LEN, text);
        return 1;
    }
    ek_buf_drop(&t->held, n + END_LEN);
    t->inside = t->midst = false;
    return 1;
}

int toolcalls_push(struct toolcalls *t, const char *bytes, size_t len, struct ek_buf *text)
{
    int more = 1;
    (void)ek_buf_add(&t->held, bytes, len);
    if (!ek_buf_ok(&t->held))
        return -ENOMEM;
    while (more > 0)
        more = t->inside ? step_inside(t, text) : step_outside(t, text);
    return more < 0 ? more : ek_buf_ok(text) ? 0 : -ENOMEM;
}

int toolcalls_end(struct toolcalls *t, struct ek_buf *text)
{
    int r = 0;
    if (t->inside) {
        r = t->held.len ? read_call(t, t->held.data, t->held.len) : 0;
        if (r < 0)
            return r;
        if (r > 0)
            ek_buf_clear(&t->held);
        else
            stay_text(t, t->held.len, text);
        t->inside = false;
    }
    size_t blanks = 0;
    while (blanks < t->held.len && is_blank(t->held.data[blanks]))
        blanks++;
    if (t->midst || t->count == 0 || blanks < t->held.len)
        pass_on(t, t->held.len, text);
    ek_buf_clear(&t->held);
    return ek_buf_ok(text) ? 0 : -ENOMEM;
}

void toolcalls_done(struct toolcalls *t)
{
    for (uint32_t i = 0; i < t->count; i++) {
        free(t->call[i].name);
        free(t->call[i].args);
    }
    free(t->call);
    ek_buf_done(&t->held);
    *t = (struct toolcalls){0};
}
