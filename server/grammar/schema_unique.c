/*
 * Lists whose elements differ, of a few known values: up to SET_MOST of them in any order (a rule
 * for each set of values that are left), more of them in the order of the schema.
 */
#include <errno.h>
#include <stdlib.h>

#include "server/grammar/schema_inside.h"

#define SET_MOST    6u
#define VALUES_MOST 200u
#define RULES_MOST  6000u

struct few {
    struct schema_reader *r;
    uint32_t value[VALUES_MOST];
    const json_t *known[VALUES_MOST];
    uint32_t count, least, most;
    uint32_t *memo; /* expression + 1 */
};

static int add_value(struct few *f, const json_t *v)
{
    for (uint32_t i = 0; i < f->count; i++)
        if (schema_same(f->r, v, f->known[i]))
            return 0;
    if (f->count == VALUES_MOST)
        return 1;
    f->known[f->count] = v;
    return json_literal(f->r, v, &f->value[f->count++]);
}

/* The values that an element may have. `flat` says all of it. 1: they are not known. */
static int find_values(struct few *f, const json_t *flat)
{
    const json_t *list = json_object_get(flat, "enum"), *words = NULL;
    unsigned types = TYPE_ALL;
    int code = schema_types(f->r, flat, &types);
    json_t *bare = json_pack("[n,b,b]", 1, 0);

    if (code == 0 && !bare)
        code = -ENOMEM;
    if (json_object_get(flat, "anyOf") || json_object_get(flat, "oneOf"))
        types = TYPE_ALL;
    else if (json_is_array(list))
        words = list;
    else if (code == 0 && (types & ~(unsigned)(TYPE_NULL | TYPE_BOOLEAN)) == 0)
        words = bare;
    if (code == 0 && !words)
        code = 1;
    if (json_is_array(list) && !json_object_get(flat, "type"))
        types = TYPE_ALL;
    for (size_t i = 0; code == 0 && i < json_array_size(words); i++)
        if (schema_allows(f->r, flat, types, json_array_get(words, i)))
            code = add_value(f, json_array_get(words, i));
    json_decref(bare);
    return code;
}

/* With a comma in front unless it is the first. */
static uint32_t schema_unique_element(struct few *f, uint32_t which, bool first)
{
    return first ? f->value[which] : expr_pair(f->r->set, json_comma(f->r), f->value[which]);
}

/* What may follow when the values of `used` have been written. */
static uint32_t any_order(struct few *f, uint32_t used)
{
    struct expr_list alt = {.set = f->r->set};
    uint32_t taken = (uint32_t)__builtin_popcount(used);

    if (f->memo[used] != 0)
        return f->memo[used] - 1;
    if (taken >= f->least)
        expr_push(&alt, EXPR_EMPTY);
    for (uint32_t i = 0; i < f->count && taken < f->most; i++)
        if (!(used >> i & 1))
            expr_push(&alt, expr_pair(f->r->set, schema_unique_element(f, i, taken == 0),
                                      any_order(f, used | 1u << i)));
    uint32_t e = json_as_call(f->r, expr_alt(&alt), "set");
    f->memo[used] = e + 1;
    return e;
}

/* What may follow from value `from` on when `taken` have been written. From the last on, so that
 * nothing nests. */
static uint32_t in_order(struct few *f, uint32_t most)
{
    struct expr_set *s = f->r->set;
    uint32_t wide = most + 1;

    for (uint32_t from = f->count + 1; from-- > 0;) {
        for (uint32_t taken = 0; taken <= most && taken <= from; taken++) {
            struct expr_list alt = {.set = s};
            if (from == f->count || taken == most) {
                f->memo[from * wide + taken] = taken >= f->least ? EXPR_EMPTY : EXPR_NEVER;
                continue;
            }
            expr_push(&alt, f->memo[(from + 1) * wide + taken]);
            expr_push(&alt, expr_pair(s, schema_unique_element(f, from, taken == 0),
                                      f->memo[(from + 1) * wide + taken + 1]));
            f->memo[from * wide + taken] = json_as_call(f->r, expr_alt(&alt), "set");
        }
    }
    return f->memo[0];
}

int schema_unique(struct schema_reader *r, const json_t *items, uint32_t least, uint32_t most,
                  uint32_t *ret_expr)
{
    struct few *f = calloc(1, sizeof(*f));
    json_t *flat = NULL;
    int code = f ? schema_flatten(r, items, &flat) : -ENOMEM;

    if (code < 0)
        goto out;
    *f = (struct few){.r = r, .least = least, .most = most};
    code = json_is_object(flat) ? find_values(f, flat) : 1;
    if (code != 0)
        goto out;
    if (f->least > f->count || f->count == 0) {
        code =
            f->least == 0 ? 0 : schema_contradicts(r, "minItems", "there are not so many values");
        *ret_expr = EXPR_EMPTY;
        goto out;
    }
    most = most < f->count ? most : f->count;
    f->most = most;
    bool any = f->count <= SET_MOST;
    uint64_t cells = any ? 1ull << f->count : (f->count + 1ull) * (most + 1ull);
    if (cells > RULES_MOST) {
        code = 1;
        goto out;
    }
    f->memo = calloc(cells, sizeof(*f->memo));
    code = f->memo ? 0 : -ENOMEM;
    if (code == 0)
        *ret_expr = any ? any_order(f, 0) : in_order(f, most);
out:
    free(f ? f->memo : NULL);
    free(f);
    json_decref(flat);
    return code;
}
