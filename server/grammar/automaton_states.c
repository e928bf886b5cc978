/*
 * Places of an automaton: closures of states and stacks, each kept once. Called at work by
 * grammar.c, masks.c and jump_forward.c.
 *
 * The automaton has calls of rules, so where a text is takes a state and a stack of the states to
 * return to. A stack is a number: a cell holds the top of one and the number of the rest, and equal
 * ones are one cell (cell_of()), so stacks that share their lower part share its cells. A call
 * behind which nothing follows pushes nothing: right recursion, as in a list of a million elements,
 * needs no stack.
 *
 * A configuration is (state, cell). Following calls and returns without reading a byte gives a set
 * of them, the closure; those that have an edge of a byte, sorted, and whether the text may end
 * here, are a place (automaton_states_intern()). Equal sets are one place, and what follows from a
 * place by a class of bytes is kept beside it (grammar.next), so a text walks from number to number
 * once its ways were met.
 *
 * Nothing grows without a bound: configurations of a closure, cells, places. What does not fit is
 * left out and counted (left_out), which forbids more than the grammar does and never allows what
 * it forbids. When three quarters are taken (automaton_states_tight()), all is forgotten between
 * two tokens and made again as it is met. A closure that the meter (ek_work) stops is not kept:
 * its place stays unknown, dead for the caller of now, and is made when it is asked for again.
 */
#include "server/grammar/grammar_inside.h"

#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "server/grammar/near.h"

#define SLOTS(most) ((most)*2)
#define NO_CELL     UINT32_MAX

static uint32_t cell_of(struct grammar *g, uint32_t ret, uint32_t parent)
{
    const uint32_t key[2] = {ret, parent};
    uint32_t at = (uint32_t)XXH3_64bits(key, sizeof(key));

    for (;; at++) {
        uint32_t found = g->cell_slot[at & (SLOTS(CELLS_MOST) - 1)];
        if (found == 0)
            break;
        if (g->cell[found - 1].ret == ret && g->cell[found - 1].parent == parent)
            return found - 1;
    }
    if (g->cells == CELLS_MOST)
        return NO_CELL;
    g->cell[g->cells] = (struct cell){
        .ret = ret, .parent = parent, .left = near_add(g->near[ret], g->cell[parent].left)};
    g->cell_slot[at & (SLOTS(CELLS_MOST) - 1)] = g->cells + 1;
    return g->cells++;
}

/* ---- closures ---- */

static void automaton_begin(struct grammar *g)
{
    g->heaped = g->seen_count = 0;
    g->complete = false;
    if (++g->turn == 0) { /* numbers are used up: old ones must not look like new ones */
        memset(g->seen_slot, 0, SEEN_SLOTS * sizeof(*g->seen_slot));
        g->turn = 1;
    }
}

/* To be followed, unless it was seen. */
static void heap(struct grammar *g, uint32_t state, uint32_t cell)
{
    uint64_t key = (uint64_t)state << 32 | cell;
    struct seen_slot *slot;

    for (uint32_t at = (uint32_t)(key * 0x9E3779B97F4A7C15ull >> 40);; at++) {
        slot = &g->seen_slot[at & (SEEN_SLOTS - 1)];
        if (slot->turn != g->turn)
            break;
        if (g->seen[slot->index].state == state && g->seen[slot->index].cell == cell)
            return;
    }
    if (g->seen_count == CONFIGS_HERE * 4 || cell == NO_CELL) {
        g->left_out++;
        return;
    }
    *slot = (struct seen_slot){g->turn, g->seen_count};
    g->seen[g->seen_count++] = (struct grammar_config){state, cell};
    g->heap[g->heaped++] = (struct grammar_config){state, cell};
}

/* Follows returns and calls; seen[] then holds all of the closure. */
static void automaton_follow(struct grammar *g)
{
    while (g->heaped > 0) {
        struct grammar_config at = g->heap[--g->heaped];
        const struct automaton_state *s = &g->a.state[at.state];
        if (!ek_work_pay(g->work, 2 + 4ull * s->calls))
            return;
        if (s->accepts && at.cell == 0)
            g->complete = true;
        else if (s->accepts)
            heap(g, g->cell[at.cell].ret, g->cell[at.cell].parent);
        for (uint32_t i = 0; i < s->calls; i++) {
            const struct automaton_call *c = &g->a.call[s->first_call + i];
            /* Nothing follows the call: return at once to where this rule returns to. */
            uint32_t cell = g->a.state[c->next].last ? at.cell : cell_of(g, c->next, at.cell);
            heap(g, g->a.start[c->rule], cell);
        }
    }
}

static int automaton_states_compare(const void *a, const void *b)
{
    const struct grammar_config *x = a, *y = b;
    if (x->state != y->state)
        return x->state < y->state ? -1 : 1;
    return x->cell < y->cell ? -1 : x->cell > y->cell;
}

static uint32_t left_of(const struct grammar *g, const struct grammar_config *config,
                        uint32_t count)
{
    uint32_t left = NEAR_NONE;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t here = near_add(g->near[config[i].state], g->cell[config[i].cell].left);
        left = here < left ? here : left;
    }
    return left;
}

/* The place of these configurations. */
static uint32_t automaton_states_intern(struct grammar *g, struct grammar_config *config,
                                        uint32_t count, bool complete)
{
    if (count == 0 && !complete)
        return PLACE_DEAD;
    qsort(config, count, sizeof(*config), automaton_states_compare);
    g->left_out += count > CONFIGS_HERE;
    count = count < CONFIGS_HERE ? count : CONFIGS_HERE;
    uint32_t at = (uint32_t)XXH3_64bits_withSeed(config, count * sizeof(*config), complete);
    for (;; at++) {
        uint32_t found = g->place_slot[at & (SLOTS(PLACES_MOST) - 1)];
        if (found == 0)
            break;
        const struct place *p = &g->place[found - 1];
        if (p->count == count && p->complete == complete &&
            memcmp(g->config + p->first, config, count * sizeof(*config)) == 0)
            return found - 1;
    }
    if (g->places == PLACES_MOST || g->configs + count > CONFIGS_MOST) {
        g->left_out++;
        return PLACE_UNKNOWN;
    }
    uint32_t place = g->places++;
    g->place_slot[at & (SLOTS(PLACES_MOST) - 1)] = place + 1;
    g->place[place] = (struct place){.first = g->configs,
                                     .count = count,
                                     .complete = complete,
                                     .left = complete ? 0 : left_of(g, config, count)};
    memcpy(g->config + g->configs, config, count * sizeof(*config));
    g->configs += count;
    memset(g->next + (size_t)place * g->a.classes, 0, g->a.classes * sizeof(*g->next));
    return place;
}

/* The place of the closure that was begun. */
static uint32_t end(struct grammar *g)
{
    uint32_t count = 0;

    automaton_follow(g);
    if (!ek_work_pay(g->work, 2ull * g->seen_count))
        return PLACE_UNKNOWN;
    for (uint32_t i = 0; i < g->seen_count; i++)
        if (g->a.state[g->seen[i].state].moves)
            g->seen[count++] = g->seen[i];
    return automaton_states_intern(g, g->seen, count, g->complete);
}

uint32_t place_step(struct grammar *g, uint32_t place, uint8_t byte)
{
    uint32_t class = g->a.class_of[byte];
    uint32_t *memo = &g->next[(size_t)place * g->a.classes + class];

    if (*memo != PLACE_UNKNOWN)
        return *memo;
    const struct place *p = &g->place[place];
    automaton_begin(g);
    for (uint32_t i = 0; i < p->count; i++) {
        struct grammar_config c = g->config[p->first + i];
        uint32_t next = g->a.next[(size_t)c.state * g->a.classes + class];
        if (next != AUTOMATON_NONE)
            heap(g, next, c.cell);
    }
    uint32_t after = end(g);
    *memo = after;
    return after == PLACE_UNKNOWN ? PLACE_DEAD : after;
}

static bool all_bytes(const struct automaton *a, uint32_t state)
{
    for (uint32_t c = 0; c < a->classes; c++)
        if (a->next[(size_t)state * a->classes + c] == AUTOMATON_NONE)
            return false;
    return true;
}

bool automaton_states_free(const struct automaton *a, uint32_t root)
{
    return a->state[a->start[root]].accepts && all_bytes(a, a->start[root]);
}

/* Marks of calls, as schema_tools.c has them. */
static bool is_mark(const char *s, size_t len)
{
    static const char *const marks[] = {"<tool_call>", "</tool_call>",   "[TOOL_CALLS]",
                                        "[ARGS]",      "<|python_tag|>", "<|python_start|>"};
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
        if (strlen(marks[i]) == len && memcmp(marks[i], s, len) == 0)
            return true;
    return false;
}

static bool special_fits(const struct grammar *g, uint32_t place, int32_t token)
{
    const struct place *p = &g->place[place];
    const struct lexicon *l = g->lexicon;

    if (g->mark && g->mark[token / 32] >> (token % 32) & 1)
        return true;
    if (!g->marks)
        return false;
    for (uint32_t i = 0; i < p->count && p->complete && g->tags; i++)
        if (all_bytes(&g->a, g->config[p->first + i].state))
            return true;
    return is_mark(lexicon_bytes(l, token), l->len[token]);
}

uint32_t place_token(struct grammar *g, uint32_t place, int32_t token)
{
    const struct lexicon *l = g->lexicon;
    const char *s = lexicon_bytes(l, token);

    if (!s || (l->is_special && l->is_special[token] && !special_fits(g, place, token)))
        return PLACE_DEAD;
    for (uint32_t i = 0; i < l->len[token] && place != PLACE_DEAD; i++)
        place = place_step(g, place, (uint8_t)s[i]);
    return place;
}

uint32_t place_return(struct grammar *g, uint32_t cell)
{
    struct cell *c = &g->cell[cell];

    if (c->place == PLACE_UNKNOWN) {
        automaton_begin(g);
        heap(g, c->ret, c->parent);
        c->place = end(g);
    }
    return c->place == PLACE_UNKNOWN ? PLACE_DEAD : c->place;
}

uint32_t place_alone(struct grammar *g, uint32_t state)
{
    struct grammar_config c = {state, 0};
    uint32_t place = automaton_states_intern(g, &c, 1, false);

    return place == PLACE_UNKNOWN ? PLACE_DEAD : place;
}

void automaton_states_forget(struct grammar *g)
{
    g->era++;
    memset(g->place_slot, 0, SLOTS(PLACES_MOST) * sizeof(*g->place_slot));
    memset(g->cell_slot, 0, SLOTS(CELLS_MOST) * sizeof(*g->cell_slot));
    memset(g->full_of, 0, sizeof(g->full_of));
    memset(g->narrow_of, 0, sizeof(g->narrow_of));
    memset(g->next, 0, 3 * g->a.classes * sizeof(*g->next));
    for (uint32_t i = 0; i < 3 * g->a.classes; i++)
        g->next[i] = PLACE_DEAD; /* of the places below: nothing follows */
    g->place[PLACE_UNKNOWN] = g->place[PLACE_DEAD] = (struct place){0};
    g->place[PLACE_END] = (struct place){.complete = true};
    g->places = 3;
    g->cell[0] = (struct cell){0};
    g->cells = 1;
    g->configs = 0;
    struct ek_work *work = g->work;
    g->work = NULL; /* a little, and there must be a start */
    automaton_begin(g);
    heap(g, g->a.start[g->root], 0);
    g->start = end(g);
    g->work = work;
    (void)ek_work_pay(work, SLOTS(PLACES_MOST) / 4);
}

bool automaton_states_tight(const struct grammar *g)
{
    return g->places > PLACES_MOST / 4 * 3 || g->cells > CELLS_MOST / 4 * 3 ||
           g->configs > CONFIGS_MOST / 4 * 3;
}
