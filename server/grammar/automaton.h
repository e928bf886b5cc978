/*
 * A compiled grammar: for each rule a deterministic automaton whose edges are bytes and calls of
 * rules. Alternatives that begin alike are one path, so at run time a place in the grammar is
 * nearly always one state and one stack of states to return to. Immutable once made.
 *
 * Bytes are grouped into classes that no edge tells apart. Calls never begin with themselves (left
 * recursion is refused), every state can reach the end of its rule, so a text that got so far can
 * always be completed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ek_fault;
struct expr_set;

#define AUTOMATON_NONE        UINT32_MAX
#define AUTOMATON_STATES_MOST (1u << 16)

struct automaton_call {
    uint32_t rule, next; /* the state after it */
};

struct automaton_state {
    uint32_t first_call, calls;
    bool accepts; /* the rule may end here */
    bool last;    /* and must: nothing follows */
    bool moves;   /* it has an edge of a byte */
};

struct automaton {
    uint8_t class_of[256];
    uint32_t classes;
    uint32_t states;
    struct automaton_state *state; /* [states] */
    uint32_t *next;                /* [states][classes], AUTOMATON_NONE = no edge */
    struct automaton_call *call;
    uint32_t call_count;
    uint32_t *start; /* [rules] */
    uint32_t rules;
    uint32_t *twin; /* [states] the first state that the next `longest` bytes cannot tell from it */
};

/* `longest` is the most bytes of a token. 0; -ENOMEM; -EBADMSG with a fault when the grammar is too
 * large, matches nothing, or a rule calls itself before anything else. */
int automaton_make(const struct expr_set *set, uint32_t root, uint32_t longest,
                   struct automaton *ret_automaton, struct ek_fault *fault);
void automaton_done(struct automaton *a);
