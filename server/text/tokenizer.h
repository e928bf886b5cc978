/*
 * Strings to tokens, from a Hugging Face tokenizer.json. Immutable after loading: any thread may
 * encode with it. Special tokens in user text stay text: see chat.h for the guard character.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/text/tokens.h"

struct ek_bundle;
struct ek_fault;
struct tokenizer;

/* Reads DIR/tokenizer.json and DIR/tokenizer_config.json. -EBADMSG with a fault that names file,
 * field and remedy. */
int tokenizer_load(const char *dir, struct tokenizer **ret_tok, struct ek_fault *fault);
/* The same of what is in a bundle (textfile.h), NULL = of the files. */
int tokenizer_load_from(struct ek_bundle *b, const char *dir, struct tokenizer **ret_tok,
                        struct ek_fault *fault);
void tokenizer_free(struct tokenizer *t);

/* Appends the tokens of `text`. With `specials` the contents of added tokens become their ids,
 * else they are plain text. `guard` (0 = none) is a code point that keeps what it touches from
 * being an added token and is removed before anything else happens. Invalid UTF-8 becomes U+FFFD.
 * Linear in len. -ENOMEM; -E2BIG over out->limit, or when out->work is spent. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool specials,
                     uint32_t guard, struct token_vec *out);
/* As encode with specials, with what the post-processor adds (BOS and such). */
int tokenizer_encode_around(const struct tokenizer *t, const char *text, size_t len, uint32_t guard,
                            struct token_vec *out);
/* The same without a guard. */
int tokenizer_encode_prompt(const struct tokenizer *t, const char *text, size_t len,
                            struct token_vec *out);

/* The bytes of one token (may be a part of a UTF-8 character), NULL when no token has this id. */
const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *ret_len);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
uint32_t tokenizer_count(const struct tokenizer *t);                    /* largest id + 1 */
int32_t tokenizer_find(const struct tokenizer *t, const char *content); /* id or -1 */
int32_t tokenizer_eos(const struct tokenizer *t); /* from tokenizer_config.json, -1 if none */
/* Contents of the special added tokens, i = 0, 1, ...; NULL at the end. */
const char *tokenizer_special(const struct tokenizer *t, size_t i);
