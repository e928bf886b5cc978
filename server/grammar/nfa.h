/*
 * The step between expressions and automata: Thompson's construction, one fragment for each rule.
 * Used by automaton.c alone.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct expr_set;

#define NFA_NONE UINT32_MAX
#define NFA_MOST (1u << 19)

enum nfa_kind { NFA_BYTE, NFA_CALL, NFA_SPLIT, NFA_ACCEPT };

struct nfa_node {
    uint8_t kind, lo, hi;
    uint32_t rule;       /* of a call */
    uint32_t out, other; /* `other` of a split, NFA_NONE = none */
};

struct nfa {
    struct nfa_node *at;
    uint32_t count, room;
    uint32_t *start; /* [rules] */
    bool *nullable;  /* [rules] the rule matches the empty text */
    bool *useful;    /* [rules] the rule matches any text at all */
    bool no_memory, too_large;
};

/* -ENOMEM, or -E2BIG when there are too many nodes or expressions nest too deep. */
int nfa_make(const struct expr_set *set, struct nfa *ret_nfa);
void nfa_done(struct nfa *n);
