/*
 * A tokenizer.model from the input, or a tokenizer_config.json, a NUL and such a file. Whatever is
 * built must encode a text into tokens that exist.
 */
#include <stdint.h>
#include <string.h>

#include <jansson.h>

#include "common/err.h"
#include "common/json.h"
#include "server/text/tokenizer.h"
#include "server/text/tokparts.h"
#include "tests/fuzz/tokens_exist.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tok_source s = {0};
    struct tokenizer *t = NULL;
    struct ek_fault fault;
    const uint8_t *end = size > 0 && data[0] == '{' ? memchr(data, 0, size) : NULL;
    json_t *config =
        end ? ek_json_parse((const char *)data, (size_t)(end - data), 0, &(json_error_t){0}) : NULL;
    const uint8_t *model = end ? end + 1 : data;
    if (tok_from_spm(model, size - (size_t)(model - data), config, &s, &fault) == 0 &&
        tok_build_from(&s, config, &t, &fault) == 0)
        tokens_exist(t);
    tokenizer_free(t);
    tok_source_done(&s);
    json_decref(config);
    return 0;
}
