/*
 * Grammars that were made lately: a list in the order of use, found by kind and bytes. All that are
 * alive, also those that only requests hold, share one room: before a new one is refused for want
 * of it, those go that are not in use. No owner (API key) has more than its share of the room and
 * of the list with forms that were made for it: before one more is, its own go first, so that an
 * owner that sends very many forms has its own compiled again and again, and not those of others.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "server/grammar/compile.h"
#include "server/grammar/grammar.h"

struct kept_grammar {
    enum grammar_kind kind;
    char *text;
    size_t len;
    struct grammar *grammar; /* a reference */
};

/* A form that is being compiled, on the stack of its thread. */
struct grammar_making {
    struct grammar_making *next, **link;
    uint64_t begun_us;
};

struct grammar_cache {
    const struct lexicon *lexicon;
    uint64_t most_bytes;
    struct grammar_room *room;
    pthread_mutex_t lock;                   /* guards what follows */
    struct kept_grammar kept[GRAMMAR_KEPT]; /* latest first */
    struct grammar_making *making;
    struct grammar_cache_stats stats;
};

int grammar_cache_new(const struct lexicon *l, uint64_t most_bytes,
                      struct grammar_cache **ret_cache)
{
    struct grammar_cache *c = calloc(1, sizeof(*c));
    struct grammar_room *room = calloc(1, sizeof(*room));
    int r = c && room ? -pthread_mutex_init(&c->lock, NULL) : -ENOMEM;
    if (r < 0) {
        free(room);
        free(c);
        return r;
    }
    atomic_init(&room->refs, 1);
    c->lexicon = l;
    c->most_bytes = most_bytes;
    c->room = room;
    *ret_cache = c;
    return 0;
}

/* What has left the list, to be freed without the lock: an automaton of megabytes takes a while. */
struct removed {
    struct kept_grammar kept[GRAMMAR_KEPT];
    uint32_t count;
};

static void cache_drop(struct kept_grammar *k)
{
    free(k->text);
    grammar_unref(k->grammar);
    *k = (struct kept_grammar){0};
}

static void drop_all(struct removed *out)
{
    for (uint32_t i = 0; i < out->count; i++)
        cache_drop(&out->kept[i]);
}

void grammar_cache_free(struct grammar_cache *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < c->stats.kept; i++)
        cache_drop(&c->kept[i]);
    grammar_room_unref(c->room);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Under the lock: the grammar with a reference more, and it is the latest. */
static struct grammar *cache_find(struct grammar_cache *c, enum grammar_kind kind, const char *text,
                                  size_t len)
{
    for (uint32_t i = 0; i < c->stats.kept; i++) {
        struct kept_grammar k = c->kept[i];
        if (k.kind != kind || k.len != len || memcmp(k.text, text, len) != 0)
            continue;
        memmove(&c->kept[1], &c->kept[0], i * sizeof(k));
        c->kept[0] = k;
        grammar_ref(k.grammar);
        return k.grammar;
    }
    return NULL;
}

/* Under the lock. */
static void remove_at(struct grammar_cache *c, uint32_t i, struct removed *out)
{
    c->stats.bytes -= grammar_bytes(c->kept[i].grammar);
    out->kept[out->count++] = c->kept[i];
    c->stats.kept--;
    memmove(&c->kept[i], &c->kept[i + 1], (c->stats.kept - i) * sizeof(c->kept[0]));
}

/* Under the lock: nobody else can get at it, and its room is free from now on. */
static void remove_idle(struct grammar_cache *c, uint32_t i, struct removed *out)
{
    grammar_uncount(c->kept[i].grammar);
    remove_at(c, i, out);
}

static bool within_share(const struct grammar_cache *c, uint32_t owner, uint64_t bytes)
{
    return owner == 0 || atomic_load(&c->room->of[owner]) + bytes <= c->most_bytes / GRAMMAR_SHARE;
}

static bool within_room(const struct grammar_cache *c, uint64_t bytes)
{
    return atomic_load(&c->room->bytes) + bytes <= c->most_bytes;
}

/* Under the lock: whether there is room for so many bytes more, once those are gone that are not
 * in use, the oldest first: of its owner's for its share, of all for the rest. */
static bool cache_make_room(struct grammar_cache *c, uint32_t owner, uint64_t bytes,
                            struct removed *out)
{
    for (uint32_t i = c->stats.kept; i-- > 0 && !within_share(c, owner, bytes);) {
        if (grammar_owner(c->kept[i].grammar) == owner && grammar_is_idle(c->kept[i].grammar))
            remove_idle(c, i, out);
    }
    if (!within_share(c, owner, bytes))
        return false;
    for (uint32_t i = c->stats.kept; i-- > 0 && !within_room(c, bytes);) {
        if (grammar_is_idle(c->kept[i].grammar))
            remove_idle(c, i, out);
    }
    return within_room(c, bytes);
}

/* Under the lock: which one falls off a full list for one more of this owner: the oldest, or the
 * oldest of its own when it has its share of the list. */
static uint32_t last_for(const struct grammar_cache *c, uint32_t owner)
{
    uint32_t own = 0, oldest = GRAMMAR_KEPT - 1;

    for (uint32_t i = 0; i < c->stats.kept && owner != 0; i++) {
        if (grammar_owner(c->kept[i].grammar) != owner)
            continue;
        own++;
        oldest = i;
    }
    return own >= GRAMMAR_KEPT / GRAMMAR_SHARE ? oldest : GRAMMAR_KEPT - 1;
}

/* Under the lock: puts it first; another one falls off when the list is full. */
static void cache_keep(struct grammar_cache *c, struct kept_grammar k, struct removed *out)
{
    if (c->stats.kept == GRAMMAR_KEPT)
        remove_at(c, last_for(c, grammar_owner(k.grammar)), out);
    memmove(&c->kept[1], &c->kept[0], c->stats.kept * sizeof(k));
    grammar_ref(k.grammar);
    c->stats.bytes += grammar_bytes(k.grammar);
    c->kept[0] = k;
    c->stats.kept++;
}

static void remember(struct grammar_cache *c, const struct grammar_from *from, struct grammar *g)
{
    struct kept_grammar k = {from->kind, malloc(from->len + 1), from->len, g};

    struct removed out = {.count = 0};
    if (!k.text)
        return; /* it is made again next time */
    memcpy(k.text, from->text, from->len);
    pthread_mutex_lock(&c->lock);
    /* another thread was faster */
    struct grammar *other = cache_find(c, from->kind, from->text, from->len);
    if (!other)
        cache_keep(c, k, &out);
    pthread_mutex_unlock(&c->lock);
    drop_all(&out);
    if (other) {
        grammar_unref(other);
        free(k.text);
    }
}

struct grammar *grammar_cache_find(struct grammar_cache *c, enum grammar_kind kind,
                                   const char *text, size_t len)
{
    pthread_mutex_lock(&c->lock);
    struct grammar *g = cache_find(c, kind, text, len);
    c->stats.hits += g != NULL;
    pthread_mutex_unlock(&c->lock);
    return g;
}

static int refuse_for_room(const struct grammar_cache *c, uint32_t owner, struct ek_fault *fault)
{
    const uint64_t share = c->most_bytes / GRAMMAR_SHARE;

    if (owner != 0 && within_room(c, 1)) {
        ek_fault_write(fault, "",
                       "the forms of this key's open requests take %.1f MiB, of which it may have "
                       "%.1f MiB; try again later",
                       (double)atomic_load(&c->room->of[owner]) / (1 << 20),
                       (double)share / (1 << 20));
        return -EBUSY;
    }
    ek_fault_write(
        fault, "", "the forms of open requests take %.1f MiB of at most %.1f MiB; try again later",
        (double)atomic_load(&c->room->bytes) / (1 << 20), (double)c->most_bytes / (1 << 20));
    return -EBUSY;
}

static void making_begin(struct grammar_cache *c, struct grammar_making *m)
{
    pthread_mutex_lock(&c->lock);
    *m = (struct grammar_making){.next = c->making, .link = &c->making, .begun_us = ek_now_us()};
    if (m->next)
        m->next->link = &m->next;
    c->making = m;
    pthread_mutex_unlock(&c->lock);
}

/* Under the lock. */
static void making_end(const struct grammar_making *m)
{
    *m->link = m->next;
    if (m->next)
        m->next->link = m->link;
}

/* A new one that is counted. */
static int cache_make(struct grammar_cache *c, const struct grammar_from *from,
                      struct ek_work *work, struct grammar **ret_grammar, struct ek_fault *fault)
{
    const uint32_t owner = from->owner % GRAMMAR_OWNERS;
    struct grammar *g = NULL;
    struct removed out = {.count = 0};
    struct grammar_making m;
    making_begin(c, &m);
    int r = grammar_compile(from->kind, from->text, from->len, c->lexicon, work, &g, fault);
    uint64_t made = ek_now_us();
    pthread_mutex_lock(&c->lock);
    bool room = r == 0 && cache_make_room(c, owner, grammar_bytes(g), &out);
    if (room)
        grammar_count(g, c->room, owner);
    c->stats.made += room;
    pthread_mutex_unlock(&c->lock);
    drop_all(&out);
    if (r == 0 && !room) {
        grammar_unref(g);
        r = refuse_for_room(c, owner, fault);
    }
    uint64_t warm = ek_now_us();
    if (r == 0)
        grammar_warm(g, work);
    pthread_mutex_lock(&c->lock);
    c->stats.refused += r < 0;
    c->stats.compile_us += made - m.begun_us;
    c->stats.warm_us += ek_now_us() - warm;
    making_end(&m);
    pthread_mutex_unlock(&c->lock);
    if (r == 0)
        *ret_grammar = g;
    return r;
}

int grammar_cache_get(struct grammar_cache *c, const struct grammar_from *from,
                      struct ek_work *work, struct grammar **ret_grammar, struct ek_fault *fault)
{
    const uint32_t owner = from->owner % GRAMMAR_OWNERS;
    struct removed out = {.count = 0};

    pthread_mutex_lock(&c->lock);
    struct grammar *g = cache_find(c, from->kind, from->text, from->len);
    bool room =
        g || cache_make_room(c, owner, 1, &out); /* else there is no sense in compiling it */
    c->stats.hits += g != NULL;
    c->stats.misses += g == NULL;
    c->stats.refused += !room;
    pthread_mutex_unlock(&c->lock);
    drop_all(&out);
    if (!room)
        return refuse_for_room(c, owner, fault);
    if (!g) {
        int r = cache_make(c, from, work, &g, fault);
        if (r < 0)
            return r;
        remember(c, from, g);
    }
    *ret_grammar = g;
    return 0;
}

void grammar_cache_stats(struct grammar_cache *c, struct grammar_cache_stats *ret_stats)
{
    pthread_mutex_lock(&c->lock);
    *ret_stats = c->stats;
    for (const struct grammar_making *m = c->making; m; m = m->next)
        if (ret_stats->oldest_us == 0 || m->begun_us < ret_stats->oldest_us)
            ret_stats->oldest_us = m->begun_us;
    pthread_mutex_unlock(&c->lock);
}
