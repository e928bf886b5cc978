/*
 * Grammars in Lark's notation, as guidance, vLLM and OpenAI's custom tools take it: rules in small
 * letters, terminals in capitals, "texts" and /patterns/ with the flags i, s and u, ranges, groups,
 * [what may be left out], |, ? * + ~n ~n..m, %ignore, and %import of the terminals of `common`. The
 * text matches `start`, or the first rule where there is none. Aliases, priorities and the marks ?
 * and ! of rules say how a tree is built or which of two trees is taken; the texts are the same
 * without them.
 *
 * A text of the grammar is one that Lark's Earley parser takes with the lexer `dynamic_complete`:
 * how it is cut into terminals is free. What is ignored may come before, between and behind
 * terminals, but for comments up to the end of a line: they come where the line break is ignored,
 * and with it, or at the end. A terminal with a lazy count is its shortest texts. What lies outside
 * is refused with its line. Of llguidance's own there are the options in %llguidance, %json with a
 * schema, counts in braces and [attributes] of rules, see lark_marks.c.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ek_fault;
struct expr_set;

#define LARK_NAMES   2000u
#define LARK_NESTING 100u
#define LARK_COUNT   10000u
#define LARK_TOKENS  100000000u

/* schema_read(), see schema.h: of what stands behind %json. */
typedef int lark_schema_reader(struct expr_set *set, const char *text, size_t len,
                               uint32_t *ret_rule, struct ek_fault *fault);

/* Whether a grammar is in Lark's notation, by how it begins. */
bool lark_is(const char *text, size_t len);
/* The most tokens that a grammar gives its answer, 0 = it says nothing of them. */
uint32_t lark_most_tokens(const char *text, size_t len);
/* `schema` reads what stands behind %json; without one the texts are written as the inside of a
 * JSON string. -EBADMSG with a fault that names the line, -ENOMEM. */
int lark_read(struct expr_set *set, const char *text, size_t len, lark_schema_reader *schema,
              uint32_t *ret_root, struct ek_fault *fault);
