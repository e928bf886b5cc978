/*
 * Two schemas that must both hold become one (schema_merge()), since an automaton is made of one;
 * and whether two can hold at once (schema_apart()), which tells the branches of a oneOf apart.
 * Called by the readers of schemas. Both look at the keywords only: what they cannot tell they
 * refuse, or answer with "perhaps".
 *
 * A schema is flattened first: what its $ref leads to and each part of its allOf are merged into
 * it, one level deep. Schemas below stay as they are, with their references, so that one which
 * contains itself does not go on for ever. What a name leads to is kept (r->flat), since many
 * references may lead to the same and each of these to many again.
 *
 * Merging goes keyword by keyword; one that only one side has is taken over. What both have is
 * joined by what it means (how_of()):
 *
 *   bounds       the stricter one
 *   types, enum  what both have; a const is an enum of one
 *   required     all of both
 *   schemas      an allOf of the two, merged when it is reached: { allOf: [a, b] }
 *   properties   those of both; one that the other side does not declare must be let in by its
 *                additionalProperties
 *   anyOf        each of one with each of the other
 *   anything else has to be equal, or is refused by its name: a form that allows more than was
 *                asked for would be worse
 *
 * Two schemas are apart when a value that both allow cannot exist for one reason that is seen at
 * once: no value of an enum fits, no type is in both, bounds do not meet, or a property that both
 * require is apart in them. Where no such reason is seen they may still be apart, and the caller
 * takes them for not. Each step is paid for (common/work.h).
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "server/grammar/schema_inside.h"
#include "server/text/utf8.h"

#define APART_DEPTH 6u
#define PAIRS_MOST  128u /* alternatives of two anyOf */

/* ---- values and bounds ---- */

unsigned schema_type_of(const json_t *v)
{
    if (json_is_string(v))
        return TYPE_STRING;
    if (json_is_object(v))
        return TYPE_OBJECT;
    if (json_is_array(v))
        return TYPE_ARRAY;
    if (json_is_boolean(v))
        return TYPE_BOOLEAN;
    if (json_is_null(v))
        return TYPE_NULL;
    double d = json_number_value(v);
    return json_is_integer(v) || d == floor(d) ? TYPE_INTEGER | TYPE_NUMBER : TYPE_NUMBER;
}

static double schema_merge_bound(const json_t *schema, const char *keyword, double missing)
{
    const json_t *v = json_object_get(schema, keyword);
    return json_is_number(v) ? json_number_value(v) : missing;
}

static size_t schema_merge_characters(const char *s)
{
    size_t n = 0;
    uint32_t cp;
    for (size_t left = strlen(s), size; left > 0; s += size, left -= size, n++)
        size = utf8_next(s, left, &cp);
    return n;
}

static bool equal_objects(const struct schema_reader *r, const json_t *a, const json_t *b)
{
    json_t *mine = (json_t *)(uintptr_t)a;

    if (json_object_size(a) != json_object_size(b))
        return false;
    for (void *at = json_object_iter(mine); at; at = json_object_iter_next(mine, at)) {
        const json_t *other = json_object_get(b, json_object_iter_key(at));
        if (!other || !schema_equal(r, json_object_iter_value(at), other))
            return false;
    }
    return true;
}

bool schema_equal(const struct schema_reader *r, const json_t *a, const json_t *b)
{
    if (!schema_pay(r, 1))
        return false;
    if (!json_is_array(a) || !json_is_array(b)) {
        if (json_is_string(a) && json_is_string(b))
            (void)schema_pay(r, json_string_length(a) / 64);
        if (json_is_object(a) && json_is_object(b))
            return a == b || equal_objects(r, a, b);
        return json_equal(a, b) != 0;
    }
    if (json_array_size(a) != json_array_size(b))
        return false;
    for (size_t i = 0; a != b && i < json_array_size(a); i++)
        if (!schema_equal(r, json_array_get(a, i), json_array_get(b, i)))
            return false;
    return true;
}

bool schema_same(const struct schema_reader *r, const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return schema_equal(r, a, b);
}

bool schema_allows(const struct schema_reader *r, const json_t *schema, unsigned types,
                   const json_t *v)
{
    if (!(types & schema_type_of(v)))
        return false;
    const json_t *except = json_object_get(json_object_get(schema, "not"), "enum");
    for (size_t i = 0; i < json_array_size(except); i++)
        if (schema_same(r, v, json_array_get(except, i)))
            return false;
    if (json_is_number(v)) {
        double d = json_number_value(v);
        return d >= schema_merge_bound(schema, "minimum", -INFINITY) &&
               d <= schema_merge_bound(schema, "maximum", INFINITY) &&
               d > schema_merge_bound(schema, "exclusiveMinimum", -INFINITY) &&
               d < schema_merge_bound(schema, "exclusiveMaximum", INFINITY);
    }
    if (json_is_string(v)) {
        double n = (double)schema_merge_characters(json_string_value(v));
        return n >= schema_merge_bound(schema, "minLength", 0) &&
               n <= schema_merge_bound(schema, "maxLength", INFINITY);
    }
    return true;
}

/* ---- merging ---- */

static int flatten(struct schema_reader *r, const json_t *schema, uint32_t depth,
                   json_t **ret_schema);

/* What a reference leads to. Kept, since many may lead to the same and each again to many: without
 * that ten references over twenty levels are a hundred quintillion ways. */
static int flatten_ref(struct schema_reader *r, const json_t *ref, uint32_t depth,
                       json_t **ret_schema)
{
    const char *name = json_string_value(ref);
    json_t *known = name ? json_object_get(r->flat, name) : NULL;

    if (known) {
        *ret_schema = json_incref(known);
        return schema_pay(r, 1 + strlen(name) / 8) ? 0 : -EBADMSG;
    }
    if (!name)
        return schema_refuse(r, "$ref", "`$ref` must be a string");
    const json_t *from = schema_find(r, name);
    int code = from ? flatten(r, from, depth, ret_schema) : -EBADMSG;
    if (code == 0 && json_object_set(r->flat, name, *ret_schema) < 0) {
        json_decref(*ret_schema);
        code = -ENOMEM;
    }
    return code;
}

static int flatten_object(struct schema_reader *r, const json_t *schema, uint32_t depth,
                          json_t **ret_schema)
{
    json_t *plain = NULL, *said = NULL, *merged;
    int code = schema_plain(r, schema, &said);

    if (code < 0)
        return code;
    const json_t *ref = json_object_get(said, "$ref"), *all = json_object_get(said, "allOf");
    plain = json_copy(said);
    if (!plain) {
        code = -ENOMEM;
        goto out;
    }
    (void)json_object_del(plain, "$ref"); /* what is not there is not deleted */
    (void)json_object_del(plain, "allOf");
    (void)json_object_del(plain, "$defs");
    (void)json_object_del(plain, "definitions");
    if (all && (!json_is_array(all) || json_array_size(all) == 0)) {
        code = schema_refuse(r, "allOf", "`allOf` must be a list of schemas");
        goto out;
    }
    for (size_t i = 0; i < json_array_size(all) + (ref != NULL); i++) {
        json_t *part;
        if (i < json_array_size(all))
            code = flatten(r, json_array_get(all, i), depth + 1, &part);
        else
            code = flatten_ref(r, ref, depth + 1, &part);
        if (code == 0) {
            code = schema_merge(r, plain, part, &merged);
            json_decref(part);
        }
        if (code < 0)
            goto out;
        json_decref(plain);
        plain = merged;
    }
    *ret_schema = plain;
    plain = NULL;
    code = 0;
out:
    json_decref(plain);
    json_decref(said);
    return code;
}

/* $ref and allOf resolved as far as one level goes: a new reference. */
static int flatten(struct schema_reader *r, const json_t *schema, uint32_t depth,
                   json_t **ret_schema)
{
    if (depth > SCHEMA_NESTING || r->within >= SCHEMA_WITHIN ||
        !schema_pay(r, 64 + 16 * json_object_size(schema)))
        return schema_refuse(r, NULL, "references and allOf nest too deep");
    if (!json_is_object(schema)) {
        *ret_schema = json_incref((json_t *)(uintptr_t)schema);
        return 0;
    }
    r->within++;
    int code = flatten_object(r, schema, depth, ret_schema);
    r->within--;
    return code;
}

static json_t *both(const json_t *a, const json_t *b)
{
    if (json_is_false(a) || json_is_false(b))
        return json_false();
    if (json_is_true(a) || json_is_true(b))
        return json_incref((json_t *)(uintptr_t)(json_is_true(a) ? b : a));
    if (a == b)
        return json_incref((json_t *)(uintptr_t)a);
    return json_pack("{s:[O,O]}", "allOf", a, b);
}

static json_t *merge_types(const json_t *a, const json_t *b)
{
    json_t *out = json_array();
    const json_t *lists[2] = {a, b};
    for (size_t i = 0; i < (json_is_array(a) ? json_array_size(a) : 1); i++) {
        const json_t *x = json_is_array(a) ? json_array_get(a, i) : a;
        for (size_t k = 0; k < (json_is_array(b) ? json_array_size(b) : 1); k++) {
            const json_t *y = json_is_array(lists[1]) ? json_array_get(b, k) : b;
            const char *s = json_string_value(x), *t = json_string_value(y);
            if (!s || !t)
                continue;
            bool whole = (strcmp(s, "integer") == 0 && strcmp(t, "number") == 0) ||
                         (strcmp(t, "integer") == 0 && strcmp(s, "number") == 0);
            if (whole)
                (void)json_array_append_new(out, json_string("integer"));
            else if (strcmp(s, t) == 0)
                (void)json_array_append_new(out, json_string(s));
        }
    }
    return out;
}

/* Of two lists of values (a constant is a list of one) those in both. */
static json_t *merge_values(const struct schema_reader *r, const json_t *a, const json_t *b)
{
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(a) && !ek_work_stopped(r->set->work); i++)
        for (size_t k = 0; k < json_array_size(b); k++)
            if (schema_equal(r, json_array_get(a, i), json_array_get(b, k)))
                (void)json_array_append(out, json_array_get(a, i));
    return out;
}

static json_t *merge_names(const struct schema_reader *r, const json_t *a, const json_t *b)
{
    json_t *out = json_copy((json_t *)(uintptr_t)a);
    for (size_t i = 0; i < json_array_size(b) && !ek_work_stopped(r->set->work); i++) {
        bool there = false;
        for (size_t k = 0; k < json_array_size(a); k++)
            there |= schema_equal(r, json_array_get(a, k), json_array_get(b, i));
        if (!there)
            (void)json_array_append(out, json_array_get(b, i));
    }
    return out;
}

/* Properties of both; what one side does not declare must be let in by its additionalProperties. */
static json_t *merge_properties(const json_t *a, const json_t *b)
{
    const json_t *from[2] = {json_object_get(a, "properties"), json_object_get(b, "properties")};
    const json_t *extra[2] = {json_object_get(a, "additionalProperties"),
                              json_object_get(b, "additionalProperties")};
    json_t *out = json_object();
    for (int side = 0; side < 2; side++) {
        json_t *mine = (json_t *)(uintptr_t)from[side];
        for (void *at = json_object_iter(mine); at; at = json_object_iter_next(mine, at)) {
            const char *name = json_object_iter_key(at);
            const json_t *v = json_object_iter_value(at);
            const json_t *other = json_object_get(from[!side], name);
            if (side == 1 && other)
                continue;
            json_t *joined = other          ? both(v, other)
                             : extra[!side] ? both(v, extra[!side])
                                            : json_incref((json_t *)(uintptr_t)v);
            if (json_is_false(extra[!side]) && !other) {
                json_decref(joined);
                joined = json_false();
            }
            (void)json_object_set_new(out, name, joined);
        }
    }
    return out;
}

/* Two `not`, each of which has an `enum`. */
static json_t *merge_except(const struct schema_reader *r, const json_t *a, const json_t *b)
{
    return json_pack("{s:o}", "enum",
                     merge_names(r, json_object_get(a, "enum"), json_object_get(b, "enum")));
}

/* One of the first and one of the second list. */
static json_t *merge_pairs(const json_t *a, const json_t *b)
{
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(a); i++)
        for (size_t k = 0; k < json_array_size(b); k++)
            (void)json_array_append_new(out, both(json_array_get(a, i), json_array_get(b, k)));
    return out;
}

enum how { LARGER, SMALLER, TYPES, VALUES, NAMES, SCHEMAS, EXCEPT, PAIRS, EQUAL };

static enum how how_of(const char *keyword)
{
    static const struct {
        const char *name;
        enum how how;
    } table[] = {{"minimum", LARGER},
                 {"exclusiveMinimum", LARGER},
                 {"minLength", LARGER},
                 {"minItems", LARGER},
                 {"minProperties", LARGER},
                 {"maximum", SMALLER},
                 {"exclusiveMaximum", SMALLER},
                 {"maxLength", SMALLER},
                 {"maxItems", SMALLER},
                 {"maxProperties", SMALLER},
                 {"type", TYPES},
                 {"enum", VALUES},
                 {"required", NAMES},
                 {"items", SCHEMAS},
                 {"additionalProperties", SCHEMAS},
                 {"propertyNames", SCHEMAS},
                 {"not", EXCEPT},
                 {"anyOf", PAIRS}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(table[i].name, keyword) == 0)
            return table[i].how;
    return EQUAL;
}

static int merge_keyword(struct schema_reader *r, const char *keyword, const json_t *a,
                         const json_t *b, json_t **ret_value)
{
    double x = json_number_value(a), y = json_number_value(b);
    json_t *v = NULL;

    switch (how_of(keyword)) {
    case LARGER: v = json_incref((json_t *)(uintptr_t)(x >= y ? a : b)); break;
    case SMALLER: v = json_incref((json_t *)(uintptr_t)(x <= y ? a : b)); break;
    case TYPES:
        if (!schema_pay(r, (1 + json_array_size(a)) * (1 + json_array_size(b))))
            return -EBADMSG;
        v = merge_types(a, b);
        break;
    case VALUES: v = merge_values(r, a, b); break;
    case NAMES: v = merge_names(r, a, b); break;
    case SCHEMAS: v = both(a, b); break;
    case EXCEPT: v = merge_except(r, a, b); break;
    case PAIRS:
        if (json_array_size(a) * json_array_size(b) > PAIRS_MOST)
            return schema_refuse(r, keyword, "more than %u pairs of alternatives are not offered",
                                 PAIRS_MOST);
        v = merge_pairs(a, b);
        break;
    case EQUAL:
        if (!schema_equal(r, a, b) && !schema_is_annotation(keyword))
            return schema_refuse(r, keyword, "two different values of `%s` cannot be joined",
                                 keyword);
        v = json_incref((json_t *)(uintptr_t)a);
        break;
    }
    if (!v)
        return -ENOMEM;
    *ret_value = v;
    return 0;
}

/* A constant is an enumeration of one. */
static int as_enum(const struct schema_reader *r, json_t *schema)
{
    json_t *value = json_object_get(schema, "const");
    if (!value)
        return 0;
    json_t *list = json_pack("[O]", value), *had = json_object_get(schema, "enum");
    json_t *joined = had && list ? merge_values(r, had, list) : json_incref(list);
    json_decref(list);
    (void)json_object_del(schema, "const");
    return joined ? json_object_set_new(schema, "enum", joined) : -1;
}

static int merge_objects(struct schema_reader *r, const json_t *a, const json_t *b,
                         json_t **ret_schema)
{
    json_t *out = json_copy((json_t *)(uintptr_t)a), *other = json_copy((json_t *)(uintptr_t)b);
    int code = -ENOMEM;

    (void)schema_pay(r, 32 + 16 * (json_object_size(a) + json_object_size(b)));
    if (!out || !other || as_enum(r, out) < 0 || as_enum(r, other) < 0)
        goto out;
    if (json_object_get(out, "properties") || json_object_get(other, "properties")) {
        (void)schema_pay(r, 32 * (json_object_size(json_object_get(out, "properties")) +
                                  json_object_size(json_object_get(other, "properties"))));
        json_t *properties = merge_properties(out, other);
        (void)json_object_del(other, "properties");
        if (json_object_set_new(out, "properties", properties) < 0)
            goto out;
    }
    for (void *at = json_object_iter(other); at; at = json_object_iter_next(other, at)) {
        const char *keyword = json_object_iter_key(at);
        json_t *mine = json_object_get(out, keyword), *theirs = json_object_iter_value(at),
               *v = NULL;
        if (mine) {
            code = merge_keyword(r, keyword, mine, theirs, &v);
            if (code < 0)
                goto out;
        } else {
            v = json_incref(theirs);
        }
        code = -ENOMEM;
        if (json_object_set_new(out, keyword, v) < 0)
            goto out;
    }
    *ret_schema = out;
    out = NULL;
    code = 0;
out:
    json_decref(out);
    json_decref(other);
    return code;
}

int schema_flatten(struct schema_reader *r, const json_t *schema, json_t **ret_schema)
{
    json_t *flat;
    int code = flatten(r, schema, 0, &flat);

    if (code == 0 && json_is_object(flat) && as_enum(r, flat) < 0) {
        json_decref(flat);
        code = -ENOMEM;
    }
    if (code == 0)
        *ret_schema = flat;
    return code;
}

int schema_merge(struct schema_reader *r, const json_t *a, const json_t *b, json_t **ret_schema)
{
    json_t *x = NULL, *y = NULL;
    int code = flatten(r, a, 0, &x);

    if (code == 0)
        code = flatten(r, b, 0, &y);
    if (code < 0)
        goto out;
    if (json_is_false(x) || json_is_false(y))
        *ret_schema = json_false();
    else if (json_is_true(x))
        *ret_schema = json_incref(y);
    else if (json_is_true(y))
        *ret_schema = json_incref(x);
    else if (json_is_object(x) && json_is_object(y))
        code = merge_objects(r, x, y, ret_schema);
    else
        code = schema_refuse(r, NULL, "a schema must be an object, true or false");
out:
    json_decref(x);
    json_decref(y);
    return code;
}

/* ---- can both hold? ---- */

static bool values_apart(const struct schema_reader *r, const json_t *list, const json_t *schema,
                         unsigned types)
{
    const json_t *other = json_object_get(schema, "enum");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        bool found = !other && schema_allows(r, schema, types, v);
        for (size_t k = 0; k < json_array_size(other); k++)
            found |= schema_equal(r, v, json_array_get(other, k));
        if (found || ek_work_stopped(r->set->work))
            return false;
    }
    return true;
}

static bool requires(const json_t *schema, const char *name)
{
    const json_t *list = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        if (s && strcmp(s, name) == 0)
            return true;
    }
    return false;
}

/* A property that both have and whose values tell them apart, or that one asks for and the other
 * forbids. */
static bool objects_apart(struct schema_reader *r, const json_t *a, const json_t *b, uint32_t depth)
{
    json_t *mine = json_object_get(a, "properties");
    const json_t *theirs = json_object_get(b, "properties");

    for (void *at = json_object_iter(mine); at; at = json_object_iter_next(mine, at)) {
        const char *name = json_object_iter_key(at);
        const json_t *other = json_object_get(theirs, name);
        if (!schema_pay(r, 2 + json_array_size(json_object_get(a, "required")) / 4))
            return false;
        if (!requires(a, name))
            continue;
        if (!other && json_is_false(json_object_get(b, "additionalProperties")))
            return true;
        if (other && requires(b, name) &&
            schema_apart(r, json_object_iter_value(at), other, depth + 1))
            return true;
    }
    return false;
}

bool schema_apart(struct schema_reader *r, const json_t *a, const json_t *b, uint32_t depth)
{
    struct schema_reader quiet = *r;
    unsigned ta, tb;
    json_t *x = NULL, *y = NULL;
    bool apart = false;

    quiet.fault = NULL;
    if (depth > APART_DEPTH || flatten(&quiet, a, 0, &x) < 0 || flatten(&quiet, b, 0, &y) < 0)
        goto out;
    apart = json_is_false(x) || json_is_false(y);
    if (apart || !json_is_object(x) || !json_is_object(y) || as_enum(r, x) < 0 ||
        as_enum(r, y) < 0 || schema_types(&quiet, x, &ta) < 0 || schema_types(&quiet, y, &tb) < 0)
        goto out;
    /* What is implied only says nothing about other types. */
    bool said = (json_object_get(x, "type") || json_object_get(x, "enum")) &&
                (json_object_get(y, "type") || json_object_get(y, "enum"));
    if (ta & TYPE_NUMBER)
        ta |= TYPE_INTEGER;
    if (tb & TYPE_NUMBER)
        tb |= TYPE_INTEGER;
    const json_t *ex = json_object_get(x, "enum"), *ey = json_object_get(y, "enum");
    if (ex)
        apart = values_apart(r, ex, y, tb);
    else if (ey)
        apart = values_apart(r, ey, x, ta);
    if (apart || !said)
        goto out;
    apart = (ta & tb) == 0;
    if (!apart && ((ta & tb) & ~(unsigned)(TYPE_INTEGER | TYPE_NUMBER)) == 0)
        apart = schema_merge_bound(x, "minimum", -INFINITY) >
                    schema_merge_bound(y, "maximum", INFINITY) ||
                schema_merge_bound(y, "minimum", -INFINITY) >
                    schema_merge_bound(x, "maximum", INFINITY);
    if (!apart && (ta & tb) == TYPE_OBJECT)
        apart = objects_apart(r, x, y, depth) || objects_apart(r, y, x, depth);
out:
    json_decref(x);
    json_decref(y);
    return apart;
}
