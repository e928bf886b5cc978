/* See until.h. A state is what has been read of words; no transition leaves one in which a word is
 * complete. */
#include "server/grammar/until.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "server/grammar/expr.h"

#define STATES_MOST (UNTIL_BYTES + 1)
#define NO_WORD     (UNTIL_NEVER - 1)

struct until {
    struct expr_set *set;
    uint32_t states;
    uint32_t next[STATES_MOST][256];
    uint32_t fail[STATES_MOST];         /* the longest end of what was read that is a state too */
    uint32_t group[STATES_MOST];        /* of the word that is complete, or NO_WORD */
    uint32_t order[STATES_MOST], count; /* all of them, the nearest first */
    bool live[STATES_MOST];             /* a text can come to its end from there */
    uint32_t met[STATES_MOST], mets;    /* those of an expression */
    uint32_t number[STATES_MOST];       /* in it, from 1; 0 = it is not there */
};

static void add_word(struct until *u, const struct until_word *w)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < w->len; i++) {
        uint32_t *next = &u->next[at][(uint8_t)w->text[i]];
        if (*next == 0 && u->states == STATES_MOST) {
            u->set->too_large = true;
            return;
        }
        if (*next == 0) {
            *next = u->states;
            u->group[u->states++] = NO_WORD;
        }
        at = *next;
    }
    if (u->group[at] == NO_WORD || w->group == UNTIL_NEVER)
        u->group[at] = w->group;
}

/* Ways of bytes that begin no longer word; nearest states first, so that those of `fail` are done.
 */
static void add_ways(struct until *u)
{
    u->order[u->count++] = 0;
    for (uint32_t i = 0; i < u->count && ek_work_pay(u->set->work, 64); i++) {
        uint32_t at = u->order[i], fail = u->fail[at];
        for (uint32_t b = 0; b < 256; b++) {
            uint32_t to = u->next[at][b], other = at == 0 ? 0 : u->next[fail][b];
            if (to == 0) {
                u->next[at][b] = other;
                continue;
            }
            u->fail[to] = other;
            if (u->group[to] == NO_WORD)
                u->group[to] = u->group[other];
            u->order[u->count++] = to;
        }
    }
}

int until_new(struct expr_set *set, const struct until_word *word, uint32_t words,
              struct until **ret_until)
{
    struct until *u = calloc(1, sizeof(*u));

    (void)ek_work_pay(set->work, sizeof(*u) / 256); /* expr_ok() tells */
    if (!u)
        return -ENOMEM;
    u->set = set;
    u->states = 1;
    u->group[0] = NO_WORD;
    for (uint32_t i = 0; i < words; i++)
        add_word(u, &word[i]);
    add_ways(u);
    *ret_until = u;
    return 0;
}

void until_free(struct until *u)
{
    free(u);
}

/* From the states in which texts of the group (NO_WORD: any text) end, backwards. */
static void find_live(struct until *u, uint32_t group)
{
    for (uint32_t s = 0; s < u->states; s++)
        u->live[s] = u->group[s] == group;
    for (bool again = true; again;) {
        again = false;
        for (uint32_t i = u->count; i-- > 0 && ek_work_pay(u->set->work, 64);) {
            uint32_t at = u->order[i];
            bool was = u->live[at];
            for (uint32_t b = 0; b < 256 && !u->live[at] && u->group[at] == NO_WORD; b++)
                u->live[at] = u->live[u->next[at][b]];
            again |= u->live[at] != was;
        }
    }
}

/* Numbers the live states that a text meets. */
static void number_states(struct until *u)
{
    memset(u->number, 0, sizeof(u->number));
    u->mets = 0;
    u->met[u->mets++] = 0;
    u->number[0] = u->mets;
    for (uint32_t i = 0; i < u->mets; i++) {
        uint32_t at = u->met[i];
        for (uint32_t b = 0; b < 256 && u->group[at] == NO_WORD; b++) {
            uint32_t to = u->next[at][b];
            if (u->number[to] != 0 || !u->live[to])
                continue;
            u->met[u->mets++] = to;
            u->number[to] = u->mets;
        }
    }
}

static void write_edges(struct until *u, uint32_t at)
{
    for (uint32_t lo = 0, hi; lo < 256; lo = hi + 1) {
        uint32_t to = u->number[u->next[at][lo]];
        for (hi = lo; hi + 1 < 256 && u->number[u->next[at][hi + 1]] == to;)
            hi++;
        if (to != 0)
            expr_table_edge(
                u->set, (struct expr_edge){u->number[at] - 1, to - 1, (uint8_t)lo, (uint8_t)hi});
    }
}

static uint32_t write_table(struct until *u, uint32_t group)
{
    find_live(u, group);
    if (!u->live[0])
        return EXPR_NEVER;
    number_states(u);
    uint32_t e = expr_table_new(u->set, u->mets);
    for (uint32_t i = 0; i < u->mets && expr_ok(u->set); i++) {
        uint32_t at = u->met[i];
        (void)ek_work_pay(u->set->work, 64); /* expr_ok() tells */
        if (u->group[at] == group)
            expr_table_final(u->set, u->number[at] - 1);
        if (u->group[at] == NO_WORD)
            write_edges(u, at);
    }
    return e;
}

uint32_t until_group(struct until *u, uint32_t group)
{
    return write_table(u, group);
}

uint32_t until_none(struct until *u)
{
    return write_table(u, NO_WORD);
}
