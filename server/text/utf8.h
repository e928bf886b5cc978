/*
 * UTF-8 and the few character classes that tokenizers need outside of regular expressions.
 * Pure functions, no state. Bad bytes follow the usual rule: each maximal subpart of an ill-formed
 * sequence is one U+FFFD, as Rust and Python have it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ek_buf;

#define UTF8_MOST 4u /* bytes of one character */

/* The character at s: its length, 0 when the bytes at s are none. left > 0. */
size_t utf8_get(const char *s, size_t left, uint32_t *ret_cp);
/* The same for text known to be valid, left > 0. Never more than `left`, so that no walk leaves its
 * text: a character that the text cuts off is U+FFFD. */
size_t utf8_next(const char *s, size_t left, uint32_t *ret_cp);
/* Start of the character before s + at, at > 0, text valid. */
size_t utf8_prev(const char *s, size_t at, uint32_t *ret_cp);
/* Writes cp (a scalar value), returns its length. */
size_t utf8_put(char out[UTF8_MOST], uint32_t cp);
/* Length of the longest valid prefix. */
size_t utf8_valid(const char *s, size_t len);
/* Where utf8_get() gave 0: the bytes that become one U+FFFD. *ret_cut says that the text ends
 * before the character does, so that further bytes may complete it. */
size_t utf8_bad(const char *s, size_t left, bool *ret_cut);
/* Appends s with bad bytes replaced. -ENOMEM. */
int utf8_lossy(const char *s, size_t len, struct ek_buf *out);

bool utf8_is_space(uint32_t cp); /* White_Space */
bool utf8_is_word(uint32_t cp);  /* \w of Unicode: letters, marks, decimal digits, connectors */

/* The byte alphabet of byte-level BPE: each byte stands for one printable character. */
uint32_t utf8_from_byte(uint8_t byte);
int utf8_to_byte(uint32_t cp); /* 0..255, or -1 when cp stands for no byte */
