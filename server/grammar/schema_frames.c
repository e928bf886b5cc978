/*
 * Calls whose arguments stand one by one: <parameter=key> of qwen3_coder and key=value of pythonic.
 * Only what `properties` declares is written, in its order.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/grammar/expr_text.h"
#include "server/grammar/schema_tools.h"

/* Reads one value of a style. */
typedef int (*value_fn)(struct schema_reader *r, const json_t *schema, uint32_t *ret_expr);

struct frame {
    const char *before, *between, *after; /* the key, the key and the value, the value */
    const char *separator;
    value_fn value;
    bool words; /* keys must be words of Python */
};

static bool is_word(const char *s)
{
    for (const char *c = s; *c; c++) {
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || *c == '_';
        if (!letter && (c == s || *c < '0' || *c > '9'))
            return false;
    }
    return *s != '\0';
}

static bool is_key(const char *s)
{
    return *s != '\0' && strlen(s) == strcspn(s, "<>\n\r");
}

static int check_object(struct schema_reader *r, const json_t *schema)
{
    static const char *const known[] = {"type", "properties", "required", "additionalProperties"};
    json_t *s = (json_t *)(uintptr_t)schema;

    for (void *at = json_object_iter(s); at; at = json_object_iter_next(s, at)) {
        const char *name = json_object_iter_key(at);
        bool found = schema_is_annotation(name);
        for (size_t i = 0; !found && i < sizeof(known) / sizeof(known[0]); i++)
            found = strcmp(known[i], name) == 0;
        if (!found)
            return schema_refuse(r, name, "`%.40s` of all parameters is not offered by this parser",
                                 name);
    }
    const json_t *required = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        if (!name || !json_object_get(json_object_get(schema, "properties"), name))
            return schema_refuse(r, "required", "a required parameter is not declared");
    }
    return 0;
}

static bool is_required(const json_t *schema, const char *name)
{
    const json_t *list = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_array_get(list, i)), name) == 0)
            return true;
    return false;
}

static int read_parameter(struct schema_reader *r, const struct frame *f, const char *name,
                          const json_t *schema, uint32_t *ret_expr)
{
    struct expr_list all = {.set = r->set};
    uint32_t value = EXPR_NEVER;
    size_t was = schema_enter(r, "properties", name);
    int code = !is_key(name) || (f->words && !is_word(name))
                   ? schema_refuse(r, NULL, "the name does not fit this parser")
                   : f->value(r, schema, &value);

    schema_leave(r, was);
    expr_push(&all, expr_text(r->set, f->before));
    expr_push(&all, expr_text(r->set, name));
    expr_push(&all, expr_text(r->set, f->between));
    expr_push(&all, json_as_call(r, value, "value"));
    expr_push(&all, expr_text(r->set, f->after));
    *ret_expr = json_as_call(r, expr_seq(&all), "parameter");
    return code;
}

/* All parameters with the separator between them; those that are not required may be left out. */
static int read_parameters(struct schema_reader *r, const struct frame *f, const json_t *schema,
                           uint32_t *ret_expr)
{
    struct expr_set *s = r->set;
    json_t *properties = json_object_get(schema, "properties");
    size_t n = json_object_size(properties);
    const char **name = calloc(n + 1, sizeof(*name));
    uint32_t after = EXPR_EMPTY, first = EXPR_EMPTY;
    int code = name ? check_object(r, schema) : -ENOMEM;

    size_t k = 0;
    for (void *at = json_object_iter(properties); at && name;
         at = json_object_iter_next(properties, at))
        name[k++] = json_object_iter_key(at);
    for (size_t i = n; code == 0 && i-- > 0;) {
        uint32_t one = EXPR_NEVER;
        code = read_parameter(r, f, name[i], json_object_get(properties, name[i]), &one);
        (void)schema_pay(r, 1 + json_array_size(json_object_get(schema, "required")) / 4);
        bool must = is_required(schema, name[i]);
        uint32_t rest = json_as_call(r, after, "parameters");
        uint32_t next = expr_pair(s, expr_text(s, f->separator), one);
        uint32_t here = expr_pair(s, one, rest);
        after = expr_pair(s, must ? next : expr_maybe(s, next), rest);
        first = must ? here : expr_either(s, here, json_as_call(r, first, "parameters"));
    }
    free(name);
    *ret_expr = first;
    return code;
}

/* The arguments in a frame; without a schema any words with any values. */
static int read_arguments(struct schema_reader *r, const struct frame *f, const json_t *tool,
                          bool bound, uint32_t any, uint32_t *ret_expr)
{
    const json_t *schema = json_object_get(json_object_get(tool, "function"), "parameters");

    *ret_expr = any;
    if (!bound || !json_is_object(schema))
        return 0;
    int code = schema_root(r, schema);
    if (code == 0)
        code = read_parameters(r, f, schema, ret_expr);
    schema_root_done(r);
    return code;
}

static uint32_t word(struct expr_set *s)
{
    struct chars first = {0}, more;

    chars_add(&first, 'A', 'Z');
    chars_add(&first, '_', '_');
    chars_add(&first, 'a', 'z');
    more = (struct chars){0};
    chars_add(&more, '0', '9');
    chars_add_all(&more, &first);
    return expr_pair(s, expr_chars(s, &first), expr_repeat(s, expr_chars(s, &more), 0, 60));
}

static const char *function_name(const json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

/* ---- qwen3_coder ---- */

/* Text as it stands, with the mark that ends it. */
static uint32_t raw_text(struct schema_reader *r)
{
    uint32_t rule = expr_rule_new(r->set, "text");
    const struct text_word words[] = {
        {"</parameter>", EXPR_EMPTY}, {"<parameter=", EXPR_NEVER}, {"</function>", EXPR_NEVER}};

    expr_text_write(r->set, rule, words, 3, false, true);
    return expr_call(r->set, rule);
}

static int raw_values(struct schema_reader *r, const json_t *list, uint32_t *ret_expr)
{
    struct expr_list alt = {.set = r->set};
    int code = 0;

    for (size_t i = 0; code == 0 && i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        size_t n = json_string_length(json_array_get(list, i));
        if (!s || strlen(s) != n || strstr(s, "</") || strstr(s, "<p") ||
            (n > 0 && (s[0] == '\n' || s[n - 1] == '\n')))
            code = schema_refuse(r, "enum", "a value cannot be written for this parser");
        else
            expr_push(&alt, expr_bytes(r->set, s, n));
    }
    uint32_t end = expr_text(r->set, "\n</parameter>");
    *ret_expr = expr_pair(r->set, expr_alt(&alt), end);
    return code;
}

/* The parser takes the value for text unless `type` names another one. */
static int qwen_value(struct schema_reader *r, const json_t *schema, uint32_t *ret_expr)
{
    static const char *const beside[] = {"pattern", "format", "minLength", "maxLength", "not",
                                         "anyOf",   "oneOf",  "allOf",     "$ref",      "if"};
    const char *type = json_string_value(json_object_get(schema, "type"));
    json_t *one = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");

    if (type && strcmp(type, "string") != 0) {
        int code = schema_value(r, schema, ret_expr);
        *ret_expr = expr_pair(r->set, *ret_expr, expr_text(r->set, "\n</parameter>"));
        return code;
    }
    for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++)
        if (json_object_get(schema, beside[i]))
            return schema_refuse(r, beside[i], "`%s` of a text is not offered by this parser",
                                 beside[i]);
    if (!type && !one && !list)
        return schema_refuse(r, "type", "this parser needs one `type` for each parameter");
    if (!one && !list) {
        *ret_expr = raw_text(r);
        return 0;
    }
    json_t *values = one ? json_pack("[O]", one) : json_incref(list);
    int code = values ? raw_values(r, values, ret_expr) : -ENOMEM;
    json_decref(values);
    return code;
}

int tool_read_qwen(struct schema_reader *r, const json_t *tool, bool bound, uint32_t *ret_expr)
{
    static const struct frame frame = {"<parameter=", ">\n", "\n", "", qwen_value, false};
    struct expr_set *s = r->set;
    struct expr_list all = {.set = s}, any = {.set = s};
    uint32_t arguments = EXPR_EMPTY;

    expr_push(&any, expr_text(s, "<parameter="));
    expr_push(&any, word(s));
    expr_push(&any, expr_text(s, ">\n"));
    expr_push(&any, raw_text(r));
    expr_push(&any, expr_text(s, "\n"));
    uint32_t free_ones = expr_repeat(s, expr_seq(&any), 0, EXPR_MANY);
    int code = read_arguments(r, &frame, tool, bound, free_ones, &arguments);
    expr_push(&all, expr_text(s, "<function="));
    expr_push(&all, expr_text(s, function_name(tool)));
    expr_push(&all, expr_text(s, ">\n"));
    expr_push(&all, arguments);
    expr_push(&all, expr_text(s, "</function>"));
    *ret_expr = expr_seq(&all);
    return code;
}

/* ---- pythonic ---- */

int tool_read_python(struct schema_reader *r, const json_t *tool, bool bound, uint32_t *ret_expr)
{
    static const struct frame frame = {"", "=", "", ", ", schema_value, true};
    struct expr_set *s = r->set;
    struct expr_list all = {.set = s};
    uint32_t arguments = EXPR_EMPTY;
    uint32_t pair =
        expr_pair(s, word(s), expr_pair(s, expr_text(s, "="), json_call(r, RULE_VALUE)));
    uint32_t more = expr_repeat(s, expr_pair(s, expr_text(s, ", "), pair), 0, EXPR_MANY);
    int code =
        read_arguments(r, &frame, tool, bound, expr_maybe(s, expr_pair(s, pair, more)), &arguments);

    expr_push(&all, expr_text(s, function_name(tool)));
    expr_push(&all, expr_text(s, "("));
    expr_push(&all, arguments);
    expr_push(&all, expr_text(s, ")"));
    *ret_expr = expr_seq(&all);
    return code;
}
