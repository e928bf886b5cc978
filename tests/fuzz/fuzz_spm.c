/*
 * A tokenizer.model from the input. Whatever is built must encode a text into tokens that exist.
 */
#include <stdint.h>
#include <stdlib.h>

#include "common/err.h"
#include "server/text/tokenizer.h"
#include "server/text/tokparts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "the caf\xC3\xA9  \xE2\x96\x81x\n\x01 <s> \xF0\x9F\x99\x82";
    struct tok_source s = {0};
    struct tokenizer *t = NULL;
    struct token_vec v = {0};
    struct ek_fault fault;
    if (tok_from_spm(data, size, NULL, &s, &fault) == 0 &&
        tok_build_from(&s, NULL, &t, &fault) == 0 &&
        tokenizer_encode_prompt(t, text, sizeof(text) - 1, &v) == 0)
        for (size_t i = 0; i < v.count; i++) {
            size_t n;
            if (!tokenizer_bytes(t, v.at[i], &n))
                abort();
        }
    token_vec_done(&v);
    tokenizer_free(t);
    tok_source_done(&s);
    return 0;
}
