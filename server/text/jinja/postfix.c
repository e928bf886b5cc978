/*
 * Parses what follows a value: attributes, subscripts, calls, filters, tests; and targets of
 * assignment. Called by expr.c and parse.c.
 */
#include "server/text/jinja/func.h"
#include "server/text/jinja/jinja.h"
#include "server/text/jinja/parse.h"

/* "( ... )" into n->kids; stands at the bracket. */
static int parse_args(struct jparse *p, struct jnode *n)
{
    int r = jparse_enter(p);
    if (r == 0)
        r = jparse_advance(p);
    while (r == 0 && !jparse_at_op(p, ')')) {
        struct jnode *arg, *wrap = NULL;
        bool spread = jparse_at_op(p, '*') || jparse_at_op(p, JLEX_OP2('*', '*'));
        if (p->now.kind == JLEX_NAME && (r = jparse_peek(p)) < 0)
            break;
        bool named = p->now.kind == JLEX_NAME && p->next.kind == JLEX_OP && p->next.op == '=';
        if (spread || named) {
            r = jparse_node(p, spread ? JN_SPREAD : JN_KEYWORD, &wrap);
            if (r < 0)
                break;
            wrap->op = p->now.op;
            r = spread ? jparse_advance(p) : jparse_name(p, &wrap->name);
            if (r == 0 && named)
                r = jparse_advance(p);
        }
        if (r == 0)
            r = jparse_expr(p, &arg);
        if (r == 0 && wrap)
            wrap->a = arg;
        if (r == 0)
            r = jparse_push(p, &n->kids, wrap ? wrap : arg);
        if (r == 0 && !jparse_at_op(p, ')'))
            r = jparse_expect_op(p, ',');
    }
    if (r < 0)
        return r;
    p->depth--;
    return jparse_advance(p);
}

/* One part of a slice: absent before ':' and ']'. */
static int parse_bound(struct jparse *p, struct jnode **ret_node)
{
    if (jparse_at_op(p, ':') || jparse_at_op(p, ']'))
        return 0;
    return jparse_expr(p, ret_node);
}

static int parse_subscript(struct jparse *p, struct jnode *of, struct jnode **ret_node)
{
    struct jnode *n;
    int r = jparse_node(p, JN_ITEM, &n);
    if (r == 0)
        r = jparse_advance(p);
    if (r < 0)
        return r;
    n->a = of;
    if (jparse_at_op(p, ']'))
        return jparse_unexpected(p, "an index");
    r = parse_bound(p, &n->b);
    if (r == 0 && jparse_at_op(p, ':')) {
        n->kind = JN_SLICE;
        r = jparse_advance(p);
        if (r == 0)
            r = parse_bound(p, &n->c);
        if (r == 0 && jparse_at_op(p, ':')) {
            r = jparse_advance(p);
            if (r == 0)
                r = parse_bound(p, &n->d);
        }
    }
    if (r == 0)
        r = jparse_expect_op(p, ']');
    if (r == 0)
        *ret_node = n;
    return r;
}

static int parse_dot(struct jparse *p, struct jnode *of, struct jnode **ret_node)
{
    struct jnode *n;
    int r = jparse_node(p, JN_ATTR, &n);
    if (r == 0)
        r = jparse_advance(p);
    if (r < 0)
        return r;
    n->a = of;
    *ret_node = n;
    if (p->now.kind != JLEX_INT)
        return jparse_name(p, &n->name);
    n->kind = JN_ITEM;
    r = jparse_node(p, JN_CONST, &n->b);
    if (r < 0)
        return r;
    n->b->value = jv_int(p->now.i);
    return jparse_advance(p);
}

static int parse_call(struct jparse *p, struct jnode *of, struct jnode **ret_node)
{
    struct jnode *n;
    int r = jparse_node(p, JN_CALL, &n);
    if (r < 0)
        return r;
    n->a = of;
    *ret_node = n;
    return parse_args(p, n);
}

static int too_long(struct jparse *p)
{
    return jparse_fail(p, "more than %d parts in a row", JINJA_NEST_MAX);
}

int jparse_postfix(struct jparse *p, struct jnode **node)
{
    int r = 0;
    for (int i = 0; r == 0; i++) {
        if (i == JINJA_NEST_MAX)
            return too_long(p);
        if (jparse_at_op(p, '.'))
            r = parse_dot(p, *node, node);
        else if (jparse_at_op(p, '['))
            r = parse_subscript(p, *node, node);
        else if (jparse_at_op(p, '('))
            r = parse_call(p, *node, node);
        else
            break;
    }
    return r;
}

/* Whether the current token begins the argument of a test written without brackets. */
static bool begins_argument(const struct jparse *p)
{
    switch (p->now.kind) {
    case JLEX_STRING:
    case JLEX_INT:
    case JLEX_FLOAT: return true;
    case JLEX_NAME:
        return !jparse_at_word(p, "else") && !jparse_at_word(p, "or") &&
               !jparse_at_word(p, "and") && !jparse_at_word(p, "if");
    case JLEX_OP: return jparse_at_op(p, '[') || jparse_at_op(p, '{');
    case JLEX_EOF:
    case JLEX_TEXT:
    case JLEX_BLOCK_BEGIN:
    case JLEX_BLOCK_END:
    case JLEX_PRINT_BEGIN:
    case JLEX_PRINT_END: break;
    }
    return false;
}

static int parse_test(struct jparse *p, struct jnode *of, struct jnode **ret_node)
{
    struct jnode *n, *not_node = NULL;
    int r = jparse_node(p, JN_TEST, &n);
    if (r == 0)
        r = jparse_advance(p);
    if (r == 0 && jparse_at_word(p, "not")) {
        r = jparse_node(p, JN_NOT, &not_node);
        if (r == 0)
            r = jparse_advance(p);
    }
    if (r == 0)
        r = jparse_name(p, &n->name);
    if (r < 0)
        return r;
    n->a = of;
    n->func = jtest_find(n->name);
    if (jparse_at_op(p, '(')) {
        r = parse_args(p, n);
    } else if (begins_argument(p)) {
        struct jnode *arg;
        if (jparse_at_word(p, "is"))
            return jparse_fail(p, "tests cannot be chained with is");
        r = jparse_primary(p, &arg);
        if (r == 0)
            r = jparse_postfix(p, &arg);
        if (r == 0)
            r = jparse_push(p, &n->kids, arg);
    }
    if (not_node)
        not_node->a = n;
    if (r == 0)
        *ret_node = not_node ? not_node : n;
    return r;
}

static int parse_filter(struct jparse *p, struct jnode *of, struct jnode **ret_node)
{
    struct jnode *n;
    int r = jparse_node(p, JN_FILTER, &n);
    if (r == 0)
        r = jparse_name(p, &n->name);
    if (r < 0)
        return r;
    n->a = of;
    n->func = jfilter_find(n->name);
    *ret_node = n;
    return jparse_at_op(p, '(') ? parse_args(p, n) : 0;
}

int jparse_filters(struct jparse *p, struct jnode *value, bool first_is_bare,
                   struct jnode **ret_node)
{
    int r = first_is_bare ? parse_filter(p, value, &value) : 0;
    for (int i = 0; r == 0; i++) {
        if (i == JINJA_NEST_MAX)
            return too_long(p);
        if (jparse_at_op(p, '|')) {
            r = jparse_advance(p);
            if (r == 0)
                r = parse_filter(p, value, &value);
        } else if (value && jparse_at_word(p, "is")) {
            r = parse_test(p, value, &value);
        } else if (value && !first_is_bare && jparse_at_op(p, '(')) {
            r = parse_call(p, value, &value);
        } else {
            break;
        }
    }
    if (r == 0)
        *ret_node = value;
    return r;
}

static int parse_target_item(struct jparse *p, struct jnode **ret_node)
{
    struct jnode *n;
    int r;
    if (jparse_at_op(p, '(')) {
        r = jparse_enter(p);
        if (r == 0)
            r = jparse_advance(p);
        if (r == 0)
            r = jparse_target(p, ret_node);
        if (r == 0)
            p->depth--;
        return r < 0 ? r : jparse_expect_op(p, ')');
    }
    r = jparse_node(p, JN_NAME, &n);
    if (r == 0)
        r = jparse_name(p, &n->name);
    if (r < 0)
        return r;
    *ret_node = n;
    return jparse_at_op(p, '.') ? parse_dot(p, n, ret_node) : 0;
}

int jparse_target(struct jparse *p, struct jnode **ret_node)
{
    struct jnode *tuple, *item = NULL;
    bool commas = false;
    int r = jparse_node(p, JN_TUPLE, &tuple);
    while (r == 0 && (p->now.kind == JLEX_NAME || jparse_at_op(p, '(')) &&
           !(commas && jparse_at_word(p, "in"))) {
        r = parse_target_item(p, &item);
        if (r == 0)
            r = jparse_push(p, &tuple->kids, item);
        if (r < 0 || !jparse_at_op(p, ','))
            break;
        commas = true;
        r = jparse_advance(p);
    }
    if (r == 0 && !item)
        r = jparse_unexpected(p, "a variable");
    if (r == 0)
        *ret_node = commas ? tuple : item;
    return r;
}
