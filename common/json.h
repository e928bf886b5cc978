/* JSON as foreign tools write it. Memory is the host's; no state, any thread. */
#pragma once

#include <stddef.h>

#include <jansson.h>

/*
 * As json_loadb(), but a number that a json_t cannot hold makes nothing invalid: an integer beyond
 * 64 bits, a real beyond a double, and the NaN, Infinity and -Infinity of Python come as strings
 * with their text. So whoever needs a number there refuses it by name, and nobody else does. The
 * caller owns the value; NULL with *ret_error (the line is that of `text`).
 */
json_t *ek_json_parse(const char *text, size_t len, size_t flags, json_error_t *ret_error);
