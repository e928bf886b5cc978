/*
 * Lists of cached blocks by salt, for blocks.c. A hash table with chains finds the salt's node;
 * from it a doubly linked list by block id leads from the oldest to the youngest. Nodes are taken
 * from a free list and given back with the last block, so a client that sends a new salt each time
 * costs no memory.
 */
#include "server/engine/salts.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int salts_init(struct salts *s, uint32_t total)
{
    uint32_t buckets = 16;

    *s = (struct salts){.total = total};
    while (buckets < total && buckets < 1u << 30)
        buckets *= 2;
    s->mask = buckets - 1;
    s->node = calloc(total, sizeof(*s->node));
    s->link = calloc(total, sizeof(*s->link));
    s->bucket = calloc(buckets, sizeof(*s->bucket));
    if (!s->node || !s->link || !s->bucket) {
        salts_done(s);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < buckets; i++)
        s->bucket[i] = SALTS_NONE;
    for (uint32_t i = 0; i < total; i++) {
        s->node[i].next = i + 1 < total ? i + 1 : SALTS_NONE;
        s->link[i].node = SALTS_NONE;
    }
    return 0;
}

void salts_done(struct salts *s)
{
    free(s->node);
    free(s->link);
    free(s->bucket);
    *s = (struct salts){0};
}

/* Salts are hashes already, but a client may choose one: mix it. */
static uint32_t *salts_bucket_of(const struct salts *s, uint64_t salt)
{
    return &s->bucket[(salt * 0x9e3779b97f4a7c15ull) >> 32 & s->mask];
}

static uint32_t find_node(struct salts *s, uint64_t salt)
{
    uint32_t *bucket = salts_bucket_of(s, salt), n = *bucket;

    while (n != SALTS_NONE && s->node[n].salt != salt)
        n = s->node[n].next;
    if (n != SALTS_NONE)
        return n;
    n = s->free;
    assert(n != SALTS_NONE); /* there are as many as blocks */
    s->free = s->node[n].next;
    s->node[n] = (struct salt_node){salt, *bucket, SALTS_NONE, SALTS_NONE, 0};
    *bucket = n;
    return n;
}

uint32_t salts_add(struct salts *s, uint32_t id, uint64_t salt)
{
    assert(id < s->total && s->link[id].node == SALTS_NONE);
    uint32_t n = find_node(s, salt);
    struct salt_node *x = &s->node[n];

    s->link[id] = (struct salt_link){n, x->tail, SALTS_NONE};
    *(x->tail == SALTS_NONE ? &x->head : &s->link[x->tail].next) = id;
    x->tail = id;
    return ++x->count;
}

void salts_remove(struct salts *s, uint32_t id)
{
    struct salt_link l = s->link[id];

    assert(l.node != SALTS_NONE);
    struct salt_node *x = &s->node[l.node];
    *(l.prev == SALTS_NONE ? &x->head : &s->link[l.prev].next) = l.next;
    *(l.next == SALTS_NONE ? &x->tail : &s->link[l.next].prev) = l.prev;
    s->link[id].node = SALTS_NONE;
    if (--x->count > 0)
        return;
    uint32_t *at = salts_bucket_of(s, x->salt);
    while (*at != l.node)
        at = &s->node[*at].next;
    *at = x->next;
    x->next = s->free;
    s->free = l.node;
}

uint32_t salts_oldest(const struct salts *s, uint32_t id)
{
    assert(s->link[id].node != SALTS_NONE);
    return s->node[s->link[id].node].head;
}
