/*
 * Schemas said with fewer keywords. OpenAPI's nullable and the lists of items that draft 7 has
 * become what today's words for them are. not, if/then/else, dependentRequired and dependentSchemas
 * become anyOf, allOf, bounds and properties that are forbidden or required, by de Morgan's rules.
 * What is left of `not` is {"enum": values}: none of them. What has no such form is refused.
 */
#include <errno.h>
#include <string.h>

#include "server/grammar/schema_inside.h"

#define NEGATION_DEPTH 12u
#define PARTS_MOST     200u

static const char *const rewritten[] = {"not",  "if",  "dependentRequired", "dependentSchemas",
                                        "then", "else"};
#define REWRITTEN (sizeof(rewritten) / sizeof(rewritten[0]))

/* A `not` that the readers understand. */
static bool is_plain_not(const json_t *v)
{
    return json_is_object(v) && json_object_size(v) == 1 &&
           json_is_array(json_object_get(v, "enum"));
}

/* Words of other drafts, see say_anew(). */
static bool is_old(const json_t *schema)
{
    return json_object_get(schema, "nullable") || json_object_get(schema, "additionalItems") ||
           json_is_array(json_object_get(schema, "items"));
}

bool schema_is_plain(const json_t *schema)
{
    if (is_old(schema))
        return false;
    for (size_t i = 0; i < REWRITTEN; i++) {
        const json_t *v = json_object_get(schema, rewritten[i]);
        if (v && !(i == 0 && is_plain_not(v)))
            return false;
    }
    return true;
}

static json_t *ref_to(const json_t *v)
{
    return json_incref((json_t *)(uintptr_t)v);
}

/* Appends and takes over v. */
static int schema_plain_add(json_t *list, json_t *v)
{
    return v && json_array_append_new(list, v) == 0 ? 0 : -ENOMEM;
}

/* ---- not ---- */

static int negate(struct schema_reader *r, const json_t *schema, uint32_t depth,
                  json_t **ret_schema);

static json_t *other_types(const json_t *type)
{
    static const char *const names[] = {"null", "boolean", "string", "array", "object"};
    json_t *out = json_array();
    bool whole = false, number = false;

    for (size_t k = 0; k < (json_is_array(type) ? json_array_size(type) : 1); k++) {
        const char *s = json_string_value(json_is_array(type) ? json_array_get(type, k) : type);
        whole |= s && strcmp(s, "integer") == 0;
        number |= s && strcmp(s, "number") == 0;
    }
    for (size_t i = 0; out && i < sizeof(names) / sizeof(names[0]); i++) {
        bool named = false;
        for (size_t k = 0; k < (json_is_array(type) ? json_array_size(type) : 1); k++) {
            const char *s = json_string_value(json_is_array(type) ? json_array_get(type, k) : type);
            named |= s && strcmp(s, names[i]) == 0;
        }
        if (!named && schema_plain_add(out, json_string(names[i])) < 0)
            break;
    }
    /* Numbers that are not whole cannot be told: they are left out. */
    if (out && !whole && !number)
        (void)schema_plain_add(out, json_string("number"));
    return out;
}

static int negate_properties(struct schema_reader *r, const json_t *properties, uint32_t depth,
                             json_t *out)
{
    json_t *all = (json_t *)(uintptr_t)properties;
    int code = 0;

    for (void *at = json_object_iter(all); at && code == 0; at = json_object_iter_next(all, at)) {
        const char *name = json_object_iter_key(at);
        json_t *inner = NULL;
        size_t was = schema_enter(r, "properties", name);
        code = negate(r, json_object_iter_value(at), depth + 1, &inner);
        schema_leave(r, was);
        if (code == 0 && !json_is_false(inner))
            code = schema_plain_add(out, json_pack("{s:s,s:[s],s:{s:O}}", "type", "object",
                                                   "required", name, "properties", name, inner));
        json_decref(inner);
    }
    return code;
}

/* All of a list negated. */
static int negate_each(struct schema_reader *r, const char *keyword, const json_t *list,
                       uint32_t depth, json_t *out)
{
    int code = 0;

    for (size_t i = 0; code == 0 && i < json_array_size(list); i++) {
        json_t *inner = NULL;
        size_t was = schema_enter(r, keyword, NULL);
        code = negate(r, json_array_get(list, i), depth + 1, &inner);
        schema_leave(r, was);
        if (code == 0)
            code = schema_plain_add(out, inner);
    }
    return code;
}

static int negate_any(struct schema_reader *r, const char *keyword, const json_t *list,
                      uint32_t depth, json_t *out)
{
    for (size_t i = 0; strcmp(keyword, "oneOf") == 0 && i < json_array_size(list); i++)
        for (size_t k = 0; k < i; k++)
            if (!schema_apart(r, json_array_get(list, k), json_array_get(list, i), 0))
                return schema_refuse(r, keyword,
                                     "below `not` and `if` only schemas that cannot both be valid "
                                     "are offered");
    json_t *all = json_array();
    int code = all ? negate_each(r, keyword, list, depth, all) : -ENOMEM;
    if (code == 0)
        code = schema_plain_add(out, json_pack("{s:O}", "allOf", all));
    json_decref(all);
    return code;
}

/* A bound that the opposite one takes the place of; NULL when there is none of the name. */
static json_t *negate_bound(const char *keyword, const json_t *v)
{
    static const struct {
        const char *name, *type, *opposite;
        int step; /* to the next count */
    } bounds[] = {
        {"minimum", "number", "exclusiveMaximum", 0},
        {"maximum", "number", "exclusiveMinimum", 0},
        {"exclusiveMinimum", "number", "maximum", 0},
        {"exclusiveMaximum", "number", "minimum", 0},
        {"minLength", "string", "maxLength", -1},
        {"maxLength", "string", "minLength", 1},
        {"minItems", "array", "maxItems", -1},
        {"maxItems", "array", "minItems", 1},
        {"minProperties", "object", "maxProperties", -1},
        {"maxProperties", "object", "minProperties", 1},
    };
    for (size_t i = 0; json_is_number(v) && i < sizeof(bounds) / sizeof(bounds[0]); i++) {
        if (strcmp(bounds[i].name, keyword) != 0)
            continue;
        if (bounds[i].step == 0)
            return json_pack("{s:s,s:O}", "type", bounds[i].type, bounds[i].opposite, v);
        double n = json_number_value(v) + bounds[i].step;
        if (n < 0)
            return json_false();
        return json_pack("{s:s,s:f}", "type", bounds[i].type, bounds[i].opposite, n);
    }
    return NULL;
}

/* Adds the schemas one of which must hold when the keyword does not. */
static int negate_keyword(struct schema_reader *r, const char *keyword, const json_t *v,
                          uint32_t depth, json_t *out)
{
    json_t *bound = negate_bound(keyword, v), *inner = NULL;
    int code = 0;

    if (bound)
        return schema_plain_add(out, bound);
    if (schema_is_annotation(keyword))
        return 0;
    if (strcmp(keyword, "type") == 0)
        return schema_plain_add(out, json_pack("{s:o}", "type", other_types(v)));
    if (strcmp(keyword, "enum") == 0 && json_is_array(v))
        return schema_plain_add(out, json_pack("{s:{s:O}}", "not", "enum", v));
    if (strcmp(keyword, "const") == 0)
        return schema_plain_add(out, json_pack("{s:{s:[O]}}", "not", "enum", v));
    if (strcmp(keyword, "not") == 0)
        return schema_plain_add(out, ref_to(v));
    if (strcmp(keyword, "allOf") == 0)
        return negate_each(r, keyword, v, depth, out);
    if (strcmp(keyword, "anyOf") == 0 || strcmp(keyword, "oneOf") == 0)
        return negate_any(r, keyword, v, depth, out);
    if (strcmp(keyword, "properties") == 0)
        return negate_properties(r, v, depth, out);
    if (strcmp(keyword, "$ref") == 0) {
        const json_t *target = schema_find(r, json_is_string(v) ? json_string_value(v) : "");
        code = target ? negate(r, target, depth + 1, &inner) : -EBADMSG;
        return code < 0 ? code : schema_plain_add(out, inner);
    }
    if (strcmp(keyword, "required") != 0)
        return schema_refuse(r, keyword, "`%.40s` is not offered below `not` and `if`", keyword);
    for (size_t i = 0; code == 0 && i < json_array_size(v); i++) {
        const char *name = json_string_value(json_array_get(v, i));
        code = name ? schema_plain_add(
                          out, json_pack("{s:s,s:{s:b}}", "type", "object", "properties", name, 0))
                    : schema_refuse(r, keyword, "`required` must be a list of names");
    }
    return code;
}

static int negate_object(struct schema_reader *r, const json_t *schema, uint32_t depth,
                         json_t **ret_schema)
{
    json_t *plain = NULL, *out = json_array();
    int code = out ? schema_plain(r, schema, &plain) : -ENOMEM;

    for (void *at = code == 0 ? json_object_iter(plain) : NULL; at && code == 0;
         at = json_object_iter_next(plain, at))
        code = negate_keyword(r, json_object_iter_key(at), json_object_iter_value(at), depth, out);
    if (code == 0 && json_array_size(out) > PARTS_MOST)
        code = schema_refuse(r, NULL, "it says too much for `not` or `if`");
    if (code == 0) {
        size_t n = json_array_size(out);
        *ret_schema = n == 0   ? json_false()
                      : n == 1 ? ref_to(json_array_get(out, 0))
                               : json_pack("{s:O}", "anyOf", out);
        code = *ret_schema ? 0 : -ENOMEM;
    }
    json_decref(plain);
    json_decref(out);
    return code;
}

static int negate(struct schema_reader *r, const json_t *schema, uint32_t depth,
                  json_t **ret_schema)
{
    if (depth > NEGATION_DEPTH || r->within >= SCHEMA_WITHIN || !schema_pay(r, 16))
        return schema_refuse(r, NULL, "it nests too deep below `not` or `if`");
    if (json_is_boolean(schema)) {
        *ret_schema = json_boolean(json_is_false(schema));
        return 0;
    }
    if (!json_is_object(schema))
        return schema_refuse(r, NULL, "a schema must be an object, true or false");
    r->within++;
    int code = negate_object(r, schema, depth, ret_schema);
    r->within--;
    return code;
}

/* ---- the others ---- */

static int add_not(struct schema_reader *r, const json_t *v, json_t *parts)
{
    json_t *part = NULL;

    if (is_plain_not(v))
        return schema_plain_add(parts, json_pack("{s:O}", "not", v));
    size_t was = schema_enter(r, "not", NULL);
    int code = negate(r, v, 0, &part);
    schema_leave(r, was);
    return code < 0 ? code : schema_plain_add(parts, part);
}

/* What is moved is looked at where it stands, so that it is refused with its own pointer. */
static int look_at(struct schema_reader *r, const char *keyword, const json_t *schema)
{
    size_t was = schema_enter(r, keyword, NULL);
    int code = json_is_object(schema) ? schema_check(r, schema) : 0;
    schema_leave(r, was);
    return code;
}

/* (if and then) or (not if and else) */
static int add_if(struct schema_reader *r, const json_t *schema, json_t *parts)
{
    const json_t *cond = json_object_get(schema, "if");
    json_t *then = json_object_get(schema, "then"), *other = json_object_get(schema, "else");
    json_t *negated = NULL, *yes = json_true();

    if (!then && !other)
        return 0;
    if (look_at(r, "if", cond) < 0 || look_at(r, "then", then) < 0 || look_at(r, "else", other) < 0)
        return -EBADMSG;
    size_t was = schema_enter(r, "if", NULL);
    int code = negate(r, cond, 0, &negated);
    schema_leave(r, was);
    if (code < 0)
        return code;
    json_t *part = json_pack("{s:[{s:[O,O]},{s:[O,O]}]}", "anyOf", "allOf", cond, then ? then : yes,
                             "allOf", negated, other ? other : yes);
    json_decref(negated);
    return schema_plain_add(parts, part);
}

/* Without the property, or with what it depends on. */
static int add_dependent(struct schema_reader *r, const json_t *schema, const char *keyword,
                         json_t *parts)
{
    json_t *all = json_object_get(schema, keyword);
    int code = 0;

    if (all && !json_is_object(all))
        return schema_refuse(r, keyword, "`%s` must be an object", keyword);
    for (void *at = json_object_iter(all); at && code == 0 && schema_pay(r, 8);
         at = json_object_iter_next(all, at)) {
        const char *name = json_object_iter_key(at);
        json_t *v = json_object_iter_value(at);
        if (strcmp(keyword, "dependentSchemas") == 0)
            code = schema_plain_add(parts,
                                    json_pack("{s:[{s:{s:b}},{s:[{s:[s]},O]}]}", "anyOf",
                                              "properties", name, 0, "allOf", "required", name, v));
        else if (json_is_array(v))
            code = schema_plain_add(parts, json_pack("{s:[{s:{s:b}},{s:[{s:[s]},{s:O}]}]}", "anyOf",
                                                     "properties", name, 0, "allOf", "required",
                                                     name, "required", v));
        else
            code = schema_refuse(r, keyword, "`%s` must have lists of names", keyword);
    }
    if (code == 0 && json_array_size(parts) > NEGATION_DEPTH)
        code = schema_refuse(r, keyword, "more than %u are not offered", NEGATION_DEPTH);
    return code;
}

/* A list of types, or of values, and null. */
static int add_null(json_t *schema, const char *keyword, json_t *null)
{
    json_t *had = json_object_get(schema, keyword);
    json_t *list = json_is_array(had) ? json_copy(had) : had ? json_pack("[O]", had) : NULL;
    int code = !had ? 0 : !list ? -ENOMEM : json_array_append(list, null) < 0 ? -ENOMEM : 0;
    if (code == 0 && list && json_object_set(schema, keyword, list) < 0)
        code = -ENOMEM;
    json_decref(list);
    return code;
}

/* {"nullable": true} of OpenAPI 3.0: null is valid too. It is read beside a type alone, as OpenAPI
 * 3.0.3 says. */
static int read_nullable(struct schema_reader *r, json_t *schema)
{
    const json_t *v = json_object_get(schema, "nullable");
    bool yes = json_is_true(v);
    if (v && !json_is_boolean(v))
        return schema_refuse(r, "nullable", "`nullable` must be true or false");
    (void)json_object_del(schema, "nullable"); /* what is not there is not deleted */
    if (!yes || !json_object_get(schema, "type"))
        return 0;
    json_t *word = json_string("null");
    int code = word ? add_null(schema, "type", word) : -ENOMEM;
    json_decref(word);
    return code == 0 ? add_null(schema, "enum", json_null()) : code;
}

/* Draft 7's {"items": [...], "additionalItems": x} is prefixItems and items. Beside one schema for
 * all items additionalItems says nothing. */
static int read_tuple(json_t *schema)
{
    json_t *items = json_object_get(schema, "items");
    json_t *more = json_object_get(schema, "additionalItems");
    int r = 0;
    if (json_is_array(items)) {
        r = json_object_set(schema, "prefixItems", items);
        if (r == 0 && more)
            r = json_object_set(schema, "items", more);
        else if (r == 0)
            r = json_object_del(schema, "items");
    }
    (void)json_object_del(schema, "additionalItems");
    return r < 0 ? -ENOMEM : 0;
}

static int say_anew(struct schema_reader *r, const json_t *schema, json_t **ret_schema)
{
    json_t *out = json_copy((json_t *)(uintptr_t)schema);
    int code = out ? read_tuple(out) : -ENOMEM;
    if (code == 0)
        code = read_nullable(r, out);
    if (code < 0)
        json_decref(out);
    else
        *ret_schema = out;
    return code;
}

int schema_plain(struct schema_reader *r, const json_t *schema, json_t **ret_schema)
{
    if (json_is_object(schema) && is_old(schema)) {
        json_t *anew;
        int code = say_anew(r, schema, &anew);
        if (code == 0) {
            code = schema_plain(r, anew, ret_schema);
            json_decref(anew);
        }
        return code;
    }
    if (!json_is_object(schema) || schema_is_plain(schema)) {
        *ret_schema = ref_to(schema);
        return 0;
    }
    (void)schema_pay(r, 8 + json_object_size(schema));
    json_t *out = json_copy((json_t *)(uintptr_t)schema), *parts = json_array();
    const json_t *not = json_object_get(schema, "not"), *all = json_object_get(schema, "allOf");
    int code = out && parts ? 0 : -ENOMEM;

    for (size_t i = 0; code == 0 && i < json_array_size(all); i++)
        code = schema_plain_add(parts, ref_to(json_array_get(all, i)));
    if (code == 0 && not )
        code = add_not(r, not, parts);
    if (code == 0 && json_object_get(schema, "if"))
        code = add_if(r, schema, parts);
    if (code == 0)
        code = add_dependent(r, schema, "dependentRequired", parts);
    if (code == 0)
        code = add_dependent(r, schema, "dependentSchemas", parts);
    for (size_t i = 0; code == 0 && i < REWRITTEN; i++)
        (void)json_object_del(out, rewritten[i]); /* what is not there is not deleted */
    if (code == 0 && json_array_size(parts) > 0 && json_object_set(out, "allOf", parts) < 0)
        code = -ENOMEM;
    json_decref(parts);
    if (code < 0)
        json_decref(out);
    else
        *ret_schema = out;
    return code;
}
