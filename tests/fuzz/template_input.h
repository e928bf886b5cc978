/* The input of the fuzzers of templates: a template up to a zero byte, then a JSON object. */
#pragma once

#include <stdint.h>
#include <string.h>

#include <jansson.h>

struct template_input {
    const char *text; /* in the input */
    size_t len;
    json_t *context; /* the caller's; NULL where no object is behind the template */
};

static inline struct template_input template_input_of(const uint8_t *data, size_t size)
{
    const char *s = size ? (const char *)data : "";
    const char *zero = memchr(s, 0, size);
    const size_t len = zero ? (size_t)(zero - s) : size;
    json_t *context = zero ? json_loadb(zero + 1, size - len - 1, JSON_ALLOW_NUL, NULL) : NULL;

    if (!json_is_object(context)) {
        json_decref(context);
        context = NULL;
    }
    return (struct template_input){s, len, context};
}
