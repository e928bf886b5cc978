/* A parser by recursive descent that computes as it reads, see expr.h. What is not known is carried
 * as a flag instead of ending the parse, so that errors of spelling show whatever is known. */
#include "supervisor/doctor/expr.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/promtext.h"

#define DEPTH_MOST 32
#define NAME_MOST  48

struct expr_reader {
    const char *at;
    doctor_lookup_fn lookup;
    const void *ctx;
    int depth;
    bool bad;
};

struct value {
    double v;
    bool known;
};

static struct value doctor_expr_unknown(void)
{
    return (struct value){0, false};
}

static struct value doctor_expr_known(double v)
{
    return (struct value){v, true};
}

static struct value doctor_expr_fail(struct expr_reader *r)
{
    r->bad = true;
    return doctor_expr_unknown();
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static void doctor_expr_skip(struct expr_reader *r)
{
    while (*r->at == ' ')
        r->at++;
}

/* Takes the operator or word if it stands here. */
static bool expr_take(struct expr_reader *r, const char *what)
{
    size_t n = strlen(what);
    doctor_expr_skip(r);
    if (strncmp(r->at, what, n) != 0 || (is_word(what[0]) && is_word(r->at[n])))
        return false;
    r->at += n;
    return true;
}

static struct value read_any(struct expr_reader *r);

enum function { FN_MIN, FN_MAX, FN_FLOOR, FN_CEIL, FN_DOWN, FN_UP, FUNCTIONS };
static const struct {
    const char *name;
    int args;
} functions[FUNCTIONS] = {
    [FN_MIN] = {"min", 2},   [FN_MAX] = {"max", 2},   [FN_FLOOR] = {"floor", 1},
    [FN_CEIL] = {"ceil", 1}, [FN_DOWN] = {"down", 2}, [FN_UP] = {"up", 2},
};

static double doctor_expr_apply(enum function f, double a, double b)
{
    switch (f) {
    case FN_MIN: return fmin(a, b);
    case FN_MAX: return fmax(a, b);
    case FN_FLOOR: return floor(a);
    case FN_CEIL: return ceil(a);
    /* A step of 0.01 is not exact: what is nearly whole counts as whole. */
    case FN_DOWN: return floor(a / b + 1e-9) * b;
    case FN_UP: return ceil(a / b - 1e-9) * b;
    case FUNCTIONS: break;
    }
    return 0;
}

static struct value read_call(struct expr_reader *r, const char *name)
{
    for (int f = 0; f < FUNCTIONS; f++) {
        if (strcmp(functions[f].name, name) != 0)
            continue;
        struct value a = read_any(r), b = doctor_expr_known(1);
        if (functions[f].args == 2) {
            if (!expr_take(r, ","))
                return doctor_expr_fail(r);
            b = read_any(r);
        }
        if (!expr_take(r, ")"))
            return doctor_expr_fail(r);
        return a.known && b.known ? doctor_expr_known(doctor_expr_apply((enum function)f, a.v, b.v))
                                  : doctor_expr_unknown();
    }
    return doctor_expr_fail(r);
}

static struct value read_name(struct expr_reader *r)
{
    char name[NAME_MOST];
    size_t n = 0;
    while (is_word(r->at[n]))
        n++;
    if (n == 0 || n >= sizeof(name))
        return doctor_expr_fail(r);
    memcpy(name, r->at, n);
    name[n] = '\0';
    r->at += n;
    if (expr_take(r, "("))
        return read_call(r, name);
    double v = 0;
    return r->lookup && r->lookup(r->ctx, name, &v) ? doctor_expr_known(v) : doctor_expr_unknown();
}

static struct value read_one(struct expr_reader *r)
{
    struct value v;
    doctor_expr_skip(r);
    if (r->bad || r->depth >= DEPTH_MOST)
        return doctor_expr_fail(r);
    r->depth++;
    if (expr_take(r, "(")) {
        v = read_any(r);
        if (!expr_take(r, ")"))
            v = doctor_expr_fail(r);
    } else if (expr_take(r, "-")) {
        v = read_one(r);
        v.v = -v.v;
    } else if ((*r->at >= '0' && *r->at <= '9') || *r->at == '.') {
        double number = 0;
        size_t used = promtext_number(r->at, strlen(r->at), &number);
        r->at += used;
        v = used ? doctor_expr_known(number) : doctor_expr_fail(r);
    } else {
        v = read_name(r);
    }
    r->depth--;
    return v;
}

static struct value read_product(struct expr_reader *r)
{
    struct value a = read_one(r);
    while (!r->bad) {
        bool times = expr_take(r, "*");
        if (!times && !expr_take(r, "/"))
            break;
        struct value b = read_one(r);
        if (!times && b.known && b.v == 0)
            return doctor_expr_fail(r);
        a = a.known && b.known ? doctor_expr_known(times ? a.v * b.v : a.v / b.v)
                               : doctor_expr_unknown();
    }
    return a;
}

static struct value read_sum(struct expr_reader *r)
{
    struct value a = read_product(r);
    while (!r->bad) {
        bool plus = expr_take(r, "+");
        if (!plus && !expr_take(r, "-"))
            break;
        struct value b = read_product(r);
        a = a.known && b.known ? doctor_expr_known(plus ? a.v + b.v : a.v - b.v)
                               : doctor_expr_unknown();
    }
    return a;
}

static struct value read_compare(struct expr_reader *r)
{
    static const char *const ops[] = {"<=", ">=", "==", "<", ">"};
    struct value a = read_sum(r);
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]) && !r->bad; i++) {
        if (!expr_take(r, ops[i]))
            continue;
        struct value b = read_sum(r);
        if (!a.known || !b.known)
            return doctor_expr_unknown();
        bool less = a.v<b.v, more = a.v> b.v;
        return doctor_expr_known(i == 0   ? !more
                                 : i == 1 ? !less
                                 : i == 2 ? !less && !more
                                 : i == 3 ? less
                                          : more);
    }
    return a;
}

static struct value read_logic(struct expr_reader *r)
{
    struct value a = read_compare(r);
    while (!r->bad) {
        bool both = expr_take(r, "and");
        if (!both && !expr_take(r, "or"))
            break;
        struct value b = read_compare(r);
        bool left = a.known && a.v != 0, right = b.known && b.v != 0;
        /* What is not known is not true. */
        a = doctor_expr_known(both ? left && right : left || right);
    }
    return a;
}

static struct value read_any(struct expr_reader *r)
{
    struct value a = read_logic(r);
    while (!r->bad && expr_take(r, "??")) {
        struct value b = read_logic(r);
        if (!a.known)
            a = b;
    }
    return a;
}

int doctor_eval(const char *text, doctor_lookup_fn lookup, const void *ctx, double *ret_value)
{
    struct expr_reader r = {.at = text, .lookup = lookup, .ctx = ctx};
    struct value v = read_any(&r);
    doctor_expr_skip(&r);
    if (r.bad || *r.at)
        return -EBADMSG;
    if (!v.known)
        return -ENODATA;
    if (!isfinite(v.v))
        return -EBADMSG;
    *ret_value = v.v;
    return 0;
}
