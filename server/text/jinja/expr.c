/*
 * Parses expressions by recursive descent with Jinja's precedence (parse.h has the nodes). Called
 * by parse.c and postfix.c.
 */
#include <errno.h>
#include <string.h>

#include "server/text/jinja/func.h"
#include "server/text/jinja/jinja.h"
#include "server/text/jinja/parse.h"

typedef int level_fn(struct jparse *p, struct jnode **ret_node);

static int parse_unary(struct jparse *p, bool with_filters, struct jnode **ret_node);

/* "x op y op z" where at() tells which operators belong here; one operand is returned as is. */
static int parse_chain(struct jparse *p, enum jnode_kind kind, level_fn *operand,
                       int (*at)(struct jparse *p, uint32_t *ret_op), struct jnode **ret_node)
{
    struct jnode *first, *chain = NULL;
    uint32_t op, cap = 0;
    int r = operand(p, &first);
    while (r == 0 && (r = at(p, &op)) > 0) {
        if (!chain) {
            r = jparse_node(p, kind, &chain);
            if (r == 0)
                r = jparse_push(p, &chain->kids, first);
        } else {
            r = 0;
        }
        if (r == 0 && chain->kids.count > cap) {
            uint32_t *ops = ek_arena_array(p->arena, (size_t)cap * 2 + 4, sizeof(*ops));
            if (!ops)
                return -ENOMEM;
            if (cap)
                memcpy(ops, chain->ops, cap * sizeof(*ops));
            chain->ops = ops;
            cap = cap * 2 + 4;
        }
        struct jnode *next;
        if (r == 0)
            r = operand(p, &next);
        if (r < 0)
            return r;
        chain->ops[chain->kids.count - 1] = op;
        r = jparse_push(p, &chain->kids, next);
    }
    if (r == 0)
        *ret_node = chain ? chain : first;
    return r;
}

/* 1 and moved on when the current token is one of the operators, else 0. */
static int at_ops(struct jparse *p, const uint32_t *ops, size_t count, uint32_t *ret_op)
{
    for (size_t i = 0; i < count; i++) {
        if (jparse_at_op(p, ops[i])) {
            *ret_op = ops[i];
            int r = jparse_advance(p);
            return r < 0 ? r : 1;
        }
    }
    return 0;
}

static int at_word(struct jparse *p, const char *word, uint32_t *ret_op)
{
    if (!jparse_at_word(p, word))
        return 0;
    *ret_op = 0;
    int r = jparse_advance(p);
    return r < 0 ? r : 1;
}

static int at_power(struct jparse *p, uint32_t *ret_op)
{
    static const uint32_t ops[] = {JLEX_OP2('*', '*')};
    return at_ops(p, ops, 1, ret_op);
}

static int at_product(struct jparse *p, uint32_t *ret_op)
{
    static const uint32_t ops[] = {'*', '/', JLEX_OP2('/', '/'), '%'};
    return at_ops(p, ops, 4, ret_op);
}

static int at_tilde(struct jparse *p, uint32_t *ret_op)
{
    static const uint32_t ops[] = {'~'};
    return at_ops(p, ops, 1, ret_op);
}

static int at_sum(struct jparse *p, uint32_t *ret_op)
{
    static const uint32_t ops[] = {'+', '-'};
    return at_ops(p, ops, 2, ret_op);
}

static int at_comparison(struct jparse *p, uint32_t *ret_op)
{
    static const uint32_t ops[] = {
        JLEX_OP2('=', '='), JLEX_OP2('!', '='), JLEX_OP2('<', '='), JLEX_OP2('>', '='), '<', '>'};
    int r = at_ops(p, ops, 6, ret_op);
    if (r)
        return r;
    if (jparse_at_word(p, "in")) {
        *ret_op = JN_OP_IN;
        r = jparse_advance(p);
        return r < 0 ? r : 1;
    }
    if (!jparse_at_word(p, "not"))
        return 0;
    r = jparse_peek(p);
    if (r < 0 || p->next.kind != JLEX_NAME || !jstr_is((struct jstr){p->next.s, p->next.len}, "in"))
        return r;
    *ret_op = JN_OP_NOT_IN;
    r = jparse_advance(p);
    if (r == 0)
        r = jparse_advance(p);
    return r < 0 ? r : 1;
}

static int at_and(struct jparse *p, uint32_t *ret_op)
{
    return at_word(p, "and", ret_op);
}

static int at_or(struct jparse *p, uint32_t *ret_op)
{
    return at_word(p, "or", ret_op);
}

static int parse_operand(struct jparse *p, struct jnode **ret_node)
{
    return parse_unary(p, true, ret_node);
}

static int parse_power(struct jparse *p, struct jnode **ret_node)
{
    return parse_chain(p, JN_CHAIN, parse_operand, at_power, ret_node);
}

static int parse_product(struct jparse *p, struct jnode **ret_node)
{
    return parse_chain(p, JN_CHAIN, parse_power, at_product, ret_node);
}

static int parse_concat(struct jparse *p, struct jnode **ret_node)
{
    return parse_chain(p, JN_CONCAT, parse_product, at_tilde, ret_node);
}

static int parse_sum(struct jparse *p, struct jnode **ret_node)
{
    return parse_chain(p, JN_CHAIN, parse_concat, at_sum, ret_node);
}

static int parse_comparison(struct jparse *p, struct jnode **ret_node)
{
    return parse_chain(p, JN_COMPARE, parse_sum, at_comparison, ret_node);
}

static int parse_not(struct jparse *p, struct jnode **ret_node)
{
    if (!jparse_at_word(p, "not"))
        return parse_comparison(p, ret_node);
    struct jnode *n;
    int r = jparse_enter(p);
    if (r == 0)
        r = jparse_node(p, JN_NOT, &n);
    if (r == 0)
        r = jparse_advance(p);
    if (r == 0)
        r = parse_not(p, &n->a);
    if (r < 0)
        return r;
    p->depth--;
    *ret_node = n;
    return 0;
}

static int parse_and(struct jparse *p, struct jnode **ret_node)
{
    return parse_chain(p, JN_AND, parse_not, at_and, ret_node);
}

static int parse_or(struct jparse *p, struct jnode **ret_node)
{
    return parse_chain(p, JN_OR, parse_and, at_or, ret_node);
}

int jparse_expr(struct jparse *p, struct jnode **ret_node)
{
    struct jnode *value;
    int r = jparse_enter(p);
    if (r == 0)
        r = parse_or(p, &value);
    for (uint32_t i = 0; r == 0 && jparse_at_word(p, "if"); i++) {
        struct jnode *n;
        if (i == JINJA_NEST_MAX)
            return jparse_fail(p, "more than %d conditions in a row", JINJA_NEST_MAX);
        r = jparse_node(p, JN_COND, &n);
        if (r == 0)
            r = jparse_advance(p);
        if (r == 0)
            r = parse_or(p, &n->a);
        if (r < 0)
            return r;
        n->b = value;
        value = n;
        if (jparse_at_word(p, "else")) {
            r = jparse_advance(p);
            if (r == 0)
                r = jparse_expr(p, &n->c);
        }
    }
    if (r < 0)
        return r;
    p->depth--;
    *ret_node = value;
    return 0;
}

/* Where a tuple stops even after a comma. */
static bool ends_tuple(const struct jparse *p)
{
    return p->now.kind == JLEX_BLOCK_END || p->now.kind == JLEX_PRINT_END || jparse_at_op(p, ')') ||
           jparse_at_word(p, "in");
}

int jparse_tuple(struct jparse *p, int flags, struct jnode **ret_node)
{
    struct jnode *tuple, *item = NULL;
    bool commas = false;
    int r = jparse_node(p, JN_TUPLE, &tuple);
    while (r == 0 && !ends_tuple(p)) {
        r = flags & JPARSE_NO_COND ? parse_or(p, &item) : jparse_expr(p, &item);
        if (r == 0)
            r = jparse_push(p, &tuple->kids, item);
        if (r < 0 || !jparse_at_op(p, ','))
            break;
        commas = true;
        r = jparse_advance(p);
    }
    if (r == 0 && !item && !(flags & JPARSE_EMPTY))
        r = jparse_unexpected(p, "an expression");
    if (r == 0)
        *ret_node = commas || !item ? tuple : item;
    return r;
}

static int parse_list(struct jparse *p, struct jnode **ret_node)
{
    struct jnode *n, *item;
    int r = jparse_node(p, JN_LIST, &n);
    if (r == 0)
        r = jparse_advance(p);
    while (r == 0 && !jparse_at_op(p, ']')) {
        r = jparse_expr(p, &item);
        if (r == 0)
            r = jparse_push(p, &n->kids, item);
        if (r == 0 && !jparse_at_op(p, ']'))
            r = jparse_expect_op(p, ',');
    }
    if (r == 0)
        r = jparse_advance(p);
    if (r == 0)
        *ret_node = n;
    return r;
}

static int parse_dict(struct jparse *p, struct jnode **ret_node)
{
    struct jnode *n, *item;
    int r = jparse_node(p, JN_DICT, &n);
    if (r == 0)
        r = jparse_advance(p);
    while (r == 0 && !jparse_at_op(p, '}')) {
        r = jparse_expr(p, &item);
        if (r == 0)
            r = jparse_push(p, &n->kids, item);
        if (r == 0)
            r = jparse_expect_op(p, ':');
        if (r == 0)
            r = jparse_expr(p, &item);
        if (r == 0)
            r = jparse_push(p, &n->kids, item);
        if (r == 0 && !jparse_at_op(p, '}'))
            r = jparse_expect_op(p, ',');
    }
    if (r == 0)
        r = jparse_advance(p);
    if (r == 0)
        *ret_node = n;
    return r;
}

/* A string literal and those that follow it directly. */
static int parse_string(struct jparse *p, struct jnode *n)
{
    struct jstr all = {p->now.s, p->now.len};
    int r = jparse_advance(p);
    while (r == 0 && p->now.kind == JLEX_STRING) {
        char *both = ek_arena_take(p->arena, all.len + p->now.len + 1);
        if (!both)
            return -ENOMEM;
        memcpy(both, all.p, all.len);
        memcpy(both + all.len, p->now.s, p->now.len);
        all = (struct jstr){both, all.len + p->now.len};
        r = jparse_advance(p);
    }
    n->value = jv_string(all);
    return r;
}

static int parse_word(struct jparse *p, struct jnode *n)
{
    struct jstr s = {p->now.s, p->now.len};
    if (jstr_is(s, "true") || jstr_is(s, "True")) {
        n->value = jv_bool(true);
    } else if (jstr_is(s, "false") || jstr_is(s, "False")) {
        n->value = jv_bool(false);
    } else if (jstr_is(s, "none") || jstr_is(s, "None")) {
        n->value = jv_none();
    } else {
        n->kind = JN_NAME;
        return jparse_name(p, &n->name);
    }
    return jparse_advance(p);
}

int jparse_primary(struct jparse *p, struct jnode **ret_node)
{
    struct jnode *n;
    int r = jparse_node(p, JN_CONST, &n);
    if (r < 0)
        return r;
    *ret_node = n;
    if (p->now.kind == JLEX_NAME)
        return parse_word(p, n);
    if (p->now.kind == JLEX_STRING)
        return parse_string(p, n);
    if (p->now.kind == JLEX_INT || p->now.kind == JLEX_FLOAT) {
        n->value = p->now.kind == JLEX_INT ? jv_int(p->now.i) : jv_float(p->now.f);
        return jparse_advance(p);
    }
    if (jparse_at_op(p, '[') || jparse_at_op(p, '{')) {
        r = jparse_enter(p);
        if (r == 0)
            r = jparse_at_op(p, '[') ? parse_list(p, ret_node) : parse_dict(p, ret_node);
        p->depth--;
        return r;
    }
    if (!jparse_at_op(p, '('))
        return jparse_unexpected(p, "an expression");
    r = jparse_advance(p);
    if (r == 0)
        r = jparse_tuple(p, JPARSE_EMPTY, ret_node);
    return r < 0 ? r : jparse_expect_op(p, ')');
}

static int parse_unary(struct jparse *p, bool with_filters, struct jnode **ret_node)
{
    struct jnode *n;
    int r;
    if (jparse_at_op(p, '-') || jparse_at_op(p, '+')) {
        r = jparse_enter(p);
        if (r == 0)
            r = jparse_node(p, jparse_at_op(p, '-') ? JN_NEGATE : JN_PLUS, &n);
        if (r == 0)
            r = jparse_advance(p);
        if (r == 0)
            r = parse_unary(p, false, &n->a);
        if (r == 0)
            p->depth--;
    } else {
        r = jparse_primary(p, &n);
    }
    if (r == 0)
        r = jparse_postfix(p, &n);
    if (r == 0 && with_filters)
        r = jparse_filters(p, n, false, &n);
    if (r == 0)
        *ret_node = n;
    return r;
}
