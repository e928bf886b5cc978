/*
 * How far a state of an automaton is from the end of its rule, in tokens: what is left to write at
 * the least. With the states to return to added up this tells a text that has to end within so
 * many tokens what it must not begin any more.
 *
 * The numbers are upper bounds: of the shortest way in bytes, cut into as few tokens as can be,
 * none of which goes on behind the end of a rule.
 */
#pragma once

#include <stdint.h>

struct automaton;
struct ek_work;
struct lexicon;

#define NEAR_NONE (1u << 30) /* no way is known: the vocabulary lacks a byte */

static inline uint32_t near_add(uint32_t a, uint32_t b)
{
    return a < NEAR_NONE && b < NEAR_NONE - a ? a + b : NEAR_NONE;
}

/* [states of the automaton], the caller frees it. 0 or -ENOMEM; of no use when the meter said
 * stop. */
int near_make(const struct automaton *a, const struct lexicon *l, struct ek_work *work,
              uint32_t **ret_near);
