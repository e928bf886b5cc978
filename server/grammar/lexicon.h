/*
 * The vocabulary as a trie over bytes, in the order of a walk: a node is followed by its subtree,
 * so a walk that meets a byte it cannot take jumps over all tokens that begin so. Made once for a
 * model, read by all.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LEXICON_LONGEST 255u /* bytes of a token; longer ones are never chosen under a grammar */
#define LEXICON_ENDS    8u
#define LEXICON_NONE    UINT32_MAX /* no node */

struct lexicon_node {
    uint32_t after;      /* the first node behind its subtree */
    int32_t token;       /* that ends here, -1 = none */
    uint8_t byte, depth; /* depth 1: first byte of a token */
};

struct lexicon {
    struct lexicon_node *node;
    uint32_t nodes;
    uint32_t root[256]; /* the node of a first byte, LEXICON_NONE = no token begins so */
    int32_t *same;      /* [vocab] another token with the same bytes, -1 = none */
    uint32_t *at;       /* [vocab] offset of its bytes, UINT32_MAX = never chosen */
    uint8_t *len;       /* [vocab] */
    char *bytes;
    uint32_t vocab, words; /* words of a mask */
    uint32_t longest;
    int32_t end[LEXICON_ENDS]; /* tokens that end a text */
    uint32_t ends;
    /* Tokens that are marks and no text: they may come in free text and as the marks of a form.
     * Their bytes are in `at` and `len`, not in the trie. */
    int32_t *special;
    uint32_t specials;
    char *special_bytes;
    uint8_t *is_special; /* [vocab] */
};

/* The bytes of a token, NULL or length 0 when it must not be chosen under a grammar. */
typedef const char *(*lexicon_bytes_fn)(void *ctx, int32_t token, size_t *ret_len);

/* 0 or -ENOMEM. */
int lexicon_new(uint32_t vocab, lexicon_bytes_fn bytes, void *ctx, const int32_t *end,
                uint32_t ends, struct lexicon **ret_lexicon);
/* Adds the tokens that have no bytes so far, with those that `bytes` gives; once. 0 or -ENOMEM. */
int lexicon_add_specials(struct lexicon *l, lexicon_bytes_fn bytes, void *ctx);
/* The bytes of any token, NULL when it has none. */
const char *lexicon_bytes(const struct lexicon *l, int32_t token);
void lexicon_free(struct lexicon *l); /* NULL is fine */
/* The node of one byte more, LEXICON_NONE = no token begins so. */
uint32_t lexicon_child(const struct lexicon *l, uint32_t node, uint8_t byte);
bool lexicon_is_end(const struct lexicon *l, int32_t token);
