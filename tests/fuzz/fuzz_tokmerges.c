/*
 * vocab.json, merges.txt, tokenizer_config.json, special_tokens_map.json and added_tokens.json from
 * the input, with a zero byte between them; the last two are not there where they are no objects.
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

static json_t *next_object(const char **at, const char *end)
{
    size_t bytes;
    const char *text = next_part(at, end, &bytes);
    json_t *o = json_loadb(text, bytes, 0, NULL);

    if (json_is_object(o))
        return o;
    json_decref(o);
    return NULL;
}

/* As tokfiles.c does for a directory that lists no added tokens in its configuration. */
static int complete(json_t **config, const json_t *map, const json_t *added, struct ek_fault *fault)
{
    json_t *now = NULL;

    if ((!map && !added) || json_object_get(*config, "added_tokens_decoder"))
        return 0;
    int r = tok_config_of_old(*config, map, added, &now, fault);
    if (r == 0) {
        json_decref(*config);
        *config = now;
    }
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *at = size > 0 ? (const char *)data : "", *end = at + size;
    size_t merges_bytes;
    json_t *vocab = next_object(&at, end);
    const char *merges = next_part(&at, end, &merges_bytes);
    json_t *config = next_object(&at, end), *map = next_object(&at, end);
    json_t *added = next_object(&at, end);
    struct tok_source s = {0};
    struct tokenizer *t = NULL;
    struct ek_fault fault;

    if (vocab && complete(&config, map, added, &fault) == 0 &&
        tok_from_merges(vocab, merges, merges_bytes, config, &s.root, &fault) == 0 &&
        tok_build_from(&s, config, &t, &fault) == 0)
        tokens_exist(t);
    tokenizer_free(t);
    tok_source_done(&s);
    json_decref(added);
    json_decref(map);
    json_decref(config);
    json_decref(vocab);
    return 0;
}
