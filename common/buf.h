/*
 * Growable bytes. A failed append sets `failed` and later appends do nothing, so that a writer may
 * append many times and test once with ek_buf_ok(). The bytes are always followed by a NUL.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct ek_buf {
    char *data; /* NULL while empty */
    size_t len;
    size_t cap;
    size_t limit; /* most bytes it may hold; 0 = no limit of its own */
    bool failed;
};

void ek_buf_done(struct ek_buf *b);
void ek_buf_clear(struct ek_buf *b); /* keeps the memory, clears `failed` */
int ek_buf_reserve(struct ek_buf *b, size_t extra);
int ek_buf_add(struct ek_buf *b, const void *bytes, size_t len);
int ek_buf_puts(struct ek_buf *b, const char *s);
int ek_buf_printf(struct ek_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Appends a number for people, "1.50 GiB"; one that is not known (NaN, infinite) is an en dash, so
 * that no screen ever shows "nan". The unit begins with its space. */
int ek_buf_number(struct ek_buf *b, double v, int decimals, const char *unit);
/* The same for a sentence that printf() composed: words like "nan" and "-inf" become en dashes, in
 * place. */
void ek_text_unknown(char *text);
/* Bytes of the control character that text begins with, 0 when it is none: those of ASCII, those
 * that terminals take for escape sequences (U+0080 to U+009F), and those that turn the direction of
 * what is written. */
size_t ek_text_control(const char *text);
/* Control characters become spaces, in place: text from outside then makes no lines, and
 * moves no cursor. */
void ek_text_clean(char *text);
/* Length of the valid UTF-8 sequence at s, 0 if there is none. */
size_t ek_utf8_len(const unsigned char *s, size_t left);
/* Appends s as the inside of a JSON string, without the quotes; invalid UTF-8 becomes U+FFFD. */
int ek_buf_json(struct ek_buf *b, const char *s, size_t len);
/* Words of text from column `indent` on, where the caller has come to, up to `width` (UTF-8 counts
 * as one column a character, Chinese as two, and its lines may break anywhere); ends the line. */
void ek_buf_wrap(struct ek_buf *b, const char *text, size_t indent, size_t width);
/* Lines of text, those that are too long wrapped below their beginning, or below what follows a
 * leading "1. ". */
void ek_buf_reflow(struct ek_buf *b, const char *text, size_t width);
/* Drops the first n bytes (n <= len). */
void ek_buf_drop(struct ek_buf *b, size_t n);
static inline bool ek_buf_ok(const struct ek_buf *b)
{
    return !b->failed;
}
