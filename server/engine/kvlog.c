/*
 * The ring between the engine and the publisher of KV events. On the engine thread the prefix cache
 * and the scheduler write, and the engine commits; server/kvpub.c reads on its own thread. Each
 * index is stored by one side with release and read by the other with acquire; the eventfd only
 * wakes.
 */
#include "server/engine/kvlog.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

int kvlog_new(uint32_t slots, uint32_t block_size, struct kvlog **ret_log)
{
    uint32_t size = KVLOG_LEAST;
    int r = -EINVAL;
    struct kvlog *l = NULL;

    if (block_size == 0 || block_size > PREFIX_BLOCK_MOST)
        goto out;
    while (size < slots && size < KVLOG_MOST)
        size *= 2;
    r = -ENOMEM;
    l = calloc(1, sizeof(*l));
    if (!l)
        goto out;
    l->wake = -1;
    l->mask = size - 1;
    l->block_size = block_size;
    l->at = calloc(size, sizeof(*l->at));
    l->tokens = calloc((size_t)size * block_size, sizeof(*l->tokens));
    if (!l->at || !l->tokens)
        goto out;
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r = l->wake < 0 ? -errno : 0;
    if (r < 0)
        goto out;
    *ret_log = l;
    l = NULL;
out:
    kvlog_free(l);
    return r;
}

void kvlog_free(struct kvlog *l)
{
    if (!l)
        return;
    if (l->wake >= 0)
        (void)close(l->wake); /* nothing was written that could be lost */
    free(l->at);
    free(l->tokens);
    free(l);
}

/* The next record, NULL when there is no room for it (and for the mark before it). */
static struct kv_record *kvlog_take(struct kvlog *l)
{
    uint64_t held = l->next - atomic_load_explicit(&l->tail, memory_order_acquire);

    if (held + (l->lost ? 2 : 1) > (uint64_t)l->mask + 1) {
        l->lost = true;
        (void)atomic_fetch_add_explicit(&l->dropped, 1, memory_order_relaxed);
        return NULL;
    }
    if (l->lost) {
        l->lost = false;
        l->at[l->next++ & l->mask] = (struct kv_record){.what = KV_CLEARED};
    }
    return &l->at[l->next++ & l->mask];
}

void kvlog_stored(struct kvlog *l, enum kv_tier tier, struct prefix_name name,
                  struct prefix_name parent, const int32_t *tokens)
{
    struct kv_record *rec = kvlog_take(l);

    if (!rec)
        return;
    *rec = (struct kv_record){.what = KV_STORED, .tier = tier, .name = name, .parent = parent};
    memcpy(l->tokens + (size_t)(rec - l->at) * l->block_size, tokens,
           l->block_size * sizeof(*tokens));
}

void kvlog_removed(struct kvlog *l, enum kv_tier tier, struct prefix_name name)
{
    struct kv_record *rec = kvlog_take(l);

    if (rec)
        *rec = (struct kv_record){.what = KV_REMOVED, .tier = tier, .name = name};
}

void kvlog_cleared(struct kvlog *l)
{
    l->lost = false; /* it says the same */
    struct kv_record *rec = kvlog_take(l);

    if (rec)
        *rec = (struct kv_record){.what = KV_CLEARED};
}

void kvlog_commit(struct kvlog *l)
{
    if (!l || atomic_load_explicit(&l->head, memory_order_relaxed) == l->next)
        return;
    atomic_store_explicit(&l->head, l->next, memory_order_release);
    (void)eventfd_write(l->wake, 1); /* full: then the reader is awake anyway */
}

uint32_t kvlog_pending(const struct kvlog *l, uint64_t *ret_from)
{
    uint64_t tail = atomic_load_explicit(&l->tail, memory_order_relaxed);

    *ret_from = tail;
    return (uint32_t)(atomic_load_explicit(&l->head, memory_order_acquire) - tail);
}

void kvlog_done(struct kvlog *l, uint32_t count)
{
    uint64_t tail = atomic_load_explicit(&l->tail, memory_order_relaxed) + count;

    assert(tail <= atomic_load_explicit(&l->head, memory_order_relaxed));
    atomic_store_explicit(&l->tail, tail, memory_order_release);
}
