/*
 * A grammar in Lark's notation from the input: refused with a message, or compiled; then a text is
 * written by always taking one of the allowed bytes. With a first byte of 1 to 8 its texts are the
 * inside of a JSON string.
 */
#include <stdint.h>
#include <stdlib.h>

#include <jansson.h>

#include "server/grammar/compile.h"
#include "server/grammar/schema.h"
#include "tests/fuzz/grammar_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    if (size == 0 || data[0] < 1 || data[0] > 8)
        return grammar_walk(GRAMMAR_EBNF, text, size);
    json_t *schema = json_pack("{s:s,s:s%}", "type", "string", SCHEMA_LARK, text + 1, size - 1);
    char *dumped = schema ? json_dumps(schema, JSON_COMPACT) : NULL;
    if (dumped)
        (void)grammar_walk(GRAMMAR_SCHEMA, dumped, strlen(dumped));
    free(dumped);
    json_decref(schema);
    return 0;
}
