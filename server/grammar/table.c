/*
 * Operations on the set of texts that an expression has (table.h). Called by the readers of Lark's
 * notation and of regular expressions, where a form says "the shortest", "both" or "but not".
 *
 * The expression is copied into a set of its own, with the bodies of rules in place of calls, and
 * compiled: without calls its automaton needs no stack, a state alone says what may follow.
 *
 *   shortest  walks from the start and does not go on behind a state that accepts, so no text is
 *             left that another one begins
 *   both      walks the two automata side by side: a pair of states is one of the result,
 *             and accepts when both do; with `except` the second must not, and may have failed
 *             long ago (AUTOMATON_NONE). Pairs from which no text can end are left out, by going
 *             over the edges backwards until nothing changes
 *   ends      asks what may follow behind a text that is complete
 *
 * The result goes back into the caller's set as a table of edges, numbered in the order in which
 * the states are met, so that it begins in state 0. Work is paid for by the pair and the edge.
 */
#include "server/grammar/table.h"

#include <errno.h>
#include <stdlib.h>

#include "common/err.h"
#include "server/grammar/automaton.h"
#include "server/grammar/expr.h"

static uint32_t table_copy(struct expr_set *to, const struct expr_set *from, uint32_t at,
                           uint32_t depth);

static uint32_t copy_list(struct expr_set *to, const struct expr_set *from, const struct expr *e,
                          uint32_t depth)
{
    struct expr_list l = {.set = to};

    for (uint32_t i = 0; i < e->b && expr_ok(to); i++)
        expr_push(&l, table_copy(to, from, from->item[e->a + i], depth));
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
static uint32_t table_copy(struct expr_set *to, const struct expr_set *from, uint32_t at,
                           uint32_t depth)
{
    if (at >= from->nodes || depth > EXPR_DEPTH_MOST) /* a rule without a body yet */
        to->too_large = true;
    if (!expr_ok(to))
        return EXPR_EMPTY;
    const struct expr e = from->node[at];
    switch ((enum expr_kind)e.kind) {
    case EXPR_KIND_EMPTY: return EXPR_EMPTY;
    case EXPR_KIND_NEVER: return EXPR_NEVER;
    case EXPR_KIND_BYTE: return expr_byte(to, e.lo, e.hi);
    case EXPR_KIND_TEXT: return expr_bytes(to, from->text.data + e.a, e.b);
    case EXPR_KIND_SEQ:
    case EXPR_KIND_ALT: return copy_list(to, from, &e, depth + 1);
    case EXPR_KIND_REPEAT: return expr_repeat(to, table_copy(to, from, e.a, depth + 1), e.b, e.c);
    case EXPR_KIND_CALL: return table_copy(to, from, from->rule[e.a].body, depth + 1);
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
static int table_compile(struct expr_set *from, uint32_t expr, struct automaton *ret_automaton,
                         struct ek_fault *fault)
{
    struct expr_set set;

    (void)ek_work_pay(from->work, 2048); /* what the smallest one costs */
    expr_init(&set);
    set.work = from->work;
    uint32_t rule = expr_rule_new(&set, "terminal");
    expr_rule_set(&set, rule, table_copy(&set, from, expr, 0));
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
    int r = table_compile(set, expr, &a, fault);
    if (r == 0)
        r = write_shortest(set, &a, ret_expr);
    automaton_done(&a);
    return r;
}

/* ---- two automata side by side ---- */

static uint32_t table_step(const struct automaton *a, uint32_t state, uint8_t byte)
{
    return a->next[(size_t)state * a->classes + a->class_of[byte]];
}

/* A state of the first and one of the second, AUTOMATON_NONE = it has failed. */
struct pair {
    uint32_t a, b;
};

struct both {
    struct expr_set *set;
    const struct automaton *a, *b;
    bool except;
    struct pair *pair;
    uint32_t pairs, room;
    uint32_t *slot, slots; /* hash of pairs: number + 1 */
    struct expr_edge *edge;
    uint32_t edges, edge_room;
    uint32_t *number; /* [pairs] of those from which a text can end, from 1 */
};

static uint32_t hash_pair(struct pair p)
{
    uint64_t h = (p.a * 0x9e3779b97f4a7c15ull) ^ (p.b * 0xc2b2ae3d27d4eb4full);
    return (uint32_t)(h ^ h >> 32);
}

/* Room for one element more. */
static bool both_room(struct both *x, void **at, uint32_t count, uint32_t *room, size_t size)
{
    if (count < *room)
        return true;
    uint32_t want = *room ? *room * 2 : 256;
    void *bigger = want <= 8u * AUTOMATON_STATES_MOST ? realloc(*at, want * size) : NULL;
    if (!bigger) {
        x->set->no_memory |= want <= 8u * AUTOMATON_STATES_MOST;
        x->set->too_large |= want > 8u * AUTOMATON_STATES_MOST;
        return false;
    }
    *at = bigger;
    *room = want;
    return true;
}

static bool both_rehash(struct both *x)
{
    uint32_t slots = x->slots ? x->slots * 2 : 512;
    uint32_t *slot = calloc(slots, sizeof(*slot));

    if (!slot) {
        x->set->no_memory = true;
        return false;
    }
    for (uint32_t i = 0; i < x->pairs; i++) {
        uint32_t at = hash_pair(x->pair[i]);
        while (slot[at & (slots - 1)])
            at++;
        slot[at & (slots - 1)] = i + 1;
    }
    free(x->slot);
    x->slot = slot;
    x->slots = slots;
    return true;
}

/* The number of a pair, a new one if need be. */
static uint32_t pair_of(struct both *x, struct pair p)
{
    void *pairs = x->pair;

    if (x->pairs * 2 >= x->slots && !both_rehash(x))
        return 0;
    uint32_t at = hash_pair(p);
    for (; x->slot[at & (x->slots - 1)]; at++) {
        uint32_t i = x->slot[at & (x->slots - 1)] - 1;
        if (x->pair[i].a == p.a && x->pair[i].b == p.b)
            return i;
    }
    if (!both_room(x, &pairs, x->pairs, &x->room, sizeof(*x->pair)))
        return 0;
    x->pair = pairs;
    x->slot[at & (x->slots - 1)] = x->pairs + 1;
    x->pair[x->pairs] = p;
    return x->pairs++;
}

static void pair_edge(struct both *x, uint32_t from, uint32_t to, uint8_t byte)
{
    struct expr_edge *last = x->edges ? &x->edge[x->edges - 1] : NULL;
    void *edges = x->edge;

    if (last && last->from == from && last->to == to && last->hi + 1 == byte) {
        last->hi = byte;
        return;
    }
    if (!both_room(x, &edges, x->edges, &x->edge_room, sizeof(*x->edge)))
        return;
    x->edge = edges;
    x->edge[x->edges++] = (struct expr_edge){from, to, byte, byte};
}

static bool pair_accepts(const struct both *x, uint32_t i)
{
    struct pair p = x->pair[i];
    bool other = p.b != AUTOMATON_NONE && x->b->state[p.b].accepts;
    return x->a->state[p.a].accepts && other != x->except;
}

/* All pairs that a text meets, in the order in which they are met. */
static void meet_pairs(struct both *x)
{
    (void)pair_of(x, (struct pair){x->a->start[0], x->b->start[0]});
    for (uint32_t i = 0; i < x->pairs && expr_ok(x->set); i++) {
        struct pair p = x->pair[i];
        (void)ek_work_pay(x->set->work, 128); /* expr_ok() tells */
        for (uint32_t byte = 0; byte < 256; byte++) {
            struct pair to = {table_step(x->a, p.a, (uint8_t)byte), AUTOMATON_NONE};
            if (p.b != AUTOMATON_NONE)
                to.b = table_step(x->b, p.b, (uint8_t)byte);
            if (to.a != AUTOMATON_NONE && (x->except || to.b != AUTOMATON_NONE))
                pair_edge(x, i, pair_of(x, to), (uint8_t)byte);
        }
    }
}

/* Numbers the pairs from which a text can end: the first one is the first. 0, or -ENOMEM. */
static int number_pairs(struct both *x, uint32_t *ret_count)
{
    uint32_t count = 0;
    bool again = true;

    x->number = calloc(x->pairs + 1ull, sizeof(*x->number));
    if (!x->number)
        return -ENOMEM;
    for (uint32_t i = 0; i < x->pairs; i++)
        x->number[i] = pair_accepts(x, i);
    while (again && ek_work_pay(x->set->work, x->edges)) {
        again = false;
        for (uint32_t i = x->edges; i-- > 0;) {
            const struct expr_edge *e = &x->edge[i];
            again |= x->number[e->to] && !x->number[e->from];
            x->number[e->from] |= x->number[e->to];
        }
    }
    for (uint32_t i = 0; i < x->pairs; i++)
        x->number[i] = x->number[i] ? ++count : 0;
    *ret_count = count;
    return 0;
}

static int write_pairs(struct both *x, uint32_t *ret_expr)
{
    uint32_t count = 0;

    meet_pairs(x);
    if (!expr_ok(x->set))
        return 0; /* the compiler of the set says why */
    if (number_pairs(x, &count) < 0)
        return -ENOMEM;
    *ret_expr = EXPR_NEVER;
    if (x->number[0] == 0)
        return 0;
    *ret_expr = expr_table_new(x->set, count);
    for (uint32_t i = 0; i < x->pairs && expr_ok(x->set); i++)
        if (x->number[i] && pair_accepts(x, i))
            expr_table_final(x->set, x->number[i] - 1);
    for (uint32_t i = 0; i < x->edges && expr_ok(x->set); i++) {
        struct expr_edge e = x->edge[i];
        if (x->number[e.from] && x->number[e.to])
            expr_table_edge(
                x->set, (struct expr_edge){x->number[e.from] - 1, x->number[e.to] - 1, e.lo, e.hi});
    }
    return 0;
}

int table_both(struct expr_set *set, uint32_t expr, uint32_t other, bool except, uint32_t *ret_expr,
               struct ek_fault *fault)
{
    struct automaton a = {0}, b = {0};
    struct both x = {.set = set, .a = &a, .b = &b, .except = except};

    *ret_expr = EXPR_EMPTY;
    if (!expr_ok(set))
        return 0; /* the compiler of the set says why */
    int r = table_compile(set, expr, &a, fault);
    if (r == 0)
        r = table_compile(set, other, &b, fault);
    if (r == 0)
        r = write_pairs(&x, ret_expr);
    automaton_done(&a);
    automaton_done(&b);
    free(x.pair);
    free(x.slot);
    free(x.edge);
    free(x.number);
    return r;
}

/* ---- how texts end ---- */

int table_ends(struct expr_set *set, uint32_t expr, struct table_ends *ret_ends,
               struct ek_fault *fault)
{
    struct table_ends ends = {0};
    struct automaton a = {0};

    int r = expr_ok(set) ? table_compile(set, expr, &a, fault) : 0;
    for (uint32_t q = 0; r == 0 && q < a.states && ek_work_pay(set->work, 16); q++) {
        for (uint32_t b = 0; b < 256 && a.state[q].accepts; b++) {
            bool blank = b == ' ' || (b >= '\t' && b <= '\r');
            bool on = table_step(&a, q, (uint8_t)b) != AUTOMATON_NONE;
            ends.open |= on && !blank;
            ends.by_line |= on && b == '\n';
        }
    }
    if (r == 0 && a.states > 0) {
        uint32_t then = table_step(&a, a.start[0], '\n');
        ends.line = then != AUTOMATON_NONE && a.state[then].accepts;
        *ret_ends = ends;
    }
    automaton_done(&a);
    return r;
}
