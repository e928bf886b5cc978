/* The automaton is taken in the order in which its states are met, so that it begins in state 0. */
#include "server/grammar/table.h"

#include <errno.h>
#include <stdlib.h>

#include "common/err.h"
#include "server/grammar/automaton.h"
#include "server/grammar/expr.h"

static uint32_t copy(struct expr_set *to, const struct expr_set *from, uint32_t at, uint32_t depth);

static uint32_t copy_list(struct expr_set *to, const struct expr_set *from, const struct expr *e,
                          uint32_t depth)
{
    struct expr_list l = {.set = to};

    for (uint32_t i = 0; i < e->b && expr_ok(to); i++)
        expr_push(&l, copy(to, from, from->item[e->a + i], depth));
    return e->kind == EXPR_KIND_SEQ ? expr_seq(&l) : expr_alt(&l);
}

static uint32_t copy_table(struct expr_set *to, const struct expr_set *from,
                           const struct expr_table *t)
{
    uint32_t e = expr_table_new(to, t->states);

    for (uint32_t q = 0; q < t->states && expr_ok(to); q++)
        if (from->final[t->final + q])
            expr_table_final(to, q);
    for (uint32_t i = 0; i < t->edges && expr_ok(to); i++)
        expr_table_edge(to, from->edge[t->edge + i]);
    return e;
}

/* The same expression in another set, with the bodies of rules in place of calls. */
static uint32_t copy(struct expr_set *to, const struct expr_set *from, uint32_t at, uint32_t depth)
{
    const struct expr e = from->node[at];

    if (depth > EXPR_DEPTH_MOST)
        to->too_large = true;
    if (!expr_ok(to))
        return EXPR_EMPTY;
    switch ((enum expr_kind)e.kind) {
    case EXPR_KIND_EMPTY: return EXPR_EMPTY;
    case EXPR_KIND_NEVER: return EXPR_NEVER;
    case EXPR_KIND_BYTE: return expr_byte(to, e.lo, e.hi);
    case EXPR_KIND_TEXT: return expr_bytes(to, from->text.data + e.a, e.b);
    case EXPR_KIND_SEQ:
    case EXPR_KIND_ALT: return copy_list(to, from, &e, depth + 1);
    case EXPR_KIND_REPEAT: return expr_repeat(to, copy(to, from, e.a, depth + 1), e.b, e.c);
    case EXPR_KIND_CALL: return copy(to, from, from->rule[e.a].body, depth + 1);
    case EXPR_KIND_TABLE: return copy_table(to, from, &from->table[e.a]);
    }
    return EXPR_EMPTY;
}

/* The edges of a state, neighbours that lead to the same one joined. */
static void add_edges(struct expr_set *set, const struct automaton *a, uint32_t from,
                      const uint32_t *number, uint32_t at)
{
    const uint32_t *next = a->next + (size_t)at * a->classes;

    for (uint32_t lo = 0, hi; lo < 256; lo = hi + 1) {
        uint32_t to = next[a->class_of[lo]];
        for (hi = lo; hi + 1 < 256 && next[a->class_of[hi + 1]] == to;)
            hi++;
        if (to != AUTOMATON_NONE)
            expr_table_edge(set,
                            (struct expr_edge){from, number[to] - 1, (uint8_t)lo, (uint8_t)hi});
    }
}

/* Writes the states that are met before a text has been complete. */
static int write_shortest(struct expr_set *set, const struct automaton *a, uint32_t *ret_expr)
{
    uint32_t *number = calloc(a->states, sizeof(*number)); /* 1 = the first one, 0 = not met */
    uint32_t *met = calloc(a->states, sizeof(*met)), count = 0;
    int r = number && met ? 0 : -ENOMEM;

    if (r == 0) {
        met[count++] = a->start[0];
        number[a->start[0]] = 1;
    }
    for (uint32_t i = 0; i < count && ek_work_pay(set->work, a->classes); i++) {
        if (a->state[met[i]].accepts)
            continue;
        for (uint32_t c = 0; c < a->classes; c++) {
            uint32_t to = a->next[(size_t)met[i] * a->classes + c];
            if (to == AUTOMATON_NONE || number[to] != 0)
                continue;
            met[count++] = to;
            number[to] = count;
        }
    }
    if (r == 0)
        *ret_expr = expr_table_new(set, count);
    for (uint32_t i = 0; i < count && expr_ok(set); i++) {
        if (a->state[met[i]].accepts)
            expr_table_final(set, i);
        else
            add_edges(set, a, i, number, met[i]);
    }
    free(number);
    free(met);
    return r;
}

/* The automaton of one expression, in a set of its own. */
static int compile(struct expr_set *from, uint32_t expr, struct automaton *ret_automaton,
                   struct ek_fault *fault)
{
    struct expr_set set;

    expr_init(&set);
    set.work = from->work;
    uint32_t rule = expr_rule_new(&set, "terminal");
    expr_rule_set(&set, rule, copy(&set, from, expr, 0));
    int r = automaton_make(&set, rule, 1, ret_automaton, fault);
    from->no_memory |= set.no_memory;
    expr_done(&set);
    return r;
}

int table_shortest(struct expr_set *set, uint32_t expr, uint32_t *ret_expr, struct ek_fault *fault)
{
    struct automaton a = {0};

    if (!expr_ok(set)) {
        *ret_expr = EXPR_EMPTY;
        return 0; /* the compiler of the set says why */
    }
    int r = compile(set, expr, &a, fault);
    if (r == 0)
        r = write_shortest(set, &a, ret_expr);
    automaton_done(&a);
    return r;
}

static uint32_t step(const struct automaton *a, uint32_t state, uint8_t byte)
{
    return a->next[(size_t)state * a->classes + a->class_of[byte]];
}

int table_ends(struct expr_set *set, uint32_t expr, struct table_ends *ret_ends,
               struct ek_fault *fault)
{
    struct table_ends ends = {0};
    struct automaton a = {0};

    int r = expr_ok(set) ? compile(set, expr, &a, fault) : 0;
    for (uint32_t q = 0; r == 0 && q < a.states && ek_work_pay(set->work, 16); q++) {
        for (uint32_t b = 0; b < 256 && a.state[q].accepts; b++) {
            bool blank = b == ' ' || (b >= '\t' && b <= '\r');
            bool on = step(&a, q, (uint8_t)b) != AUTOMATON_NONE;
            ends.open |= on && !blank;
            ends.by_line |= on && b == '\n';
        }
    }
    if (r == 0 && a.states > 0) {
        uint32_t then = step(&a, a.start[0], '\n');
        ends.line = then != AUTOMATON_NONE && a.state[then].accepts;
        *ret_ends = ends;
    }
    automaton_done(&a);
    return r;
}
