/*
 * A tokenizer.model from the input. Whatever is built must encode a text into tokens that exist.
 */
#include <stdint.h>

#include "common/err.h"
#include "server/text/tokenizer.h"
#include "server/text/tokparts.h"
#include "tests/fuzz/tokens_exist.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tok_source s = {0};
    struct tokenizer *t = NULL;
    struct ek_fault fault;
    if (tok_from_spm(data, size, NULL, &s, &fault) == 0 &&
        tok_build_from(&s, NULL, &t, &fault) == 0)
        tokens_exist(t);
    tokenizer_free(t);
    tok_source_done(&s);
    return 0;
}
