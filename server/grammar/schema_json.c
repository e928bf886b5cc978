/*
 * The rules of JSON itself, which do not depend on a schema. Called by the other readers of
 * schemas.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/grammar/regex.h"
#include "server/grammar/schema_inside.h"

#define INDENT_MOST 24u /* characters that indent a line */

static uint32_t hex(struct expr_set *s)
{
    return expr_either(s, expr_byte(s, '0', '9'),
                       expr_either(s, expr_byte(s, 'a', 'f'), expr_byte(s, 'A', 'F')));
}

/* \uXXXX that is no half of a pair. */
static uint32_t unicode_escape(struct expr_set *s)
{
    struct expr_list first = {.set = s}, one = {.set = s}, d = {.set = s};
    expr_push(&first, expr_byte(s, '0', '9'));
    expr_push(&first, expr_byte(s, 'a', 'c'));
    expr_push(&first, expr_byte(s, 'A', 'C'));
    expr_push(&first, expr_byte(s, 'e', 'f'));
    expr_push(&first, expr_byte(s, 'E', 'F'));
    expr_push(&one, expr_alt(&first));
    expr_push(&one, expr_repeat(s, hex(s), 3, 3));
    expr_push(&d, expr_either(s, expr_text(s, "d"), expr_text(s, "D")));
    expr_push(&d, expr_byte(s, '0', '7'));
    expr_push(&d, expr_repeat(s, hex(s), 2, 2));
    return expr_pair(s, expr_text(s, "\\u"), expr_either(s, expr_seq(&one), expr_seq(&d)));
}

static uint32_t make_char(struct expr_set *s, bool python)
{
    const char *short_ones = python ? "\"\\bfnrt" : "\"\\/bfnrt";
    struct chars plain = {0};
    struct expr_list all = {.set = s}, escapes = {.set = s};
    chars_add(&plain, 0x20, 0x21);
    chars_add(&plain, 0x23, 0x5b);
    chars_add(&plain, 0x5d, CHARS_LAST);
    for (const char *c = short_ones; *c; c++)
        expr_push(&escapes, expr_byte(s, (uint8_t)*c, (uint8_t)*c));
    expr_push(&all, expr_chars(s, &plain));
    expr_push(&all, expr_pair(s, expr_text(s, "\\"), expr_alt(&escapes)));
    if (!python)
        expr_push(&all, unicode_escape(s));
    return expr_alt(&all);
}

static uint32_t make_ws(struct expr_set *s)
{
    uint32_t blank = expr_either(s, expr_text(s, " "), expr_text(s, "\t"));
    uint32_t line = expr_pair(s, expr_text(s, "\n"), expr_repeat(s, blank, 0, INDENT_MOST));
    return expr_maybe(s, expr_either(s, expr_text(s, " "), line));
}

static uint32_t schema_json_digits(struct expr_set *s, uint32_t least, uint32_t most)
{
    return expr_repeat(s, expr_byte(s, '0', '9'), least, most);
}

/* -?(0|[1-9][0-9]{0,14}), and a fraction and an exponent. */
static uint32_t make_number(struct expr_set *s, bool whole)
{
    struct expr_list all = {.set = s}, exponent = {.set = s};
    expr_push(&all, expr_maybe(s, expr_text(s, "-")));
    expr_push(&all,
              expr_either(s, expr_text(s, "0"),
                          expr_pair(s, expr_byte(s, '1', '9'), schema_json_digits(s, 0, 14))));
    if (!whole) {
        expr_push(&all,
                  expr_maybe(s, expr_pair(s, expr_text(s, "."), schema_json_digits(s, 1, 15))));
        expr_push(&exponent, expr_either(s, expr_text(s, "e"), expr_text(s, "E")));
        expr_push(&exponent, expr_maybe(s, expr_either(s, expr_text(s, "+"), expr_text(s, "-"))));
        expr_push(&exponent, schema_json_digits(s, 1, 2));
        expr_push(&all, expr_maybe(s, expr_seq(&exponent)));
    }
    return expr_seq(&all);
}

static uint32_t make_string(struct schema_reader *r)
{
    struct expr_set *s = r->set;
    struct expr_list all = {.set = s};
    expr_push(&all, expr_text(s, "\""));
    expr_push(&all, expr_repeat(s, make_char(s, r->python), 0, EXPR_MANY));
    expr_push(&all, expr_text(s, "\""));
    return expr_seq(&all);
}

uint32_t json_comma(struct schema_reader *r)
{
    if (r->comma)
        return expr_text(r->set, r->comma);
    return expr_pair(r->set, expr_text(r->set, ","), json_call(r, RULE_WS));
}

uint32_t json_colon(struct schema_reader *r)
{
    if (r->colon)
        return expr_text(r->set, r->colon);
    return expr_pair(r->set, expr_text(r->set, ":"), expr_maybe(r->set, expr_text(r->set, " ")));
}

uint32_t json_between(struct schema_reader *r, const char *open, uint32_t inner, const char *close)
{
    struct expr_set *s = r->set;
    struct expr_list all = {.set = s};
    const struct expr *e = expr_ok(s) ? &s->node[inner] : NULL;
    bool maybe = e && e->kind == EXPR_KIND_REPEAT && e->b == 0 && e->c == 1;
    uint32_t what = maybe ? e->a : inner; /* the node moves when more are made */
    uint32_t filled = expr_pair(s, what, json_call(r, RULE_WS));

    expr_push(&all, expr_text(s, open));
    expr_push(&all, json_call(r, RULE_WS));
    if (inner != EXPR_EMPTY)
        expr_push(&all, maybe ? expr_maybe(s, filled) : filled);
    expr_push(&all, expr_text(s, close));
    return expr_seq(&all);
}

/* open ws (one (, ws one)* ws)? close */
static uint32_t make_list(struct schema_reader *r, const char *open, uint32_t one,
                          const char *close)
{
    struct expr_set *s = r->set;
    uint32_t more = expr_repeat(s, expr_pair(s, json_comma(r), one), 0, EXPR_MANY);
    return json_between(r, open, expr_maybe(s, expr_pair(s, one, more)), close);
}

uint32_t json_word(struct schema_reader *r, const char *word, const char *python)
{
    uint32_t e = expr_text(r->set, word);
    return r->python ? expr_either(r->set, e, expr_text(r->set, python)) : e;
}

static uint32_t make_pair(struct schema_reader *r)
{
    struct expr_list pair = {.set = r->set};
    expr_push(&pair, json_call(r, RULE_STRING));
    expr_push(&pair, json_colon(r));
    expr_push(&pair, json_call(r, RULE_VALUE));
    return expr_seq(&pair);
}

static uint32_t make_value(struct schema_reader *r)
{
    struct expr_list all = {.set = r->set};
    expr_push(&all, json_call(r, RULE_STRING));
    expr_push(&all, json_call(r, RULE_NUMBER));
    expr_push(&all, json_call(r, RULE_OBJECT));
    expr_push(&all, json_call(r, RULE_ARRAY));
    expr_push(&all, json_word(r, "true", "True"));
    expr_push(&all, json_word(r, "false", "False"));
    expr_push(&all, json_word(r, "null", "None"));
    return expr_alt(&all);
}

static uint32_t schema_json_make(struct schema_reader *r, enum json_rule which)
{
    switch (which) {
    case RULE_WS: return r->comma ? EXPR_EMPTY : make_ws(r->set);
    case RULE_CHAR: return make_char(r->set, r->python);
    case RULE_STRING: return make_string(r);
    case RULE_NUMBER: return make_number(r->set, false);
    case RULE_INTEGER: return make_number(r->set, true);
    case RULE_VALUE: return make_value(r);
    case RULE_OBJECT: return make_list(r, "{", make_pair(r), "}");
    case RULE_ARRAY: return make_list(r, "[", json_call(r, RULE_VALUE), "]");
    case RULE_RULES: break;
    }
    return EXPR_NEVER;
}

uint32_t json_call(struct schema_reader *r, enum json_rule which)
{
    static const char *const names[] = {"white space", "character", "string", "number",
                                        "integer",     "value",     "object", "array"};
    if (!r->made[which]) {
        r->made[which] = true; /* first, since values contain values */
        r->rule[which] = expr_rule_new(r->set, names[which]);
        expr_rule_set(r->set, r->rule[which], EXPR_NEVER);
        uint32_t body = schema_json_make(r, which);
        expr_rule_set(r->set, r->rule[which], body);
    }
    return expr_call(r->set, r->rule[which]);
}

uint32_t json_as_call(struct schema_reader *r, uint32_t expr, const char *name)
{
    if (!expr_ok(r->set) || r->set->node[expr].kind == EXPR_KIND_CALL)
        return expr;
    uint32_t rule = expr_rule_new(r->set, name);
    expr_rule_set(r->set, rule, expr);
    return expr_call(r->set, rule);
}

int json_literal(struct schema_reader *r, const json_t *v, uint32_t *ret_expr)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (!text)
        return -ENOMEM;
    int code = 0;
    if (r->python && strstr(text, "\\u"))
        code = schema_refuse(r, NULL, "a value with control characters is not offered here");
    *ret_expr = expr_text(r->set, text);
    free(text);
    return code;
}

int schema_read_any(struct expr_set *set, uint32_t *ret_rule)
{
    struct schema_reader r = {.set = set};
    uint32_t call = json_call(&r, RULE_OBJECT);
    *ret_rule = expr_rule_new(set, "root");
    expr_rule_set(set, *ret_rule, call);
    return 0;
}
