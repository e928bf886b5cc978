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
#include "tests/fuzz/tokens_exist.h"

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
    struct tok_source s = {0};
    struct tokenizer *t = NULL;
    struct ek_fault fault;
    int r = tok_source_read("x", size ? (const char *)data : "", size, &s, &fault);
    if (r == 0)
        write_twice(&s);
    if (r == 0 && tok_build_from(&s, NULL, &t, &fault) == 0)
        tokens_exist(t);
    tokenizer_free(t);
    tok_source_done(&s);
    return 0;
}
