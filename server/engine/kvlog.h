/*
 * What the prefix cache gained and lost, on its way from the engine thread to the publisher of KV
 * events: a ring of records with one writer and one reader. The engine thread never waits for the
 * reader. When the ring is full, records are dropped and counted, and the next one that finds room
 * is preceded by KV_CLEARED: a reader then knows less than there is, and nothing that is wrong.
 *
 * Sharing: `head` is moved by the writer after the records below it are whole, `tail` by the
 * reader after it is done with them; the writer's own fields are the engine thread's.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/engine/names.h"

#define KVLOG_LEAST 64u
#define KVLOG_MOST  (1u << 20)

enum kv_news { KV_STORED, KV_REMOVED, KV_CLEARED };
enum kv_tier { KV_DEVICE, KV_HOST };

struct kv_record {
    enum kv_news what;
    enum kv_tier tier;
    struct prefix_name name, parent; /* parent: of a stored one; {0, 0} starts a chain */
};

struct kvlog {
    struct kv_record *at; /* [mask + 1] */
    int32_t *tokens;      /* [mask + 1][block_size], of stored ones */
    uint32_t mask, block_size;
    int wake; /* eventfd that the reader sleeps on */
    _Atomic uint64_t head, tail;
    _Atomic uint64_t dropped;
    /* the writer's */
    uint64_t next; /* head once it is committed */
    bool lost;     /* dropped some since the last record */
};

/* `slots` is raised to a power of two from KVLOG_LEAST to KVLOG_MOST. 0, -EINVAL for a block size
 * above PREFIX_BLOCK_MOST, -ENOMEM, or why there is no eventfd. */
int kvlog_new(uint32_t slots, uint32_t block_size, struct kvlog **ret_log);
void kvlog_free(struct kvlog *l);

/* The writer; engine thread. Nothing is seen before the commit. */
void kvlog_stored(struct kvlog *l, enum kv_tier tier, struct prefix_name name,
                  struct prefix_name parent, const int32_t *tokens);
void kvlog_removed(struct kvlog *l, enum kv_tier tier, struct prefix_name name);
void kvlog_cleared(struct kvlog *l);
/* Shows what was written and wakes the reader if there is something. NULL is fine. */
void kvlog_commit(struct kvlog *l);

/* The reader. Records from `*ret_from` on, in order, that stay until kvlog_done(). */
uint32_t kvlog_pending(const struct kvlog *l, uint64_t *ret_from);
static inline const struct kv_record *kvlog_at(const struct kvlog *l, uint64_t number)
{
    return &l->at[number & l->mask];
}
static inline const int32_t *kvlog_tokens(const struct kvlog *l, uint64_t number)
{
    return l->tokens + (number & l->mask) * l->block_size;
}
void kvlog_done(struct kvlog *l, uint32_t count);
