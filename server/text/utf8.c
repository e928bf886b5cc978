/*
 * UTF-8 for the tokenizer, the detokenizer and the grammars. form() has what Unicode allows for
 * each lead byte, and checking and repairing both follow it. ASCII is skipped eight bytes at a
 * time, as most text is that. utf8_next() tests little and is only for text that was checked.
 */
#include "server/text/utf8.h"

#include <string.h>

#include <utf8proc.h>

#include "common/buf.h"

/* Bounds of the second byte for a lead byte; everything after it is 80..BF. */
static size_t form(uint8_t lead, uint8_t *ret_lo, uint8_t *ret_hi)
{
    *ret_lo = 0x80;
    *ret_hi = 0xBF;
    if (lead < 0x80)
        return 1;
    if (lead < 0xC2 || lead > 0xF4)
        return 0;
    if (lead < 0xE0)
        return 2;
    if (lead == 0xE0)
        *ret_lo = 0xA0;
    else if (lead == 0xED)
        *ret_hi = 0x9F;
    else if (lead == 0xF0)
        *ret_lo = 0x90;
    else if (lead == 0xF4)
        *ret_hi = 0x8F;
    return lead < 0xF0 ? 3 : 4;
}

/* How many bytes at s agree with the form that their lead byte announces; *ret_full is its length.
 */
static size_t agreeing(const char *text, size_t left, size_t *ret_full)
{
    const uint8_t *s = (const uint8_t *)text;
    uint8_t lo, hi;
    size_t n = form(s[0], &lo, &hi);
    *ret_full = n;
    if (n == 0)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if (i == left || s[i] < lo || s[i] > hi)
            return i;
        lo = 0x80;
        hi = 0xBF;
    }
    return n;
}

size_t utf8_next(const char *text, size_t left, uint32_t *ret_cp)
{
    const uint8_t *s = (const uint8_t *)text;
    if (s[0] < 0x80) {
        *ret_cp = s[0];
        return 1;
    }
    if (left < (s[0] < 0xE0 ? 2u : s[0] < 0xF0 ? 3u : 4u)) {
        *ret_cp = 0xFFFD;
        return left;
    }
    if (s[0] < 0xE0) {
        *ret_cp = (s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu);
        return 2;
    }
    if (s[0] < 0xF0) {
        *ret_cp = (s[0] & 0x0Fu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
        return 3;
    }
    *ret_cp = (s[0] & 0x07u) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu);
    return 4;
}

size_t utf8_get(const char *s, size_t left, uint32_t *ret_cp)
{
    size_t full;
    if (agreeing(s, left, &full) != full || full == 0)
        return 0;
    return utf8_next(s, left, ret_cp);
}

size_t utf8_prev(const char *s, size_t at, uint32_t *ret_cp)
{
    const size_t end = at;
    do
        at--;
    while (at > 0 && ((uint8_t)s[at] & 0xC0) == 0x80);
    (void)utf8_next(s + at, end - at, ret_cp); /* the length is at's distance */
    return at;
}

size_t utf8_put(char out[UTF8_MOST], uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

size_t utf8_valid(const char *s, size_t len)
{
    size_t i = 0;
    while (i < len) {
        uint64_t word;
        if (len - i >= sizeof(word)) {
            memcpy(&word, s + i, sizeof(word));
            if ((word & 0x8080808080808080ull) == 0) {
                i += sizeof(word);
                continue;
            }
        }
        size_t full, n = agreeing(s + i, len - i, &full);
        if (n != full || n == 0)
            return i;
        i += n;
    }
    return i;
}

size_t utf8_bad(const char *s, size_t left, bool *ret_cut)
{
    size_t full, n = agreeing(s, left, &full);
    *ret_cut = n > 0 && n == left && n < full;
    return n > 0 ? n : 1;
}

int utf8_lossy(const char *s, size_t len, struct ek_buf *out)
{
    int r = 0;
    for (size_t i = 0; i < len && r == 0;) {
        size_t n = utf8_valid(s + i, len - i);
        r = ek_buf_add(out, s + i, n);
        i += n;
        if (r == 0 && i < len) {
            bool cut;
            i += utf8_bad(s + i, len - i, &cut);
            r = ek_buf_puts(out, "\xEF\xBF\xBD");
        }
    }
    return r;
}

bool utf8_is_space(uint32_t cp)
{
    if (cp < 0x80)
        return cp == ' ' || (cp >= '\t' && cp <= '\r');
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool utf8_is_word(uint32_t cp)
{
    if (cp == 0x200C || cp == 0x200D) /* join controls */
        return true;
    if ((cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
        (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189))
        return true; /* letters in circles and squares are alphabetic symbols */
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC;
}

uint32_t utf8_from_byte(uint8_t b)
{
    if (b <= 0x20)
        return 0x100u + b;
    if (b >= 0x7F && b <= 0xA0)
        return 0x121u + (b - 0x7Fu);
    return b == 0xAD ? 0x143u : b;
}

int utf8_to_byte(uint32_t cp)
{
    if (cp >= 0x100 && cp <= 0x120)
        return (int)(cp - 0x100);
    if (cp >= 0x121 && cp <= 0x142)
        return (int)(cp - 0x121 + 0x7F);
    if (cp == 0x143)
        return 0xAD;
    if ((cp > 0x20 && cp < 0x7F) || (cp > 0xA0 && cp <= 0xFF && cp != 0xAD))
        return (int)cp;
    return -1;
}
