/*
 * Calls whose arguments stand one by one: <parameter=key> of qwen3_coder, seed_oss and mimo,
 * <arg_key> of glm45, <parameter name="key"> of minimax_m2 and the styles beside it, and key=value
 * of pythonic; schema_gemma.c has those of gemma. Only what `properties` declares is written, in
 * its order.
 */
#include "server/grammar/schema_frames.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/grammar/expr_text.h"
#include "server/grammar/schema_tools.h"

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
                   : f->value(r, f, schema, &value);

    schema_leave(r, was);
    expr_push(&all, expr_text(r->set, f->before));
    expr_push(&all, expr_text(r->set, name));
    uint32_t line = f->mark ? expr_maybe(r->set, expr_text(r->set, "\n")) : EXPR_EMPTY;
    expr_push(&all, expr_text(r->set, f->between));
    expr_push(&all, line);
    expr_push(&all, expr_text(r->set, f->mark ? f->mark : ""));
    expr_push(&all, json_as_call(r, value, "value"));
    expr_push(&all, expr_text(r->set, f->after));
    expr_push(&all, line);
    *ret_expr = json_as_call(r, expr_seq(&all), "parameter");
    return code;
}

/* All parameters with the separator between them; those that are not required may be left out. */
int frame_parameters(struct schema_reader *r, const struct frame *f, const json_t *schema,
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

int frame_arguments(struct schema_reader *r, const struct frame *f, const json_t *tool, bool bound,
                    uint32_t any, uint32_t *ret_expr)
{
    const json_t *schema = json_object_get(json_object_get(tool, "function"), "parameters");

    *ret_expr = any;
    if (!bound || !json_is_object(schema))
        return 0;
    int code = schema_root(r, schema);
    if (code == 0)
        code = frame_parameters(r, f, schema, ret_expr);
    schema_root_done(r);
    return code;
}

uint32_t frame_word(struct expr_set *s)
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

const char *frame_tool_name(const json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

/* ---- values as they stand ---- */

static const struct raw_form qwen_form = {
    "", "</parameter>", "\n</parameter>", {"<parameter=", "</function>"}};
static const struct raw_form glm_form = {
    "", "</arg_value>", "</arg_value>", {"<arg_key>", "</tool_call>"}};
static const struct raw_form hy_form = {"",
                                        "</arg_value:opensource>",
                                        "</arg_value:opensource>",
                                        {"<arg_key:opensource>", "</tool_call:opensource>"}};
static const struct raw_form minimax_form = {
    "", "</parameter>", "</parameter>", {"<parameter name=", "</invoke>"}};
static const struct raw_form dsml_form = {"",
                                          "</｜DSML｜parameter>",
                                          "</｜DSML｜parameter>",
                                          {"<｜DSML｜parameter name=", "</｜DSML｜invoke>"}};
static const struct raw_form v41_form = {"",
                                         "</｜DSML｜ parameter>",
                                         "</｜DSML｜ parameter>",
                                         {"<｜DSML｜ parameter name=", "</｜DSML｜ invoke>"}};
static const struct raw_form mimo_form = {
    "", "</parameter>", "</parameter>", {"<parameter=", "</function>"}};
static const struct raw_form step3_form = {"",
                                           "</steptml:parameter>",
                                           "</steptml:parameter>",
                                           {"<steptml:parameter name=", "</steptml:invoke>"}};
static const struct raw_form kimi_form = {"",
                                          "<|close|>argument<|sep|>",
                                          "<|close|>argument<|sep|>",
                                          {"<|open|>argument key=", "<|close|>call<|sep|>"}};
/* A text that may hold marks of XML. */
static const struct raw_form cdata_form = {
    "<![CDATA[", "]]></param>", "</param>", {"<param name=", "</function>"}};

/* A text of MiniCPM 5 that needs no CDATA, with the mark that ends it. */
static uint32_t plain_text(struct expr_set *s)
{
    struct chars plain = {0};

    chars_add(&plain, '&', '&');
    chars_add(&plain, '<', '<');
    chars_negate(&plain);
    return expr_pair(s, expr_repeat(s, expr_chars(s, &plain), 0, EXPR_MANY),
                     expr_text(s, "</param>"));
}

uint32_t frame_raw_text(struct schema_reader *r, const struct raw_form *f)
{
    uint32_t rule = expr_rule_new(r->set, "text");
    const struct text_word words[] = {
        {f->end, EXPR_EMPTY}, {f->never[0], EXPR_NEVER}, {f->never[1], EXPR_NEVER}};

    expr_text_write(r->set, rule, words, 3, false, true);
    uint32_t e = expr_pair(r->set, expr_text(r->set, f->open), expr_call(r->set, rule));
    return f == &cdata_form ? expr_either(r->set, e, plain_text(r->set)) : e;
}

static bool raw_fits(const struct raw_form *f, const char *s, size_t n)
{
    if (!s || strlen(s) != n || strstr(s, "</") || strstr(s, "<p"))
        return false;
    return (f == &qwen_form || !strchr(s, '<')) && (n == 0 || (s[0] != '\n' && s[n - 1] != '\n'));
}

static int raw_values(struct schema_reader *r, const struct raw_form *f, const json_t *list,
                      uint32_t *ret_expr)
{
    struct expr_list alt = {.set = r->set};
    int code = 0;

    for (size_t i = 0; code == 0 && i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        size_t n = json_string_length(json_array_get(list, i));
        if (!raw_fits(f, s, n))
            code = schema_refuse(r, "enum", "a value cannot be written for this parser");
        else
            expr_push(&alt, expr_bytes(r->set, s, n));
    }
    const bool bare = *f->typed_end; /* else a text has marks of its own on both sides */
    *ret_expr = expr_pair(
        r->set, expr_text(r->set, bare ? "" : f->open),
        expr_pair(r->set, expr_alt(&alt), expr_text(r->set, bare ? f->typed_end : f->end)));
    return code;
}

int frame_raw_value(struct schema_reader *r, const struct raw_form *f, const json_t *schema,
                    uint32_t *ret_expr)
{
    static const char *const beside[] = {"pattern", "format", "minLength", "maxLength", "not",
                                         "anyOf",   "oneOf",  "allOf",     "$ref",      "if"};
    const char *type = json_string_value(json_object_get(schema, "type"));
    json_t *one = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");

    if (type && strcmp(type, "string") != 0) {
        int code = schema_value(r, schema, ret_expr);
        *ret_expr = expr_pair(r->set, *ret_expr, expr_text(r->set, f->typed_end));
        return code;
    }
    for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++)
        if (json_object_get(schema, beside[i]))
            return schema_refuse(r, beside[i], "`%s` of a text is not offered by this parser",
                                 beside[i]);
    if (!type && !one && !list)
        return schema_refuse(r, "type", "this parser needs one `type` for each parameter");
    if (!one && !list) {
        *ret_expr = frame_raw_text(r, f);
        return 0;
    }
    json_t *values = one ? json_pack("[O]", one) : json_incref(list);
    int code = values ? raw_values(r, f, values, ret_expr) : -ENOMEM;
    json_decref(values);
    return code;
}

/* Before a value: what it says of itself. A text where the schema says nothing of a type. */
static uint32_t schema_frames_told(struct expr_set *s, const struct told_type *t, const char *type)
{
    const bool text = !type || strcmp(type, "string") == 0;
    const char *word = text                           ? t->text
                       : t->other                     ? t->other
                       : strcmp(type, "integer") == 0 ? "number"
                                                      : type;

    return expr_pair(s, expr_text(s, t->before),
                     expr_pair(s, expr_text(s, word), expr_text(s, t->after)));
}

static uint32_t told_any(struct expr_set *s, const struct told_type *t)
{
    static const char *const types[] = {"string", "number", "boolean", "object", "array", "null"};
    struct expr_list alt = {.set = s};

    for (size_t i = 0; i < (t->other ? 2 : sizeof(types) / sizeof(types[0])); i++)
        expr_push(&alt, schema_frames_told(s, t, types[i]));
    return expr_alt(&alt);
}

static int framed_value(struct schema_reader *r, const struct frame *f, const json_t *schema,
                        uint32_t *ret_expr)
{
    int code = frame_raw_value(r, f->raw, schema, ret_expr);

    if (f->told)
        *ret_expr = expr_pair(
            r->set,
            schema_frames_told(r->set, f->told, json_string_value(json_object_get(schema, "type"))),
            *ret_expr);
    return code;
}

/* The arguments in a frame whose texts stand as they are; without a schema any words and texts. */
static int framed_arguments(struct schema_reader *r, const struct frame *f, const json_t *tool,
                            bool bound, uint32_t *ret_expr)
{
    struct expr_set *s = r->set;
    struct expr_list any = {.set = s};
    uint32_t line = f->mark ? expr_maybe(s, expr_text(s, "\n")) : EXPR_EMPTY;

    expr_push(&any, expr_text(s, f->before));
    expr_push(&any, frame_word(s));
    expr_push(&any, expr_text(s, f->between));
    expr_push(&any, line);
    expr_push(&any, expr_text(s, f->mark ? f->mark : ""));
    expr_push(&any, f->told ? told_any(s, f->told) : EXPR_EMPTY);
    expr_push(&any, frame_raw_text(r, f->raw));
    expr_push(&any, expr_text(s, f->after));
    expr_push(&any, line);
    uint32_t free_ones = expr_repeat(s, expr_seq(&any), 0, EXPR_MANY);
    return frame_arguments(r, f, tool, bound, free_ones, ret_expr);
}

/* ---- qwen3_coder, seed_oss and mimo ---- */

int tool_read_qwen(struct schema_reader *r, const json_t *tool, bool bound, bool lines,
                   uint32_t *ret_expr)
{
    static const struct frame frames[] = {
        {"<parameter=", ">", "\n", "", framed_value, false, NULL, &mimo_form, NULL},
        {"<parameter=", ">\n", "\n", "", framed_value, false, NULL, &qwen_form, NULL}};
    const struct frame *f = &frames[lines];
    struct expr_set *s = r->set;
    struct expr_list all = {.set = s};
    uint32_t arguments = EXPR_EMPTY;

    int code = framed_arguments(r, f, tool, bound, &arguments);
    expr_push(&all, expr_text(s, "<function="));
    expr_push(&all, expr_text(s, frame_tool_name(tool)));
    expr_push(&all, expr_text(s, ">\n"));
    expr_push(&all, arguments);
    expr_push(&all, expr_text(s, "</function>"));
    *ret_expr = expr_seq(&all);
    return code;
}

/* ---- glm45 ---- */

static const struct frame glm_frame = {"<arg_key>", "</arg_key>",  "",        "",  framed_value,
                                       false,       "<arg_value>", &glm_form, NULL};

int tool_read_glm(struct schema_reader *r, const json_t *tool, bool bound, uint32_t *ret_expr)
{
    struct expr_set *s = r->set;
    uint32_t arguments = EXPR_EMPTY, line = expr_maybe(s, expr_text(s, "\n"));
    int code = framed_arguments(r, &glm_frame, tool, bound, &arguments);
    uint32_t name = expr_pair(s, expr_text(s, frame_tool_name(tool)), line);

    *ret_expr = expr_pair(s, name, arguments);
    return code;
}

/* ---- hy_v3 ---- */

static const struct frame hy_frame = {"<arg_key:opensource>",
                                      "</arg_key:opensource>",
                                      "",
                                      "",
                                      framed_value,
                                      false,
                                      "<arg_value:opensource>",
                                      &hy_form,
                                      NULL};

int tool_read_hy(struct schema_reader *r, const json_t *tool, bool bound, bool preview,
                 uint32_t *ret_expr)
{
    static const struct hy {
        const char *call, *sep, *end;
        const struct frame *frame;
    } both[] = {
        {"<tool_call:opensource>", "<tool_sep:opensource>", "</tool_call:opensource>", &hy_frame},
        {"<tool_call>", "<tool_sep>", "</tool_call>", &glm_frame}};
    const struct hy *h = &both[preview];
    struct expr_set *s = r->set;
    struct expr_list all = {.set = s};
    uint32_t arguments = EXPR_EMPTY, line = expr_maybe(s, expr_text(s, "\n"));
    int code = framed_arguments(r, h->frame, tool, bound, &arguments);

    expr_push(&all, expr_text(s, h->call));
    expr_push(&all, expr_text(s, frame_tool_name(tool)));
    expr_push(&all, expr_text(s, h->sep));
    expr_push(&all, line);
    expr_push(&all, arguments);
    expr_push(&all, expr_text(s, h->end));
    *ret_expr = expr_seq(&all);
    return code;
}

/* ---- minimax_m2, dots, deepseek_v32 and later, step3, minicpm5, kimi_k3 ---- */

static const struct told_type dsml_told = {" string=\"", "true", "false", "\">"};
static const struct told_type kimi_told = {" type=\"", "string", NULL, "\"<|sep|>"};

/* A call: `open` NAME `named`, maybe a number and `numbered`, the parameters, `end`. The style of
 * the last one is none: the others'. */
static const struct invoke_form {
    const char *style, *open, *named, *numbered, *end;
    struct frame frame;
} invoke_forms[] = {
    {"deepseek_v32",
     "<｜DSML｜invoke name=\"",
     "\">\n",
     NULL,
     "</｜DSML｜invoke>",
     {"<｜DSML｜parameter name=\"", "\"", "\n", "", framed_value, false, NULL, &dsml_form,
      &dsml_told}},
    {"deepseek_v41",
     "<｜DSML｜ invoke name=\"",
     "\">\n",
     NULL,
     "</｜DSML｜ invoke>",
     {"<｜DSML｜ parameter name=\"", "\"", "\n", "", framed_value, false, NULL, &v41_form,
      &dsml_told}},
    {"step3",
     "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"",
     "\">",
     NULL,
     "</steptml:invoke><｜tool_call_end｜>",
     {"<steptml:parameter name=\"", "\">", "", "", framed_value, false, NULL, &step3_form, NULL}},
    {"minicpm5",
     "\"",
     "\">",
     NULL,
     "</function>",
     {"<param name=\"", "\">", "", "", framed_value, false, NULL, &cdata_form, NULL}},
    {"kimi_k3",
     "<|open|>call tool=\"",
     "\" index=\"",
     "\"<|sep|>",
     "<|close|>call<|sep|>",
     {"<|open|>argument key=\"", "\"", "", "", framed_value, false, NULL, &kimi_form, &kimi_told}},
    {"",
     "<invoke name=\"",
     "\">\n",
     NULL,
     "</invoke>",
     {"<parameter name=\"", "\">", "\n", "", framed_value, false, NULL, &minimax_form, NULL}},
};

int tool_read_invoke(struct schema_reader *r, const json_t *tool, bool bound, const char *style,
                     uint32_t *ret_expr)
{
    const struct invoke_form *v = invoke_forms;
    struct expr_set *s = r->set;
    struct expr_list all = {.set = s};
    uint32_t arguments = EXPR_EMPTY;

    while (*v->style && strcmp(v->style, style) != 0)
        v++;
    const struct frame *f = &v->frame;
    int code = framed_arguments(r, f, tool, bound, &arguments);
    expr_push(&all, expr_text(s, v->open));
    expr_push(&all, expr_text(s, frame_tool_name(tool)));
    expr_push(&all, expr_text(s, v->named));
    if (v->numbered) {
        expr_push(&all, expr_repeat(s, expr_byte(s, '0', '9'), 1, 3));
        expr_push(&all, expr_text(s, v->numbered));
    }
    expr_push(&all, arguments);
    expr_push(&all, expr_text(s, v->end));
    *ret_expr = expr_seq(&all);
    return code;
}

/* ---- pythonic ---- */

static int python_value(struct schema_reader *r, const struct frame *f, const json_t *schema,
                        uint32_t *ret_expr)
{
    (void)f; /* a value is one of Python in every frame */
    return schema_value(r, schema, ret_expr);
}

int tool_read_python(struct schema_reader *r, const json_t *tool, bool bound, uint32_t *ret_expr)
{
    static const struct frame frame = {"", "=", "", ", ", python_value, true, NULL, NULL, NULL};
    struct expr_set *s = r->set;
    struct expr_list all = {.set = s};
    uint32_t arguments = EXPR_EMPTY;
    uint32_t pair =
        expr_pair(s, frame_word(s), expr_pair(s, expr_text(s, "="), json_call(r, RULE_VALUE)));
    uint32_t more = expr_repeat(s, expr_pair(s, expr_text(s, ", "), pair), 0, EXPR_MANY);
    int code = frame_arguments(r, &frame, tool, bound, expr_maybe(s, expr_pair(s, pair, more)),
                               &arguments);

    expr_push(&all, expr_text(s, frame_tool_name(tool)));
    expr_push(&all, expr_text(s, "("));
    expr_push(&all, arguments);
    expr_push(&all, expr_text(s, ")"));
    *ret_expr = expr_seq(&all);
    return code;
}
