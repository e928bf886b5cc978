/*
 * Left recursion: rules that may begin with themselves, at once or by way of others, are written
 * anew so that they do not. `sum ::= sum "+" n | n` becomes `sum ::= n ("+" n)*`, which has the
 * same texts.
 */
#pragma once

#include <stdint.h>

struct expr_set;

/* For the rules from `first` on, all of which have their bodies. A rule that begins with itself
 * behind one that may be empty is left as it is, and refused by automaton_make(). What fails marks
 * the set. */
void left_rewrite(struct expr_set *set, uint32_t first);
