/*
 * A tokenizer and a prompt together: the first bytes choose model and steps, then come
 * SentencePiece's table as it is (in a tokenizer.json it hides behind base64, where no fuzzer finds
 * it) and a text.
 *
 *   byte 0  model: BPE of characters, BPE of bytes, Unigram (2, 3); 4: falls back to bytes
 *   byte 1  steps before (bits 0 to 3) and after the table (4 to 7)
 *   byte 2, 3  bytes of the table; then the table, then the text
 *
 * What is built must encode any text into tokens that exist, with and without a guard, the same
 * tokens twice, and decode them.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/detok.h"
#include "server/text/tokenizer.h"
#include "server/text/tokparts.h"

#define GUARD 0xFDD0u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const models[] = {
    "\"type\":\"BPE\",\"unk_token\":\"u\",\"vocab\":{\"u\":0,\"a\":1,\"b\":2,\"ab\":3,"
    "\"\xC3\xA9\":4,\"<x>\":5,\"\xE2\x96\x81\":6},\"merges\":[\"a b\"]",
    "\"type\":\"BPE\",\"unk_token\":\"a\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\xC3\x83\":3,"
    "\"\xC4\xA0\":4},\"merges\":[\"a b\"]",
    "\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"u\",0],[\"a\",-1.5],[\"ab\",-2],"
    "[\"\xC3\xA9\",-3],[\"\xE2\x96\x81\",-1]]",
};

static const char *const steps[] = {
    "{\"type\":\"NFKC\"}",
    "{\"type\":\"Lowercase\"}",
    "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\"\xE2\x96\x81\"}",
    "{\"type\":\"NFC\"}",
    "{\"type\":\"NFD\"}",
    "{\"type\":\"StripAccents\"}",
    "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}",
    "{\"type\":\"Prepend\",\"prepend\":\"\xE2\x96\x81\"}",
};

static void put_base64(struct ek_buf *out, const uint8_t *s, size_t len)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < len; i += 3) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; k++)
            bits = bits << 8 | (i + k < len ? s[i + k] : 0u);
        for (size_t k = 0; k < 4; k++)
            (void)ek_buf_add(out, i + k > len ? "=" : &digits[bits >> (18 - 6 * k) & 63], 1);
    }
}

static void put_steps(struct ek_buf *out, uint32_t which, const uint8_t *table, size_t len)
{
    (void)ek_buf_puts(out, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    for (uint32_t i = 0; i < 4; i++)
        if (which >> i & 1)
            (void)ek_buf_printf(out, "%s,", steps[i]);
    (void)ek_buf_puts(out, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"");
    put_base64(out, table, len);
    (void)ek_buf_puts(out, "\"}");
    for (uint32_t i = 4; i < 8; i++)
        if (which >> i & 1)
            (void)ek_buf_printf(out, ",%s", steps[i]);
    (void)ek_buf_puts(out, "]}");
}

static void use(const struct tokenizer *t, const char *text, size_t len)
{
    struct token_vec v = {.limit = 1000000}, w = {.limit = 1000000};
    struct ek_buf out = {0};
    struct detok d;
    detok_init(&d, t);
    d.stop[d.stops++] = "ab";
    if (tokenizer_encode(t, text, len, true, GUARD, &v) < 0 ||
        tokenizer_encode(t, text, len, true, GUARD, &w) < 0)
        goto out;
    if (v.count != w.count || (v.count && memcmp(v.at, w.at, v.count * sizeof(*v.at)) != 0))
        abort();
    if (tokenizer_encode_prompt(t, text, len, &v) < 0)
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
    token_vec_done(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const after[] = {"\"ByteFallback\"", "\"ByteLevel\"", "\"Fuse\""};
    struct ek_buf json = {0};
    struct tokenizer *t = NULL;
    struct ek_fault fault;
    if (size < 4)
        return 0;
    size_t table = (size_t)data[2] | (size_t)data[3] << 8, left = size - 4;
    table = table < left ? table : left;
    uint32_t kind = (data[0] & 3) < 2 ? data[0] & 3 : 2;
    (void)ek_buf_printf(&json, "{\"model\":{%s%s},\"decoder\":{\"type\":%s},", models[kind],
                        data[0] & 4 ? ",\"byte_fallback\":true" : "", after[kind]);
    if (kind == 1)
        (void)ek_buf_puts(&json, "\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                                 "\"add_prefix_space\":false,\"use_regex\":true},");
    (void)ek_buf_puts(&json, "\"added_tokens\":[{\"id\":9,\"content\":\"<s>\",\"special\":true},"
                             "{\"id\":10,\"content\":\"a\xC3\xA9\",\"normalized\":true}],");
    put_steps(&json, data[1], data + 4, table);
    json_t *root = ek_buf_puts(&json, "}") == 0 ? json_loads(json.data, 0, NULL) : NULL;
    if (!root)
        abort();
    if (tok_build(root, NULL, &t, &fault) == 0)
        use(t, (const char *)data + 4 + table, left - table);
    tokenizer_free(t);
    json_decref(root);
    ek_buf_done(&json);
    return 0;
}
