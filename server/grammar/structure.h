/*
 * Structural tags, as vLLM and XGrammar have them: JSON that says which parts a text has. Free text
 * in which strings (triggers) begin tags, each with content of a form of its own; or any tree of
 * such parts. Two notations: {"structures": [{begin, schema, end}], "triggers": [...]}, and
 * {"type": "structural_tag", "format": {...}}, where a format is of type const_string, json_schema,
 * regex, grammar, any_text, sequence, or, tag, triggered_tags or tags_with_separator. What is not
 * known is refused with its place.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct ek_fault;
struct expr_set;

#define STRUCTURE_NESTING  24u
#define STRUCTURE_TAGS     256u /* of one format */
#define STRUCTURE_TRIGGERS 64u
#define STRUCTURE_ENDS     16u /* strings that may end a tag */

/* Adds the rules of such a text; its fixed strings are added to set->marks. -EBADMSG with a fault,
 * -ENOMEM. */
int structure_read(struct expr_set *set, const char *text, size_t len, uint32_t *ret_rule,
                   struct ek_fault *fault);
