/* Reads files of API keys (keyfile.h). Called at start and at SIGHUP by auth.c. */
#include "server/net/keyfile.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>

#include "common/err.h"
#include "common/hex.h"

#define HASHED       "sha256:"
#define HASHED_LEN   7u
#define WORDS_MOST   7u
#define MOST_AT_ONCE 1000000u
#define WEIGHT_LEAST 0.01
#define WEIGHT_MOST  100.0

/* A word of a line: not ended by a NUL. */
struct keyfile_word {
    const char *at;
    size_t len;
};

/* Where a fault is. */
struct keyfile_place {
    const char *what, *path;
    uint64_t line; /* 0 = not from a file */
    struct ek_fault *fault;
};

/* A sentence about a place; never shows the key. */
static int keyfile_refuse(const struct keyfile_place *p, const char *says)
{
    const char *field = p->what + strspn(p->what, "-");
    if (p->fault)
        p->fault->at = p->line;
    if (p->line)
        return ek_fault_set(p->fault, field, "%s: %s, line %llu: %s", p->what, p->path,
                            (unsigned long long)p->line, says);
    return ek_fault_set(p->fault, field, "%s: %s", p->what, says);
}

int key_digest(const char *key, size_t len, uint8_t ret_digest[KEY_DIGEST])
{
    return gnutls_hash_fast(GNUTLS_DIG_SHA256, key, len, ret_digest) < 0 ? -EIO : 0;
}

static int keyfile_read_key(const struct keyfile_place *p, struct keyfile_word w,
                            uint8_t digest[KEY_DIGEST])
{
    if (w.len > HASHED_LEN && memcmp(w.at, HASHED, HASHED_LEN) == 0) {
        const char *hex = w.at + HASHED_LEN;
        if (w.len != HASHED_LEN + 2u * KEY_DIGEST)
            return keyfile_refuse(p,
                                  "after sha256: come 64 hex digits (printf %s KEY | sha256sum)");
        for (size_t i = 0; i < KEY_DIGEST; i++) {
            int high = ek_hex_digit(hex[2 * i]), low = ek_hex_digit(hex[2 * i + 1]);
            if (high < 0 || low < 0)
                return keyfile_refuse(
                    p, "after sha256: come 64 hex digits (printf %s KEY | sha256sum)");
            digest[i] = (uint8_t)(high << 4 | low);
        }
        return 0;
    }
    bool good = w.len > 0 && w.len <= KEY_BYTES;
    for (size_t i = 0; i < w.len && good; i++)
        good = w.at[i] > ' ' && w.at[i] < 0x7f;
    if (!good)
        return keyfile_refuse(p, "a key is 1 to 512 visible ASCII characters without spaces");
    return key_digest(w.at, w.len, digest) < 0 ? keyfile_refuse(p, "SHA-256 is not available") : 0;
}

static int keyfile_read_name(const struct keyfile_place *p, struct keyfile_word w, char *ret_name)
{
    bool good = w.len > 0 && w.len < KEY_NAME;
    for (size_t i = 0; i < w.len && good; i++)
        good = isalnum((unsigned char)w.at[i]) || (w.at[i] && strchr("-_.", w.at[i]));
    if (!good)
        return keyfile_refuse(
            p, "a name is 1 to 32 letters, digits, '-', '_' and '.'; a line is NAME KEY "
               "[max-concurrency=N] [queue-share=F] [weight=F] [cache-group=NAME] "
               "[priority=A..B]");
    memcpy(ret_name, w.at, w.len);
    ret_name[w.len] = '\0';
    return 0;
}

/* Digits, with a fraction if asked for. -1 when it is no number. */
static double keyfile_read_number(struct keyfile_word w, bool fraction)
{
    char text[24], *end;
    if (w.len == 0 || w.len >= sizeof(text))
        return -1;
    memcpy(text, w.at, w.len);
    text[w.len] = '\0';
    if (strspn(text, fraction ? "0123456789." : "0123456789") != w.len)
        return -1;
    double v = strtod(text, &end);
    return *end ? -1 : v;
}

/* A..B, the first and the last of a range of whole numbers. */
static int read_priorities(const struct keyfile_place *p, struct keyfile_word w, struct key_line *l)
{
    char text[32], *end = text;
    long long first = 0, last = 0;
    bool good = w.len < sizeof(text) && w.len > 0;
    if (good) {
        memcpy(text, w.at, w.len);
        text[w.len] = '\0';
        good = strspn(text, "-.0123456789") == w.len;
    }
    if (good) {
        first = strtoll(text, &end, 10);
        good = end != text && strncmp(end, "..", 2) == 0;
    }
    if (good) {
        char *from = end + 2;
        last = strtoll(from, &end, 10);
        good = end != from && !*end;
    }
    if (!good || first > last || first < INT32_MIN || last > INT32_MAX)
        return keyfile_refuse(p,
                              "priority is a range A..B of whole numbers, the smaller one first");
    l->first = (int32_t)first;
    l->last = (int32_t)last;
    return 0;
}

static int read_limit(const struct keyfile_place *p, struct keyfile_word w, struct key_line *l)
{
    const char *equals = memchr(w.at, '=', w.len);
    size_t n = equals ? (size_t)(equals - w.at) : 0;
    struct keyfile_word value = {equals ? equals + 1 : w.at, equals ? w.len - n - 1 : 0};
    if (n == 15 && memcmp(w.at, "max-concurrency", n) == 0) {
        double v = keyfile_read_number(value, false);
        if (v < 1 || v > MOST_AT_ONCE)
            return keyfile_refuse(p, "max-concurrency is a whole number from 1 to 1000000");
        l->concurrency = (uint32_t)v;
        return 0;
    }
    if (n == 11 && memcmp(w.at, "queue-share", n) == 0) {
        double v = keyfile_read_number(value, true);
        if (v <= 0 || v > 1)
            return keyfile_refuse(p, "queue-share is above 0 and at most 1");
        l->queue_share = v;
        return 0;
    }
    if (n == 6 && memcmp(w.at, "weight", n) == 0) {
        double v = keyfile_read_number(value, true);
        if (v < WEIGHT_LEAST || v > WEIGHT_MOST)
            return keyfile_refuse(p, "weight is from 0.01 to 100");
        l->weight = v;
        return 0;
    }
    if (n == 11 && memcmp(w.at, "cache-group", n) == 0)
        return keyfile_read_name(p, value, l->group);
    if (n == 8 && memcmp(w.at, "priority", n) == 0)
        return read_priorities(p, value, l);
    return keyfile_refuse(p, "after the key come max-concurrency=N, queue-share=F, weight=F, "
                             "cache-group=NAME or priority=A..B");
}

static int keyfile_append(const struct keyfile_place *p, const struct key_line *l,
                          struct key_line *lines, uint32_t *count)
{
    if (*count >= KEY_LINES_MOST)
        return keyfile_refuse(p, "there are more than 64 keys; remove those not in use");
    for (uint32_t i = 0; i < *count; i++) {
        if (memcmp(lines[i].digest, l->digest, KEY_DIGEST) == 0)
            return keyfile_refuse(p, "this key is there already; each key is given once");
        if (strcmp(lines[i].name, l->name) == 0)
            return keyfile_refuse(p, "this name is there already; each key has a name of its own");
    }
    lines[(*count)++] = *l;
    return 0;
}

static int parse_line(const struct keyfile_place *p, struct keyfile_word line,
                      const struct key_line *defaults, struct key_line *lines, uint32_t *count)
{
    struct keyfile_word word[WORDS_MOST];
    struct key_line l = *defaults;
    size_t words = 0;
    for (size_t i = 0; i < line.len;) {
        size_t begin = i;
        while (i < line.len && line.at[i] != ' ' && line.at[i] != '\t' && line.at[i] != '\r')
            i++;
        if (i > begin && words == WORDS_MOST)
            return keyfile_refuse(p, "a line has at most a name, a key and five limits");
        if (i > begin)
            word[words++] = (struct keyfile_word){line.at + begin, i - begin};
        i += i == begin;
    }
    if (words == 0 || word[0].at[0] == '#')
        return 0;
    int r = words > 1 ? keyfile_read_name(p, word[0], l.name) : 0;
    if (words == 1)
        (void)snprintf(l.name, sizeof(l.name), "key-%u", *count + 1);
    if (r == 0)
        r = keyfile_read_key(p, word[words > 1], l.digest);
    for (size_t i = 2; i < words && r == 0; i++)
        r = read_limit(p, word[i], &l);
    return r < 0 ? r : keyfile_append(p, &l, lines, count);
}

int keyfile_parse(const char *what, const char *path, const char *text, size_t len,
                  const struct key_line *defaults, struct key_line *lines, uint32_t *count,
                  struct ek_fault *fault)
{
    struct keyfile_place p = {what, path, 0, fault};
    uint32_t before = *count;
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - (text + at)) : len - at;
        p.line++;
        int r = parse_line(&p, (struct keyfile_word){text + at, n}, defaults, lines, count);
        if (r < 0)
            return r;
        at += n + 1;
    }
    p.line = 0;
    if (*count > before)
        return 0;
    return ek_fault_set(fault, what + strspn(what, "-"),
                        "%s: there is no key in %s; a line is KEY or NAME KEY", what, path);
}

int keyfile_add(const char *what, const char *key, const struct key_line *defaults,
                struct key_line *lines, uint32_t *count, struct ek_fault *fault)
{
    const struct keyfile_place p = {what, "", 0, fault};
    struct key_line l = *defaults;
    (void)snprintf(l.name, sizeof(l.name), "key-%u", *count + 1);
    int r = keyfile_read_key(&p, (struct keyfile_word){key, strlen(key)}, l.digest);
    return r < 0 ? r : keyfile_append(&p, &l, lines, count);
}
