/*
 * Stored responses, see past.h.
 *
 *   kept   in the row of all by age, found by id; the store has a reference
 *   held   not in the row: only later pasts or requests have references
 *   gone   freed, and its bytes with it
 *
 * kept -> held or gone: deleted, too old, or pushed out. References are counted under the lock.
 */
#include "server/api/past.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"

#define BUCKETS 4096u

struct past {
    uint64_t owner, kept_us;
    struct past *before;        /* with a reference, or NULL */
    struct past *older, *newer; /* in the row */
    struct past *next;          /* of its bucket */
    uint32_t refs;
    bool kept;
    size_t bytes;                    /* that it takes */
    size_t chain_bytes, chain_pasts; /* with those that it holds */
    size_t items_bytes;              /* of all items of its conversation, with commas */
    char id[PAST_ID];
    size_t response_len, output_at, output_len, input_len;
    char text[]; /* response, NUL, input */
};

struct past_share {
    uint64_t owner;
    size_t bytes, pasts; /* 0 pasts = the place is free */
};

struct past_store {
    pthread_mutex_t lock; /* of all that follows but the first two */
    uint64_t most_bytes, keep_us;
    struct past *oldest, *newest;
    struct past *bucket[BUCKETS];
    struct past_share share[PAST_OWNERS];
    uint64_t bytes, pasts, evicted;
};

int past_store_new(uint64_t bytes, uint64_t keep_us, struct past_store **ret_store)
{
    struct past_store *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    pthread_mutex_init(&s->lock, NULL); /* with the default attributes it cannot fail */
    s->most_bytes = bytes;
    s->keep_us = keep_us;
    *ret_store = s;
    return 0;
}

static uint32_t bucket_of(uint64_t owner, const char *id)
{
    uint64_t h = 14695981039346656037ull ^ owner; /* FNV-1a */
    for (; *id; id++)
        h = (h ^ (unsigned char)*id) * 1099511628211ull;
    return (uint32_t)(h >> 32) % BUCKETS;
}

/* ---- under the lock ---- */

/* The owner's place: `fresh` = or a free one; NULL = there is none. */
static struct past_share *share_of(struct past_store *s, uint64_t owner, bool fresh)
{
    struct past_share *free_one = NULL;
    for (uint32_t i = 0; i < PAST_OWNERS; i++) {
        struct past_share *at = &s->share[i];
        if (at->pasts > 0 && at->owner == owner)
            return at;
        if (at->pasts == 0 && !free_one)
            free_one = at;
    }
    return fresh ? free_one : NULL;
}

static void count(struct past_store *s, const struct past *p, bool in)
{
    struct past_share *o = share_of(s, p->owner, in);
    assert(o);
    o->owner = p->owner;
    o->bytes = in ? o->bytes + p->bytes : o->bytes - p->bytes;
    o->pasts = in ? o->pasts + 1 : o->pasts - 1;
    s->bytes = in ? s->bytes + p->bytes : s->bytes - p->bytes;
    s->pasts = in ? s->pasts + 1 : s->pasts - 1;
}

static void unref(struct past_store *s, struct past *p)
{
    while (p && --p->refs == 0) {
        struct past *before = p->before;
        count(s, p, false);
        free(p);
        p = before;
    }
}

static void take_out(struct past_store *s, struct past *p)
{
    struct past **at = &s->bucket[bucket_of(p->owner, p->id)];
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    *(p->older ? &p->older->newer : &s->oldest) = p->newer;
    *(p->newer ? &p->newer->older : &s->newest) = p->older;
    p->kept = false;
    unref(s, p);
}

static void put_in(struct past_store *s, struct past *p)
{
    struct past **at = &s->bucket[bucket_of(p->owner, p->id)];
    p->next = *at;
    *at = p;
    p->older = s->newest;
    *(p->older ? &p->older->newer : &s->oldest) = p;
    s->newest = p;
    p->kept = true;
    count(s, p, true);
}

static struct past *look_up(struct past_store *s, uint64_t owner, const char *id)
{
    struct past *p = s->bucket[bucket_of(owner, id)];
    while (p && (p->owner != owner || strcmp(p->id, id) != 0))
        p = p->next;
    return p;
}

static void expire(struct past_store *s, uint64_t now_us)
{
    while (s->oldest && now_us - s->oldest->kept_us >= s->keep_us)
        take_out(s, s->oldest);
}

/* Pushes out the oldest, `own` = of this owner. False when there is none. */
static bool push_out(struct past_store *s, const uint64_t *own)
{
    struct past *p = s->oldest;
    while (own && p && p->owner != *own)
        p = p->newer;
    if (!p)
        return false;
    s->evicted++;
    take_out(s, p);
    return true;
}

/* Whether so much more is more than the share, which may be NULL, allows. */
static bool is_full(const struct past_store *s, const struct past_share *o, size_t bytes,
                    size_t pasts)
{
    uint64_t part = o && o->owner != 0 ? PAST_SHARE : 1;
    return o && (o->bytes + bytes > s->most_bytes / part || o->pasts + pasts > PAST_MOST / part);
}

/* Room for a new one, in its owner's share and in all. */
static bool make_room(struct past_store *s, const struct past *fresh)
{
    const uint64_t owner = fresh->owner;
    const size_t bytes = fresh->bytes;
    const struct past_share none = {.owner = owner};
    if (is_full(s, &none, fresh->chain_bytes, fresh->chain_pasts))
        return false;
    while (is_full(s, share_of(s, owner, false), bytes, 1)) {
        if (!push_out(s, &owner))
            return false; /* what later requests hold is all that is left */
    }
    while (s->bytes + bytes > s->most_bytes || s->pasts + 1 > PAST_MOST ||
           !share_of(s, owner, true)) {
        if (!push_out(s, NULL))
            return false;
    }
    return true;
}

/* ---- the interface ---- */

void past_store_free(struct past_store *s)
{
    if (!s)
        return;
    while (s->oldest)
        take_out(s, s->oldest);
    assert(s->pasts == 0 && s->bytes == 0);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

struct past *past_find(struct past_store *s, uint64_t owner, const char *id, uint64_t now_us)
{
    pthread_mutex_lock(&s->lock);
    expire(s, now_us);
    struct past *p = look_up(s, owner, id);
    if (p)
        p->refs++;
    pthread_mutex_unlock(&s->lock);
    return p;
}

void past_drop(struct past_store *s, struct past *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&s->lock);
    unref(s, p);
    pthread_mutex_unlock(&s->lock);
}

bool past_delete(struct past_store *s, uint64_t owner, const char *id, uint64_t now_us)
{
    pthread_mutex_lock(&s->lock);
    expire(s, now_us);
    struct past *p = look_up(s, owner, id);
    if (p)
        take_out(s, p);
    pthread_mutex_unlock(&s->lock);
    return p != NULL;
}

static struct past *past_new(uint64_t owner, const struct past_text *t, struct past *before,
                             uint64_t now_us)
{
    size_t bytes = sizeof(struct past) + t->response_len + t->input_len + 2;
    struct past *p = strlen(t->id) < PAST_ID ? calloc(1, bytes) : NULL;
    if (!p)
        return NULL;
    p->owner = owner;
    p->kept_us = now_us;
    p->before = before;
    p->refs = 1;
    p->bytes = bytes;
    p->chain_bytes = bytes + (before ? before->chain_bytes : 0);
    p->chain_pasts = 1 + (before ? before->chain_pasts : 0);
    p->response_len = t->response_len;
    p->output_at = t->output_at;
    p->output_len = t->output_len;
    p->input_len = t->input_len;
    p->items_bytes = t->output_len + t->input_len + 2 + (before ? before->items_bytes : 0);
    memcpy(p->id, t->id, strlen(t->id));
    memcpy(p->text, t->response, t->response_len);
    memcpy(p->text + t->response_len + 1, t->input, t->input_len);
    return p;
}

int past_keep(struct past_store *s, uint64_t owner, const struct past_text *text,
              struct past *before, uint64_t now_us)
{
    struct past *p = past_new(owner, text, before, now_us);
    if (!p)
        return -ENOMEM;
    pthread_mutex_lock(&s->lock);
    expire(s, now_us);
    struct past *same = look_up(s, owner, text->id);
    if (same)
        take_out(s, same);
    bool fits = make_room(s, p);
    if (fits) {
        if (before)
            before->refs++;
        put_in(s, p);
    }
    pthread_mutex_unlock(&s->lock);
    if (fits)
        return 0;
    free(p);
    return -E2BIG;
}

void past_stat(struct past_store *s, struct past_stat *ret_stat)
{
    pthread_mutex_lock(&s->lock);
    *ret_stat = (struct past_stat){
        .pasts = s->pasts, .bytes = s->bytes, .evicted = s->evicted, .bound_bytes = s->most_bytes};
    pthread_mutex_unlock(&s->lock);
}

const char *past_response(const struct past *p, size_t *ret_len)
{
    *ret_len = p->response_len;
    return p->text;
}

size_t past_items_bytes(const struct past *p)
{
    return p->items_bytes;
}

/* Writes a list's inside before `*at`, with a comma where something follows. */
static void put_before(char *text, size_t *at, size_t end, const char *items, size_t len)
{
    if (len == 0)
        return;
    if (*at < end)
        text[--*at] = ',';
    *at -= len;
    memcpy(text + *at, items, len);
}

int past_items(const struct past *p, bool inputs, struct ek_buf *out)
{
    size_t end = p->items_bytes, at = end;
    char *text = malloc(end + 1);
    if (!text)
        return -ENOMEM;
    for (const struct past *q = p; q; q = q->before) { /* from the newest to the first */
        if (q != p || !inputs)
            put_before(text, &at, end, q->text + q->output_at, q->output_len);
        put_before(text, &at, end, q->text + q->response_len + 1, q->input_len);
    }
    int r = ek_buf_add(out, text + at, end - at);
    free(text);
    return r;
}
