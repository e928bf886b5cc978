/*
 * Regular expressions to grammars: what Python's re and ECMA-262 have in common and what a finite
 * automaton can do. (?=...) and (?!...) may stand where a text begins, all automata side by side.
 * No other look-around, back references, word boundaries or conditionals: those are refused with
 * their place. Of the flags, (?i) and (?s) at the beginning and (?i:...), (?s:...) are read; i is
 * about the letters of ASCII. Classes are kept to what both dialects agree on (\d is 0-9; \W, \D
 * and negated sets with \w or \d are ASCII).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ek_fault;
struct expr_set;

enum regex_form {
    REGEX_TEXT, /* matches a whole text */
    REGEX_JSON, /* found anywhere in a string unless anchored; written as the inside of a JSON one
                 */
};

#define REGEX_LONGEST 65536u
#define REGEX_NESTING 100u
#define REGEX_COUNT   10000u /* in {m,n} */

/* The expression, or a fault (its `at` is an offset in the pattern) and -EBADMSG. With `least` and
 * `most` given (0 and EXPR_MANY are none) the string has so many characters. */
int regex_read(struct expr_set *set, const char *pattern, size_t len, enum regex_form form,
               uint32_t least, uint32_t most, uint32_t *ret_expr, struct ek_fault *fault);

enum regex_flag {
    REGEX_CASELESS = 1, /* of ASCII's letters */
    REGEX_DOT_ALL = 2,  /* . is a line break too */
    REGEX_IN_JSON = 4,  /* written as the inside of a JSON string */
};
/* A pattern for a part of a text, without anchors; `flags` are of enum regex_flag, . leaves out \n
 * alone. *ret_lazy: it has a lazy count; the expression is of all texts that match. */
int regex_read_part(struct expr_set *set, const char *pattern, size_t len, unsigned flags,
                    uint32_t *ret_expr, bool *ret_lazy, struct ek_fault *fault);

/* One character of the inside of a JSON string, as this program writes it. */
struct chars;
uint32_t regex_json_chars(struct expr_set *set, const struct chars *c);
