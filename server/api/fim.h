/*
 * Filling in the middle: `suffix` of /v1/completions, and /infill, for models that have tokens for
 * it. What comes before and what comes after the gap are put between the model's own marks, as its
 * makers describe it; the answer is what belongs into the gap, and ends at a mark too.
 */
#pragma once

#include <stddef.h>

struct fim;
struct openai_ask;
struct served;
struct token_vec;
struct tokenizer;

/* How the model of this tokenizer is asked, NULL when it has no marks; constant. */
const struct fim *fim_find(const struct tokenizer *tok);
/* The tokens that ask for what stands between `prefix` and the ask's suffix, appended. 0, -ENOMEM,
 * -E2BIG as tokenizer_encode(). */
int fim_tokens(const struct served *s, const struct openai_ask *a, const char *prefix, size_t len,
               struct token_vec *out);
