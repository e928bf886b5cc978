/* Free text up to certain words. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/grammar/expr.h"

#define TEXT_WORD_MOST 48u /* bytes */

struct text_word {
    const char *text; /* none of them within another one */
    uint32_t then;    /* what follows it, EXPR_NEVER = it must not come */
};

/* Sets the body of a rule to any text without the words, then one of them and what follows it.
 * `ends`: the text may end before that. `utf8`: only whole characters. A text of all bytes that may
 * end is free: see grammar.h. */
void expr_text_write(struct expr_set *set, uint32_t rule, const struct text_word *word,
                     uint32_t words, bool ends, bool utf8);
