/*
 * Grammars in EBNF as llama.cpp (GBNF) and XGrammar have it: lines `name ::= expression`, the first
 * rule to match is `root`. An expression has "texts", [classes], ., (groups), names of rules, |,
 * and the counts * + ? {m,n}; # begins a comment.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct ek_fault;
struct expr_set;

#define EBNF_RULES   2000u
#define EBNF_NESTING 100u
#define EBNF_COUNT   10000u

/* -EBADMSG with a fault that names the line. */
int ebnf_read(struct expr_set *set, const char *text, size_t len, uint32_t *ret_root,
              struct ek_fault *fault);
