/* Arrays: the first elements one by one, then all alike, as many as allowed. */
#include <errno.h>

#include "server/grammar/schema_inside.h"

/* What is known of an array. */
struct array_shape {
    uint32_t least, most;
    uint32_t first; /* elements with a schema of their own */
    uint32_t rest;  /* of the others, EXPR_NEVER = there are none */
};

/* Elements from the n-th on, when all before are there. */
static int read_from(struct schema_reader *r, const json_t *prefix, const struct array_shape *s,
                     uint32_t n, uint32_t *ret_expr)
{
    struct expr_set *set = r->set;
    struct expr_list seq = {.set = set};
    uint32_t one = s->rest, more = EXPR_EMPTY;

    *ret_expr = EXPR_EMPTY;
    if (n >= s->most || (n >= s->first && s->rest == EXPR_NEVER && n >= s->least))
        return 0;
    if (n >= s->first) { /* all alike */
        uint32_t least = s->least > n ? s->least - n : 0;
        uint32_t most = s->most == EXPR_MANY ? EXPR_MANY : s->most - n;
        uint32_t with_comma = expr_pair(set, json_comma(r), s->rest);
        if (n > 0) {
            *ret_expr = expr_repeat(set, with_comma, least, most);
            return 0;
        }
        *ret_expr = expr_pair(set, s->rest,
                              expr_repeat(set, with_comma, least > 1 ? least - 1 : 0,
                                          most == EXPR_MANY ? EXPR_MANY : most - 1));
    } else {
        size_t was = schema_enter(r, "prefixItems", "");
        int code = schema_rule(r, json_array_get(prefix, n), &one);
        schema_leave(r, was);
        if (code == 0)
            code = read_from(r, prefix, s, n + 1, &more);
        if (code < 0)
            return code;
        if (n > 0)
            expr_push(&seq, json_comma(r));
        expr_push(&seq, one);
        expr_push(&seq, json_as_call(r, more, "elements"));
        *ret_expr = expr_seq(&seq);
    }
    if (n >= s->least)
        *ret_expr = expr_maybe(set, *ret_expr);
    return 0;
}

static int read_shape(struct schema_reader *r, const json_t *schema, struct array_shape *s)
{
    const json_t *prefix = json_object_get(schema, "prefixItems");
    const json_t *items = json_object_get(schema, "items");

    *s = (struct array_shape){.first = (uint32_t)json_array_size(prefix), .rest = EXPR_NEVER};
    if (prefix && (!json_is_array(prefix) || s->first == 0 || s->first > 64))
        return schema_refuse(r, "prefixItems", "`prefixItems` must be a list of 1 to 64 schemas");
    if (json_is_array(items))
        return schema_refuse(r, "items", "a list of schemas is called `prefixItems`");
    if (schema_count(r, schema, "minItems", 0, &s->least) < 0 ||
        schema_count(r, schema, "maxItems", EXPR_MANY, &s->most) < 0)
        return -EBADMSG;
    if (s->least > ITEMS_MOST || (s->most != EXPR_MANY && s->most > ITEMS_MOST))
        return schema_refuse(r, s->least > ITEMS_MOST ? "minItems" : "maxItems",
                             "more than %u elements are not counted", ITEMS_MOST);
    if (s->most < s->least)
        return schema_contradicts(r, "maxItems", "`maxItems` is below `minItems`");
    if (json_is_false(items))
        return 0;
    if (items) {
        size_t was = schema_enter(r, "items", NULL);
        int code = schema_rule(r, items, &s->rest);
        schema_leave(r, was);
        return code;
    }
    if (!prefix || s->least > s->first)
        s->rest = json_call(r, RULE_VALUE);
    return 0;
}

static int read_unique(struct schema_reader *r, const json_t *schema, const struct array_shape *s,
                       uint32_t *ret_expr)
{
    const json_t *items = json_object_get(schema, "items");
    int code = s->first > 0 || !items ? 1 : schema_unique(r, items, s->least, s->most, ret_expr);

    if (code != 1)
        return code;
    r->set->any_twice = true; /* the caller is told: the rest of the list's form is kept */
    return read_from(r, json_object_get(schema, "prefixItems"), s, 0, ret_expr);
}

int schema_array(struct schema_reader *r, const json_t *schema, uint32_t *ret_expr)
{
    const json_t *unique = json_object_get(schema, "uniqueItems");
    uint32_t inner;
    struct array_shape s;

    if (read_shape(r, schema, &s) < 0)
        return -EBADMSG;
    if (s.rest == EXPR_NEVER && s.least > s.first)
        return schema_contradicts(r, "minItems", "there are not so many elements");
    int code = json_is_true(unique) && s.most > 1
                   ? read_unique(r, schema, &s, &inner)
                   : read_from(r, json_object_get(schema, "prefixItems"), &s, 0, &inner);
    if (code < 0)
        return code;
    *ret_expr = json_between(r, "[", inner, "]");
    return 0;
}
