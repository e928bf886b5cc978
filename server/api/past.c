/*
 * Stored responses, see past.h.
 *
 *   kept   in the row of all by age, found by id; the store has a reference
 *   held   not in the row: only later pasts or requests have references
 *   gone   freed, and its bytes with it
 *
 * kept -> held or gone: deleted, too old, or pushed out. References are counted under the lock.
 *
 * What is kept stands in two rows by age, that of all and that of its owner, so that whichever is
 * to go is found at once. Where the items of a list begin and end is noted when it is kept: a
 * reader of a few of them looks at no other's text.
 */
#include "server/api/past.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/fnv.h"
#include "common/json.h"

#define BUCKETS 4096u

struct past_mark {
    uint32_t at, len, id_at, id_len; /* in its list */
};

struct past_link {
    struct past *older, *newer;
};

struct past {
    uint64_t owner, kept_us;
    struct past_share *share;  /* its owner's place, once it is counted there */
    struct past *before;       /* with a reference, or NULL */
    struct past_link all, own; /* in the rows */
    struct past *next;         /* of its bucket */
    uint32_t refs;
    bool kept;
    size_t bytes;                    /* that it takes */
    size_t chain_bytes, chain_pasts; /* with those that it holds */
    size_t items, items_bytes;       /* of all items of its conversation */
    uint64_t json_bytes;             /* of these when they are parsed */
    char id[PAST_ID];
    const char *text; /* response, NUL, input, NUL; behind the marks */
    size_t response_len, output_at;
    uint32_t inputs, outputs;
    struct past_mark mark[]; /* of its inputs, then of its outputs */
};

struct past_row {
    struct past *oldest, *newest;
};

struct past_share {
    uint64_t owner;
    struct past_row row;
    size_t bytes, pasts; /* 0 pasts = the place is free */
};

struct past_store {
    pthread_mutex_t lock; /* of all that follows but the first two */
    uint64_t most_bytes, keep_us;
    struct past_row row;
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

static uint32_t past_bucket_of(uint64_t owner, const char *id)
{
    return (uint32_t)(ek_fnv(EK_FNV_BEGIN ^ owner, id, strlen(id)) >> 32) % BUCKETS;
}

/* ---- under the lock ---- */

/* The owner's place: `fresh` = or a free one; NULL = there is none. */
static struct past_share *past_share_of(struct past_store *s, uint64_t owner, bool fresh)
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

static void api_past_count(struct past_store *s, struct past *p, bool in)
{
    struct past_share *o = in ? past_share_of(s, p->owner, true) : p->share;
    assert(o);
    p->share = o;
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
        api_past_count(s, p, false);
        free(p);
        p = before;
    }
}

static void take_out(struct past_store *s, struct past *p)
{
    struct past_row *all = &s->row, *own = &p->share->row;
    struct past **at = &s->bucket[past_bucket_of(p->owner, p->id)];
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    *(p->all.older ? &p->all.older->all.newer : &all->oldest) = p->all.newer;
    *(p->all.newer ? &p->all.newer->all.older : &all->newest) = p->all.older;
    *(p->own.older ? &p->own.older->own.newer : &own->oldest) = p->own.newer;
    *(p->own.newer ? &p->own.newer->own.older : &own->newest) = p->own.older;
    p->kept = false;
    unref(s, p);
}

static void put_in(struct past_store *s, struct past *p)
{
    struct past **at = &s->bucket[past_bucket_of(p->owner, p->id)];
    p->next = *at;
    *at = p;
    api_past_count(s, p, true);
    struct past_row *all = &s->row, *own = &p->share->row;
    p->all.older = all->newest;
    p->own.older = own->newest;
    *(p->all.older ? &p->all.older->all.newer : &all->oldest) = p;
    *(p->own.older ? &p->own.older->own.newer : &own->oldest) = p;
    all->newest = own->newest = p;
    p->kept = true;
}

static struct past *look_up(struct past_store *s, uint64_t owner, const char *id)
{
    struct past *p = s->bucket[past_bucket_of(owner, id)];
    while (p && (p->owner != owner || strcmp(p->id, id) != 0))
        p = p->next;
    return p;
}

static void past_expire(struct past_store *s, uint64_t now_us)
{
    while (s->row.oldest && now_us - s->row.oldest->kept_us >= s->keep_us)
        take_out(s, s->row.oldest);
}

/* Pushes out the oldest of a row. False when there is none. */
static bool push_out(struct past_store *s, const struct past_row *row)
{
    if (!row->oldest)
        return false;
    s->evicted++;
    take_out(s, row->oldest);
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
static bool past_make_room(struct past_store *s, const struct past *fresh)
{
    struct past_share *o = past_share_of(s, fresh->owner, true);
    const size_t bytes = fresh->bytes;
    const struct past_share none = {.owner = fresh->owner};
    if (is_full(s, &none, fresh->chain_bytes, fresh->chain_pasts))
        return false;
    while (o && o->pasts > 0 && is_full(s, o, bytes, 1)) {
        if (!push_out(s, &o->row))
            return false; /* what later requests hold is all that is left */
    }
    while (!o || s->bytes + bytes > s->most_bytes || s->pasts + 1 > PAST_MOST) {
        if (!push_out(s, &s->row))
            return false;
        o = o ? o : past_share_of(s, fresh->owner, true);
    }
    return true;
}

/* ---- the interface ---- */

void past_store_free(struct past_store *s)
{
    if (!s)
        return;
    while (s->row.oldest)
        take_out(s, s->row.oldest);
    assert(s->pasts == 0 && s->bytes == 0);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

struct past *past_find(struct past_store *s, uint64_t owner, const char *id, uint64_t now_us)
{
    pthread_mutex_lock(&s->lock);
    past_expire(s, now_us);
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
    past_expire(s, now_us);
    struct past *p = look_up(s, owner, id);
    if (p)
        take_out(s, p);
    pthread_mutex_unlock(&s->lock);
    return p != NULL;
}

/* ---- the items of a list ---- */

/* Behind the string that begins at `at`. */
static size_t behind_string(const char *text, size_t len, size_t at)
{
    for (at++; at < len && text[at] != '"'; at++)
        at += text[at] == '\\';
    return at < len ? at + 1 : len;
}

/* The item that begins at `at`, up to the comma behind it or the end. */
static struct past_mark mark_item(const char *text, size_t len, size_t at)
{
    static const char word[] = "\"id\"";
    struct past_mark m = {.at = (uint32_t)at};
    uint32_t depth = 0;
    bool object = false, key = false, id = false; /* what stands at depth 1 */
    while (at < len && (depth > 0 || text[at] != ',')) {
        const char c = text[at];
        size_t end = c == '"' ? behind_string(text, len, at) : at + 1;
        if (c == '{' || c == '[') {
            if (depth++ == 0)
                object = key = c == '{';
            id = false;
        } else if (c == '}' || c == ']') {
            depth -= depth > 0;
        } else if (c == ',' && depth == 1) {
            key = object;
            id = false;
        } else if (c == '"' && depth == 1 && key) {
            id = end - at == sizeof(word) - 1 && memcmp(text + at, word, sizeof(word) - 1) == 0;
            key = false;
        } else if (c == '"' && depth == 1 && id) {
            m.id_at = (uint32_t)at;
            m.id_len = (uint32_t)(end - at);
            id = false;
        }
        at = end;
    }
    m.len = (uint32_t)at - m.at;
    return m;
}

/* Marks the items of a list, where `mark` is not NULL. Returns how many there are. */
static uint32_t mark_items(const char *text, size_t len, struct past_mark *mark)
{
    uint32_t n = 0;
    for (size_t at = 0; at < len; n++) {
        struct past_mark m = mark_item(text, len, at);
        at += m.len + 1;
        if (mark)
            mark[n] = m;
    }
    return n;
}

/* NULL when out of memory, or a text is longer than a mark can say. */
static struct past *past_new(uint64_t owner, const struct past_text *t, struct past *before,
                             uint64_t now_us)
{
    const char *output = t->response + t->output_at;
    if (strlen(t->id) >= PAST_ID || t->response_len > UINT32_MAX || t->input_len > UINT32_MAX)
        return NULL;
    const uint32_t inputs = mark_items(t->input, t->input_len, NULL);
    const uint32_t outputs = mark_items(output, t->output_len, NULL);
    const size_t marks = ((size_t)inputs + outputs) * sizeof(struct past_mark);
    const size_t bytes = sizeof(struct past) + marks + t->response_len + t->input_len + 2;
    struct past *p = calloc(1, bytes);
    if (!p)
        return NULL;
    char *text = (char *)p->mark + marks;
    p->owner = owner;
    p->kept_us = now_us;
    p->before = before;
    p->refs = 1;
    p->bytes = bytes;
    p->chain_bytes = bytes + (before ? before->chain_bytes : 0);
    p->chain_pasts = 1 + (before ? before->chain_pasts : 0);
    p->items = inputs + outputs + (before ? before->items : 0);
    p->items_bytes = t->output_len + t->input_len + (before ? before->items_bytes : 0);
    p->json_bytes = ek_json_measure(output, t->output_len, UINT64_MAX).bytes +
                    ek_json_measure(t->input, t->input_len, UINT64_MAX).bytes +
                    (before ? before->json_bytes : 0);
    p->text = text;
    p->response_len = t->response_len;
    p->output_at = t->output_at;
    p->inputs = mark_items(t->input, t->input_len, p->mark);
    p->outputs = mark_items(output, t->output_len, p->mark + inputs);
    memcpy(p->id, t->id, strlen(t->id));
    memcpy(text, t->response, t->response_len);
    memcpy(text + t->response_len + 1, t->input, t->input_len);
    return p;
}

/* ---- keeping ---- */

bool past_fits(const struct past_store *s, uint64_t owner, const struct past *before, size_t bytes)
{
    const struct past_share none = {.owner = owner};
    size_t held = before ? before->chain_bytes : 0, pasts = before ? before->chain_pasts : 0;
    return !is_full(s, &none, held + sizeof(struct past) + bytes + 2, pasts + 1);
}

int past_keep(struct past_store *s, uint64_t owner, const struct past_text *text,
              struct past *before, uint64_t now_us)
{
    struct past *p = past_new(owner, text, before, now_us);
    if (!p)
        return -ENOMEM;
    pthread_mutex_lock(&s->lock);
    past_expire(s, now_us);
    struct past *same = look_up(s, owner, text->id);
    if (same)
        take_out(s, same);
    bool fits = past_make_room(s, p);
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

size_t past_count(const struct past *p, bool inputs)
{
    return p->items - (inputs ? p->outputs : 0);
}

size_t past_items_bytes(const struct past *p)
{
    return p->items_bytes;
}

uint64_t past_json_bytes(const struct past *p)
{
    return p->json_bytes;
}

/* Shows what one answer added. False: no more is wanted. */
static bool walk_one(const struct past *p, bool inputs, bool newest_first, past_item_fn fn,
                     void *ctx)
{
    const uint32_t n = p->inputs + (inputs ? 0 : p->outputs);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = newest_first ? n - 1 - i : i;
        const struct past_mark *m = &p->mark[at];
        const char *list = p->text + (at < p->inputs ? p->response_len + 1 : p->output_at);
        const struct past_item item = {list + m->at, list + m->id_at, m->len, m->id_len};
        if (!fn(ctx, &item))
            return false;
    }
    return true;
}

int past_walk(const struct past *p, bool inputs, bool newest_first, past_item_fn fn, void *ctx)
{
    if (newest_first) {
        for (const struct past *q = p; q; q = q->before) {
            if (!walk_one(q, inputs && q == p, true, fn, ctx))
                break;
        }
        return 0;
    }
    size_t n = p->chain_pasts;
    const struct past **row = malloc(n * sizeof(*row)); /* they know the older ones alone */
    if (!row)
        return -ENOMEM;
    for (const struct past *q = p; q; q = q->before)
        row[--n] = q;
    while (n < p->chain_pasts && walk_one(row[n], inputs && row[n] == p, false, fn, ctx))
        n++;
    free(row);
    return 0;
}
