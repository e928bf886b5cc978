/*
 * Shortest ways, see near.h. First in bytes, by sweeps over the states from the last to the first
 * (a state is mostly followed by later ones, so few sweeps are needed), then in tokens along them.
 */
#include "server/grammar/near.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/work.h"
#include "server/grammar/automaton.h"
#include "server/grammar/expr.h"
#include "server/grammar/lexicon.h"

#define SWEEP_WORK (1u << 25) /* edges looked at: further sweeps would only shorten ways */
#define LACK       64u        /* bytes that a way round a byte without a token is worth */
#define WAY_CALL   256u       /* in `way`: a byte, or this and the number of a call of the state */
#define WAY_NONE   UINT32_MAX

struct nearing {
    const struct automaton *a;
    const struct lexicon *l;
    struct ek_work *work;
    uint32_t *bytes; /* [states] of the shortest way */
    uint32_t *way;   /* [states] its first step, WAY_NONE = none is needed or known */
    uint32_t *order; /* [states] from the nearest on */
    uint32_t *near;
    uint8_t byte_of[256]; /* of a class, with a token of its own if one has */
    bool has_token[256];  /* the class has one */
};

static void choose_bytes(struct nearing *n)
{
    for (uint32_t b = 256; b-- > 0;) {
        uint32_t class = n->a->class_of[b], node = n->l->root[b];
        bool token = node != LEXICON_NONE && n->l->node[node].token >= 0;
        if (token || !n->has_token[class])
            n->byte_of[class] = (uint8_t)b;
        n->has_token[class] |= token;
    }
}

/* ---- in bytes ---- */

/* Looks for a shorter way of one state. */
static bool shorten(struct nearing *n, uint32_t state)
{
    const struct automaton *a = n->a;
    const struct automaton_state *s = &a->state[state];
    const uint32_t *next = a->next + (size_t)state * a->classes;
    uint32_t best = n->bytes[state], before = AUTOMATON_NONE;
    bool lacked = false;

    for (uint32_t c = 0; c < a->classes; c++) {
        if (next[c] == AUTOMATON_NONE || (next[c] == before && !lacked))
            continue;
        before = next[c];
        lacked = !n->has_token[c];
        uint32_t here = near_add(n->bytes[next[c]], lacked ? LACK : 1);
        if (here < best) {
            best = here;
            n->way[state] = n->byte_of[c];
        }
    }
    for (uint32_t i = 0; i < s->calls; i++) {
        const struct automaton_call *c = &a->call[s->first_call + i];
        uint32_t inside = n->bytes[a->start[c->rule]];
        uint32_t here = near_add(inside, n->bytes[c->next]);
        if (here < best && inside > 0) { /* an empty one is in the state's own edges */
            best = here;
            n->way[state] = WAY_CALL + i;
        }
    }
    bool better = best < n->bytes[state];
    n->bytes[state] = best;
    return better;
}

static void near_sweep(struct nearing *n)
{
    const struct automaton *a = n->a;
    uint64_t work = 0;

    for (uint32_t q = 0; q < a->states; q++) {
        n->bytes[q] = a->state[q].accepts ? 0 : NEAR_NONE;
        n->way[q] = WAY_NONE;
    }
    for (bool again = true; again && work < SWEEP_WORK;) {
        again = false;
        for (uint32_t q = a->states; q-- > 0;)
            if (n->bytes[q] > 0)
                again |= shorten(n, q);
        work += (uint64_t)a->states * a->classes;
        again &= ek_work_pay(n->work, (uint64_t)a->states * a->classes / 4);
    }
}

/* ---- in tokens ---- */

/* Along bytes of the way: after each of its pieces that is a token. */
static uint32_t near_cut(const struct nearing *n, uint32_t state)
{
    const struct automaton *a = n->a;
    uint32_t best = NEAR_NONE, node = LEXICON_NONE;

    for (uint32_t at = state; n->way[at] < WAY_CALL;) {
        uint8_t byte = (uint8_t)n->way[at];
        if (!ek_work_pay(n->work, 8))
            break;
        node = at == state ? n->l->root[byte] : lexicon_child(n->l, node, byte);
        if (node == LEXICON_NONE)
            break;
        at = a->next[(size_t)at * a->classes + a->class_of[byte]];
        if (n->l->node[node].token >= 0 && near_add(n->near[at], 1) < best)
            best = near_add(n->near[at], 1);
    }
    return best;
}

static uint32_t tokens_from(const struct nearing *n, uint32_t state)
{
    const struct automaton *a = n->a;
    uint32_t way = n->way[state];

    if (n->bytes[state] == 0)
        return 0;
    if (way == WAY_NONE)
        return NEAR_NONE;
    if (way < WAY_CALL)
        return near_cut(n, state);
    const struct automaton_call *c = &a->call[a->state[state].first_call + way - WAY_CALL];
    return near_add(n->near[a->start[c->rule]], n->near[c->next]);
}

/* The states in the order of their bytes: then the rest of a way comes before its beginning, but
 * where a rule begins with a call of another. */
static void sort(struct nearing *n, uint32_t *count, uint32_t most)
{
    const uint32_t states = n->a->states;

    memset(count, 0, ((size_t)most + 2) * sizeof(*count));
    for (uint32_t q = 0; q < states; q++)
        count[(n->bytes[q] < most ? n->bytes[q] : most) + 1]++;
    for (uint32_t i = 1; i <= most; i++)
        count[i] += count[i - 1];
    for (uint32_t q = states; q-- > 0;)
        n->order[count[n->bytes[q] < most ? n->bytes[q] : most]++] = q;
}

static void count_tokens(struct nearing *n)
{
    const uint32_t states = n->a->states;

    for (uint32_t q = 0; q < states; q++)
        n->near[q] = NEAR_NONE;
    for (uint32_t round = 0, again = 1; again && round < EXPR_DEPTH_MOST; round++) {
        again = 0;
        if (!ek_work_pay(n->work, states))
            return;
        for (uint32_t i = 0; i < states; i++) {
            uint32_t q = n->order[i];
            if (round > 0 && n->near[q] != NEAR_NONE)
                continue;
            n->near[q] = tokens_from(n, q);
            again |= n->near[q] != NEAR_NONE && round > 0;
            again |= n->near[q] == NEAR_NONE && round == 0;
        }
    }
}

int near_make(const struct automaton *a, const struct lexicon *l, struct ek_work *work,
              uint32_t **ret_near)
{
    struct nearing *n = calloc(1, sizeof(*n));
    uint32_t *count = calloc((size_t)a->states + 3, sizeof(*count));
    int r = -ENOMEM;

    if (!n || !count)
        goto out;
    n->a = a;
    n->l = l;
    n->work = work;
    n->bytes = calloc(a->states, sizeof(*n->bytes));
    n->way = calloc(a->states, sizeof(*n->way));
    n->order = calloc(a->states, sizeof(*n->order));
    n->near = calloc(a->states, sizeof(*n->near));
    if (!n->bytes || !n->way || !n->order || !n->near)
        goto out;
    choose_bytes(n);
    near_sweep(n);
    sort(n, count, a->states);
    count_tokens(n);
    *ret_near = n->near;
    n->near = NULL;
    r = 0;
out:
    if (n) {
        free(n->bytes);
        free(n->way);
        free(n->order);
        free(n->near);
    }
    free(n);
    free(count);
    return r;
}
