/*
 * Lets `evenkeelctl diagnose` read a support bundle without unpacking it: verb_diagnose.c feeds
 * what zlib gives, in pieces of any size, and is called with the bytes of each plain file. The
 * state is the header of the present member and how much of it is left, so an archive that is cut
 * off is known as such at its end.
 */
#include "supervisor/doctor/untar.h"

#include <string.h>

#define SIZE_AT  124
#define SIZE_LEN 12
#define SUM_AT   148
#define SUM_LEN  8
#define TYPE_AT  156
#define MAGIC_AT 257

/* Octal digits, ended by a blank or NUL; large sizes are binary with the first bit set. */
static bool untar_number(const char *text, size_t len, uint64_t *ret_value)
{
    uint64_t v = 0;
    size_t i = 0;
    if ((unsigned char)text[0] & 0x80) {
        for (i = len - 8; i < len; i++)
            v = v << 8 | (unsigned char)text[i];
        *ret_value = v;
        return v <= UINT64_MAX / 4; /* no such file exists */
    }
    while (i < len && text[i] == ' ')
        i++;
    for (; i < len && text[i] >= '0' && text[i] <= '7'; i++)
        v = v << 3 | (uint64_t)(text[i] - '0');
    *ret_value = v;
    return i == len || text[i] == '\0' || text[i] == ' ';
}

/* The header's sum with its own field as blanks. */
static bool sum_is_right(const char *head)
{
    uint64_t want, sum = 0;
    if (!untar_number(head + SUM_AT, SUM_LEN, &want))
        return false;
    for (int i = 0; i < UNTAR_BLOCK; i++)
        sum += i >= SUM_AT && i < SUM_AT + SUM_LEN ? ' ' : (unsigned char)head[i];
    return sum == want;
}

bool untar_is(const char *bytes, size_t len)
{
    return len >= UNTAR_BLOCK && memcmp(bytes + MAGIC_AT, "ustar", 5) == 0 && sum_is_right(bytes);
}

static void take_head(struct untar *t)
{
    uint64_t size;
    t->have = 0;
    if (!sum_is_right(t->head) || !untar_number(t->head + SIZE_AT, SIZE_LEN, &size)) {
        t->ended = true;
        for (int i = 0; i < UNTAR_BLOCK; i++)
            t->damaged |= t->head[i] != 0;
        return;
    }
    char type = t->head[TYPE_AT];
    t->plain = type == '0' || type == '\0' || type == '7';
    t->left = size;
    t->pad = (uint32_t)((UNTAR_BLOCK - size % UNTAR_BLOCK) % UNTAR_BLOCK);
    t->files += t->plain;
}

void untar_feed(struct untar *t, const char *bytes, size_t len, untar_fn fn, void *ctx)
{
    while (len > 0 && !t->ended) {
        size_t n;
        if (t->left > 0) {
            n = len < t->left ? len : (size_t)t->left;
            t->left -= n;
            if (t->plain)
                fn(ctx, bytes, n);
            if (t->plain && t->left == 0) {
                fn(ctx, "\n", 1); /* no line spans two files */
                fn(ctx, "", 0);
            }
        } else if (t->pad > 0) {
            n = len < t->pad ? len : t->pad;
            t->pad -= (uint32_t)n;
        } else {
            n = UNTAR_BLOCK - t->have < len ? UNTAR_BLOCK - t->have : len;
            memcpy(t->head + t->have, bytes, n);
            t->have += n;
            if (t->have == UNTAR_BLOCK)
                take_head(t);
        }
        bytes += n;
        len -= n;
    }
}

bool untar_cut(const struct untar *t)
{
    return t->left > 0 || t->pad > 0 || t->have > 0;
}
