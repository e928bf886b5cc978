/*
 * A pattern from the input, or with a first byte above 127 an EBNF grammar: refused with a message,
 * or compiled; then a text is written by always taking one of the allowed bytes.
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
    if (size > 0 && data[0] > 127)
        return grammar_walk(GRAMMAR_EBNF, (const char *)data + 1, size - 1);
    return grammar_walk(GRAMMAR_REGEX, (const char *)data, size);
}
