/*
 * The table: bytes of the trie (4, little-endian), its units of 4 bytes, then replacements, each
 * ended by a NUL. A unit holds label, offset to its children and whether a value follows. The file
 * may say anything: every replacement is checked once, when the table is loaded, and what leads to
 * them where it is used.
 */
#include "server/text/charsmap.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include <utf8proc.h>

#include "common/buf.h"
#include "server/text/utf8.h"

#define WHOLE_MOST       6u   /* bytes of a grapheme that is looked up whole: less than so many */
#define REPLACEMENT_MOST 256u /* bytes; the longest of NFKC has 33 */

static uint32_t word_at(const char *table, size_t index)
{
    const uint8_t *b = (const uint8_t *)table + index * 4;
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static uint32_t children_of(uint32_t unit)
{
    return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

/* Whether every unit that has a value names a replacement that is UTF-8 and not too long. The pool
 * as a whole must be: a replacement is what follows a place in it up to a NUL, and the place must
 * not be within a character. */
static bool replacements_ok(const char *units, uint32_t count, const char *pool, size_t pool_len)
{
    if (utf8_valid(pool, pool_len) != pool_len)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t unit = word_at(units, i), at = i ^ children_of(unit);
        if ((unit & 0x80000000u) || !(unit & 0x100u))
            continue; /* is a value, or has none */
        uint32_t value = at < count ? word_at(units, at) & 0x7FFFFFFFu : UINT32_MAX;
        if (value >= pool_len || ((uint8_t)pool[value] & 0xC0) == 0x80 ||
            strnlen(pool + value, REPLACEMENT_MOST + 1) > REPLACEMENT_MOST)
            return false;
    }
    return true;
}

bool charsmap_ok(const char *table, size_t table_len)
{
    if (table_len < 8)
        return false;
    uint32_t trie = word_at(table, 0);
    return trie >= 4 && trie % 4 == 0 && trie < table_len - 4 && table[table_len - 1] == '\0' &&
           replacements_ok(table + 4, trie / 4, table + 4 + trie, table_len - 4 - trie);
}

/* The replacement of the shortest entry that s begins with, NULL if there is none. */
static const char *charsmap_find(const char *table, size_t table_len, const char *s, size_t len)
{
    const char *units = table + 4, *pool = units + word_at(table, 0);
    const size_t count = word_at(table, 0) / 4, pool_len = table_len - 4 - count * 4;
    uint32_t at = children_of(word_at(units, 0));

    for (size_t i = 0; i < len; i++) {
        uint8_t c = (uint8_t)s[i];
        at ^= c;
        if (c == 0 || at >= count)
            return NULL;
        uint32_t unit = word_at(units, at);
        if ((unit & 0x800000FFu) != c)
            return NULL;
        at ^= children_of(unit);
        if (unit & 0x100u) {
            uint32_t value = at < count ? word_at(units, at) & 0x7FFFFFFFu : UINT32_MAX;
            return value < pool_len ? pool + value : NULL;
        }
    }
    return NULL;
}

/* Bytes of the grapheme that s begins with, len > 0. */
static size_t grapheme(const char *s, size_t len)
{
    uint32_t before, cp;
    utf8proc_int32_t state = 0;
    size_t at = utf8_next(s, len, &before);

    while (at < len) {
        size_t size = utf8_next(s + at, len - at, &cp);
        if (utf8proc_grapheme_break_stateful((int32_t)before, (int32_t)cp, &state))
            break;
        before = cp;
        at += size;
    }
    return at;
}

int charsmap_run(const char *table, size_t table_len, const char *s, size_t len, struct ek_buf *out)
{
    for (size_t i = 0, whole; i < len; i += whole) {
        whole = grapheme(s + i, len - i);
        const char *to = whole < WHOLE_MOST ? charsmap_find(table, table_len, s + i, whole) : NULL;
        if (to) {
            (void)ek_buf_puts(out, to);
            continue;
        }
        for (size_t k = 0; k < whole;) {
            uint32_t cp;
            size_t size = utf8_next(s + i + k, whole - k, &cp);
            to = charsmap_find(table, table_len, s + i + k, size);
            if (to)
                (void)ek_buf_puts(out, to);
            else
                (void)ek_buf_add(out, s + i + k, size);
            k += size;
        }
    }
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
