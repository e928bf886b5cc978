/*
 * Set operations on ranges of characters (chars.h). Called by the readers of patterns, texts and
 * schemas.
 */
#include "server/grammar/chars.h"

#include <string.h>

#include "common/hex.h"

#define SURROGATE_FIRST 0xd800u
#define SURROGATE_LAST  0xdfffu

/* Inserts a range without surrogates and merges it with those it meets. */
static void chars_insert(struct chars *c, uint32_t lo, uint32_t hi)
{
    uint32_t from = 0;

    while (from < c->count && c->at[from].hi + 1 < lo)
        from++;
    uint32_t to = from;
    while (to < c->count && c->at[to].lo <= hi + 1) {
        lo = c->at[to].lo < lo ? c->at[to].lo : lo;
        hi = c->at[to].hi > hi ? c->at[to].hi : hi;
        to++;
    }
    if (to == from && c->count == CHARS_MOST) {
        c->failed = true;
        return;
    }
    memmove(&c->at[from + 1], &c->at[to], (c->count - to) * sizeof(c->at[0]));
    c->at[from].lo = lo;
    c->at[from].hi = hi;
    c->count = c->count - (to - from) + 1;
}

void chars_add(struct chars *c, uint32_t lo, uint32_t hi)
{
    hi = hi > CHARS_LAST ? CHARS_LAST : hi;
    if (lo > hi)
        return;
    if (lo < SURROGATE_FIRST)
        chars_insert(c, lo, hi < SURROGATE_FIRST ? hi : SURROGATE_FIRST - 1);
    if (hi > SURROGATE_LAST)
        chars_insert(c, lo > SURROGATE_LAST ? lo : SURROGATE_LAST + 1, hi);
}

void chars_add_all(struct chars *c, const struct chars *other)
{
    for (uint32_t i = 0; i < other->count; i++)
        chars_insert(c, other->at[i].lo, other->at[i].hi);
    c->failed |= other->failed;
}

void chars_negate(struct chars *c)
{
    struct chars out = {.failed = c->failed};
    uint32_t next = 0;

    for (uint32_t i = 0; i < c->count; i++) {
        if (c->at[i].lo > next)
            chars_add(&out, next, c->at[i].lo - 1);
        next = c->at[i].hi + 1;
    }
    chars_add(&out, next, CHARS_LAST);
    *c = out;
}

void chars_keep(struct chars *c, const struct chars *other)
{
    struct chars out = {.failed = c->failed || other->failed};

    for (uint32_t i = 0; i < c->count; i++)
        for (uint32_t k = 0; k < other->count; k++) {
            uint32_t lo = c->at[i].lo > other->at[k].lo ? c->at[i].lo : other->at[k].lo;
            uint32_t hi = c->at[i].hi < other->at[k].hi ? c->at[i].hi : other->at[k].hi;
            chars_add(&out, lo, hi);
        }
    *c = out;
}

bool chars_has(const struct chars *c, uint32_t cp)
{
    for (uint32_t i = 0; i < c->count && c->at[i].lo <= cp; i++)
        if (cp <= c->at[i].hi)
            return true;
    return false;
}

const char *chars_digits(const char *text, size_t len, uint32_t count, size_t *at,
                         uint32_t *ret_value)
{
    uint32_t value = 0;

    for (uint32_t i = 0; i < count; i++, (*at)++) {
        const int digit = *at < len ? ek_hex_digit(text[*at]) : -1;
        if (digit < 0)
            return "a hexadecimal digit is missing";
        value = value << 4 | (uint32_t)digit;
    }
    *ret_value = value;
    return NULL;
}

const char *chars_hex(const char *text, size_t len, uint32_t count, size_t *at, uint32_t *ret_cp)
{
    uint32_t cp = 0;
    const char *wrong = chars_digits(text, len, count, at, &cp);

    if (wrong)
        return wrong;
    if (cp > CHARS_LAST || (cp >= SURROGATE_FIRST && cp <= SURROGATE_LAST))
        return "there is no such character";
    *ret_cp = cp;
    return NULL;
}
