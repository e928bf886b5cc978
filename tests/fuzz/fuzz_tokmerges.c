/*
 * vocab.json, merges.txt and tokenizer_config.json from the input, with a zero byte between them.
 * Whatever is built must encode a text into tokens that exist.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "server/text/tokenizer.h"
#include "server/text/tokparts.h"
#include "tests/fuzz/tokens_exist.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The next part of the input; its end is moved behind the zero byte. */
static const char *next_part(const char **at, const char *end, size_t *ret_len)
{
    const char *from = *at, *zero = from < end ? memchr(from, 0, (size_t)(end - from)) : NULL;

    *ret_len = (size_t)((zero ? zero : end) - from);
    *at = zero ? zero + 1 : end;
    return from;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *at = size > 0 ? (const char *)data : "", *end = at + size;
    size_t vocab_bytes, merges_bytes, config_bytes;
    const char *vocab_text = next_part(&at, end, &vocab_bytes);
    const char *merges = next_part(&at, end, &merges_bytes);
    const char *config_text = next_part(&at, end, &config_bytes);
    json_t *vocab = json_loadb(vocab_text, vocab_bytes, 0, NULL);
    json_t *config = json_loadb(config_text, config_bytes, 0, NULL);
    struct tok_source s = {0};
    struct tokenizer *t = NULL;
    struct ek_fault fault;

    if (vocab && tok_from_merges(vocab, merges, merges_bytes, config, &s.root, &fault) == 0 &&
        tok_build_from(&s, config, &t, &fault) == 0)
        tokens_exist(t);
    tokenizer_free(t);
    tok_source_done(&s);
    json_decref(config);
    json_decref(vocab);
    return 0;
}
