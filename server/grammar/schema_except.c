/* Values of one type but some: what `not` with an `enum` leaves. Called by schema.c. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/grammar/schema_inside.h"

/* The list of what must not be, and how many of it are of the type. */
struct except {
    const json_t *list;
    unsigned type;
    size_t count;
};

static const json_t *schema_except_next(const struct except *x, size_t *at)
{
    while (*at < json_array_size(x->list)) {
        const json_t *v = json_array_get(x->list, (*at)++);
        if (schema_type_of(v) & x->type)
            return v;
    }
    return NULL;
}

static int two_words(struct schema_reader *r, const struct except *x, uint32_t *ret_expr)
{
    struct expr_list alt = {.set = r->set};
    bool yes = true, no = true;

    for (size_t i = 0; i < json_array_size(x->list); i++) {
        yes &= !json_is_true(json_array_get(x->list, i));
        no &= !json_is_false(json_array_get(x->list, i));
    }
    if (yes)
        expr_push(&alt, expr_text(r->set, "true"));
    if (no)
        expr_push(&alt, expr_text(r->set, "false"));
    *ret_expr = expr_alt(&alt);
    return 0;
}

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The schema between two of the numbers; NULL without memory. */
static json_t *schema_except_between(const json_t *schema, double low, double high)
{
    json_t *out = json_copy((json_t *)(uintptr_t)schema);
    const json_t *above = json_object_get(schema, "exclusiveMinimum"),
                 *below = json_object_get(schema, "exclusiveMaximum");
    int code = out ? 0 : -1;

    if (code == 0)
        (void)json_object_del(out, "not");
    if (code == 0 && isfinite(low) && !(json_is_number(above) && json_number_value(above) > low))
        code = json_object_set_new(out, "exclusiveMinimum", json_real(low));
    if (code == 0 && isfinite(high) && !(json_is_number(below) && json_number_value(below) < high))
        code = json_object_set_new(out, "exclusiveMaximum", json_real(high));
    if (code < 0) {
        json_decref(out);
        return NULL;
    }
    return out;
}

static int schema_except_numbers(struct schema_reader *r, const json_t *schema,
                                 const struct except *x, uint32_t *ret_expr)
{
    struct expr_list alt = {.set = r->set};
    double *at = calloc(x->count + 2, sizeof(*at));
    size_t n = 0, i = 0;
    int code = at ? 0 : -ENOMEM;

    if (code == 0) {
        at[n++] = -INFINITY;
        for (const json_t *v; (v = schema_except_next(x, &i));)
            at[n++] = json_number_value(v);
        at[n++] = INFINITY;
        qsort(at, n, sizeof(*at), compare_numbers);
    }
    for (size_t k = 0; code == 0 && k + 1 < n; k++) {
        uint32_t e = EXPR_NEVER;
        (void)schema_pay(r, json_object_size(schema));
        json_t *part = schema_except_between(schema, at[k], at[k + 1]);
        code = part ? schema_type(r, part, x->type, &e) : -ENOMEM;
        json_decref(part);
        if (schema_is_never(r, code))
            code = 0;
        expr_push(&alt, e);
    }
    free(at);
    *ret_expr = expr_alt(&alt);
    return code;
}

static int compare_texts(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

static int strings(struct schema_reader *r, const json_t *schema, const struct except *x,
                   uint32_t *ret_expr)
{
    static const char *const beside[] = {"pattern", "format", "minLength", "maxLength"};
    const char **text = calloc(x->count, sizeof(*text));
    size_t n = 0, i = 0;
    int code = text ? 0 : -ENOMEM;

    for (size_t k = 0; code == 0 && k < sizeof(beside) / sizeof(beside[0]); k++)
        if (json_object_get(schema, beside[k]))
            code = schema_refuse(r, beside[k], "`%s` beside a `not` of strings is not offered",
                                 beside[k]);
    for (const json_t *v; code == 0 && (v = schema_except_next(x, &i));) {
        text[n++] = json_string_value(v);
        if (json_string_length(v) > 160)
            code = schema_refuse(r, "not", "strings of more than 160 bytes are not offered");
    }
    if (code == 0) {
        qsort(text, n, sizeof(*text), compare_texts);
        *ret_expr = schema_quoted(r, schema_other_names(r->set, text, 0, (uint32_t)n, 0));
    }
    free(text);
    return code;
}

int schema_except(struct schema_reader *r, const json_t *schema, unsigned type, uint32_t *ret_expr)
{
    struct except x = {json_object_get(json_object_get(schema, "not"), "enum"), type, 0};
    size_t i = 0;

    while (schema_except_next(&x, &i))
        x.count++;
    *ret_expr = EXPR_NEVER;
    if (x.count == 0)
        return schema_type(r, schema, type, ret_expr);
    switch ((enum json_types)type) {
    case TYPE_NULL: return 0;
    case TYPE_BOOLEAN: return two_words(r, &x, ret_expr);
    case TYPE_INTEGER:
    case TYPE_NUMBER: return schema_except_numbers(r, schema, &x, ret_expr);
    case TYPE_STRING: return strings(r, schema, &x, ret_expr);
    case TYPE_ARRAY:
    case TYPE_OBJECT:
    case TYPE_ALL: break;
    }
    return schema_refuse(r, "not", "that a list or an object differs from one is not offered");
}
