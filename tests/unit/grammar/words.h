/* A small vocabulary for tests of grammars: every byte, and words as byte pair encodings have them.
 */
#pragma once

#include <string.h>

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
