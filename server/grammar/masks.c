/*
 * Masks: the tokens that may come next in a text of a form, a bit for each. Called by grammar.c for
 * each token that is drawn, so most of the work is kept from one to the next.
 *
 * A token is several bytes, and it fits when all of them do. The vocabulary is a trie over bytes
 * (lexicon.h), so tokens that begin alike are tried once: masks_walk() goes through its nodes in
 * order, takes the place behind each byte from the one before, and skips all below a node whose
 * byte does not fit. That is a walk over up to some hundred thousand nodes, too long for a token.
 *
 * But most of it depends on the state of the automaton alone and not on the stack below it, as long
 * as the token stays within the rule at hand. So the walk is done once for each state, with an
 * empty stack, and what it finds is kept (struct local): the tokens that fit, and the nodes behind
 * which the rule may be over while the token goes on, its exits. The mask of a place is then the
 * union over its configurations: what is kept for the state, and from each exit a short walk on
 * from where the stack at hand returns to. Twins share what is kept.
 *
 * Three more things are asked of a mask:
 *
 *   - the end of the text, where the place is complete (add_ends()); with `more` only where no
 *     other token fits
 *   - marks of calls and other special tokens, which are no bytes and which no walk meets
 *     (add_specials())
 *   - room: where `max_tokens` leaves few, only tokens behind which the shortest end still fits
 *     (near.h). Each place knows the fewest tokens to its end. `worst` of a mask is the most that
 *     one of its tokens leaves; while that fits, nothing has to be left out. Else the whole
 *     vocabulary is walked for the stack at hand (near_mask()), and the result is kept with the
 *     range of limits for which it is the same.
 *
 * All kept things have fixed room; when it is short, masks_tight() says so and all is forgotten. A
 * walk that the meter stops (common/work.h) gives nothing that may be used.
 */
#include <string.h>

#include "server/grammar/grammar_inside.h"
#include "server/grammar/near.h"

#define PIECE  256u /* nodes that are paid for together */
#define SPARSE 16u  /* fewer than a 1/16 of the words: tokens are listed one by one */

static void set_bit(uint32_t *bits, int32_t token)
{
    bits[(uint32_t)token / 32] |= 1u << ((uint32_t)token % 32);
}

/* Tokens after which no end is known do not count: the callers leave them out. */
static void note_left(struct grammar *g, uint32_t left)
{
    if (left > g->worst && left < NEAR_NONE)
        g->worst = left;
}

/* Adds the tokens of lexicon nodes from..to (the subtree of a node of that depth) to bits. Where
 * `exit` is given, nodes behind which the place is complete and tokens go on are put there. */
static uint32_t masks_walk(struct grammar *g, uint32_t place, uint32_t from, uint32_t to,
                           uint32_t depth, uint32_t *bits, uint32_t *exit)
{
    const struct lexicon *l = g->lexicon;
    uint32_t way[LEXICON_LONGEST + 1], exits = 0, nodes = 0;

    way[0] = place;
    (void)ek_work_pay(g->work, 4);
    for (uint32_t i = from; i < to;) {
        if (++nodes % PIECE == 0 && !ek_work_pay(g->work, PIECE))
            break;
        const struct lexicon_node *n = &l->node[i];
        uint32_t at = n->depth - depth;
        uint32_t next = g->next[(size_t)way[at - 1] * g->a.classes + g->a.class_of[n->byte]];
        if (next == PLACE_UNKNOWN)
            next = place_step(g, way[at - 1], n->byte);
        if (next == PLACE_DEAD) {
            i = n->after;
            continue;
        }
        way[at] = next;
        if (n->token >= 0)
            note_left(g, g->place[next].left);
        for (int32_t t = n->token; t >= 0; t = l->same[t])
            set_bit(bits, t);
        if (exit && n->after > i + 1 && g->place[next].complete)
            exit[exits++] = i;
        i++;
    }
    return exits;
}

static uint32_t count_bits(const uint32_t *bits, uint32_t words)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < words; i++)
        count += (uint32_t)__builtin_popcount(bits[i]);
    return count;
}

/* Writes tokens into `word`; the mask is dense when there are many. */
static void store_tokens(struct grammar *g, struct local *l, const uint32_t *bits, uint32_t count)
{
    const uint32_t words = g->lexicon->words;

    l->first = g->words;
    l->dense = count > words / SPARSE;
    l->count = l->dense ? words : count;
    if (l->dense) {
        memcpy(g->word + g->words, bits, words * sizeof(*bits));
        g->words += words;
        return;
    }
    for (uint32_t i = 0; i < words; i++)
        for (uint32_t w = bits[i]; w != 0; w &= w - 1)
            g->word[g->words++] = i * 32 + (uint32_t)__builtin_ctz(w);
}

/* The local mask of a state; NULL when there is no room: then it is in scratch, exits in `exit`.
 * NULL also after a stop, and then they are worth nothing. */
static const struct local *local_mask(struct grammar *g, uint32_t state, uint32_t *ret_exits)
{
    const struct lexicon *x = g->lexicon;

    state = g->a.twin[state];
    if (g->local_of[state] != 0)
        return &g->local[g->local_of[state] - 1];
    memset(g->scratch, 0, x->words * sizeof(*g->scratch));
    g->worst = 0;
    uint32_t exits = masks_walk(g, place_alone(g, state), 0, x->nodes, 0, g->scratch, g->exit);
    *ret_exits = exits;
    if (!ek_work_pay(g->work, x->words / 4))
        return NULL;
    uint32_t count = count_bits(g->scratch, x->words);
    uint64_t need = exits + (uint64_t)(count > x->words / SPARSE ? x->words : count);
    if (g->words + need > g->word_room || g->locals == g->a.states)
        return NULL;
    struct local *l = &g->local[g->locals++];
    *l = (struct local){.worst = g->worst};
    store_tokens(g, l, g->scratch, count);
    l->first_exit = g->words;
    l->exits = exits;
    memcpy(g->word + g->words, g->exit, exits * sizeof(*g->exit));
    g->words += exits;
    g->local_of[state] = g->locals;
    return l;
}

static void add_local(struct grammar *g, const struct local *l, uint32_t *bits)
{
    const uint32_t *from = l ? g->word + l->first : g->scratch;

    if (!l || l->dense) {
        for (uint32_t i = 0; i < g->lexicon->words; i++)
            bits[i] |= from[i];
        return;
    }
    for (uint32_t i = 0; i < l->count; i++)
        set_bit(bits, (int32_t)from[i]);
}

/* Returns the most that is left after one of the tokens that it adds. */
static uint32_t add_config(struct grammar *g, struct grammar_config c, uint32_t *bits)
{
    const struct lexicon *x = g->lexicon;
    uint32_t exits = 0;
    const struct local *l = local_mask(g, c.state, &exits);
    uint32_t worst = near_add(l ? l->worst : g->worst, g->cell[c.cell].left);
    if (g->a.twin[c.state] != c.state) /* the same bytes, but perhaps not the same way to the end */
        worst = near_add(worst, g->far);

    if (!ek_work_pay(g->work, l && !l->dense ? l->count / 2 : x->words / 8))
        return worst;
    add_local(g, l, bits);
    if (c.cell == 0)
        return worst; /* behind the end of the whole nothing comes */
    const uint32_t *exit = l ? g->word + l->first_exit : g->exit;
    exits = l ? l->exits : exits;
    if (exits == 0)
        return worst;
    uint32_t place = place_return(g, c.cell);
    g->worst = 0;
    for (uint32_t i = 0; i < exits && !ek_work_stopped(g->work); i++) {
        const struct lexicon_node *n = &x->node[exit[i]];
        (void)masks_walk(g, place, exit[i] + 1, n->after, n->depth, bits, NULL);
    }
    return g->worst > worst ? g->worst : worst;
}

static uint32_t add_ends(const struct grammar *g, uint32_t *bits, uint32_t count)
{
    for (uint32_t i = 0; i < g->lexicon->ends; i++)
        set_bit(bits, g->lexicon->end[i]);
    return count + g->lexicon->ends;
}

/* Notes what a token has left that is left out. */
static bool masks_within(struct near_mask *n, uint32_t left)
{
    if (left > n->from && left <= n->to)
        n->to = left - 1;
    return left <= n->from;
}

/* What the walk along the vocabulary does not meet: marks. */
static uint32_t add_specials(struct grammar *g, uint32_t place, struct near_mask *n, uint32_t *bits)
{
    const struct lexicon *l = g->lexicon;
    uint32_t count = 0;

    bool may = g->marks || g->mark;
    (void)ek_work_pay(g->work, may ? 8ull * l->specials : 0);
    for (uint32_t i = 0; i < l->specials && may; i++) {
        uint32_t next = place_token(g, place, l->special[i]);
        if (next == PLACE_DEAD || !masks_within(n, g->place[next].left))
            continue;
        note_left(g, g->place[next].left);
        set_bit(bits, l->special[i]);
        count++;
    }
    return count;
}

/* Of the whole vocabulary, for the stack at hand, the tokens after which at most n->from are left.
 * Then the limits with the same tokens are known. */
static void add_near(struct grammar *g, struct near_mask *n, uint32_t *bits)
{
    const struct lexicon *l = g->lexicon;
    uint32_t way[LEXICON_LONGEST + 1], nodes = 0;

    way[0] = n->place;
    for (uint32_t i = 0; i < l->nodes;) {
        if (++nodes % PIECE == 0 && !ek_work_pay(g->work, PIECE))
            break;
        const struct lexicon_node *node = &l->node[i];
        uint32_t next = place_step(g, way[node->depth - 1], node->byte);
        if (next == PLACE_DEAD) {
            i = node->after;
            continue;
        }
        way[node->depth] = next;
        bool fits = node->token >= 0 && masks_within(n, g->place[next].left);
        if (fits)
            note_left(g, g->place[next].left);
        for (int32_t t = fits ? node->token : -1; t >= 0; t = l->same[t]) {
            set_bit(bits, t);
            n->count++;
        }
        i++;
    }
    n->count += add_specials(g, n->place, n, bits);
}

static uint32_t near_mask(struct grammar *g, uint32_t place, uint32_t most, uint32_t *bits)
{
    const uint32_t words = g->lexicon->words;
    struct near_mask *n = &g->narrow_of[place % NEAR_MASKS];
    uint32_t *kept = g->narrow + (size_t)(place % NEAR_MASKS) * words;

    if (n->place != place || most < n->from || most > n->to) {
        memset(kept, 0, words * sizeof(*kept));
        *n = (struct near_mask){.place = place, .from = most, .to = NEAR_NONE};
        g->worst = 0;
        add_near(g, n, kept);
        n->from = g->worst;
        if (ek_work_stopped(g->work)) {
            *n = (struct near_mask){0};
            return 0;
        }
    }
    memcpy(bits, kept, words * sizeof(*bits));
    return n->count;
}

/* What may come next with all tokens that fit; NULL after a stop. */
static const struct full_mask *full_mask(struct grammar *g, uint32_t place, bool more,
                                         uint32_t *bits)
{
    const uint32_t words = g->lexicon->words;
    struct full_mask *f = &g->full_of[place % FULL_MASKS];
    uint32_t *kept = g->full + (size_t)(place % FULL_MASKS) * words;
    struct place p = g->place[place];
    uint32_t worst = 0;

    if (f->place == place && f->more == more && place != PLACE_UNKNOWN) {
        memcpy(bits, kept, words * sizeof(*bits));
        return f;
    }
    memset(bits, 0, words * sizeof(*bits));
    for (uint32_t i = 0; i < p.count && !ek_work_stopped(g->work); i++) {
        uint32_t here = add_config(g, g->config[p.first + i], bits);
        worst = here > worst ? here : worst;
    }
    struct near_mask all = {.from = NEAR_NONE - 1, .to = NEAR_NONE};
    g->worst = worst;
    (void)add_specials(g, place, &all, bits);
    worst = g->worst;
    if (ek_work_stopped(g->work))
        return NULL;
    uint32_t count = count_bits(bits, words);
    if (p.complete && !(more && count > 0))
        count = add_ends(g, bits, count);
    memcpy(kept, bits, words * sizeof(*bits));
    *f = (struct full_mask){.place = place, .count = count, .worst = worst, .more = more};
    return f;
}

uint32_t masks_of(struct grammar *g, uint32_t place, bool more, uint32_t room, uint32_t *bits)
{
    const struct full_mask *f = full_mask(g, place, more, bits);
    if (!f)
        return 0;
    const struct place p = g->place[place];
    uint32_t count = 0;

    const uint32_t end = g->tags ? 0 : 1;

    /* One token now, one for the end, which free text does not need. Where there is no room for the
     * shortest text, it makes no sense to hurry. */
    if (near_add(f->worst, 1 + end) <= room || near_add(p.left, end) > room)
        return f->count;
    memset(bits, 0, g->lexicon->words * sizeof(*bits));
    if (room >= 1 + end)
        count = near_mask(g, place, room - 1 - end, bits);
    if (ek_work_stopped(g->work))
        return 0;
    if (p.complete && !(more && count > 0))
        count = add_ends(g, bits, count);
    if (count > 0)
        return count;
    f = full_mask(g, place, more, bits);
    return f ? f->count : 0;
}

void masks_forget(struct grammar *g)
{
    memset(g->local_of, 0, g->a.states * sizeof(*g->local_of));
    g->locals = g->words = 0;
}

bool masks_tight(const struct grammar *g)
{
    return g->words > g->word_room / 8 * 7;
}

void masks_warm(struct grammar *g, uint32_t state)
{
    uint32_t exits;
    (void)local_mask(g, state, &exits);
}
