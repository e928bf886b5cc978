/*
 * Finds max_num_seqs and max_num_batched_tokens in what a vLLM logged when it started, for
 * servers/repair.c. Three lines of different releases are known: the arguments that are no
 * defaults, that chunked prefill is on, and the defaults chosen. A later line replaces an earlier
 * one; what is not a whole number is no value.
 */
#include "supervisor/law/engine_said.h"

#include <stdint.h>
#include <string.h>

#include "supervisor/law/remedy.h"

#define NUMBER_MOST 100000000u

/* A whole number right behind `at`, ended by what cannot go on with one; 0: there is none. */
static uint32_t engine_said_number_at(const char *at, const char *end)
{
    uint32_t n = 0;
    const char *begin = at;
    for (; at < end && *at >= '0' && *at <= '9' && n < NUMBER_MOST; at++)
        n = n * 10 + (uint32_t)(*at - '0');
    bool ends = at == end || strchr(" ,.;})\r", *at) != NULL;
    bool part = at + 1 < end && *at == '.' && at[1] >= '0' && at[1] <= '9';
    return at > begin && ends && !part && n < NUMBER_MOST ? n : 0;
}

/* The value behind `key` in a line. */
static void take_key(const char *line, size_t len, const char *key, uint32_t *value)
{
    size_t n = strlen(key);
    const char *at = memmem(line, len, key, n);
    uint32_t found = at ? engine_said_number_at(at + n, line + len) : 0;
    if (found)
        *value = found;
}

static bool line_has(const char *line, size_t len, const char *text)
{
    return memmem(line, len, text, strlen(text)) != NULL;
}

void engine_said(const char *log, size_t len, struct remedy_settings *ret_said)
{
    struct remedy_settings said = {0};
    for (const char *at = log, *end = log + len; at < end;) {
        const char *eol = memchr(at, '\n', (size_t)(end - at));
        size_t n = (size_t)((eol ? eol : end) - at);
        if (line_has(at, n, "non-default args: {")) {
            take_key(at, n, "'max_num_batched_tokens': ", &said.tokens);
            take_key(at, n, "'max_num_seqs': ", &said.seqs);
        } else if (line_has(at, n, "Chunked prefill is enabled with ")) {
            take_key(at, n, "max_num_batched_tokens=", &said.tokens);
        } else if (line_has(at, n, "Defaulting max_num_")) {
            take_key(at, n, "Defaulting max_num_batched_tokens to ", &said.tokens);
            take_key(at, n, "Defaulting max_num_seqs to ", &said.seqs);
        } else if (line_has(at, n, "occurred when warming up ")) { /* with all that may run */
            take_key(at, n, "warming up sampler with ", &said.seqs);
            take_key(at, n, "warming up pooler with ", &said.seqs);
        }
        at += n + (eol != NULL);
    }
    *ret_said = said;
}
