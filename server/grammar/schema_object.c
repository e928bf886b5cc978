/*
 * Objects: the declared properties in their order, those that are not required may be left out,
 * then others where the schema lets them in. Names of others are plain characters without escapes,
 * so that none is a declared name in disguise.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "server/grammar/automaton.h"
#include "server/grammar/regex.h"
#include "server/grammar/schema_inside.h"
#include "server/text/utf8.h"

#define PROPERTIES_MOST 2000u
#define NAME_MOST       160u /* bytes of a declared name where others are let in */

/* One declared property. */
struct property {
    const char *name;
    uint32_t pair; /* "name": value; EXPR_NEVER = it must not be there */
    bool required;
};

struct object {
    struct property *property; /* [count] */
    uint32_t count, declared;  /* of them those that may be there */
    uint32_t extra;            /* a pair of any other, EXPR_NEVER = none */
};

/* ---- names that are not declared ---- */

static void plain_chars(struct chars *c)
{
    chars_add(c, 0x20, 0x21);
    chars_add(c, 0x23, 0x5b);
    chars_add(c, 0x5d, CHARS_LAST);
}

static int compare_names(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

/* Names behind `at` bytes which all of name[from..to) share, that are none of them. */
uint32_t schema_other_names(struct expr_set *s, const char *const *name, uint32_t from, uint32_t to,
                            size_t at)
{
    if (!ek_work_pay(s->work, 16 + 4ull * (to - from)))
        return EXPR_NEVER;
    struct chars rest = {0}, taken = {0};
    struct expr_list alt = {.set = s};
    struct chars plain = {0};
    bool ends = false;

    plain_chars(&plain);
    while (from < to && name[from][at] == '\0') {
        ends = true; /* a declared name ends here: it must go on */
        from++;
    }
    for (uint32_t i = from; i < to;) {
        uint32_t cp, last = i;
        size_t n = utf8_next(name[i] + at, strlen(name[i] + at), &cp);
        while (last < to && strncmp(name[last] + at, name[i] + at, n) == 0)
            last++;
        if (chars_has(&plain, cp)) {
            struct chars one = {0};
            chars_add(&one, cp, cp);
            chars_add(&taken, cp, cp);
            expr_push(&alt, expr_pair(s, expr_chars(s, &one),
                                      schema_other_names(s, name, i, last, at + n)));
        }
        i = last;
    }
    rest = taken;
    chars_negate(&rest);
    chars_keep(&rest, &plain);
    expr_push(&alt, expr_pair(s, expr_chars(s, &rest),
                              expr_repeat(s, expr_chars(s, &plain), 0, EXPR_MANY)));
    if (!ends)
        expr_push(&alt, EXPR_EMPTY);
    return expr_alt(&alt);
}

static int extra_key(struct schema_reader *r, const struct object *o, uint32_t *ret_expr)
{
    struct expr_list all = {.set = r->set};
    const char **name = calloc(o->count + 1, sizeof(*name));
    if (!name)
        return -ENOMEM;
    for (uint32_t i = 0; i < o->count; i++) {
        name[i] = o->property[i].name;
        if (strlen(name[i]) > NAME_MOST) {
            free(name);
            return schema_refuse(r, "additionalProperties",
                                 "beside a property name of more than %u bytes others are not "
                                 "offered",
                                 NAME_MOST);
        }
    }
    qsort(name, o->count, sizeof(*name), compare_names);
    expr_push(&all, expr_text(r->set, "\""));
    expr_push(&all, schema_other_names(r->set, name, 0, o->count, 0));
    expr_push(&all, expr_text(r->set, "\""));
    *ret_expr = expr_seq(&all);
    free(name);
    return 0;
}

/* ---- the parts of an object ---- */

/* `propertyNames`, as strings. */
static int named_key(struct schema_reader *r, const json_t *names, const struct object *o,
                     uint32_t *ret_expr)
{
    json_t *text = json_pack("{s:s}", "type", "string"), *merged = NULL;

    if (o->count > 0) {
        json_decref(text);
        return schema_refuse(r, "propertyNames",
                             "`propertyNames` beside `properties` is not offered");
    }
    size_t was = schema_enter(r, "propertyNames", NULL);
    int code = text ? schema_merge(r, names, text, &merged) : -ENOMEM;
    if (code == 0)
        code = schema_rule(r, merged, ret_expr);
    json_decref(merged);
    json_decref(text);
    schema_leave(r, was);
    return code;
}

static uint32_t pair_of(struct schema_reader *r, uint32_t key, uint32_t value)
{
    struct expr_list pair = {.set = r->set};

    expr_push(&pair, key);
    expr_push(&pair, json_colon(r));
    expr_push(&pair, value);
    return json_as_call(r, expr_seq(&pair), "property");
}

/* The automata of the patterns, each made once: [count], `made` where there is one. */
struct patterns {
    struct automaton *at;
    bool *made;
    size_t count;
};

static int patterns_make(const struct schema_reader *r, json_t *patterns, struct patterns *p)
{
    size_t n = json_object_size(patterns);

    p->at = calloc(n + 1, sizeof(*p->at));
    p->made = calloc(n + 1, sizeof(*p->made));
    if (!p->at || !p->made)
        return -ENOMEM;
    for (void *a = json_object_iter(patterns); a; a = json_object_iter_next(patterns, a)) {
        const char *pattern = json_object_iter_key(a);
        p->made[p->count] = schema_key_pattern(r, pattern, strlen(pattern), &p->at[p->count]);
        p->count++;
    }
    return 0;
}

static void patterns_done(struct patterns *p)
{
    for (size_t i = 0; i < p->count; i++)
        if (p->made[i])
            automaton_done(&p->at[i]);
    free(p->at);
    free(p->made);
}

/* One pattern against the declared names, and against the patterns before it. */
static int check_pattern(struct schema_reader *r, json_t *patterns, const struct object *o,
                         const struct patterns *p, void *a, size_t index)
{
    const char *one = json_object_iter_key(a);
    const struct automaton *mine = p->made[index] ? &p->at[index] : NULL;
    size_t k = 0;

    for (uint32_t i = 0; i < o->count; i++) {
        (void)schema_pay(r, 1 + strlen(o->property[i].name) / 4);
        if (schema_key_may_match(mine, o->property[i].name))
            return schema_refuse(r, "patternProperties",
                                 "the declared property %.60s may match %.60s; give it one "
                                 "schema only",
                                 o->property[i].name, one);
    }
    for (void *b = json_object_iter(patterns); b != a;
         b = json_object_iter_next(patterns, b), k++) {
        if (!schema_equal(r, json_object_iter_value(a), json_object_iter_value(b)) &&
            schema_keys_may_meet(r, mine, p->made[k] ? &p->at[k] : NULL))
            return schema_refuse(r, "patternProperties", "a name may match both %.60s and %.60s",
                                 json_object_iter_key(b), one);
    }
    return 0;
}

/* A name is in one pattern only, and is not declared; or its schema is not known. */
static int check_patterns(struct schema_reader *r, json_t *patterns, const struct object *o)
{
    struct patterns p = {0};
    int code = patterns_make(r, patterns, &p);
    size_t index = 0;

    for (void *a = json_object_iter(patterns); code == 0 && a;
         a = json_object_iter_next(patterns, a), index++)
        code = check_pattern(r, patterns, o, &p, a, index);
    patterns_done(&p);
    return code;
}

static int read_patterns(struct schema_reader *r, const json_t *schema, struct object *o)
{
    json_t *patterns = json_object_get(schema, "patternProperties");
    const json_t *extra = json_object_get(schema, "additionalProperties");
    struct expr_list alt = {.set = r->set};

    if (!json_is_object(patterns))
        return schema_refuse(r, "patternProperties", "`patternProperties` must be an object");
    if (json_is_object(extra) || json_object_get(schema, "propertyNames"))
        return schema_refuse(r, json_is_object(extra) ? "additionalProperties" : "propertyNames",
                             "it is not offered beside `patternProperties`");
    int code = check_patterns(r, patterns, o);
    for (void *at = json_object_iter(patterns); at && code == 0;
         at = json_object_iter_next(patterns, at)) {
        const char *pattern = json_object_iter_key(at);
        struct ek_fault f = {0};
        uint32_t inside = EXPR_EMPTY, value = EXPR_EMPTY;
        if (json_is_false(json_object_iter_value(at)))
            continue;
        size_t was = schema_enter(r, "patternProperties", pattern);
        if (regex_read(r->set, pattern, strlen(pattern), REGEX_JSON, 0, EXPR_MANY, &inside, &f) < 0)
            code = schema_refuse(r, NULL, "%s", f.msg);
        else
            code = schema_rule(r, json_object_iter_value(at), &value);
        schema_leave(r, was);
        if (code == 0)
            expr_push(&alt, pair_of(r, schema_quoted(r, inside), value));
    }
    o->extra = json_as_call(r, expr_alt(&alt), "property");
    return code;
}

static int read_extra(struct schema_reader *r, const json_t *schema, struct object *o)
{
    const json_t *extra = json_object_get(schema, "additionalProperties");
    const json_t *names = json_object_get(schema, "propertyNames");
    uint32_t key = EXPR_EMPTY, value = EXPR_EMPTY;
    int code = 0;

    o->extra = EXPR_NEVER;
    if (json_object_get(schema, "patternProperties"))
        return read_patterns(r, schema, o);
    if (json_is_false(extra) || (!extra && o->declared > 0 && !names))
        return 0;
    if (extra && !json_is_true(extra)) {
        size_t was = schema_enter(r, "additionalProperties", NULL);
        code = schema_rule(r, extra, &value);
        schema_leave(r, was);
    } else {
        value = json_call(r, RULE_VALUE);
    }
    if (code == 0 && names)
        code = named_key(r, names, o, &key);
    else if (code == 0 && o->count == 0)
        key = json_call(r, RULE_STRING);
    else if (code == 0)
        code = extra_key(r, o, &key);
    if (code == 0)
        o->extra = pair_of(r, key, value);
    return code;
}

static bool is_required(const json_t *schema, const char *name)
{
    const json_t *required = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(required); i++)
        if (strcmp(json_string_value(json_array_get(required, i)), name) == 0)
            return true;
    return false;
}

static int read_property(struct schema_reader *r, const json_t *schema, const char *name,
                         const json_t *value, struct property *p)
{
    struct expr_list pair = {.set = r->set};
    uint32_t key = EXPR_EMPTY, e = EXPR_EMPTY;
    json_t *text = json_string(name);
    int code = text ? json_literal(r, text, &key) : -ENOMEM;

    json_decref(text);
    if (code < 0)
        return code;
    (void)schema_pay(r, 1 + json_array_size(json_object_get(schema, "required")) / 4);
    *p = (struct property){.name = name, .required = is_required(schema, name)};
    size_t was = schema_enter(r, "properties", name);
    code = schema_rule(r, value, &e);
    schema_leave(r, was);
    if (!p->required && json_is_object(value) && schema_is_never(r, code)) {
        p->pair = EXPR_NEVER; /* of what contradicts itself nothing is written */
        return 0;
    }
    expr_push(&pair, key);
    expr_push(&pair, json_colon(r));
    expr_push(&pair, e);
    p->pair = json_as_call(r, expr_seq(&pair), name);
    return code;
}

/* `required` names only what is declared, or others are let in: those become properties. */
static int check_required(struct schema_reader *r, const json_t *schema, uint32_t *ret_undeclared)
{
    const json_t *required = json_object_get(schema, "required");
    const json_t *properties = json_object_get(schema, "properties");

    *ret_undeclared = 0;
    if (required && !json_is_array(required))
        return schema_refuse(r, "required", "`required` must be a list of names");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const json_t *name = json_array_get(required, i);
        if (!json_is_string(name))
            return schema_refuse(r, "required", "`required` must be a list of names");
        if (json_object_get(properties, json_string_value(name)))
            continue;
        if (*ret_undeclared >= PROPERTIES_MOST)
            return schema_refuse(r, "required", "more than %u properties are not offered",
                                 PROPERTIES_MOST);
        for (size_t k = 0; k < i; k++)
            if (schema_equal(r, json_array_get(required, k), name))
                return schema_refuse(r, "required", "`required` names a property twice");
        ++*ret_undeclared;
    }
    return 0;
}

static int read_properties(struct schema_reader *r, const json_t *schema, struct object *o)
{
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *required = json_object_get(schema, "required");
    const json_t *extra = json_object_get(schema, "additionalProperties");
    uint32_t undeclared;

    if (properties && !json_is_object(properties))
        return schema_refuse(r, "properties", "`properties` must be an object");
    if (check_required(r, schema, &undeclared) < 0)
        return -EBADMSG;
    size_t most = json_object_size(properties) + undeclared;
    if (most > PROPERTIES_MOST)
        return schema_refuse(r, "properties", "more than %u properties are not offered",
                             PROPERTIES_MOST);
    o->property = calloc(most + 1, sizeof(*o->property));
    if (!o->property)
        return -ENOMEM;
    for (void *at = json_object_iter((json_t *)(uintptr_t)properties); at;
         at = json_object_iter_next((json_t *)(uintptr_t)properties, at)) {
        const json_t *value = json_object_iter_value(at);
        const char *name = json_object_iter_key(at);
        if (json_is_false(value)) { /* must not be there */
            if (is_required(schema, name))
                return schema_contradicts(r, "required", "a required property is forbidden");
            o->property[o->count++] = (struct property){.name = name, .pair = EXPR_NEVER};
            continue;
        }
        int code = read_property(r, schema, name, value, &o->property[o->count]);
        if (code < 0)
            return code;
        o->declared += o->property[o->count++].pair != EXPR_NEVER;
    }
    for (size_t i = 0; undeclared > 0 && i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        if (json_object_get(properties, name))
            continue;
        if (json_is_false(extra))
            return schema_contradicts(r, "required", "a required property is not let in");
        int code =
            read_property(r, schema, name, extra ? extra : json_true(), &o->property[o->count]);
        if (code < 0)
            return code;
        o->count++;
        o->declared++;
    }
    return 0;
}

/* ---- the whole ---- */

/* What may follow when something was written: from the last property to the first, each a rule,
 * so that the grammar grows with their number and not with its square. ret_first[i] is what may
 * be written from i on when nothing was. */
static uint32_t schema_object_join(struct schema_reader *r, const struct object *o)
{
    struct expr_set *s = r->set;
    uint32_t after = EXPR_EMPTY, first = EXPR_EMPTY;

    if (o->extra != EXPR_NEVER) {
        after = expr_repeat(s, expr_pair(s, json_comma(r), o->extra), 0, EXPR_MANY);
        first = expr_maybe(s, expr_pair(s, o->extra, after));
    }
    for (uint32_t i = o->count; i-- > 0;) {
        const struct property *p = &o->property[i];
        uint32_t rest = after == EXPR_EMPTY ? EXPR_EMPTY : json_as_call(r, after, "properties");
        uint32_t with_comma = expr_pair(s, json_comma(r), p->pair);
        uint32_t here = expr_pair(s, p->pair, rest);
        after = expr_pair(s, p->required ? with_comma : expr_maybe(s, with_comma), rest);
        first = p->required ? here : expr_either(s, here, json_as_call(r, first, "properties"));
    }
    return first;
}

/* Objects without declared properties, with so many of any. */
static int count_extra(struct schema_reader *r, const struct object *o, uint32_t least,
                       uint32_t most, uint32_t *ret_expr)
{
    struct expr_set *s = r->set;
    uint32_t more = expr_pair(s, json_comma(r), o->extra);

    *ret_expr = EXPR_EMPTY;
    if (most == 0)
        return 0;
    if (o->extra == EXPR_NEVER)
        return least == 0 ? 0 : schema_refuse(r, "minProperties", "no property is let in");
    *ret_expr = expr_pair(
        s, o->extra,
        expr_repeat(s, more, least > 1 ? least - 1 : 0, most == EXPR_MANY ? EXPR_MANY : most - 1));
    if (least == 0)
        *ret_expr = expr_maybe(s, *ret_expr);
    return 0;
}

static int read_inner(struct schema_reader *r, const json_t *schema, struct object *o,
                      uint32_t *ret_expr)
{
    uint32_t least, most, required = 0;
    int code = read_properties(r, schema, o);
    if (code == 0)
        code = read_extra(r, schema, o);
    if (code == 0)
        code = schema_count(r, schema, "minProperties", 0, &least);
    if (code == 0)
        code = schema_count(r, schema, "maxProperties", EXPR_MANY, &most);
    if (code < 0)
        return code;
    if (most < least || (most != EXPR_MANY && most > PROPERTIES_MOST) || least > PROPERTIES_MOST)
        return schema_refuse(r, "maxProperties", "counts must be in order and at most %u",
                             PROPERTIES_MOST);
    if (o->declared == 0)
        return count_extra(r, o, least, most, ret_expr);
    for (uint32_t i = 0; i < o->count; i++)
        required += o->property[i].required;
    if (least > required)
        return schema_refuse(r, "minProperties",
                             "beside `properties` a count of what is not required is not offered");
    if (o->extra != EXPR_NEVER ? most != EXPR_MANY : most < o->declared)
        return schema_refuse(r, "maxProperties",
                             "beside `properties` a count of what is not required is not offered");
    *ret_expr = schema_object_join(r, o);
    return 0;
}

int schema_object(struct schema_reader *r, const json_t *schema, uint32_t *ret_expr)
{
    struct object o = {0};
    uint32_t inner = EXPR_EMPTY;

    int code = read_inner(r, schema, &o, &inner);
    if (code == 0)
        *ret_expr = json_between(r, "{", inner, "}");
    free(o.property);
    return code;
}
