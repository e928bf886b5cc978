/*
 * Calls of gemma4 and functiongemma: key:value, whose lists and objects are not JSON: keys are bare
 * words, and texts have marks of their own on both sides.
 */
#include "server/grammar/schema_frames.h"

#include <string.h>

#include "server/grammar/schema_tools.h"

#define GEMMA_DEPTH 32u /* lists and objects in each other */

static const struct raw_form gemma_form = {
    "<|\"|>", "<|\"|>", "", {"<|tool_call>", "<tool_call|>"}};
static const struct raw_form escape_form = {
    "<escape>", "<escape>", "", {"<start_function_call>", "<end_function_call>"}};

static int gemma_value(struct schema_reader *r, const struct frame *f, const json_t *schema,
                       uint32_t *ret_expr);
static const struct frame gemma_frames[] = {
    {"", ":", "", ",", gemma_value, true, NULL, &gemma_form, NULL},
    {"", ":", "", ",", gemma_value, true, NULL, &escape_form, NULL}};

/* Nothing, or what fits some times with commas between. */
static uint32_t gemma_row(struct expr_set *s, uint32_t one, uint32_t least, uint32_t most)
{
    uint32_t next = expr_pair(s, expr_text(s, ","), one);
    uint32_t row = expr_pair(s, one,
                             expr_repeat(s, next, least > 0 ? least - 1 : 0,
                                         most == EXPR_MANY ? EXPR_MANY : most - (most > 0)));
    return most == 0 ? EXPR_EMPTY : least > 0 ? row : expr_maybe(s, row);
}

static uint32_t gemma_between(struct expr_set *s, const char *open, uint32_t inner,
                              const char *close)
{
    return expr_pair(s, expr_text(s, open), expr_pair(s, inner, expr_text(s, close)));
}

static int gemma_list(struct schema_reader *r, const struct frame *f, const json_t *schema,
                      uint32_t *ret_expr)
{
    static const char *const beside[] = {"uniqueItems", "contains", "prefixItems", "$ref"};
    uint32_t least = 0, most = EXPR_MANY, item = EXPR_NEVER;
    const json_t *items = json_object_get(schema, "items");

    for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++)
        if (json_object_get(schema, beside[i]))
            return schema_refuse(r, beside[i], "`%s` is not offered by this parser", beside[i]);
    if (!json_is_object(items))
        return schema_refuse(r, "items", "this parser needs `items` of a list");
    int code = schema_count(r, schema, "minItems", 0, &least);
    if (code == 0)
        code = schema_count(r, schema, "maxItems", EXPR_MANY, &most);
    if (code == 0 && (least > ITEMS_MOST || (most != EXPR_MANY && most > ITEMS_MOST)))
        code = schema_refuse(r, least > ITEMS_MOST ? "minItems" : "maxItems",
                             "more than %u elements are not counted", ITEMS_MOST);
    if (code == 0 && least > most)
        code = schema_refuse(r, "minItems", "`minItems` is more than `maxItems`");
    size_t was = schema_enter(r, "items", NULL);
    if (code == 0)
        code = gemma_value(r, f, items, &item);
    schema_leave(r, was);
    uint32_t row = gemma_row(r->set, json_as_call(r, item, "item"), least, most);
    *ret_expr = gemma_between(r->set, "[", row, "]");
    return code;
}

static int gemma_value(struct schema_reader *r, const struct frame *f, const json_t *schema,
                       uint32_t *ret_expr)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    bool list = type && strcmp(type, "array") == 0, object = type && strcmp(type, "object") == 0;

    if (!list && !object)
        return frame_raw_value(r, f->raw, schema, ret_expr);
    if (++r->depth > GEMMA_DEPTH)
        return schema_refuse(r, NULL, "it is too deep for this parser");
    int code = list ? gemma_list(r, f, schema, ret_expr) : frame_parameters(r, f, schema, ret_expr);
    r->depth--;
    if (object)
        *ret_expr = gemma_between(r->set, "{", *ret_expr, "}");
    return code;
}

/* A value of any kind. */
static uint32_t gemma_any(struct schema_reader *r, const struct frame *f)
{
    struct expr_set *s = r->set;
    uint32_t rule = expr_rule_new(s, "value"), one = expr_call(s, rule);
    struct expr_list alt = {.set = s};
    uint32_t pair = expr_pair(s, frame_word(s), expr_pair(s, expr_text(s, ":"), one));

    expr_push(&alt, frame_raw_text(r, f->raw));
    expr_push(&alt, json_call(r, RULE_NUMBER));
    expr_push(&alt, expr_text(s, "true"));
    expr_push(&alt, expr_text(s, "false"));
    expr_push(&alt, expr_text(s, "null"));
    expr_push(&alt, gemma_between(s, "[", gemma_row(s, one, 0, EXPR_MANY), "]"));
    expr_push(&alt, gemma_between(s, "{", gemma_row(s, pair, 0, EXPR_MANY), "}"));
    expr_rule_set(s, rule, expr_alt(&alt));
    return one;
}

int tool_read_gemma(struct schema_reader *r, const json_t *tool, bool bound, bool escapes,
                    uint32_t *ret_expr)
{
    const struct frame *f = &gemma_frames[escapes];
    struct expr_set *s = r->set;
    struct expr_list all = {.set = s};
    uint32_t arguments = EXPR_EMPTY;
    uint32_t pair = expr_pair(s, frame_word(s), expr_pair(s, expr_text(s, ":"), gemma_any(r, f)));
    uint32_t any = gemma_row(s, pair, 0, EXPR_MANY);
    int code = frame_arguments(r, f, tool, bound, any, &arguments);

    expr_push(&all, expr_text(s, "call:"));
    expr_push(&all, expr_text(s, frame_tool_name(tool)));
    expr_push(&all, gemma_between(s, "{", arguments, "}"));
    *ret_expr = expr_seq(&all);
    return code;
}
