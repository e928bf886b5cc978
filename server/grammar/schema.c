/*
 * Reads a JSON schema: rules for references, combinations, and which type's reader does the rest
 * (schema.h). Called by compile.c, and by those readers for what lies within.
 */
#include "server/grammar/schema.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "server/grammar/schema_inside.h"

#define ENUM_MOST 5000u

int schema_root(struct schema_reader *r, const json_t *root)
{
    r->root = root;
    r->refs = json_object();
    r->flat = json_object();
    return r->refs && r->flat ? 0 : -ENOMEM;
}

void schema_root_done(struct schema_reader *r)
{
    json_decref(r->refs);
    json_decref(r->flat);
    r->refs = r->flat = NULL;
}

/* The rule of a reference, read when it is met first. */
static int schema_ref(struct schema_reader *r, const char *ref, uint32_t *ret_expr)
{
    const json_t *known = json_object_get(r->refs, ref);
    uint32_t e = EXPR_NEVER;

    if (known) {
        *ret_expr = expr_call(r->set, (uint32_t)json_integer_value(known));
        return 0;
    }
    const json_t *target = schema_find(r, ref);
    if (!target)
        return -EBADMSG;
    uint32_t rule = expr_rule_new(r->set, ref);
    expr_rule_set(r->set, rule, EXPR_NEVER);
    if (json_object_set_new(r->refs, ref, json_integer(rule)) < 0)
        return -ENOMEM;
    char was[sizeof(r->path)];
    memcpy(was, r->path, sizeof(was));
    (void)snprintf(r->path, sizeof(r->path), "%s", ref + 1);
    int code = schema_value(r, target, &e);
    memcpy(r->path, was, sizeof(was));
    expr_rule_set(r->set, rule, e);
    *ret_expr = expr_call(r->set, rule);
    return code;
}

/* ---- the forms of a schema ---- */

/* enum and const; bounds and lengths beside them choose among the values. */
static int read_values(struct schema_reader *r, const json_t *schema, uint32_t *ret_expr)
{
    static const char *const beside[] = {"pattern",       "format",
                                         "multipleOf",    "items",
                                         "prefixItems",   "properties",
                                         "required",      "additionalProperties",
                                         "minItems",      "maxItems",
                                         "uniqueItems",   "minProperties",
                                         "maxProperties", "patternProperties",
                                         "propertyNames"};
    const json_t *list = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    struct expr_list alt = {.set = r->set};
    unsigned types;
    uint32_t e = EXPR_NEVER, count = 0;

    for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++)
        if (json_object_get(schema, beside[i]))
            return schema_refuse(r, beside[i], "`%s` beside `enum` or `const` is not offered",
                                 beside[i]);
    if (list &&
        (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > ENUM_MOST))
        return schema_refuse(r, "enum", "`enum` must be a list of 1 to %u values", ENUM_MOST);
    if (schema_types(r, schema, &types) < 0)
        return -EBADMSG;
    types = json_object_get(schema, "type") ? types : TYPE_ALL;
    for (size_t i = 0; i < (list ? json_array_size(list) : 1); i++) {
        const json_t *v = list ? json_array_get(list, i) : one;
        if (!schema_allows(r, schema, types, v) || (list && one && !schema_equal(r, v, one)))
            continue;
        int code = json_literal(r, v, &e);
        if (code < 0)
            return code;
        expr_push(&alt, e);
        count++;
    }
    *ret_expr = expr_alt(&alt);
    return count ? 0
                 : schema_contradicts(r, list ? "enum" : "const", "no value of it is valid here");
}

/* Whether the schema says anything but these two keywords and annotations. */
static bool says_more(const json_t *schema, const char *keyword)
{
    json_t *s = (json_t *)(uintptr_t)schema;
    for (void *at = json_object_iter(s); at; at = json_object_iter_next(s, at)) {
        const char *name = json_object_iter_key(at);
        if (strcmp(name, keyword) != 0 && !schema_is_annotation(name))
            return true;
    }
    return false;
}

/* A branch of anyOf or oneOf together with what stands beside it. */
static int schema_branch(struct schema_reader *r, const json_t *beside, const json_t *branch,
                         uint32_t *ret_expr)
{
    json_t *merged;
    if (!beside)
        return schema_rule(r, branch, ret_expr);
    int code = schema_merge(r, beside, branch, &merged);
    if (code < 0)
        return code;
    code = schema_rule(r, merged, ret_expr);
    json_decref(merged);
    return code;
}

/* Whether no two of the list can both be valid; if not, which may. */
static bool all_apart(struct schema_reader *r, const json_t *list, size_t *ret_first,
                      size_t *ret_second)
{
    for (*ret_second = 0; *ret_second < json_array_size(list); ++*ret_second)
        for (*ret_first = 0; *ret_first < *ret_second; ++*ret_first)
            if (!schema_apart(r, json_array_get(list, *ret_first),
                              json_array_get(list, *ret_second), 0))
                return false;
    return true;
}

/* The schemas of oneOf, each with the property required that tells them apart by a discriminator.
 * Where it has a default it is not required by itself, and an object without it may be valid under
 * all of them: such ones are left out. A new list, or NULL when that is no way. */
static json_t *require_tag(struct schema_reader *r, const json_t *schema, const json_t *list)
{
    const json_t *by = json_object_get(schema, "discriminator");
    const char *name = json_string_value(json_object_get(by, "propertyName"));
    json_t *tag = name ? json_pack("{s:s,s:[s]}", "type", "object", "required", name) : NULL;
    json_t *out = tag ? json_array() : NULL;
    struct schema_reader quiet = *r;
    size_t a, b;
    quiet.fault = NULL;
    for (size_t i = 0; out && i < json_array_size(list); i++) {
        json_t *one = NULL;
        if (schema_merge(&quiet, json_array_get(list, i), tag, &one) < 0 ||
            json_array_append_new(out, one) < 0) {
            json_decref(out);
            out = NULL;
        }
    }
    json_decref(tag);
    if (out && all_apart(r, out, &a, &b))
        return out;
    json_decref(out);
    return NULL;
}

static int schema_alternatives(struct schema_reader *r, const json_t *schema, const char *keyword,
                               const json_t *list, uint32_t *ret_expr);

static int read_one_of(struct schema_reader *r, const json_t *schema, uint32_t *ret_expr)
{
    const json_t *list = json_object_get(schema, "oneOf");
    size_t a, b;
    if (all_apart(r, list, &a, &b))
        return schema_alternatives(r, schema, "oneOf", list, ret_expr);
    json_t *tagged = require_tag(r, schema, list);
    if (!tagged)
        return schema_refuse(r, "oneOf",
                             "schemas %zu and %zu may both be valid for one value; use anyOf, or "
                             "tell them apart by a type, a const or a required property",
                             a, b);
    int code = schema_alternatives(r, schema, "oneOf", tagged, ret_expr);
    json_decref(tagged);
    return code;
}

static int read_any_of(struct schema_reader *r, const json_t *schema, const char *keyword,
                       uint32_t *ret_expr)
{
    const json_t *list = json_object_get(schema, keyword);
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n == 0 || n > 500)
        return schema_refuse(r, keyword, "`%s` must be a list of 1 to 500 schemas", keyword);
    return strcmp(keyword, "oneOf") == 0 ? read_one_of(r, schema, ret_expr)
                                         : schema_alternatives(r, schema, keyword, list, ret_expr);
}

static size_t enter_index(struct schema_reader *r, const char *keyword, size_t index)
{
    char number[24];
    (void)snprintf(number, sizeof(number), "%zu", index);
    return schema_enter(r, keyword, number);
}

static int schema_alternatives(struct schema_reader *r, const json_t *schema, const char *keyword,
                               const json_t *list, uint32_t *ret_expr)
{
    struct expr_list alt = {.set = r->set};
    size_t n = json_array_size(list);
    json_t *beside = NULL;
    int code = 0;

    if (says_more(schema, keyword)) {
        (void)schema_pay(r, json_object_size(schema));
        beside = json_copy((json_t *)(uintptr_t)schema);
        if (!beside)
            return -ENOMEM;
        (void)json_object_del(beside, keyword);
    }
    size_t nevers = 0;
    for (size_t i = 0; code == 0 && i < n; i++) {
        uint32_t e = EXPR_NEVER;
        size_t was = enter_index(r, keyword, i);
        uint32_t depth = r->depth;
        code = schema_branch(r, beside, json_array_get(list, i), &e);
        if (schema_is_never(r, code) && ++nevers < n) {
            code = 0;
            e = EXPR_NEVER;
            r->depth = depth;
        }
        expr_push(&alt, e);
        schema_leave(r, was);
    }
    json_decref(beside);
    *ret_expr = expr_alt(&alt);
    if (nevers == n)
        r->never = true; /* to be told of all of it */
    return code;
}

int schema_type(struct schema_reader *r, const json_t *schema, unsigned type, uint32_t *ret_expr)
{
    switch ((enum json_types)type) {
    case TYPE_NULL: *ret_expr = json_word(r, "null", "None"); return 0;
    case TYPE_BOOLEAN:
        *ret_expr =
            expr_either(r->set, json_word(r, "true", "True"), json_word(r, "false", "False"));
        return 0;
    case TYPE_INTEGER: return schema_number(r, schema, true, ret_expr);
    case TYPE_NUMBER: return schema_number(r, schema, false, ret_expr);
    case TYPE_STRING: return schema_string(r, schema, ret_expr);
    case TYPE_ARRAY: return schema_array(r, schema, ret_expr);
    case TYPE_OBJECT: return schema_object(r, schema, ret_expr);
    case TYPE_ALL: break;
    }
    *ret_expr = json_call(r, RULE_VALUE);
    return 0;
}

static int read_types(struct schema_reader *r, const json_t *schema, uint32_t *ret_expr)
{
    struct expr_list alt = {.set = r->set};
    unsigned types;
    int code = schema_types(r, schema, &types);

    if (code < 0)
        return code;
    const bool except = json_object_get(schema, "not") != NULL;
    if (types == TYPE_ALL && !except)
        return schema_type(r, schema, TYPE_ALL, ret_expr);
    if (types & TYPE_NUMBER)
        types &= ~(unsigned)TYPE_INTEGER;
    for (unsigned bit = 1; code == 0 && bit < TYPE_ALL; bit <<= 1) {
        uint32_t e = EXPR_NEVER;
        if (!(types & bit))
            continue;
        code = except ? schema_except(r, schema, bit, &e) : schema_type(r, schema, bit, &e);
        if (except && schema_is_never(r, code))
            code = 0;
        expr_push(&alt, e);
    }
    *ret_expr = expr_alt(&alt);
    return code == 0 && except && *ret_expr == EXPR_NEVER
               ? schema_contradicts(r, "not", "no value is left")
               : code;
}

static int read_object(struct schema_reader *r, const json_t *schema, uint32_t *ret_expr)
{
    const json_t *ref = json_object_get(schema, "$ref");
    json_t *merged;

    if (schema_check(r, schema) < 0)
        return -EBADMSG;
    if (!schema_is_plain(schema)) {
        int code = schema_plain(r, schema, &merged);
        if (code == 0) {
            code = schema_value(r, merged, ret_expr);
            json_decref(merged);
        }
        return code;
    }
    if (ref && !says_more(schema, "$ref"))
        return json_is_string(ref) ? schema_ref(r, json_string_value(ref), ret_expr)
                                   : schema_refuse(r, "$ref", "`$ref` must be a string");
    if (ref || json_object_get(schema, "allOf")) {
        int code = schema_merge(r, schema, json_true(), &merged);
        if (code == 0) {
            code = schema_value(r, merged, ret_expr);
            json_decref(merged);
        }
        return code;
    }
    if (json_object_get(schema, "anyOf") && json_object_get(schema, "oneOf"))
        return schema_refuse(r, "oneOf", "`oneOf` beside `anyOf` is not offered");
    if (json_object_get(schema, "anyOf"))
        return read_any_of(r, schema, "anyOf", ret_expr);
    if (json_object_get(schema, "oneOf"))
        return read_any_of(r, schema, "oneOf", ret_expr);
    if (json_object_get(schema, "enum") || json_object_get(schema, "const"))
        return read_values(r, schema, ret_expr);
    return read_types(r, schema, ret_expr);
}

int schema_value(struct schema_reader *r, const json_t *schema, uint32_t *ret_expr)
{
    *ret_expr = EXPR_NEVER;
    if (json_is_false(schema))
        return schema_contradicts(r, NULL, "no value is valid under `false`");
    if (json_is_true(schema)) {
        *ret_expr = json_call(r, RULE_VALUE);
        return 0;
    }
    if (!json_is_object(schema))
        return schema_refuse(r, NULL, "a schema must be an object, true or false");
    if (++r->depth > SCHEMA_NESTING)
        return schema_refuse(r, NULL, "schemas nest deeper than %u", SCHEMA_NESTING);
    if (!schema_pay(r, 16) || !expr_ok(r->set)) {
        r->depth--;
        return 0; /* given up: the compiler of the set says so */
    }
    int code = read_object(r, schema, ret_expr);
    r->depth--;
    return code;
}

int schema_rule(struct schema_reader *r, const json_t *schema, uint32_t *ret_expr)
{
    uint32_t e;
    int code = schema_value(r, schema, &e);
    *ret_expr = code == 0 ? json_as_call(r, e, "value") : EXPR_NEVER;
    return code;
}

static bool is_separator(const char *text, char mark)
{
    size_t before = text ? strspn(text, " \t\n") : 0;
    return text && text[before] == mark &&
           text[before + 1 + strspn(text + before + 1, " \t\n")] == 0;
}

/* llguidance's word for how JSON is written, which guidance sends and reads answers by. */
static int read_spacing(struct schema_reader *r, const json_t *schema)
{
    const json_t *own = json_object_get(schema, "x-guidance");
    const json_t *pattern = json_object_get(own, "whitespace_pattern");
    const char *comma = json_string_value(json_object_get(own, "item_separator"));
    const char *colon = json_string_value(json_object_get(own, "key_separator"));

    if (pattern && !json_is_null(pattern))
        return schema_refuse(r, "x-guidance", "`whitespace_pattern` is not offered");
    if (!json_is_false(json_object_get(own, "whitespace_flexible")))
        return 0;
    if ((comma && !is_separator(comma, ',')) || (colon && !is_separator(colon, ':')))
        return schema_refuse(r, "x-guidance", "a separator is no comma or colon with white space");
    r->comma = comma ? comma : ",";
    r->colon = colon ? colon : ":";
    return 0;
}

int schema_read(struct expr_set *set, const char *text, size_t len, uint32_t *ret_rule,
                struct ek_fault *fault)
{
    struct schema_reader r = {.set = set, .fault = fault};
    json_error_t e;
    uint32_t body = EXPR_NEVER;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    int code;

    if (!root)
        return json_error_code(&e) == json_error_out_of_memory
                   ? -ENOMEM
                   : ek_fault_set(fault, "", "the schema is not valid JSON: %.150s", e.text);
    code = schema_root(&r, root);
    if (code == 0)
        code = read_spacing(&r, root);
    if (code == 0)
        code = schema_value(&r, root, &body);
    *ret_rule = expr_rule_new(set, "root");
    expr_rule_set(set, *ret_rule, body);
    schema_root_done(&r);
    json_decref(root);
    return code;
}
