/*
 * Free text up to the first of certain words: the automaton of Aho and Corasick, from which come
 * expressions of one automaton each (EXPR_KIND_TABLE). All bytes are text.
 */
#pragma once

#include <stdint.h>

struct expr_set;

#define UNTIL_BYTES 1024u      /* of all words together */
#define UNTIL_NEVER UINT32_MAX /* the group of words that must not come at all */

struct until_word {
    const char *text;
    uint32_t len, group; /* len > 0 */
};

struct until;

/* Of words that end at the same byte the longest counts. 0 or -ENOMEM; the caller has seen to
 * UNTIL_BYTES. */
int until_new(struct expr_set *set, const struct until_word *word, uint32_t words,
              struct until **ret_until);
void until_free(struct until *u); /* NULL is fine */
/* Texts that end with a word of the group and have no word before that. */
uint32_t until_group(struct until *u, uint32_t group);
/* Texts without any of the words. */
uint32_t until_none(struct until *u);
