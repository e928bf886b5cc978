/*
 * A small vocabulary for tests of grammars: every byte, and words as byte pair encodings have them;
 * the lexicon of it that a group of tests shares, and a text followed byte by byte.
 * To be included behind cmocka.h.
 */
#pragma once

#include <stdbool.h>
#include <string.h>

#include "server/grammar/grammar.h"
#include "server/grammar/lexicon.h"

static const char *const words_more[] = {
    "{\"",  "\":",    "\": ",   "\",",      "\", \"",   "\"}",
    "}}",   "}]",     "],",     "[{",       "[[",       "{}",
    "[]",   "  ",     "\n  ",   "ab",       "abc",      "abcd",
    "foo",  "foobar", " the",   "true",     "false",    "null",
    "name", "12",     "123",    "2024",     "0.",       ".5",
    "e+",   "\\n",    "\\u",    "\xc3\xa9", "\xe2\x82", "\xf0\x9f\x98\x80",
    "ab",   "a\"b",   "\"a\":", "e\"",
};
#define WORDS_MORE  (sizeof(words_more) / sizeof(words_more[0]))
#define WORDS_END   (256 + (int32_t)WORDS_MORE)
#define WORDS_COUNT ((uint32_t)WORDS_END + 1)

static const char *words_bytes(void *ctx, int32_t token, size_t *ret_len)
{
    static char bytes[256];
    (void)ctx;
    if (token < 256) {
        bytes[token] = (char)token;
        *ret_len = 1;
        return &bytes[token];
    }
    if (token >= WORDS_END)
        return NULL;
    *ret_len = strlen(words_more[token - 256]);
    return words_more[token - 256];
}

static struct lexicon *lexicon;

static inline int words_setup(void **state)
{
    const int32_t end = WORDS_END;
    (void)state;
    return lexicon_new(WORDS_COUNT, words_bytes, NULL, &end, 1, &lexicon);
}

static inline int words_teardown(void **state)
{
    (void)state;
    lexicon_free(lexicon);
    return 0;
}

/* 2: it fits and may end, 1: it fits so far, 0: it does not. */
static inline int words_fit(struct grammar *g, const char *text)
{
    struct matcher m;
    int32_t token[512];
    uint32_t n = (uint32_t)strlen(text);
    assert_true(n < 512);
    for (uint32_t i = 0; i < n; i++)
        token[i] = (unsigned char)text[i];
    matcher_init(&m, g);
    if (!matcher_follow(&m, token, sizeof(*token), n))
        return 0;
    return 1 + matcher_complete(&m);
}
