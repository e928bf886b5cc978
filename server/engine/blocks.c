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

int blocks_init(struct blocks *b, uint32_t total, blocks_forget_fn forget, void *ctx)
{
    if (total < 2)
        return -EINVAL;
    struct block *at = calloc(total, sizeof(*at));
    if (!at)
        return -ENOMEM;
    *b = (struct blocks){.at = at,
                         .total = total,
                         .usable = total,
                         .free = {BLOCKS_NONE, BLOCKS_NONE, 0},
                         .cached = {BLOCKS_NONE, BLOCKS_NONE, 0},
                         .forget = forget,
                         .ctx = ctx};
    for (uint32_t id = 1; id < total; id++)
        list_append(b, &b->free, id);
    return 0;
}

void blocks_done(struct blocks *b)
{
    free(b->at);
    *b = (struct blocks){0};
}

uint32_t blocks_available(const struct blocks *b)
{
    return b->free.count + b->cached.count;
}

/* Takes a cached block out of the cache and its name from it. */
static void evict(struct blocks *b, uint32_t id, uint64_t now_us)
{
    struct block *x = &b->at[id];

    list_remove(b, &b->cached, id);
    b->forget(b->ctx, id);
    x->named = false;
    b->evictions++;
    b->evicted_age_us += now_us > x->since_us ? now_us - x->since_us : 0;
}

static void evict_oldest(struct blocks *b, uint64_t now_us)
{
    uint32_t id = b->cached.head;

    evict(b, id, now_us);
    list_prepend(b, &b->free, id);
}

int blocks_take(struct blocks *b, uint64_t now_us, uint32_t *ret_id)
{
    if (b->free.count == 0) {
        if (b->cached.count == 0)
            return -EAGAIN;
        evict_oldest(b, now_us);
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
        list_remove(b, &b->cached, id);
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
            b->forget(b->ctx, id);
        x->named = false;
        b->retired++;
        return;
    }
    if (!x->named) {
        list_prepend(b, &b->free, id);
        return;
    }
    list_append(b, &b->cached, id);
    if (b->cached_most != 0 && b->cached.count > b->cached_most)
        evict_oldest(b, now_us);
}

void blocks_name(struct blocks *b, uint32_t id)
{
    assert(id != 0 && id < b->total && b->at[id].refs > 0 && !b->at[id].named);
    b->at[id].named = true;
}

void blocks_flush(struct blocks *b, uint64_t now_us)
{
    while (b->cached.count > 0)
        evict_oldest(b, now_us);
}

void blocks_cap(struct blocks *b, uint32_t most, uint64_t now_us)
{
    b->cached_most = most;
    while (most != 0 && b->cached.count > most)
        evict_oldest(b, now_us);
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

/* Length of a list by walking it, BLOCKS_NONE when it is broken or holds a block in a state that
 * does not belong there. */
static uint32_t walk(const struct blocks *b, const struct block_list *l, bool named)
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
    if (walk(b, &b->free, false) != b->free.count)
        return "the free list is broken";
    if (walk(b, &b->cached, true) != b->cached.count)
        return "the eviction list is broken";
    if (referenced != b->referenced)
        return "the count of referenced blocks is wrong";
    if (referenced + b->free.count + b->cached.count + b->retired != b->total - 1)
        return "free + referenced + cached + retired differs from the total";
    return NULL;
}
