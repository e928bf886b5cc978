/*
 * Byte-pair encoding of one piece of text: start from single bytes (or characters), then apply the
 * merge of lowest rank, leftmost first, until none applies.
 *
 * Three ways to the same result. A piece that is a token, of which it is known since loading that
 * merging its own bytes gives itself, is looked up whole: that is nine of ten English words. A
 * short piece is merged by scanning a small array. A long one uses a heap over a linked list, so
 * that time is n log n whatever the text is. Immutable after bpe_seal(); bpe_work belongs to one
 * call.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/text/vocab.h"

struct token_vec;

struct bpe_merge {
    uint32_t left, right; /* UINT32_MAX in left = free */
    uint32_t rank;
};

struct bpe {
    struct vocab keys;   /* model vocabulary; in byte mode by bytes, else by characters */
    uint8_t *whole;      /* [keys.ids] merging the token's own bytes gives the token; NULL with
                            ignore_merges */
    int32_t single[256]; /* byte mode: id of each byte, -1 = none */
    struct bpe_merge *merge;
    uint32_t merge_mask;
    uint32_t *product; /* [merges] by rank */
    uint32_t merges;   /* filled so far */
    uint32_t ranks;    /* room in product */
    bool byte_mode;
    bool ignore_merges; /* a piece that is a token is that token, whatever the merges say */
    bool byte_fallback; /* an unknown character becomes tokens <0xNN> */
    bool fuse_unk;
    int32_t unk;           /* id for unknown characters, -1 = they are dropped */
    int32_t fallback[256]; /* ids of <0xNN>, -1 = none */
};

struct bpe_work {
    struct bpe_node *node; /* [room] */
    uint64_t *heap;        /* [2 * room] */
    size_t room;
};

/* The caller fills keys and the flags, then reserves, adds the merges in order and seals. */
int bpe_reserve(struct bpe *b, uint32_t merges);
/* A pair given twice has the later rank. */
void bpe_add(struct bpe *b, uint32_t left, uint32_t right, uint32_t product);
/* Another pair that makes the last one's product, at the same rank. The reserve counts it. */
void bpe_add_same(struct bpe *b, uint32_t left, uint32_t right);
int bpe_seal(struct bpe *b);
void bpe_done(struct bpe *b);

/* Appends the tokens of one piece of valid UTF-8, len < 2^31. -ENOMEM, -E2BIG. */
int bpe_encode(const struct bpe *b, struct bpe_work *w, const char *s, size_t len,
               struct token_vec *out);
void bpe_work_done(struct bpe_work *w);
