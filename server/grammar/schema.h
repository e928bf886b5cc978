/*
 * JSON schemas (draft 2020-12) to grammars of JSON texts. Every text of the grammar is valid; not
 * every valid text is in it: properties come in the order of the schema, white space is at most a
 * space or a line break with its indentation, numbers have at most 15 digits or so, undeclared
 * properties come only where `additionalProperties` is given or nothing is declared. What a
 * grammar cannot say is refused with its JSON pointer; nothing is passed over but annotations, and
 * `uniqueItems` of values that are not known before, which is noted (set->any_twice).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

struct ek_fault;
struct expr_set;

#define SCHEMA_NESTING 48u
/* A keyword of this program, which no client can mean: the string is a text of that grammar. */
#define SCHEMA_LARK "\1lark"

/* Adds the rules of any JSON object. 0. */
int schema_read_any(struct expr_set *set, uint32_t *ret_rule);
/* Adds the rules of a schema, `text` is JSON. -EBADMSG with a fault whose field is a JSON pointer,
 * -ENOMEM. */
int schema_read(struct expr_set *set, const char *text, size_t len, uint32_t *ret_rule,
                struct ek_fault *fault);
/* The same of calls of tools, see GRAMMAR_CALLS; pointers are into the parameters of a tool. */
int schema_read_calls(struct expr_set *set, const char *text, size_t len, uint32_t *ret_rule,
                      struct ek_fault *fault);
/* Text in which such calls may come, see GRAMMAR_TAGS. */
int schema_read_tags(struct expr_set *set, const char *text, size_t len, uint32_t *ret_rule,
                     struct ek_fault *fault);
/* Such calls and nothing else, see GRAMMAR_EITHER; `root` is its JSON. */
int schema_read_only_calls(struct expr_set *set, const json_t *root, uint32_t *ret_rule,
                           struct ek_fault *fault);
