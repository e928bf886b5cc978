/* Tests of templates: what may follow `is`. Called through the table of tests. */
#include "server/text/jinja/eval.h"
#include "server/text/jinja/func.h"
#include "server/text/jinja/print.h"

static int is_kind(const struct jcall *c, uint32_t kinds, struct jv *ret)
{
    *ret = jv_bool((kinds >> c->self->kind) & 1);
    return 0;
}

#define KIND(k) (1u << (k))

static int t_defined(struct jr *r, const struct jcall *c, struct jv *ret)
{
    (void)r; /* never fails */
    *ret = jv_bool(c->self->kind != JV_UNDEFINED);
    return 0;
}

static int t_undefined(struct jr *r, const struct jcall *c, struct jv *ret)
{
    (void)r; /* never fails */
    return is_kind(c, KIND(JV_UNDEFINED), ret);
}

static int t_none(struct jr *r, const struct jcall *c, struct jv *ret)
{
    (void)r; /* never fails */
    return is_kind(c, KIND(JV_NONE), ret);
}

static int t_boolean(struct jr *r, const struct jcall *c, struct jv *ret)
{
    (void)r; /* never fails */
    return is_kind(c, KIND(JV_BOOL), ret);
}

static int t_true(struct jr *r, const struct jcall *c, struct jv *ret)
{
    (void)r; /* never fails */
    *ret = jv_bool(c->self->kind == JV_BOOL && c->self->b);
    return 0;
}

static int t_false(struct jr *r, const struct jcall *c, struct jv *ret)
{
    (void)r; /* never fails */
    *ret = jv_bool(c->self->kind == JV_BOOL && !c->self->b);
    return 0;
}

static int t_integer(struct jr *r, const struct jcall *c, struct jv *ret)
{
    (void)r; /* never fails */
    return is_kind(c, KIND(JV_INT), ret);
}

static int t_float(struct jr *r, const struct jcall *c, struct jv *ret)
{
    (void)r; /* never fails */
    return is_kind(c, KIND(JV_FLOAT), ret);
}

static int t_number(struct jr *r, const struct jcall *c, struct jv *ret)
{
    (void)r; /* never fails */
    return is_kind(c, KIND(JV_INT) | KIND(JV_FLOAT) | KIND(JV_BOOL), ret);
}

static int t_string(struct jr *r, const struct jcall *c, struct jv *ret)
{
    (void)r; /* never fails */
    return is_kind(c, KIND(JV_STRING), ret);
}

static int t_mapping(struct jr *r, const struct jcall *c, struct jv *ret)
{
    (void)r; /* never fails */
    return is_kind(c, KIND(JV_DICT), ret);
}

static int t_iterable(struct jr *r, const struct jcall *c, struct jv *ret)
{
    if (c->self->kind == JV_UNDEFINED && c->self->flavor == JV_UNSAFE)
        return jv_refuse(r, c->self);
    return is_kind(
        c, KIND(JV_UNDEFINED) | KIND(JV_STRING) | KIND(JV_LIST) | KIND(JV_DICT) | KIND(JV_LOOP),
        ret);
}

static int t_sequence(struct jr *r, const struct jcall *c, struct jv *ret)
{
    const struct jv *v = c->self;
    (void)r; /* never fails */
    bool list = v->kind == JV_LIST &&
                (v->flavor == JV_PLAIN || v->flavor == JV_TUPLE || v->flavor == JV_RANGE);
    *ret = jv_bool(list || v->kind == JV_STRING || v->kind == JV_DICT || v->kind == JV_UNDEFINED);
    return 0;
}

static int t_callable(struct jr *r, const struct jcall *c, struct jv *ret)
{
    (void)r; /* never fails */
    return is_kind(c, KIND(JV_MACRO) | KIND(JV_FUNC), ret);
}

static int tests_compare(struct jr *r, const struct jcall *c, uint32_t op, struct jv *ret)
{
    bool holds = false;
    int res = jop_compare(r, op, c->self, c->a[0], &holds);
    *ret = jv_bool(holds);
    return res;
}

static int t_eq(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return tests_compare(r, c, JLEX_OP2('=', '='), ret);
}

static int t_ne(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return tests_compare(r, c, JLEX_OP2('!', '='), ret);
}

static int t_lt(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return tests_compare(r, c, '<', ret);
}

static int t_le(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return tests_compare(r, c, JLEX_OP2('<', '='), ret);
}

static int t_gt(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return tests_compare(r, c, '>', ret);
}

static int t_ge(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return tests_compare(r, c, JLEX_OP2('>', '='), ret);
}

static int t_in(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return tests_compare(r, c, JN_OP_IN, ret);
}

static int t_sameas(struct jr *r, const struct jcall *c, struct jv *ret)
{
    const struct jv *a = c->self, *b = c->a[0];
    bool same = a->kind == b->kind;
    if (same && (a->kind == JV_LIST || a->kind == JV_DICT || a->kind == JV_NAMESPACE))
        *ret = jv_bool(a->list == b->list); /* the same pointer */
    else if (same)
        return t_eq(r, c, ret);
    else
        *ret = jv_bool(false);
    return 0;
}

static int modulo(struct jr *r, const struct jcall *c, int64_t by, int64_t want, struct jv *ret)
{
    struct jv n = jv_int(by), zero = jv_int(want);
    bool equal = false;
    int res = jop_arith(r, '%', c->self, &n, &n);
    if (res == 0)
        res = jv_equal(r, &n, &zero, &equal);
    *ret = jv_bool(equal);
    return res;
}

static int t_odd(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return modulo(r, c, 2, 1, ret);
}

static int t_even(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return modulo(r, c, 2, 0, ret);
}

static int t_divisibleby(struct jr *r, const struct jcall *c, struct jv *ret)
{
    int64_t by = 1;
    int res = jarg_int(r, c->a[0], &by);
    return res < 0 ? res : modulo(r, c, by, 0, ret);
}

/* str.islower() and str.isupper(): some cased letter, and none of the other case. */
static int is_case(struct jr *r, const struct jcall *c, enum jstr_case how, struct jv *ret)
{
    struct jstr s = {0};
    char *same, *other;
    int res = jprint_to_string(r, c->self, &s);
    if (res == 0)
        res = jr_burn(r, s.len * 4);
    if (res == 0)
        res = jr_take(r, s.len + 1, 4, &same);
    if (res == 0)
        res = jr_take(r, s.len + 1, 4, &other);
    if (res < 0)
        return res;
    struct jstr a = {same, jstr_recase(s, how, same)};
    struct jstr b = {other, jstr_recase(s, how == JSTR_LOWER ? JSTR_UPPER : JSTR_LOWER, other)};
    *ret = jv_bool(jstr_equal(a, s) && !jstr_equal(a, b));
    return 0;
}

static int t_lower(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return is_case(r, c, JSTR_LOWER, ret);
}

static int t_upper(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return is_case(r, c, JSTR_UPPER, ret);
}

static int t_filter(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jstr name = {0};
    int res = jarg_string(r, c->self, &name);
    *ret = jv_bool(res == 0 && jfilter_find(name));
    return res;
}

static int t_test(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jstr name = {0};
    int res = jarg_string(r, c->self, &name);
    *ret = jv_bool(res == 0 && jtest_find(name));
    return res;
}

static const struct jfunc tests[] = {
    {"defined", t_defined, "", 0},    {"undefined", t_undefined, "", 0},
    {"none", t_none, "", 0},          {"boolean", t_boolean, "", 0},
    {"true", t_true, "", 0},          {"false", t_false, "", 0},
    {"integer", t_integer, "", 0},    {"float", t_float, "", 0},
    {"number", t_number, "", 0},      {"string", t_string, "", 0},
    {"mapping", t_mapping, "", 0},    {"iterable", t_iterable, "", 0},
    {"sequence", t_sequence, "", 0},  {"callable", t_callable, "", 0},
    {"eq", t_eq, "other", 1},         {"equalto", t_eq, "other", 1},
    {"==", t_eq, "other", 1},         {"ne", t_ne, "other", 1},
    {"!=", t_ne, "other", 1},         {"lt", t_lt, "other", 1},
    {"lessthan", t_lt, "other", 1},   {"<", t_lt, "other", 1},
    {"le", t_le, "other", 1},         {"<=", t_le, "other", 1},
    {"gt", t_gt, "other", 1},         {"greaterthan", t_gt, "other", 1},
    {">", t_gt, "other", 1},          {"ge", t_ge, "other", 1},
    {">=", t_ge, "other", 1},         {"in", t_in, "seq", 1},
    {"sameas", t_sameas, "other", 1}, {"odd", t_odd, "", 0},
    {"even", t_even, "", 0},          {"divisibleby", t_divisibleby, "num", 1},
    {"lower", t_lower, "", 0},        {"upper", t_upper, "", 0},
    {"filter", t_filter, "", 0},      {"test", t_test, "", 0},
};

const struct jfunc *jtest_find(struct jstr name)
{
    return jfunc_find(tests, sizeof(tests) / sizeof(*tests), name);
}
