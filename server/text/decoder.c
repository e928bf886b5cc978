/*
 * Runs the decoder of a tokenizer over each token once, when tokload.c fills the table of texts;
 * afterwards detok.c only copies bytes. Steps alternate between two buffers, the last one appends
 * to the result.
 */
#include "server/text/decoder.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "common/hex.h"
#include "server/text/utf8.h"

int decoder_fallback(const char *s, size_t len)
{
    if (len != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
        return -1;
    int hi = ek_hex_digit(s[3]), lo = ek_hex_digit(s[4]);
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

static bool in_alphabet(const char *s, size_t len)
{
    uint32_t cp;
    for (size_t i = 0; i < len;) {
        i += utf8_next(s + i, len - i, &cp);
        if (utf8_to_byte(cp) < 0)
            return false;
    }
    return true;
}

static int step_run(const struct decode_step *st, const char *s, size_t len, struct ek_buf *out)
{
    int byte = st->kind == DECODE_FALLBACK ? decoder_fallback(s, len) : -1;
    if (byte >= 0)
        return ek_buf_add(out, &(char){(char)byte}, 1);
    if (st->kind == DECODE_BYTES && in_alphabet(s, len)) {
        for (size_t i = 0; i < len;) {
            uint32_t cp;
            i += utf8_next(s + i, len - i, &cp);
            (void)ek_buf_add(out, &(char){(char)utf8_to_byte(cp)}, 1);
        }
        return ek_buf_ok(out) ? 0 : -ENOMEM;
    }
    size_t from_len = strlen(st->from);
    for (size_t i = 0; st->kind == DECODE_REPLACE && from_len > 0;) {
        const char *hit = memmem(s + i, len - i, st->from, from_len);
        size_t n = hit ? (size_t)(hit - (s + i)) : len - i;
        (void)ek_buf_add(out, s + i, n);
        if (!hit)
            return ek_buf_ok(out) ? 0 : -ENOMEM;
        (void)ek_buf_puts(out, st->to);
        i += n + from_len;
    }
    return ek_buf_add(out, s, len);
}

int decoder_run(const struct decoder *d, const char *s, size_t len, struct ek_buf *tmp,
                struct ek_buf *out)
{
    struct ek_buf second = {0};
    int r = 0;

    if (d->steps == 0)
        return ek_buf_add(out, s, len);
    for (uint32_t i = 0; i + 1 < d->steps && r == 0; i++) {
        struct ek_buf *into = i % 2 ? &second : tmp;
        ek_buf_clear(into);
        r = step_run(&d->step[i], s, len, into);
        s = into->data ? into->data : "";
        len = into->len;
    }
    if (r == 0)
        r = step_run(&d->step[d->steps - 1], s, len, out);
    ek_buf_done(&second);
    return r;
}
