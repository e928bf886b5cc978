#include "server/text/wordpiece.h"

#include <stdbool.h>

#include "server/text/bpe.h"
#include "server/text/tokens.h"

static bool begins_character(char c)
{
    return ((uint8_t)c & 0xC0) != 0x80;
}

/* The longest token at the beginning of s, -1 if there is none. */
static int32_t longest(const struct vocab *v, const char *s, size_t len, size_t *ret_len)
{
    for (size_t n = len < v->longest ? len : v->longest; n > 0; n--) {
        int32_t id = n == len || begins_character(s[n]) ? vocab_find(v, s, n) : -1;
        if (id >= 0) {
            *ret_len = n;
            return id;
        }
    }
    return -1;
}

static bool too_long(const struct wordpiece *w, const char *s, size_t len)
{
    uint32_t characters = 0;
    for (size_t i = 0; i < len && characters <= w->most; i++)
        characters += begins_character(s[i]);
    return characters > w->most;
}

int wordpiece_encode(const struct wordpiece *w, const struct bpe *b, const char *s, size_t len,
                     struct token_vec *out)
{
    const size_t count = out->count;
    bool known = !too_long(w, s, len);
    int r = 0;
    for (size_t at = 0; known && at < len && r == 0;) {
        size_t n = 0;
        int32_t id = longest(at ? &w->inner : &b->keys, s + at, len - at, &n);
        known = id >= 0;
        if (known)
            r = tokens_push(out, id);
        at += n;
    }
    if (known || r < 0)
        return r;
    out->count = count;
    return tokens_push(out, b->unk);
}
