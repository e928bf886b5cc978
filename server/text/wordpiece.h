/*
 * WordPiece tokens of one word: at each place the longest token that fits, among those that begin
 * a word at its start and among those that go on with one behind it. A word with a place where
 * none fits, or that is too long, is the unknown token as a whole. Vocabulary and unknown token
 * are those of a struct bpe, which has no merges then. Immutable once filled.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "server/text/vocab.h"

struct bpe;
struct token_vec;

struct wordpiece {
    struct vocab inner; /* tokens that go on with a word, without the prefix that says so */
    uint32_t most;      /* characters of a word that is not unknown; 0: the model is none */
};

/* Appends the tokens of valid UTF-8. Time is len times at most the longest token, which comes
 * from the model's files. -ENOMEM, -E2BIG. */
int wordpiece_encode(const struct wordpiece *w, const struct bpe *b, const char *s, size_t len,
                     struct token_vec *out);
