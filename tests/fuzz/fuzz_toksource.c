/*
 * What a process that reads a model's files first hands back of a tokenizer.model or a
 * tiktoken.model, from the input. Whatever is built must encode a text into tokens that exist, and
 * what is read is written the same again.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/tokenizer.h"
#include "server/text/tokparts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_twice(const struct tok_source *s)
{
    struct ek_buf once = {0}, twice = {0};
    struct tok_source again = {0};
    if (tok_source_write(s, &once) != 0 ||
        tok_source_read("x", once.data, once.len, &again, NULL) != 0 ||
        tok_source_write(&again, &twice) != 0 || once.len != twice.len ||
        memcmp(once.data, twice.data, once.len) != 0)
        abort();
    tok_source_done(&again);
    ek_buf_done(&once);
    ek_buf_done(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "the caf\xC3\xA9  \xE2\x96\x81x\n\x01 <s> \xF0\x9F\x99\x82";
    struct tok_source s = {0};
    struct tokenizer *t = NULL;
    struct token_vec v = {0};
    struct ek_fault fault;
    int r = tok_source_read("x", size ? (const char *)data : "", size, &s, &fault);
    if (r == 0)
        write_twice(&s);
    if (r == 0 && tok_build_from(&s, NULL, &t, &fault) == 0 &&
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
