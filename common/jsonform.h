/*
 * JSON in one form: no blanks but the ends of lines that the text had, so that a parser that finds
 * fault with it counts the lines of the file; each character itself, or escaped in one way where it
 * must be, numbers as they are written (their digits may count). A text is copied, no values are
 * made, so that this is small enough to stand between a text from outside and a parser. NaN,
 * Infinity and -Infinity are let through as ek_json_parse() does (common/json.h).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct ek_buf;

#define EK_JSON_DEPTH_MOST 2048u

/* Appends the text in that form. -EBADMSG when it is not JSON, or nested deeper; -ENOMEM. */
int ek_json_form(const char *text, size_t len, struct ek_buf *out);
/* Whether the text is in that form: what the above would write of it is the same. */
bool ek_json_has_form(const char *text, size_t len);
