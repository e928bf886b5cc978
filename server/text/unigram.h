/*
 * Unigram tokens of one piece of text: of all ways to cut it into tokens the one with the largest
 * sum of scores. A character that no token covers costs more than any. Vocabulary, unknown token
 * and byte tokens are those of a struct bpe, which has no merges then. A unigram_work belongs to
 * one call.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct bpe;
struct ek_work;
struct token_vec;
struct unigram_node;

struct unigram {
    double *score; /* [ids of the vocabulary], owned; NULL: the model is none */
    double unknown;
};

struct unigram_work {
    struct unigram_node *node; /* [room] */
    size_t room;
    struct ek_work *pay; /* for each token that is looked for, NULL = none */
};

/* Appends the tokens of valid UTF-8, len < 2^31. -ENOMEM, -E2BIG (also when w->pay is spent). */
int unigram_encode(const struct unigram *u, const struct bpe *b, struct unigram_work *w,
                   const char *s, size_t len, struct token_vec *out);
void unigram_work_done(struct unigram_work *w);
