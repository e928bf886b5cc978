/*
 * Paull's method. Rules that can begin with each other form a group; in a group they are taken in
 * order. Where a rule begins with an earlier one of its group, that one's alternatives are put in
 * its place; where it then begins with itself, those alternatives become a repetition at the end.
 *
 * An alternative is a pair: what it begins with and the rest. Only what begins with a rule of the
 * group is taken apart, everything else stays one expression.
 */
#include "server/grammar/left.h"

#include <stdbool.h>
#include <stdlib.h>

#include "server/grammar/expr.h"

#define DEPTH_MOST 2048u /* of expressions and rules that begin with each other */

/* The alternatives of a rule: alternative i is first.at[i] and then rest.at[i]. */
struct ways {
    struct expr_list first, rest;
};

struct left {
    struct expr_set *set;
    uint32_t base, count; /* rules */
    uint32_t *group;      /* [count] the same number for rules that begin with each other */
    uint32_t *order, *low, *stack, orders, held_count; /* [count] of Tarjan's search */
    bool *held;                                        /* [count] on the stack */
    bool *loops;         /* [count] begins with itself, perhaps by way of others */
    struct ways *ways;   /* [count] of rules that have been written anew */
    uint32_t depth, now; /* the group at work */
    bool too_deep;
};

/* ---- which begins with which ---- */

static void visit(struct left *l, uint32_t rule);

/* Follows the rules that an expression may begin with. */
static void visit_first(struct left *l, uint32_t rule, uint32_t at)
{
    const struct expr e = l->set->node[at];

    if (++l->depth > DEPTH_MOST)
        l->too_deep = true;
    if (l->too_deep || !ek_work_pay(l->set->work, 1))
        return;
    if (e.kind == EXPR_KIND_SEQ || e.kind == EXPR_KIND_REPEAT) {
        visit_first(l, rule, e.kind == EXPR_KIND_SEQ ? l->set->item[e.a] : e.a);
    } else if (e.kind == EXPR_KIND_ALT) {
        for (uint32_t i = 0; i < e.b; i++)
            visit_first(l, rule, l->set->item[e.a + i]);
    } else if (e.kind == EXPR_KIND_CALL && e.a >= l->base) {
        uint32_t to = e.a - l->base;
        l->loops[rule] |= to == rule;
        if (l->order[to] == 0)
            visit(l, to);
        if (l->held[to] && l->low[to] < l->low[rule])
            l->low[rule] = l->low[to];
    }
    l->depth--;
}

static void visit(struct left *l, uint32_t rule)
{
    l->order[rule] = l->low[rule] = ++l->orders;
    l->stack[l->held_count++] = rule;
    l->held[rule] = true;
    visit_first(l, rule, l->set->rule[l->base + rule].body);
    if (l->low[rule] != l->order[rule])
        return;
    bool alone = l->stack[l->held_count - 1] == rule;
    for (uint32_t one = UINT32_MAX; one != rule;) {
        one = l->stack[--l->held_count];
        l->held[one] = false;
        l->loops[one] |= !alone;
        l->group[one] = rule;
    }
}

/* ---- alternatives ---- */

static bool is_of_group(const struct left *l, const struct expr *e)
{
    return e->kind == EXPR_KIND_CALL && e->a >= l->base && l->group[e->a - l->base] == l->now;
}

/* Whether it may begin with a rule of the group at work. */
static bool left_begins(struct left *l, uint32_t at)
{
    const struct expr *e = &l->set->node[at];
    bool is = is_of_group(l, e);

    if (l->too_deep || !ek_work_pay(l->set->work, 1))
        return false;
    if (e->kind == EXPR_KIND_SEQ)
        is = left_begins(l, l->set->item[e->a]);
    else if (e->kind == EXPR_KIND_REPEAT)
        is = left_begins(l, e->a);
    for (uint32_t i = 0; e->kind == EXPR_KIND_ALT && i < e->b && !is; i++)
        is = left_begins(l, l->set->item[e->a + i]);
    return is;
}

static void add_way(struct ways *w, uint32_t first, uint32_t rest)
{
    expr_push(&w->first, first);
    expr_push(&w->rest, rest);
}

/* All of a sequence but its first. */
static uint32_t behind_first(struct expr_set *s, const struct expr *e)
{
    struct expr_list l = {.set = s};
    for (uint32_t i = 1; i < e->b && expr_ok(s); i++)
        expr_push(&l, s->item[e->a + i]);
    return expr_seq(&l);
}

static void take_apart(struct left *l, uint32_t at, uint32_t rest, struct ways *out)
{
    struct expr_set *s = l->set;
    const struct expr e = s->node[at];

    if (++l->depth > DEPTH_MOST)
        l->too_deep = true;
    if (l->too_deep || !expr_ok(s))
        return;
    if (e.kind == EXPR_KIND_CALL || !left_begins(l, at)) {
        add_way(out, at, rest);
    } else if (e.kind == EXPR_KIND_SEQ) {
        take_apart(l, s->item[e.a], expr_pair(s, behind_first(s, &e), rest), out);
    } else if (e.kind == EXPR_KIND_ALT) {
        for (uint32_t i = 0; i < e.b; i++)
            take_apart(l, s->item[e.a + i], rest, out);
    } else if (e.kind == EXPR_KIND_REPEAT) {
        uint32_t least = e.b ? e.b - 1 : 0, most = e.c == EXPR_MANY ? EXPR_MANY : e.c - 1;
        if (e.b == 0)
            take_apart(l, rest, EXPR_EMPTY, out);
        take_apart(l, e.a, expr_pair(s, expr_repeat(s, e.a, least, most), rest), out);
    }
    l->depth--;
}

/* ---- rules ---- */

/* Puts the alternatives of earlier rules of the group in place of their names. */
static void put_in(struct left *l, uint32_t rule, struct ways *w)
{
    struct expr_set *s = l->set;

    for (uint32_t i = 0; i < w->first.count && expr_ok(s); i++) {
        const struct expr *e = &s->node[w->first.at[i]];
        if (!is_of_group(l, e) || e->a - l->base >= rule)
            continue;
        const struct ways *other = &l->ways[e->a - l->base];
        uint32_t rest = w->rest.at[i];
        w->first.at[i] = EXPR_NEVER;
        for (uint32_t k = 0; k < other->first.count && expr_ok(s); k++)
            add_way(w, other->first.at[k], expr_pair(s, other->rest.at[k], rest));
    }
}

static void rewrite_rule(struct left *l, uint32_t rule)
{
    struct expr_set *s = l->set;
    struct ways *mine = &l->ways[rule], w = {{.set = s}, {.set = s}};
    struct expr_list again = {.set = s}, all = {.set = s};

    *mine = (struct ways){{.set = s}, {.set = s}};
    take_apart(l, s->rule[l->base + rule].body, EXPR_EMPTY, &w);
    put_in(l, rule, &w);
    for (uint32_t i = 0; i < w.first.count && expr_ok(s); i++) {
        const struct expr *e = &s->node[w.first.at[i]];
        if (is_of_group(l, e) && e->a - l->base == rule && w.rest.at[i] != EXPR_EMPTY)
            expr_push(&again, w.rest.at[i]);
    }
    uint32_t tail = again.count ? expr_repeat(s, expr_alt(&again), 0, EXPR_MANY) : EXPR_EMPTY;
    for (uint32_t i = 0; i < w.first.count && expr_ok(s); i++) {
        const struct expr *e = &s->node[w.first.at[i]];
        if ((is_of_group(l, e) && e->a - l->base == rule) || e->kind == EXPR_KIND_NEVER)
            continue;
        add_way(mine, w.first.at[i], expr_pair(s, w.rest.at[i], tail));
    }
    for (uint32_t i = 0; i < mine->first.count && i < mine->rest.count && expr_ok(s); i++)
        expr_push(&all, expr_pair(s, mine->first.at[i], mine->rest.at[i]));
    uint32_t body = expr_alt(&all);
    if (!l->too_deep && expr_ok(s))
        expr_rule_set(s, l->base + rule, body);
    free(again.at);
    free(w.first.at);
    free(w.rest.at);
}

static bool left_new(struct left *l)
{
    l->group = calloc(l->count + 1ull, sizeof(*l->group));
    l->order = calloc(l->count + 1ull, sizeof(*l->order));
    l->low = calloc(l->count + 1ull, sizeof(*l->low));
    l->stack = calloc(l->count + 1ull, sizeof(*l->stack));
    l->held = calloc(l->count + 1ull, sizeof(*l->held));
    l->loops = calloc(l->count + 1ull, sizeof(*l->loops));
    l->ways = calloc(l->count + 1ull, sizeof(*l->ways));
    return l->group && l->order && l->low && l->stack && l->held && l->loops && l->ways;
}

static void left_done(struct left *l)
{
    for (uint32_t i = 0; l->ways && i < l->count; i++) {
        free(l->ways[i].first.at);
        free(l->ways[i].rest.at);
    }
    free(l->group);
    free(l->order);
    free(l->low);
    free(l->stack);
    free(l->held);
    free(l->loops);
    free(l->ways);
}

void left_rewrite(struct expr_set *set, uint32_t first)
{
    struct left l = {.set = set, .base = first};

    if (!expr_ok(set))
        return;
    l.count = set->rules - first;
    if (!left_new(&l))
        set->no_memory = true;
    for (uint32_t i = 0; i < l.count && expr_ok(set) && !l.too_deep; i++)
        if (l.order[i] == 0)
            visit(&l, i);
    for (uint32_t i = 0; i < l.count && expr_ok(set) && !l.too_deep; i++) {
        l.now = l.group[i];
        l.depth = 0;
        if (l.loops[i] && ek_work_pay(set->work, 1))
            rewrite_rule(&l, i);
    }
    left_done(&l);
}
