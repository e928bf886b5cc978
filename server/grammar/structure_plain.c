/*
 * Parts of a text that hold no others: free text and what has an end of its own; and what readers
 * of all formats need.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "server/grammar/ebnf.h"
#include "server/grammar/lark.h"
#include "server/grammar/regex.h"
#include "server/grammar/structure_inside.h"
#include "server/grammar/until.h"

#define WORDS_MOST (2 * (STRUCTURE_TRIGGERS + STRUCTURE_ENDS))
#define GROUP_ENDS (UNTIL_NEVER - 2)

int structure_refuse(struct structure *t, const char *fmt, ...)
{
    char text[360];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return ek_fault_set(t->fault, t->path, "%s (at `%.100s` of the structural tag)", text,
                        t->path[0] ? t->path : "/");
}

/* Goes down; what it returns brings structure_leave() back. */
size_t structure_enter(struct structure *t, const char *key, size_t index)
{
    size_t was = strlen(t->path);
    if (index == SIZE_MAX)
        (void)snprintf(t->path + was, sizeof(t->path) - was, "/%s", key);
    else
        (void)snprintf(t->path + was, sizeof(t->path) - was, "/%s/%zu", key, index);
    return was;
}

void structure_leave(struct structure *t, size_t was)
{
    t->path[was] = '\0';
}

/* Refuses a field that is not one of the format's; a null is as good as none. */
int structure_fields(struct structure *t, const json_t *v, const char *const *fields)
{
    const char *key;
    json_t *at;

    if (!json_is_object(v))
        return structure_refuse(t, "it must be an object");
    json_object_foreach((json_t *)(uintptr_t)v, key, at)
    {
        size_t i = 0;
        while (fields[i] && strcmp(fields[i], key) != 0)
            i++;
        if (!fields[i] && !json_is_null(at))
            return structure_refuse(t, "`%.40s` is not offered here", key);
    }
    return ek_work_pay(t->set->work, 8 + 2 * json_object_size(v)) ? 0 : -EBADMSG;
}

const json_t *structure_field(const json_t *v, const char *name)
{
    const json_t *at = json_object_get(v, name);
    return json_is_null(at) ? NULL : at;
}

int structure_flag(struct structure *t, const json_t *v, const char *name, bool *ret_flag)
{
    const json_t *at = structure_field(v, name);
    if (at && !json_is_boolean(at))
        return structure_refuse(t, "`%s` must be true or false", name);
    *ret_flag = json_is_true(at);
    return 0;
}

/* Marks in a fixed string may come as special tokens. Once for each string of the input. */
void structure_marks(struct structure *t, const json_t *text)
{
    struct ek_buf *marks = &t->set->marks;
    size_t len = json_string_length(text);

    if (len > 0 &&
        (ek_buf_add(marks, json_string_value(text), len) < 0 || ek_buf_add(marks, "", 1) < 0))
        t->set->no_memory = true;
}

uint32_t structure_string(struct structure *t, const json_t *text)
{
    return expr_bytes(t->set, json_string_value(text), json_string_length(text));
}

/* ---- lists ---- */

size_t structure_count(const json_t *v)
{
    return json_is_array(v) ? json_array_size(v) : v ? 1 : 0;
}

const json_t *structure_at(const json_t *v, size_t i)
{
    return json_is_array(v) ? json_array_get(v, i) : v;
}

/* A list of at most so many strings that are not empty; may be missing unless `least` is 1. */
int structure_strings(struct structure *t, const json_t *v, const char *name, size_t least,
                      size_t most)
{
    size_t n = json_array_size(v);
    bool good = !v ? least == 0 : json_is_array(v) && n >= least && n <= most;

    for (size_t i = 0; good && i < n; i++)
        good = json_is_string(json_array_get(v, i)) && json_string_length(json_array_get(v, i)) > 0;
    return good ? 0
                : structure_refuse(t, "`%s` must be a list of %zu to %zu strings, none empty", name,
                                   least, most);
}

/* One of what ends the tag around, or nothing. */
uint32_t structure_ending(struct structure *t, struct follow f)
{
    struct expr_list alt = {.set = t->set};

    if (!f.ends)
        return EXPR_EMPTY;
    for (size_t i = 0; i < structure_count(f.ends) && expr_ok(t->set); i++)
        expr_push(&alt, structure_string(t, structure_at(f.ends, i)));
    return expr_alt(&alt);
}

int structure_elements(struct structure *t, const json_t *v, const char *name,
                       const json_t **ret_list)
{
    *ret_list = structure_field(v, name);
    size_t n = json_array_size(*ret_list);
    if (!json_is_array(*ret_list) || n == 0 || n > STRUCTURE_TAGS)
        return structure_refuse(t, "`%s` must be a list of 1 to %u formats", name, STRUCTURE_TAGS);
    return 0;
}

/* ---- free text ---- */

struct tag_words {
    struct until_word at[WORDS_MOST];
    uint32_t count, bytes;
};

static void structure_plain_add_words(struct tag_words *w, const json_t *list, bool own_groups,
                                      uint32_t group)
{
    for (size_t i = 0; i < structure_count(list) && w->count < WORDS_MOST; i++) {
        const json_t *one = structure_at(list, i);
        w->bytes += (uint32_t)json_string_length(one);
        w->at[w->count++] =
            (struct until_word){json_string_value(one), (uint32_t)json_string_length(one),
                                own_groups ? (uint32_t)i : group};
    }
}

/* Free text up to triggers, what ends the tag around, and what must not come. */
int structure_until(struct structure *t, const json_t *triggers, const json_t *excluded,
                    struct follow f, struct until **ret_until)
{
    struct tag_words w = {0};

    if (f.other)
        return structure_refuse(t, "free text has no end here: the tag around it needs an `end`");
    if (json_array_size(triggers) > STRUCTURE_TRIGGERS)
        return structure_refuse(t, "there are more than %u triggers", STRUCTURE_TRIGGERS);
    structure_plain_add_words(&w, triggers, true, 0);
    structure_plain_add_words(&w, f.ends, false, GROUP_ENDS);
    structure_plain_add_words(&w, f.not_in, false, UNTIL_NEVER);
    structure_plain_add_words(&w, excluded, false, UNTIL_NEVER);
    if (w.bytes > UNTIL_BYTES)
        return structure_refuse(t,
                                "what ends a free text has %u bytes in all; at most %u are "
                                "offered",
                                w.bytes, UNTIL_BYTES);
    return until_new(t->set, w.at, w.count, ret_until);
}

/* The rest of a free text, without a trigger in it. */
uint32_t structure_rest(struct until *u, struct follow f)
{
    return f.ends ? until_group(u, GROUP_ENDS) : until_none(u);
}

/* XGrammar calls it `excludes`, and once called it `excluded_str`. */
int structure_excluded(struct structure *t, const json_t *v, const json_t **ret_list)
{
    const json_t *list = structure_field(v, "excludes");
    const char *name = list ? "excludes" : "excluded_str";

    if (list && structure_field(v, "excluded_str"))
        return structure_refuse(t, "`excludes` and `excluded_str` are the same");
    *ret_list = list ? list : structure_field(v, "excluded_str");
    return structure_strings(t, *ret_list, name, 0, STRUCTURE_TRIGGERS);
}

int structure_any_text(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr)
{
    static const char *const fields[] = {"type", "excludes", "excluded_str", NULL};
    const json_t *excluded = NULL;
    struct until *u = NULL;
    int r = structure_fields(t, v, fields);

    if (r == 0)
        r = structure_excluded(t, v, &excluded);
    if (r == 0)
        r = structure_until(t, NULL, excluded, f, &u);
    if (r == 0)
        *ret_expr = structure_rest(u, f);
    until_free(u);
    return r;
}

/* ---- what has an end of its own ---- */

int structure_fixed(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr)
{
    static const char *const fields[] = {"type", "value", NULL};
    const json_t *value = structure_field(v, "value");

    if (structure_fields(t, v, fields) < 0)
        return -EBADMSG;
    if (!json_is_string(value))
        return structure_refuse(t, "`value` must be a string");
    structure_marks(t, value);
    *ret_expr = expr_pair(t->set, structure_string(t, value), structure_ending(t, f));
    return 0;
}

/* Says in which format something was refused that has a place of its own. */
static int in_format(struct structure *t, int r)
{
    char text[320];

    if (r != -EBADMSG || !t->fault)
        return r;
    (void)snprintf(text, sizeof(text), "%.310s", t->fault->msg);
    return structure_refuse(t, "%s", text);
}

static int read_schema(struct structure *t, const json_t *schema, uint32_t *ret_expr)
{
    struct schema_reader *r = &t->schema;

    if (!json_is_object(schema) && !json_is_boolean(schema))
        return structure_refuse(t, "`json_schema` must be a JSON schema: an object, true or false");
    if (json_object_get(schema, "x-guidance"))
        return structure_refuse(t, "`x-guidance` is offered for a schema that is the whole answer");
    r->path[0] = '\0';
    r->depth = 0;
    r->never = false;
    int code = schema_root(r, schema);
    if (code == 0)
        code = schema_value(r, schema, ret_expr);
    *ret_expr = code == 0 ? json_as_call(r, *ret_expr, "json") : EXPR_NEVER;
    schema_root_done(r);
    return in_format(t, code);
}

int structure_json(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr)
{
    static const char *const fields[] = {"type", "json_schema", "style", NULL};
    const json_t *style = structure_field(v, "style");
    uint32_t e = EXPR_NEVER;

    if (structure_fields(t, v, fields) < 0)
        return -EBADMSG;
    if (style && !(json_is_string(style) && strcmp(json_string_value(style), "json") == 0))
        return structure_refuse(t, "`style` may be json only");
    int r = read_schema(t, structure_field(v, "json_schema"), &e);
    *ret_expr = expr_pair(t->set, e, structure_ending(t, f));
    return r;
}

int structure_regex(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr)
{
    static const char *const fields[] = {"type", "pattern", "excludes", NULL};
    const json_t *pattern = structure_field(v, "pattern");
    uint32_t e = EXPR_NEVER;

    if (structure_fields(t, v, fields) < 0)
        return -EBADMSG;
    if (!json_is_string(pattern))
        return structure_refuse(t, "`pattern` must be a string");
    if (json_array_size(structure_field(v, "excludes")) > 0)
        return structure_refuse(t, "`excludes` is not offered beside a pattern");
    int r = regex_read(t->set, json_string_value(pattern), json_string_length(pattern), REGEX_TEXT,
                       0, EXPR_MANY, &e, t->fault);
    *ret_expr = expr_pair(t->set, json_as_call(&t->schema, e, "pattern"), structure_ending(t, f));
    return in_format(t, r);
}

int structure_grammar(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr)
{
    static const char *const fields[] = {"type", "grammar", NULL};
    const json_t *grammar = structure_field(v, "grammar");
    const char *text = json_string_value(grammar);
    size_t len = json_string_length(grammar);
    uint32_t rule = 0;

    if (structure_fields(t, v, fields) < 0)
        return -EBADMSG;
    if (!text || len == 0)
        return structure_refuse(t, "`grammar` must be a string, not empty");
    if (lark_is(text, len) && lark_most_tokens(text, len) > 0)
        return structure_refuse(t, "`max_tokens` of a rule is offered for a whole answer only");
    int r = lark_is(text, len) ? lark_read(t->set, text, len, schema_read, &rule, t->fault)
                               : ebnf_read(t->set, text, len, &rule, t->fault);
    *ret_expr =
        r == 0 ? expr_pair(t->set, expr_call(t->set, rule), structure_ending(t, f)) : EXPR_NEVER;
    return in_format(t, r);
}
