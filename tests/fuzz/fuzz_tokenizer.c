/*
 * A tokenizer.json from the input, up to a zero byte, then a text for it. Whatever is built must
 * encode the text, with and without a guard, and give tokens that decode.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/json.h"
#include "server/text/detok.h"
#include "server/text/tokenizer.h"
#include "server/text/tokparts.h"

#define GUARD 0xFDD0u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct tokenizer *t, const char *text, size_t len)
{
    struct token_vec v = {.limit = 100000};
    struct ek_buf out = {0};
    struct detok d;
    detok_init(&d, t);
    d.stop[d.stops++] = "stop";
    if (tokenizer_encode(t, text, len, true, GUARD, &v) < 0 ||
        tokenizer_encode_prompt(t, text, len, &v) < 0)
        goto out;
    for (size_t i = 0; i < v.count; i++) {
        size_t n;
        if (!tokenizer_bytes(t, v.at[i], &n))
            abort(); /* a token that does not exist */
        if (detok_push(&d, v.at[i], &out) != 0)
            break;
    }
    (void)detok_flush(&d, &out); /* only whether it crashes */
out:
    detok_done(&d);
    ek_buf_done(&out);
    token_vec_done(&v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *s = (const char *)data;
    const char *zero = size ? memchr(s, 0, size) : NULL;
    size_t len = zero ? (size_t)(zero - s) : size;
    json_error_t e;
    json_t *root = ek_json_parse(s ? s : "", len, 0, &e);
    struct tokenizer *t = NULL;
    struct ek_fault fault;
    if (root && tok_build(root, root, &t, &fault) == 0)
        use(t, zero ? zero + 1 : "x", zero ? size - len - 1 : 1);
    tokenizer_free(t);
    json_decref(root);
    return 0;
}
