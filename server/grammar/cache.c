/* Grammars that were made lately: a list in the order of use, found by kind and bytes. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "server/grammar/compile.h"
#include "server/grammar/grammar.h"

struct kept {
    enum grammar_kind kind;
    char *text;
    size_t len;
    struct grammar *grammar; /* a reference */
};

struct grammar_cache {
    const struct lexicon *lexicon;
    pthread_mutex_t lock;           /* guards what follows */
    struct kept kept[GRAMMAR_KEPT]; /* latest first */
    struct grammar_cache_stats stats;
};

int grammar_cache_new(const struct lexicon *l, struct grammar_cache **ret_cache)
{
    struct grammar_cache *c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    c->lexicon = l;
    int r = -pthread_mutex_init(&c->lock, NULL);
    if (r < 0) {
        free(c);
        return r;
    }
    *ret_cache = c;
    return 0;
}

static void drop(struct kept *k)
{
    free(k->text);
    grammar_unref(k->grammar);
    *k = (struct kept){0};
}

void grammar_cache_free(struct grammar_cache *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < c->stats.kept; i++)
        drop(&c->kept[i]);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Under the lock: the grammar with a reference more, and it is the latest. */
static struct grammar *find(struct grammar_cache *c, enum grammar_kind kind, const char *text,
                            size_t len)
{
    for (uint32_t i = 0; i < c->stats.kept; i++) {
        struct kept k = c->kept[i];
        if (k.kind != kind || k.len != len || memcmp(k.text, text, len) != 0)
            continue;
        memmove(&c->kept[1], &c->kept[0], i * sizeof(k));
        c->kept[0] = k;
        grammar_ref(k.grammar);
        return k.grammar;
    }
    return NULL;
}

/* Under the lock: puts it first; the last one falls off when the list is full. */
static void keep(struct grammar_cache *c, struct kept k)
{
    if (c->stats.kept == GRAMMAR_KEPT) {
        c->stats.bytes -= grammar_bytes(c->kept[GRAMMAR_KEPT - 1].grammar);
        drop(&c->kept[--c->stats.kept]);
    }
    memmove(&c->kept[1], &c->kept[0], c->stats.kept * sizeof(k));
    grammar_ref(k.grammar);
    c->stats.bytes += grammar_bytes(k.grammar);
    c->kept[0] = k;
    c->stats.kept++;
}

static void remember(struct grammar_cache *c, enum grammar_kind kind, const char *text, size_t len,
                     struct grammar *g)
{
    struct kept k = {kind, malloc(len + 1), len, g};

    if (!k.text)
        return; /* it is made again next time */
    memcpy(k.text, text, len);
    pthread_mutex_lock(&c->lock);
    struct grammar *other = find(c, kind, text, len); /* somebody was faster */
    if (!other)
        keep(c, k);
    pthread_mutex_unlock(&c->lock);
    if (other) {
        grammar_unref(other);
        free(k.text);
    }
}

int grammar_cache_get(struct grammar_cache *c, enum grammar_kind kind, const char *text, size_t len,
                      struct grammar **ret_grammar, struct ek_fault *fault)
{
    pthread_mutex_lock(&c->lock);
    struct grammar *g = find(c, kind, text, len);
    c->stats.hits += g != NULL;
    c->stats.misses += g == NULL;
    pthread_mutex_unlock(&c->lock);
    if (g) {
        *ret_grammar = g;
        return 0;
    }
    uint64_t from = ek_now_us();
    int r = grammar_compile(kind, text, len, c->lexicon, &g, fault);
    uint64_t made = ek_now_us();
    if (r == 0)
        grammar_warm(g);
    pthread_mutex_lock(&c->lock);
    c->stats.refused += r < 0;
    c->stats.compile_us += made - from;
    c->stats.warm_us += ek_now_us() - made;
    pthread_mutex_unlock(&c->lock);
    if (r < 0)
        return r;
    remember(c, kind, text, len, g);
    *ret_grammar = g;
    return 0;
}

void grammar_cache_stats(struct grammar_cache *c, struct grammar_cache_stats *ret_stats)
{
    pthread_mutex_lock(&c->lock);
    *ret_stats = c->stats;
    pthread_mutex_unlock(&c->lock);
}
