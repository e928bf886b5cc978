/*
 * A JSON schema from the input, or behind a # tools whose calls may come in a text, or behind an @
 * a structural tag: refused with a message, or compiled; then a text is written by always taking
 * one of the allowed bytes, and everything it is made of must fit.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/err.h"
#include "server/grammar/compile.h"
#include "tests/fuzz/grammar_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && data[0] == '#')
        return grammar_walk(GRAMMAR_TAGS, (const char *)data + 1, size - 1);
    if (size > 0 && data[0] == '@')
        return grammar_walk(GRAMMAR_STRUCTURE, (const char *)data + 1, size - 1);
    return grammar_walk(GRAMMAR_SCHEMA, (const char *)data, size);
}
