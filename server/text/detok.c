/*
 * Tokens to text for the answers (server/api: choice.c, pair.c, prompt.c) and for /detokenize. The
 * text goes out as soon as it cannot change: `held` is whole characters, then bytes that may be the
 * start of one. Of the characters, those are held back that may begin a stop string. Work per token
 * depends on the length of the stop strings, not on that of the answer.
 */
#include "server/text/detok.h"

#include <errno.h>
#include <string.h>

#include "server/text/tokenizer.h"
#include "server/text/utf8.h"

#define REPLACEMENT "\xEF\xBF\xBD"

void detok_init(struct detok *d, const struct tokenizer *tok)
{
    *d = (struct detok){.tok = tok, .hit = -1};
}

void detok_done(struct detok *d)
{
    ek_buf_done(&d->held);
    d->text = 0;
}

/* Turns the bytes behind d->text into whole characters as far as they go; at the end all of them.
 */
static int detok_settle(struct detok *d, bool end)
{
    while (d->text < d->held.len) {
        char *s = d->held.data + d->text;
        size_t left = d->held.len - d->text, n = utf8_valid(s, left);
        bool cut;
        d->text += n;
        if (n == left)
            break;
        size_t bad = utf8_bad(s + n, left - n, &cut);
        if (cut && !end)
            break;
        /* bad bytes, at most three of them, become the three of U+FFFD */
        size_t tail = left - n - bad, grow = 3 - bad;
        if (ek_buf_reserve(&d->held, grow) < 0)
            return -ENOMEM;
        s = d->held.data + d->text;
        memmove(s + 3, s + bad, tail);
        memcpy(s, REPLACEMENT, 3);
        d->held.len += grow;
        d->held.data[d->held.len] = '\0';
        d->text += 3;
    }
    return 0;
}

/* The stop string that begins first in the text; of those that begin together the longest. */
static int32_t find_stop(const struct detok *d, size_t *ret_at)
{
    int32_t hit = -1;
    for (uint32_t i = 0; i < d->stops; i++) {
        size_t len = strlen(d->stop[i]);
        const char *p = len ? memmem(d->held.data, d->text, d->stop[i], len) : NULL;
        if (!p)
            continue;
        size_t at = (size_t)(p - d->held.data);
        if (hit < 0 || at < *ret_at || (at == *ret_at && len > strlen(d->stop[hit]))) {
            hit = (int32_t)i;
            *ret_at = at;
        }
    }
    return hit;
}

/* Length of the longest end of the text with which a stop string begins. */
static size_t hold_back(const struct detok *d)
{
    size_t most = 0;
    for (uint32_t i = 0; i < d->stops; i++) {
        const char *stop = d->stop[i], *end = d->held.data + d->text;
        size_t len = strlen(stop), room = len > 0 ? len - 1 : 0;
        const char *p = end - (room < d->text ? room : d->text);
        while ((size_t)(end - p) > most) {
            size_t left = (size_t)(end - p);
            p = memchr(p, stop[0], left);
            if (!p)
                break;
            left = (size_t)(end - p);
            if (left > most && memcmp(p, stop, left) == 0)
                most = left;
            p++;
        }
    }
    return most;
}

/* Appends the first n bytes of the text to out and drops them. */
static int detok_emit(struct detok *d, size_t n, struct ek_buf *out)
{
    if (ek_buf_add(out, d->held.data ? d->held.data : "", n) < 0)
        return -ENOMEM;
    ek_buf_drop(&d->held, n);
    d->text -= n;
    return 0;
}

/* Emits what cannot become a stop string any more (at the end: everything), or up to one. */
static int detok_advance(struct detok *d, bool end, struct ek_buf *out)
{
    size_t at = 0;
    if (d->text == 0)
        return 0;
    int32_t hit = find_stop(d, &at);
    if (hit < 0)
        return detok_emit(d, d->text - (end ? 0 : hold_back(d)), out);
    int r = detok_emit(d, at + (d->include_stop ? strlen(d->stop[hit]) : 0), out);
    if (r < 0)
        return r;
    d->hit = hit;
    ek_buf_clear(&d->held);
    d->text = 0;
    return 1;
}

int detok_push(struct detok *d, int32_t token, struct ek_buf *out)
{
    size_t len;
    if (d->hit >= 0)
        return 1;
    if (d->skip_specials && tokenizer_is_special(d->tok, token))
        return 0;
    const char *s = tokenizer_bytes(d->tok, token, &len);
    if (!s || len == 0)
        return 0;
    if (ek_buf_add(&d->held, s, len) < 0 || detok_settle(d, false) < 0)
        return -ENOMEM;
    return detok_advance(d, false, out);
}

int detok_flush(struct detok *d, struct ek_buf *out)
{
    if (d->hit >= 0)
        return 0;
    if (detok_settle(d, true) < 0)
        return -ENOMEM;
    int r = detok_advance(d, true, out);
    return r < 0 ? r : 0;
}

int detok_row(const struct tokenizer *tok, const int32_t *ids, size_t count, bool skip_specials,
              struct ek_buf *out)
{
    struct detok d;
    int r = 0;
    detok_init(&d, tok);
    d.skip_specials = skip_specials;
    for (size_t i = 0; i < count && r == 0; i++)
        r = detok_push(&d, ids[i], out);
    if (r == 0)
        r = detok_flush(&d, out);
    detok_done(&d);
    return r < 0 ? r : 0;
}
