/* JSON as foreign tools write it. Memory is the host's; no state, any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

/*
 * As json_loadb(), but a number that a json_t cannot hold makes nothing invalid: an integer beyond
 * 64 bits, a real beyond a double, and the NaN, Infinity and -Infinity of Python come as strings
 * with their text. So a caller that needs a number there refuses it by name, and the others go on.
 * The caller owns the value; NULL with *ret_error (the line is that of `text`).
 */
json_t *ek_json_parse(const char *text, size_t len, size_t flags, json_error_t *ret_error);

/* What a text becomes when it is parsed: how many values, and at least how many bytes of memory
 * with those that are needed on the way, at most about three times what it is. One look at each
 * byte, up to where it is more than `most` bytes of memory: then both are what it came to by then.
 * Valid or not. For callers that decide whether there is room before there is a value. */
struct ek_json_size {
    uint64_t values, bytes;
};
struct ek_json_size ek_json_measure(const char *text, size_t len, uint64_t most);
