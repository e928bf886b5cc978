/*
 * Text as Python sees it: strings of code points, here in UTF-8 with a length. Every string that
 * a template can reach is valid UTF-8, so walking never leaves it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct jstr {
    const char *p;
    size_t len;
};

#define JSTR(literal) ((struct jstr){(literal), sizeof(literal) - 1})

enum { JSTR_LEFT = 1, JSTR_RIGHT = 2 };

size_t jstr_valid(struct jstr s);                /* bytes that are valid UTF-8, from the start */
size_t jstr_count(struct jstr s);                /* code points */
size_t jstr_offset(struct jstr s, size_t index); /* byte offset of a code point; len if beyond */
uint32_t jstr_next(struct jstr s, size_t *pos);  /* the code point at *pos (< len) */
size_t jstr_put(char *out, uint32_t cp);         /* writes up to 4 bytes */
bool jstr_is_space(uint32_t cp);                 /* str.isspace() */
bool jstr_is_word(uint32_t cp);                  /* \w: letters, digits, underscore */
bool jstr_equal(struct jstr a, struct jstr b);
int jstr_compare(struct jstr a, struct jstr b); /* by code points */
bool jstr_is(struct jstr s, const char *literal);
bool jstr_starts(struct jstr s, struct jstr with);
bool jstr_ends(struct jstr s, struct jstr with);
/* Byte offset of the first (last) `what` at or after `from`, SIZE_MAX if there is none. */
size_t jstr_find(struct jstr s, struct jstr what, size_t from);
size_t jstr_rfind(struct jstr s, struct jstr what);
/* Without the whitespace (or the code points of *chars) at the given ends. */
struct jstr jstr_strip(struct jstr s, const struct jstr *chars, int ends);

/* Python's int() and float() of text with spaces stripped. -EINVAL, -ERANGE, -ENOMEM. */
int jstr_int(struct jstr s, int base, int64_t *ret_value);
int jstr_float(struct jstr s, double *ret_value);
/* repr() of a float; out has at least 40 bytes. Returns the length. */
size_t jstr_float_repr(double f, char *out);

enum jstr_case { JSTR_UPPER, JSTR_LOWER, JSTR_TITLE, JSTR_CAPITALIZE };
/* str.upper() and so on into out, which has room for 4 bytes per code point. */
size_t jstr_recase(struct jstr s, enum jstr_case how, char *out);
