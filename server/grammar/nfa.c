/*
 * Thompson's construction, and which rules match nothing or the empty text (nfa.h). Called by
 * automaton.c.
 */
#include "server/grammar/nfa.h"

#include <errno.h>
#include <stdlib.h>

#include "server/grammar/expr.h"

/* Facts about an expression, given those about rules. */
struct nfa_facts {
    bool useful, nullable;
};

static struct nfa_facts nfa_look(const struct expr_set *s, const struct nfa *n, uint32_t at,
                                 uint32_t depth)
{
    const struct expr *e = &s->node[at];
    struct nfa_facts f = {true, true};

    if (depth > EXPR_DEPTH_MOST || !ek_work_pay(s->work, 1))
        return (struct nfa_facts){false, false};
    switch ((enum expr_kind)e->kind) {
    case EXPR_KIND_EMPTY: break;
    case EXPR_KIND_NEVER: f = (struct nfa_facts){false, false}; break;
    case EXPR_KIND_BYTE:
    case EXPR_KIND_TEXT: f.nullable = false; break;
    case EXPR_KIND_CALL: f = (struct nfa_facts){n->useful[e->a], n->nullable[e->a]}; break;
    case EXPR_KIND_TABLE: f.nullable = s->final[s->table[e->a].final]; break;
    case EXPR_KIND_REPEAT: {
        struct nfa_facts inner = nfa_look(s, n, e->a, depth + 1);
        f = (struct nfa_facts){inner.useful || e->b == 0, inner.nullable || e->b == 0};
        break;
    }
    case EXPR_KIND_SEQ:
        for (uint32_t i = 0; i < e->b; i++) {
            struct nfa_facts one = nfa_look(s, n, s->item[e->a + i], depth + 1);
            f.useful &= one.useful;
            f.nullable &= one.nullable;
        }
        break;
    case EXPR_KIND_ALT:
        f = (struct nfa_facts){false, false};
        for (uint32_t i = 0; i < e->b; i++) {
            struct nfa_facts one = nfa_look(s, n, s->item[e->a + i], depth + 1);
            f.useful |= one.useful;
            f.nullable |= one.nullable;
        }
        break;
    }
    return f;
}

/* The least facts that hold: from none, until nothing is added. */
static void look_at_rules(const struct expr_set *s, struct nfa *n)
{
    for (bool again = true; again && !ek_work_stopped(s->work);) {
        again = false;
        for (uint32_t r = 0; r < s->rules; r++) {
            struct nfa_facts f = nfa_look(s, n, s->rule[r].body, 0);
            again |= f.useful != n->useful[r] || f.nullable != n->nullable[r];
            n->useful[r] = f.useful;
            n->nullable[r] = f.nullable;
        }
    }
}

static uint32_t nfa_add(struct nfa *n, struct nfa_node node)
{
    if (n->count >= NFA_MOST)
        n->too_large = true;
    if (n->no_memory || n->too_large)
        return 0;
    if (n->count == n->room) {
        uint32_t want = n->room ? n->room * 2 : 256;
        struct nfa_node *bigger = realloc(n->at, want * sizeof(*n->at));
        if (!bigger) {
            n->no_memory = true;
            return 0;
        }
        n->at = bigger;
        n->room = want;
    }
    n->at[n->count] = node;
    return n->count++;
}

static uint32_t nfa_build(struct nfa *n, const struct expr_set *s, uint32_t at, uint32_t out,
                          uint32_t depth);

/* least times, then up to most: (x(x(x)?)?)?, or a loop. */
static uint32_t build_repeat(struct nfa *n, const struct expr_set *s, const struct expr *e,
                             uint32_t out, uint32_t depth)
{
    uint32_t next = out;

    if (e->c == EXPR_MANY) {
        next = nfa_add(n, (struct nfa_node){.kind = NFA_SPLIT, .other = out});
        uint32_t body = nfa_build(n, s, e->a, next, depth);
        if (n->no_memory || n->too_large)
            return 0;
        n->at[next].out = body;
    } else {
        for (uint32_t i = e->b; i < e->c && !n->too_large && !n->no_memory; i++) {
            uint32_t body = nfa_build(n, s, e->a, next, depth);
            if (body == NFA_NONE)
                break;
            next = nfa_add(n, (struct nfa_node){.kind = NFA_SPLIT, .out = body, .other = out});
        }
    }
    for (uint32_t i = 0; i < e->b && !n->too_large && !n->no_memory; i++)
        next = nfa_build(n, s, e->a, next, depth);
    return next;
}

/* A split for each state, whose ways are its edges and, where it is final, what follows. */
static uint32_t build_table(struct nfa *n, const struct expr_set *s, const struct expr_table *t,
                            uint32_t out)
{
    uint32_t first = n->count;

    n->too_large |= !ek_work_pay(s->work, (uint64_t)t->states + t->edges);
    for (uint32_t q = 0; q < t->states && !n->too_large; q++)
        (void)nfa_add(n, (struct nfa_node){.kind = NFA_SPLIT,
                                           .out = NFA_NONE,
                                           .other = s->final[t->final + q] ? out : NFA_NONE});
    for (uint32_t i = 0; i < t->edges && !n->too_large && !n->no_memory; i++) {
        const struct expr_edge *e = &s->edge[t->edge + i];
        uint32_t byte =
            nfa_add(n, (struct nfa_node){NFA_BYTE, e->lo, e->hi, 0, first + e->to, NFA_NONE});
        uint32_t way = nfa_add(
            n,
            (struct nfa_node){.kind = NFA_SPLIT, .out = byte, .other = n->at[first + e->from].out});
        if (!n->too_large && !n->no_memory)
            n->at[first + e->from].out = way;
    }
    return first;
}

/* The node where the expression begins when `out` is what follows. Built from its end. */
static uint32_t nfa_build(struct nfa *n, const struct expr_set *s, uint32_t at, uint32_t out,
                          uint32_t depth)
{
    const struct expr *e = &s->node[at];
    uint32_t next = out;

    if (depth > EXPR_DEPTH_MOST || !ek_work_pay(s->work, 1))
        n->too_large = true;
    if (n->too_large || n->no_memory)
        return 0;
    if (out == NFA_NONE) /* so every node can reach the end of its rule */
        return NFA_NONE;
    switch ((enum expr_kind)e->kind) {
    case EXPR_KIND_EMPTY: break;
    case EXPR_KIND_NEVER: next = NFA_NONE; break;
    case EXPR_KIND_BYTE:
        next = nfa_add(n, (struct nfa_node){NFA_BYTE, e->lo, e->hi, 0, out, NFA_NONE});
        break;
    case EXPR_KIND_TEXT:
        n->too_large |= !ek_work_pay(s->work, e->b);
        for (uint32_t i = e->b; i-- > 0;) {
            uint8_t byte = (uint8_t)s->text.data[e->a + i];
            next = nfa_add(n, (struct nfa_node){NFA_BYTE, byte, byte, 0, next, NFA_NONE});
        }
        break;
    case EXPR_KIND_CALL:
        if (!n->useful[e->a])
            return NFA_NONE;
        next = nfa_add(
            n, (struct nfa_node){NFA_CALL, 0, 0, e->a, out, n->nullable[e->a] ? out : NFA_NONE});
        break;
    case EXPR_KIND_TABLE: next = build_table(n, s, &s->table[e->a], out); break;
    case EXPR_KIND_REPEAT: next = build_repeat(n, s, e, out, depth + 1); break;
    case EXPR_KIND_SEQ:
        for (uint32_t i = e->b; i-- > 0;)
            next = nfa_build(n, s, s->item[e->a + i], next, depth + 1);
        break;
    case EXPR_KIND_ALT:
        next = NFA_NONE;
        for (uint32_t i = e->b; i-- > 0;) {
            uint32_t one = nfa_build(n, s, s->item[e->a + i], out, depth + 1);
            if (one == NFA_NONE)
                continue;
            next = nfa_add(n, (struct nfa_node){.kind = NFA_SPLIT, .out = one, .other = next});
        }
        break;
    }
    return next;
}

int nfa_make(const struct expr_set *s, struct nfa *ret_nfa)
{
    struct nfa n = {0};
    int r = -ENOMEM;

    n.start = calloc(s->rules + 1, sizeof(*n.start));
    n.nullable = calloc(s->rules + 1, sizeof(*n.nullable));
    n.useful = calloc(s->rules + 1, sizeof(*n.useful));
    if (!n.start || !n.nullable || !n.useful)
        goto out;
    look_at_rules(s, &n);
    for (uint32_t i = 0; i < s->rules && !n.no_memory && !n.too_large; i++) {
        n.too_large |= !ek_work_pay(s->work, 1);
        uint32_t end = nfa_add(&n, (struct nfa_node){.kind = NFA_ACCEPT});
        n.start[i] = nfa_build(&n, s, s->rule[i].body, end, 0);
    }
    r = n.no_memory ? -ENOMEM : n.too_large ? -E2BIG : 0;
    if (r < 0)
        goto out;
    *ret_nfa = n;
    return 0;
out:
    nfa_done(&n);
    return r;
}

void nfa_done(struct nfa *n)
{
    free(n->at);
    free(n->start);
    free(n->nullable);
    free(n->useful);
    *n = (struct nfa){0};
}
