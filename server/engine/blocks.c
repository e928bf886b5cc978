/*
 * The lists and counts behind the states of a KV block (blocks.h has them), for the scheduler, the
 * host tier and the prefix cache. Links are indexes within the blocks, so every change of state
 * takes constant time, whatever the pool's size; only a resize, a new cap,
 * forgetting all and the check walk.
 *
 * Freed blocks go to the front of the free list and cached ones to the back of the eviction list:
 * the list's head is what is taken next, or evicted next. A block is taken out of the cache by one
 * function, which keeps the lists by salt (salts.c) in step.
 */
#include "server/engine/blocks.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

static void list_append(struct blocks *b, struct block_list *l, uint32_t id)
{
    struct block *x = &b->at[id];

    x->prev = l->tail;
    x->next = BLOCKS_NONE;
    if (l->tail == BLOCKS_NONE)
        l->head = id;
    else
        b->at[l->tail].next = id;
    l->tail = id;
    l->count++;
}

static void list_prepend(struct blocks *b, struct block_list *l, uint32_t id)
{
    struct block *x = &b->at[id];

    x->prev = BLOCKS_NONE;
    x->next = l->head;
    if (l->head == BLOCKS_NONE)
        l->tail = id;
    else
        b->at[l->head].prev = id;
    l->head = id;
    l->count++;
}

static void list_remove(struct blocks *b, struct block_list *l, uint32_t id)
{
    const struct block *x = &b->at[id];

    if (x->prev == BLOCKS_NONE)
        l->head = x->next;
    else
        b->at[x->prev].next = x->next;
    if (x->next == BLOCKS_NONE)
        l->tail = x->prev;
    else
        b->at[x->next].prev = x->prev;
    l->count--;
}

static const double age_bounds[] = {.1, 1, 5, 15, 60, 300, 900, 3600, 14400}; /* seconds */

int blocks_init(struct blocks *b, uint32_t total, blocks_forget_fn forget, void *ctx)
{
    if (total < 2)
        return -EINVAL;
    struct salts salts;
    int r = salts_init(&salts, total);
    if (r != 0)
        return r;
    struct block *at = calloc(total, sizeof(*at));
    if (!at) {
        salts_done(&salts);
        return -ENOMEM;
    }
    *b = (struct blocks){.at = at,
                         .total = total,
                         .usable = total,
                         .free = {BLOCKS_NONE, BLOCKS_NONE, 0},
                         .cached = {BLOCKS_NONE, BLOCKS_NONE, 0},
                         .salts = salts,
                         .forget = forget,
                         .ctx = ctx};
    ek_hist_init(&b->evicted_age, age_bounds, sizeof(age_bounds) / sizeof(age_bounds[0]));
    for (uint32_t id = 1; id < total; id++)
        list_append(b, &b->free, id);
    return 0;
}

void blocks_done(struct blocks *b)
{
    salts_done(&b->salts);
    free(b->at);
    *b = (struct blocks){0};
}

uint32_t blocks_available(const struct blocks *b)
{
    return b->free.count + b->cached.count;
}

static void unname(struct blocks *b, uint32_t id)
{
    b->forget(b->ctx, id);
    b->at[id].named = false;
}

/* Takes a cached block out of the cache. */
static void uncache(struct blocks *b, uint32_t id)
{
    list_remove(b, &b->cached, id);
    salts_remove(&b->salts, id);
}

/* Takes a cached block out of the cache and its name from it. */
static void evict(struct blocks *b, uint32_t id, uint64_t now_us)
{
    const struct block *x = &b->at[id];

    uncache(b, id);
    if (b->evicted)
        b->evicted(b->evicted_ctx, id, now_us);
    unname(b, id);
    b->evictions++;
    ek_hist_observe(&b->evicted_age,
                    now_us > x->since_us ? (double)(now_us - x->since_us) / 1e6 : 0);
}

static void evict_to_free(struct blocks *b, uint32_t id, uint64_t now_us)
{
    evict(b, id, now_us);
    list_prepend(b, &b->free, id);
}

void blocks_evict_oldest(struct blocks *b, uint64_t now_us)
{
    evict_to_free(b, b->cached.head, now_us);
}

int blocks_take(struct blocks *b, uint64_t now_us, uint32_t *ret_id)
{
    if (b->free.count == 0) {
        if (b->cached.count == 0)
            return -EAGAIN;
        blocks_evict_oldest(b, now_us);
    }
    uint32_t id = b->free.head;
    list_remove(b, &b->free, id);
    b->at[id].refs = 1;
    b->referenced++;
    *ret_id = id;
    return 0;
}

void blocks_ref(struct blocks *b, uint32_t id)
{
    struct block *x = &b->at[id];

    assert(id != 0 && id < b->total && (x->refs > 0 || x->named));
    if (x->refs++ == 0) {
        uncache(b, id);
        b->referenced++;
    }
}

void blocks_give(struct blocks *b, uint32_t id, uint64_t now_us)
{
    struct block *x = &b->at[id];

    assert(id != 0 && id < b->total && x->refs > 0);
    if (--x->refs > 0)
        return;
    b->referenced--;
    x->since_us = now_us;
    if (id >= b->usable) {
        if (x->named)
            unname(b, id);
        b->retired++;
        return;
    }
    if (!x->named) {
        list_prepend(b, &b->free, id);
        return;
    }
    list_append(b, &b->cached, id);
    uint32_t held = salts_add(&b->salts, id, x->salt);
    if (b->salt_most != 0 && held > b->salt_most)
        evict_to_free(b, salts_oldest(&b->salts, id), now_us);
    if (b->cached_most != 0 && b->cached.count > b->cached_most)
        blocks_evict_oldest(b, now_us);
}

void blocks_name(struct blocks *b, uint32_t id, uint64_t salt)
{
    assert(id != 0 && id < b->total && b->at[id].refs > 0 && !b->at[id].named);
    b->at[id].named = true;
    b->at[id].salt = salt;
}

void blocks_forget(struct blocks *b, uint32_t id)
{
    bool cached = b->at[id].refs == 0;

    if (cached)
        uncache(b, id);
    unname(b, id);
    if (cached)
        list_prepend(b, &b->free, id);
}

void blocks_forget_all(struct blocks *b)
{
    while (b->cached.count > 0)
        blocks_forget(b, b->cached.head);
    for (uint32_t id = 1; id < b->total; id++)
        if (b->at[id].named)
            unname(b, id);
}

void blocks_cap(struct blocks *b, uint32_t most, uint32_t salt_most, uint64_t now_us)
{
    b->cached_most = most;
    b->salt_most = salt_most;
    while (most != 0 && b->cached.count > most)
        blocks_evict_oldest(b, now_us);
    for (uint32_t i = 0; salt_most != 0 && i < b->salts.total; i++)
        while (b->salts.node[i].count > salt_most)
            evict_to_free(b, b->salts.node[i].head, now_us);
}

void blocks_resize(struct blocks *b, uint32_t usable, uint64_t now_us)
{
    assert(usable >= 2 && usable <= b->total);
    for (; b->usable > usable; b->usable--) {
        uint32_t id = b->usable - 1;
        if (b->at[id].refs > 0)
            continue;
        if (b->at[id].named)
            evict(b, id, now_us);
        else
            list_remove(b, &b->free, id);
        b->retired++;
    }
    for (; b->usable < usable; b->usable++) {
        if (b->at[b->usable].refs > 0)
            continue;
        list_append(b, &b->free, b->usable);
        b->retired--;
    }
}

void blocks_move(struct blocks *b, uint32_t from, uint32_t to)
{
    struct block *x = &b->at[from], *y = &b->at[to];

    assert(x->refs > 0 && y->refs == 1 && !y->named);
    y->refs = x->refs;
    y->holders = x->holders;
    y->named = x->named;
    y->salt = x->salt;
    x->refs = 0;
    x->holders = 0;
    x->named = false;
    b->referenced--;
    if (from < b->usable)
        list_append(b, &b->free, from);
    else
        b->retired++;
}

/* Length of a list by walking it, BLOCKS_NONE when it is broken or holds a block in a state that
 * does not belong there. */
static uint32_t blocks_walk(const struct blocks *b, const struct block_list *l, bool named)
{
    uint32_t n = 0, before = BLOCKS_NONE;

    for (uint32_t id = l->head; id != BLOCKS_NONE; id = b->at[id].next) {
        if (id == 0 || id >= b->usable || n++ >= b->total)
            return BLOCKS_NONE;
        const struct block *x = &b->at[id];
        if (x->refs != 0 || x->named != named || x->prev != before)
            return BLOCKS_NONE;
        before = id;
    }
    return before == l->tail ? n : BLOCKS_NONE;
}

/* Each cached block is in the list of its own salt, and no list is above its cap. */
static bool salts_right(const struct blocks *b)
{
    uint32_t held = 0;

    for (uint32_t id = b->cached.head; id != BLOCKS_NONE; id = b->at[id].next) {
        uint32_t n = b->salts.link[id].node;
        if (n == SALTS_NONE || b->salts.node[n].salt != b->at[id].salt)
            return false;
    }
    for (uint32_t i = 0; i < b->salts.total; i++) {
        held += b->salts.node[i].count;
        if (b->salt_most != 0 && b->salts.node[i].count > b->salt_most)
            return false;
    }
    return held == b->cached.count;
}

const char *blocks_check(const struct blocks *b, const uint32_t *refs)
{
    uint32_t referenced = 0;

    if (b->at[0].refs != 0 || b->at[0].named)
        return "the null block is in use";
    for (uint32_t id = 1; id < b->total; id++) {
        referenced += b->at[id].refs > 0;
        if (refs && refs[id] != b->at[id].refs)
            return "a reference count differs from the tables";
    }
    if (blocks_walk(b, &b->free, false) != b->free.count)
        return "the free list is broken";
    if (blocks_walk(b, &b->cached, true) != b->cached.count)
        return "the eviction list is broken";
    if (!salts_right(b))
        return "the cached blocks by salt are wrong";
    if (referenced != b->referenced)
        return "the count of referenced blocks is wrong";
    if (referenced + b->free.count + b->cached.count + b->retired != b->total - 1)
        return "free + referenced + cached + retired differs from the total";
    return NULL;
}
