/*
 * What is done to texts by their automaton: an expression without recursion is compiled by itself,
 * its automaton is changed, and goes back into the set as one expression (EXPR_KIND_TABLE).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ek_fault;
struct expr_set;

/* The texts of an expression, those left out that begin with another one of them: what a lazy
 * pattern finds. Rules that it calls must have their bodies and not come round to themselves. 0,
 * -ENOMEM, or -EBADMSG with a fault. */
int table_shortest(struct expr_set *set, uint32_t expr, uint32_t *ret_expr, struct ek_fault *fault);

/* The texts of such an expression that are texts of the other one too; or, with `except`, that are
 * none of its texts. EXPR_NEVER when there are none. As table_shortest(). */
int table_both(struct expr_set *set, uint32_t expr, uint32_t other, bool except, uint32_t *ret_expr,
               struct ek_fault *fault);

/* How texts of such an expression end. */
struct table_ends {
    bool open;    /* one goes on to a longer one with something that is no blank */
    bool by_line; /* ... or with a line break */
    bool line;    /* a line break is one of them */
};
int table_ends(struct expr_set *set, uint32_t expr, struct table_ends *ret_ends,
               struct ek_fault *fault);
