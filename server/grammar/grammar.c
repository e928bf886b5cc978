/*
 * A compiled grammar at work: its masks, and the matcher of one answer (grammar.h). Called by the
 * engine at each token.
 */
#include "server/grammar/grammar.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/grammar/grammar_inside.h"
#include "server/grammar/near.h"

#define WORDS_LEAST (1u << 16)
#define DENSE_KEPT  64u /* masks that find room in `word`, at least */
#define WARM_MOST   3u  /* states */
#define WARM_FUEL   (1u << 24)
#define WARM_BYTES  100u /* a state that so many bytes may follow is worth it */

uint64_t grammar_bytes(const struct grammar *g)
{
    const struct lexicon *l = g->lexicon;
    uint64_t states = g->a.states;

    return sizeof(*g) + SEEN_SLOTS * sizeof(struct seen_slot) +
           PLACES_MOST * (sizeof(struct place) + 2 * sizeof(uint32_t)) +
           (uint64_t)PLACES_MOST * g->a.classes * sizeof(uint32_t) +
           CONFIGS_MOST * sizeof(struct grammar_config) +
           CELLS_MOST * (sizeof(struct cell) + 2 * sizeof(uint32_t)) +
           states * (sizeof(struct local) + (4 + g->a.classes) * sizeof(uint32_t) +
                     sizeof(struct automaton_state)) +
           (g->mark ? l->words * sizeof(*g->mark) : 0) +
           ((uint64_t)g->word_room + (1 + FULL_MASKS + NEAR_MASKS) * l->words + l->nodes) *
               sizeof(uint32_t) +
           8 * CONFIGS_HERE * sizeof(struct grammar_config);
}

int grammar_new(struct automaton *a, uint32_t root, const struct lexicon *l, struct ek_work *work,
                struct grammar **ret_grammar)
{
    struct grammar *g = calloc(1, sizeof(*g));
    int r = -ENOMEM;

    if (!g) {
        automaton_done(a);
        return r;
    }
    g->a = *a;
    *a = (struct automaton){0};
    g->root = root;
    g->tags = g->marks = automaton_states_free(&g->a, root);
    atomic_init(&g->refs, 1);
    g->lexicon = l;
    if (near_make(&g->a, l, work, &g->near) < 0 || jump_forward_make(g) < 0)
        goto out;
    r = ek_work_pay(work, g->a.states * 16ull) ? -ENOMEM : -EBADMSG;
    if (r == -EBADMSG)
        goto out;
    for (uint32_t q = 0; q < g->a.states; q++)
        if (g->near[q] < NEAR_NONE && g->near[q] > g->far)
            g->far = g->near[q];
    uint64_t room = DENSE_KEPT * (uint64_t)l->words + l->nodes;
    g->word_room = room > WORDS_LEAST ? (uint32_t)room : WORDS_LEAST;
    g->place = calloc(PLACES_MOST, sizeof(*g->place));
    g->next = calloc((size_t)PLACES_MOST * g->a.classes, sizeof(*g->next));
    g->config = calloc(CONFIGS_MOST, sizeof(*g->config));
    g->cell = calloc(CELLS_MOST, sizeof(*g->cell));
    g->place_slot = calloc(PLACES_MOST * 2, sizeof(*g->place_slot));
    g->cell_slot = calloc(CELLS_MOST * 2, sizeof(*g->cell_slot));
    g->local = calloc(g->a.states, sizeof(*g->local));
    g->local_of = calloc(g->a.states, sizeof(*g->local_of));
    g->word = calloc(g->word_room, sizeof(*g->word));
    g->scratch = calloc(l->words + 1, sizeof(*g->scratch));
    g->exit = calloc(l->nodes + 1, sizeof(*g->exit));
    g->full = calloc((size_t)FULL_MASKS * l->words + 1, sizeof(*g->full));
    g->narrow = calloc((size_t)NEAR_MASKS * l->words + 1, sizeof(*g->narrow));
    g->heap = calloc(CONFIGS_HERE * 4, sizeof(*g->heap));
    g->seen = calloc(CONFIGS_HERE * 4, sizeof(*g->seen));
    g->seen_slot = calloc(SEEN_SLOTS, sizeof(*g->seen_slot));
    if (!g->place || !g->next || !g->config || !g->cell || !g->place_slot || !g->cell_slot ||
        !g->local || !g->local_of || !g->word || !g->scratch || !g->exit || !g->full ||
        !g->narrow || !g->heap || !g->seen || !g->seen_slot)
        goto out;
    automaton_states_forget(g);
    masks_forget(g);
    *ret_grammar = g;
    g = NULL;
    r = 0;
out:
    grammar_unref(g);
    return r;
}

void grammar_take_marks(struct grammar *g)
{
    g->marks = true;
}

int grammar_take_marks_of(struct grammar *g, const char *strings, size_t len, struct ek_work *work)
{
    const struct lexicon *l = g->lexicon;

    g->mark = calloc(l->words + 1, sizeof(*g->mark));
    if (!g->mark)
        return -ENOMEM;
    for (uint32_t i = 0; i < l->specials && ek_work_pay(work, 4 + len / 64); i++) {
        uint32_t token = (uint32_t)l->special[i];
        const char *s = lexicon_bytes(l, l->special[i]);
        if (s && l->len[token] > 0 && memmem(strings, len, s, l->len[token]))
            g->mark[token / 32] |= 1u << (token % 32);
    }
    return ek_work_stopped(work) ? -EBADMSG : 0;
}

void grammar_loosen(struct grammar *g)
{
    g->loose = true;
}

bool grammar_is_loose(const struct grammar *g)
{
    return g->loose;
}

bool grammar_is_free(const struct grammar *g)
{
    return g->tags;
}

void grammar_ref(struct grammar *g)
{
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
}

void grammar_count(struct grammar *g, struct grammar_room *room, uint32_t owner)
{
    g->room = room;
    g->owner = owner % GRAMMAR_OWNERS;
    atomic_fetch_add_explicit(&room->refs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&room->bytes, grammar_bytes(g), memory_order_relaxed);
    atomic_fetch_add_explicit(&room->of[g->owner], grammar_bytes(g), memory_order_relaxed);
}

void grammar_uncount(struct grammar *g)
{
    if (!g->room)
        return;
    atomic_fetch_sub_explicit(&g->room->bytes, grammar_bytes(g), memory_order_relaxed);
    atomic_fetch_sub_explicit(&g->room->of[g->owner], grammar_bytes(g), memory_order_relaxed);
    grammar_room_unref(g->room);
    g->room = NULL;
}

uint32_t grammar_owner(const struct grammar *g)
{
    return g->owner;
}

void grammar_room_unref(struct grammar_room *room)
{
    if (room && atomic_fetch_sub_explicit(&room->refs, 1, memory_order_acq_rel) == 1)
        free(room);
}

bool grammar_is_idle(const struct grammar *g)
{
    return atomic_load_explicit(&g->refs, memory_order_acquire) == 1;
}

void grammar_give_up(struct grammar *g)
{
    atomic_store_explicit(&g->given_up, true, memory_order_relaxed);
}

bool grammar_given_up(const struct grammar *g)
{
    return atomic_load_explicit(&g->given_up, memory_order_relaxed);
}

void grammar_lend(struct grammar *g, int more)
{
    g->lent += (uint32_t)more;
    g->awaited &= g->lent > 0;
}

void grammar_await(struct grammar *g)
{
    g->awaited = g->lent > 0;
}

bool grammar_is_awaited(const struct grammar *g)
{
    return g->awaited;
}

bool grammar_is_lent(const struct grammar *g)
{
    return g->lent > 0;
}

void grammar_unref(struct grammar *g)
{
    if (!g || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1)
        return;
    grammar_uncount(g);
    automaton_done(&g->a);
    free(g->near);
    free(g->only);
    free(g->mark);
    free(g->place);
    free(g->next);
    free(g->config);
    free(g->cell);
    free(g->place_slot);
    free(g->cell_slot);
    free(g->local);
    free(g->local_of);
    free(g->word);
    free(g->scratch);
    free(g->exit);
    free(g->full);
    free(g->narrow);
    free(g->heap);
    free(g->seen);
    free(g->seen_slot);
    free(g);
}

void grammar_warm(struct grammar *g, struct ek_work *work)
{
    struct ek_work *own = &g->warming;
    uint32_t warmed = 0;

    *own = work ? *work : (struct ek_work){.fuel = UINT64_MAX, .look = UINT64_MAX};
    own->fuel =
        own->fuel < WARM_FUEL ? own->fuel : WARM_FUEL; /* what it lacks is done when needed */
    g->work = own;
    for (uint32_t q = 0; q < g->a.states && warmed < WARM_MOST && !ek_work_stopped(own); q++) {
        uint32_t bytes = 0;
        if (g->a.twin[q] != q)
            continue;
        for (uint32_t b = 0; b < 256; b++)
            bytes += g->a.next[(size_t)q * g->a.classes + g->a.class_of[b]] != AUTOMATON_NONE;
        if (bytes < WARM_BYTES)
            continue;
        masks_warm(g, q);
        warmed++;
    }
    g->work = NULL;
}

void grammar_stats(const struct grammar *g, struct grammar_stats *ret_stats)
{
    *ret_stats = (struct grammar_stats){.states = g->places,
                                        .cells = g->cells,
                                        .masks = g->locals,
                                        .forgotten = g->era - 1,
                                        .left_out = g->left_out};
}

/* ---- matchers ---- */

void matcher_init(struct matcher *m, struct grammar *g)
{
    *m = (struct matcher){.grammar = g}; /* era 0 is none: matcher_follow() finds its place */
}

static uint32_t grammar_take(struct grammar *g, uint32_t place, int32_t token)
{
    const struct lexicon *l = g->lexicon;

    if (lexicon_is_end(l, token))
        return g->place[place].complete ? PLACE_END : PLACE_DEAD;
    return place_token(g, place, token);
}

bool matcher_follow(struct matcher *m, const int32_t *token, size_t stride, uint32_t count)
{
    struct grammar *g = m->grammar;

    g->work = m->work;
    if (automaton_states_tight(g))
        automaton_states_forget(g);
    if (masks_tight(g))
        masks_forget(g);
    if (m->era != g->era) {
        m->state = g->start;
        m->era = g->era;
        m->taken = 0;
    }
    for (; m->taken < count; m->taken++) {
        const char *at = (const char *)token + m->taken * stride;
        int32_t id;
        memcpy(&id, at, sizeof(id));
        uint32_t next = grammar_take(g, m->state, id);
        if (!ek_work_pay(m->work, 1))
            return false;
        m->state = next;
    }
    return m->state != PLACE_DEAD;
}

uint32_t matcher_mask(struct matcher *m, bool more, uint32_t room, uint32_t *bits)
{
    m->grammar->work = m->work;
    return masks_of(m->grammar, m->state, more, room, bits);
}

uint32_t matcher_jump_forward(struct matcher *m, uint32_t room, int32_t *token, uint32_t most)
{
    m->grammar->work = m->work;
    return jump_forward_tokens(m->grammar, m->state, room, token, most);
}

uint32_t matcher_left(const struct matcher *m)
{
    const struct place *p = &m->grammar->place[m->state];
    uint32_t left = near_add(p->left, m->grammar->tags ? 0 : 1);
    return left < NEAR_NONE ? left : MATCHER_MANY;
}

bool matcher_complete(struct matcher *m)
{
    return m->grammar->place[m->state].complete;
}
