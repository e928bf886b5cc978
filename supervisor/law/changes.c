/*
 * Compares two command lines flag by flag, for the sentence on why a restart would change something
 * (servers/drain.c) and for what a proof has to try (prove.c). A flag may occur several times, so
 * the n-th occurrence is compared with the n-th.
 */
#include "supervisor/law/changes.h"

#include <stdio.h>
#include <string.h>

struct flag {
    const char *name; /* "" for a word that belongs to no flag */
    size_t len;
    const char *value; /* "" = none */
};

/* The flag at *at, and moves it behind. A word that begins with a dash is no value, but for a
 * number. */
static struct flag changes_take(char *const *argv, size_t *at)
{
    char *const *w = argv + (*at)++;
    if ((*w)[0] != '-')
        return (struct flag){.name = "", .value = *w};
    size_t len = strcspn(*w, "=");
    struct flag f = {.name = *w, .len = len, .value = (*w)[len] ? *w + len + 1 : ""};
    const char *next = (*w)[len] ? NULL : w[1];
    if (next && (next[0] != '-' || (next[1] >= '0' && next[1] <= '9'))) {
        f.value = next;
        (*at)++;
    }
    return f;
}

static bool changes_same_name(const struct flag *a, const struct flag *b)
{
    return a->len == b->len && memcmp(a->name, b->name, a->len) == 0;
}

/* The n-th flag of this name; false when there is none. */
static bool changes_find(char *const *argv, const struct flag *what, unsigned n, struct flag *ret)
{
    for (size_t at = 0; argv[at];) {
        struct flag f = changes_take(argv, &at);
        if (changes_same_name(&f, what) && n-- == 0) {
            *ret = f;
            return true;
        }
    }
    return false;
}

/* How many of this name come before the one that ends at `end`. */
static unsigned changes_before(char *const *argv, size_t end, const struct flag *what)
{
    unsigned n = 0;
    for (size_t at = 0; at < end;) {
        struct flag f = changes_take(argv, &at);
        n += changes_same_name(&f, what);
    }
    return n - 1;
}

static void changes_add(char *text, size_t size, const char *part)
{
    size_t at = strlen(text);
    (void)snprintf(text + at, size - at, "%s%s", at ? ", " : "", part); /* may be cut */
}

bool changes_text(char *const *now, char *const *next, char *text, size_t size)
{
    char part[200];
    text[0] = '\0';
    for (size_t at = 0; next[at];) {
        struct flag f = changes_take(next, &at), was;
        bool had = changes_find(now, &f, changes_before(next, at, &f), &was);
        if (had && strcmp(was.value, f.value) == 0)
            continue;
        (void)snprintf(part, sizeof(part), "%.*s%s%.60s%s%.60s", (int)f.len, f.name,
                       f.len && f.value[0] ? " " : "", f.value, had ? " instead of " : "",
                       had ? was.value : "");
        changes_add(text, size, part);
    }
    for (size_t at = 0; now[at];) {
        struct flag f = changes_take(now, &at), is;
        if (changes_find(next, &f, changes_before(now, at, &f), &is))
            continue;
        (void)snprintf(part, sizeof(part), "no %.*s%.60s", (int)f.len, f.name,
                       f.len ? "" : f.value);
        changes_add(text, size, part);
    }
    return text[0] != '\0';
}
