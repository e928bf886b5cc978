/* Operators, as Python defines them for these types; integers that leave 64 bits are an error. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "server/text/jinja/eval.h"
#include "server/text/jinja/func.h"

static int no_op(struct jr *r, const char *op, const struct jv *a, const struct jv *b)
{
    if (a->kind == JV_UNDEFINED || b->kind == JV_UNDEFINED)
        return jv_refuse(r, a->kind == JV_UNDEFINED ? a : b);
    if (op[0] == '+' && a->kind == JV_STRING)
        return jr_fail(r, "can only concatenate str (not \"%s\") to str", jv_type(b));
    return jr_fail(r, "unsupported operand type(s) for %s: '%s' and '%s'", op, jv_type(a),
                   jv_type(b));
}

static const char *op_name(uint32_t op)
{
    switch (op) {
    case '+': return "+";
    case '-': return "-";
    case '*': return "*";
    case '/': return "/";
    case '%': return "%";
    case JLEX_OP2('/', '/'): return "//";
    default: return "**";
    }
}

static int int_power(int64_t a, int64_t n, int64_t *ret)
{
    int64_t v = 1;
    if (a == 1 || a == 0 || a == -1) {
        *ret = n == 0 ? 1 : a == -1 && n % 2 == 0 ? 1 : a;
        return 0;
    }
    for (; n > 0; n--) {
        if (__builtin_mul_overflow(v, a, &v))
            return -ERANGE;
    }
    *ret = v;
    return 0;
}

static int int_divide(struct jr *r, bool floor, int64_t a, int64_t b, int64_t *ret)
{
    if (b == 0)
        return jr_fail(r, "integer division or modulo by zero");
    if (b == -1)
        return floor ? __builtin_sub_overflow((int64_t)0, a, ret) ? -ERANGE : 0 : (*ret = 0, 0);
    int64_t q = a / b, m = a % b;
    if (m && (m < 0) != (b < 0)) {
        m += b;
        q--;
    }
    *ret = floor ? q : m;
    return 0;
}

static int arith_ints(struct jr *r, uint32_t op, int64_t a, int64_t b, struct jv *ret)
{
    int64_t v = 0;
    int res = 0;
    switch (op) {
    case '+': res = __builtin_add_overflow(a, b, &v) ? -ERANGE : 0; break;
    case '-': res = __builtin_sub_overflow(a, b, &v) ? -ERANGE : 0; break;
    case '*': res = __builtin_mul_overflow(a, b, &v) ? -ERANGE : 0; break;
    case '%': res = int_divide(r, false, a, b, &v); break;
    case JLEX_OP2('/', '/'): res = int_divide(r, true, a, b, &v); break;
    default: res = int_power(a, b, &v); break;
    }
    if (res == -ERANGE)
        return jr_fail(r, "integer overflow in '%s'", op_name(op));
    if (res == 0)
        *ret = jv_int(v);
    return res;
}

static int arith_floats(struct jr *r, uint32_t op, double a, double b, struct jv *ret)
{
    bool divides = op == '/' || op == '%' || op == JLEX_OP2('/', '/');
    if (divides && !(b < 0) && !(b > 0) && !isnan(b))
        return jr_fail(r, "division by zero");
    double v = 0;
    switch (op) {
    case '+': v = a + b; break;
    case '-': v = a - b; break;
    case '*': v = a * b; break;
    case '/': v = a / b; break;
    case '%':
        v = fmod(a, b);
        if ((v < 0 || v > 0) && (v < 0) != (b < 0))
            v += b;
        break;
    case JLEX_OP2('/', '/'): v = floor(a / b); break;
    default: v = pow(a, b); break;
    }
    *ret = jv_float(v);
    return 0;
}

/* Once one of them is markup, the other is escaped. */
static int add_strings(struct jr *r, const struct jv *a, const struct jv *b, struct jv *ret)
{
    struct jv left = *a, right = *b, sum = jv_string(JSTR(""));
    int res = 0;
    sum.flavor = left.flavor | right.flavor;
    if (sum.flavor == JV_MARKUP) {
        res = jfunc_escape(r, a, &left);
        if (res == 0)
            res = jfunc_escape(r, b, &right);
    }
    if (res == 0)
        res = jr_concat(r, left.s, right.s, &sum.s);
    if (res == 0)
        *ret = sum;
    return res;
}

static int add_lists(struct jr *r, const struct jv *a, const struct jv *b, struct jv *ret)
{
    struct jv list;
    size_t na = a->list->count, nb = b->list->count;
    int res = jr_burn(r, (na + nb) * 8);
    if (res == 0)
        res = jv_list_new(r, na + nb, &list);
    if (res < 0)
        return res;
    if (na)
        memcpy(list.list->at, a->list->at, na * sizeof(struct jv));
    if (nb)
        memcpy(list.list->at + na, b->list->at, nb * sizeof(struct jv));
    list.list->count = na + nb;
    list.flavor = a->flavor;
    *ret = list;
    return 0;
}

static int repeat(struct jr *r, const struct jv *what, int64_t times, struct jv *ret)
{
    struct jv sum = *what;
    if (what->kind == JV_STRING) {
        size_t n = times > 0 ? (size_t)times : 0, bytes;
        char *p;
        if (__builtin_mul_overflow(n, what->s.len, &bytes))
            bytes = SIZE_MAX;
        int res = jr_burn(r, bytes);
        if (res == 0)
            res = jr_take(r, bytes + !bytes, 1, &p);
        for (size_t i = 0; res == 0 && what->s.len && i < n; i++)
            memcpy(p + i * what->s.len, what->s.p, what->s.len);
        if (res == 0)
            *ret = jv_string((struct jstr){p, bytes});
        return res;
    }
    int res = jv_list_new(r, 0, &sum);
    sum.flavor = what->flavor;
    for (int64_t i = 0; res == 0 && i < times; i++) {
        res = jr_burn(r, what->list->count);
        for (size_t k = 0; res == 0 && k < what->list->count; k++)
            res = jv_list_push(r, &sum, &what->list->at[k]);
    }
    if (res == 0)
        *ret = sum;
    return res;
}

static bool is_sequence(const struct jv *v)
{
    return v->kind == JV_STRING ||
           (v->kind == JV_LIST && (v->flavor == JV_PLAIN || v->flavor == JV_TUPLE));
}

static bool is_int(const struct jv *v)
{
    return v->kind == JV_INT || v->kind == JV_BOOL;
}

int jop_arith(struct jr *r, uint32_t op, const struct jv *a, const struct jv *b, struct jv *ret)
{
    if (is_int(a) && is_int(b) && op != '/' && !(op == JLEX_OP2('*', '*') && jv_as_int(b) < 0))
        return arith_ints(r, op, jv_as_int(a), jv_as_int(b), ret);
    if (jv_is_number(a) && jv_is_number(b))
        return arith_floats(r, op, jv_as_float(a), jv_as_float(b), ret);
    if (op == '+' && a->kind == JV_STRING && b->kind == JV_STRING)
        return add_strings(r, a, b, ret);
    if (op == '+' && is_sequence(a) && is_sequence(b) && a->kind == JV_LIST && b->kind == JV_LIST &&
        a->flavor == b->flavor)
        return add_lists(r, a, b, ret);
    if (op == '*' && is_sequence(a) && is_int(b))
        return repeat(r, a, jv_as_int(b), ret);
    if (op == '*' && is_int(a) && is_sequence(b))
        return repeat(r, b, jv_as_int(a), ret);
    if (op == '%' && a->kind == JV_STRING && b->kind != JV_UNDEFINED) {
        bool tuple = b->kind == JV_LIST && b->flavor == JV_TUPLE;
        return jfunc_percent(r, a->s, tuple ? b->list->at : b, tuple ? b->list->count : 1, tuple,
                             ret);
    }
    return no_op(r, op_name(op), a, b);
}

int jop_sign(struct jr *r, bool negate, const struct jv *a, struct jv *ret)
{
    static const struct jv zero = {.kind = JV_INT};
    if (a->kind == JV_UNDEFINED)
        return jv_refuse(r, a);
    if (!jv_is_number(a))
        return jr_fail(r, "bad operand type for unary %c: '%s'", negate ? '-' : '+', jv_type(a));
    if (a->kind == JV_FLOAT) {
        *ret = jv_float(negate ? -a->f : a->f);
        return 0;
    }
    return jop_arith(r, negate ? '-' : '+', &zero, a, ret);
}

int jop_compare(struct jr *r, uint32_t op, const struct jv *a, const struct jv *b, bool *ret)
{
    int res = 0;
    switch (op) {
    case JLEX_OP2('=', '='): return jv_equal(r, a, b, ret);
    case JLEX_OP2('!', '='):
        res = jv_equal(r, a, b, ret);
        *ret = !*ret;
        return res;
    case JN_OP_IN: return jv_contains(r, b, a, ret);
    case JN_OP_NOT_IN:
        res = jv_contains(r, b, a, ret);
        *ret = !*ret;
        return res;
    case '<': return jv_less(r, a, b, ret);
    case '>': return jv_less(r, b, a, ret);
    default: break;
    }
    bool nan = (a->kind == JV_FLOAT && isnan(a->f)) || (b->kind == JV_FLOAT && isnan(b->f));
    res = op == JLEX_OP2('<', '=') ? jv_less(r, b, a, ret) : jv_less(r, a, b, ret);
    *ret = !*ret && !nan;
    return res;
}

/* Python's slice.indices(). */
static int bounds_of(struct jr *r, const struct jv *const bounds[3], int64_t count, int64_t ret[3])
{
    int64_t given[3] = {0, 0, 1};
    bool has[3];
    for (int i = 0; i < 3; i++) {
        has[i] = bounds[i] && bounds[i]->kind != JV_NONE;
        if (has[i] && !is_int(bounds[i]))
            return jr_fail(r, "slice indices must be integers or None");
        if (has[i])
            given[i] = jv_as_int(bounds[i]);
    }
    int64_t step = given[2], low = step < 0 ? -1 : 0, high = step < 0 ? count - 1 : count;
    if (step == 0 || step == INT64_MIN)
        return jr_fail(r, "slice step cannot be %s", step ? "so large" : "zero");
    for (int i = 0; i < 2; i++) {
        int64_t v = given[i] < 0 ? given[i] + count : given[i];
        if (!has[i])
            v = (i == 0) == (step > 0) ? low : high;
        ret[i] = v < low ? low : v > high ? high : v;
    }
    ret[2] = step;
    return 0;
}

static int slice_string(struct jr *r, struct jstr s, const int64_t b[3], struct jv *ret)
{
    if (b[2] == 1) { /* no copy */
        size_t from = jstr_offset(s, (size_t)b[0]);
        size_t to = b[1] > b[0] ? jstr_offset(s, (size_t)b[1]) : from;
        *ret = jv_string((struct jstr){s.p + from, to - from});
        return 0;
    }
    struct jv chars, string = jv_string(s);
    struct jout out = {0};
    int res = jv_iterate(r, &string, &chars);
    for (int64_t i = b[0]; res == 0 && (b[2] > 0 ? i < b[1] : i > b[1]);) {
        res = jr_write(r, &out, chars.list->at[i].s);
        if (__builtin_add_overflow(i, b[2], &i))
            break;
    }
    if (res == 0)
        *ret = jv_string((struct jstr){out.p ? out.p : "", out.len});
    return res;
}

int jop_slice(struct jr *r, const struct jv *of, const struct jv *const bounds[3], struct jv *ret)
{
    int64_t b[3];
    struct jv list;
    if (of->kind == JV_UNDEFINED)
        return jv_refuse(r, of);
    bool sliceable = of->kind == JV_STRING ||
                     (of->kind == JV_LIST &&
                      (of->flavor == JV_PLAIN || of->flavor == JV_TUPLE || of->flavor == JV_RANGE));
    if (!sliceable)
        return jr_fail(r, "'%s' object cannot be sliced", jv_type(of));
    size_t count;
    int res = jv_length(r, of, &count);
    if (res == 0)
        res = bounds_of(r, bounds, (int64_t)count, b);
    if (res < 0)
        return res;
    if (of->kind == JV_STRING) {
        res = slice_string(r, of->s, b, ret);
        ret->flavor = of->flavor;
        return res;
    }
    res = jr_burn(r, count * 8);
    if (res == 0)
        res = jv_list_new(r, 0, &list);
    for (int64_t i = b[0]; res == 0 && (b[2] > 0 ? i < b[1] : i > b[1]);) {
        res = jv_list_push(r, &list, &of->list->at[i]);
        if (__builtin_add_overflow(i, b[2], &i))
            break;
    }
    if (res < 0)
        return res;
    list.flavor = of->flavor;
    *ret = list;
    return 0;
}
