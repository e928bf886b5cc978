/*
 * What must come next: the bytes of which there is no choice, cut into tokens. A token is taken
 * when it is the longest that these bytes begin with and no longer one could go on behind them;
 * where what comes after them decides, the choice is left to the model.
 */
#include <stdlib.h>

#include "server/grammar/grammar_inside.h"
#include "server/grammar/near.h"

#define RUN_MOST 256u /* bytes that are looked at */

/* The bytes that must come, and the place after each; place[0] is where one is. */
struct jump_run {
    uint32_t count;
    bool cut; /* there may be more of them */
    uint8_t byte[RUN_MOST];
    uint32_t place[RUN_MOST + 1];
};

int jump_forward_make(struct grammar *g)
{
    const struct automaton *a = &g->a;

    g->only = calloc(a->states, sizeof(*g->only));
    if (!g->only)
        return -1;
    for (uint32_t q = 0; q < a->states; q++) {
        const uint32_t *next = a->next + (size_t)q * a->classes;
        g->only[q] = ONLY_NONE;
        for (uint32_t b = 0, seen = 0; b < 256 && seen < 2; b++) {
            if (next[a->class_of[b]] == AUTOMATON_NONE)
                continue;
            g->only[q] = seen++ == 0 ? (uint16_t)b : ONLY_NONE;
        }
    }
    return 0;
}

/* The byte that must come, ONLY_NONE when there are several or the text may end. */
static uint32_t only_byte(const struct grammar *g, uint32_t place)
{
    const struct place *p = &g->place[place];
    uint32_t only = ONLY_NONE;

    (void)ek_work_pay(g->work, 2 + p->count / 2);
    for (uint32_t i = 0; i < p->count && !p->complete; i++) {
        uint32_t here = g->only[g->config[p->first + i].state];
        if (here == ONLY_NONE || (only != ONLY_NONE && here != only))
            return ONLY_NONE;
        only = here;
    }
    return only;
}

static void find_run(struct grammar *g, uint32_t place, struct jump_run *r)
{
    r->count = 0;
    r->place[0] = place;
    for (; r->count < RUN_MOST; r->count++) {
        uint32_t byte = only_byte(g, place);
        if (byte == ONLY_NONE)
            break;
        place = place_step(g, place, (uint8_t)byte);
        if (place <= PLACE_END)
            break; /* no room for places: nothing is known */
        r->byte[r->count] = (uint8_t)byte;
        r->place[r->count + 1] = place;
    }
    r->cut = r->count == RUN_MOST || place <= PLACE_END;
}

/* Whether a token that begins with the run's last bytes, which led to this node, may go on. */
static bool goes_on(struct grammar *g, const struct jump_run *r, uint32_t node)
{
    const struct lexicon *l = g->lexicon;

    if (r->cut || !ek_work_pay(g->work, 64))
        return true;
    for (uint32_t i = node + 1; i < l->node[node].after; i = l->node[i].after)
        if (place_step(g, r->place[r->count], l->node[i].byte) != PLACE_DEAD)
            return true;
    return false;
}

/* The token at `at` of the run; -1 when it is not settled. */
static int32_t token_at(struct grammar *g, const struct jump_run *r, uint32_t at, uint32_t *ret_len)
{
    const struct lexicon *l = g->lexicon;
    uint32_t node = LEXICON_NONE;
    int32_t token = -1;

    for (uint32_t i = at; i < r->count; i++) {
        node = i == at ? l->root[r->byte[i]] : lexicon_child(l, node, r->byte[i]);
        if (node == LEXICON_NONE)
            return token;
        if (l->node[node].token >= 0) {
            token = l->node[node].token;
            *ret_len = i + 1 - at;
        }
    }
    return node != LEXICON_NONE && !goes_on(g, r, node) ? token : -1;
}

uint32_t jump_forward_tokens(struct grammar *g, uint32_t place, uint32_t room, int32_t *token,
                             uint32_t most)
{
    const struct lexicon *l = g->lexicon;
    uint32_t count = 0, at = 0, len = 0;
    struct jump_run r;

    find_run(g, place, &r);
    while (at < r.count && count < most && count < room) {
        int32_t id = token_at(g, &r, at, &len);
        if (id < 0)
            return count;
        uint32_t left = g->place[r.place[at]].left, then = g->place[r.place[at + len]].left;
        uint32_t end = g->tags ? 0 : 1;
        if (near_add(left, end + count) <= room && near_add(then, end + 1 + count) > room)
            return count; /* there is a shorter way to write it, and it is needed */
        token[count++] = id;
        at += len;
    }
    const struct place *end = &g->place[r.place[at]];
    if (at == r.count && end->complete && end->count == 0 && !r.cut && count < most &&
        count < room && l->ends > 0)
        token[count++] = l->end[0];
    return count;
}
