/*
 * Block store: the ids of one tier of KV memory. Block 0 is the null block and is never given.
 * Every other block is in exactly one state:
 *
 *   free        no content worth keeping, in the free list
 *   referenced  in `refs` block tables; named (it is in the prefix map) or not
 *   cached      named, in no table, in the eviction list: oldest at the head
 *   retired     in no list: its id is not below `usable`, because the pool was made smaller. A
 * block that is referenced then retires with its last reference.
 *
 * A store is one tier; the device and the host tier are two stores. The content of a name is
 * prefix.c's: this module calls `forget` when it takes the name away. Pure; owned by the engine
 * thread; nothing is allocated after blocks_init().
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/metrics.h"
#include "server/engine/salts.h"

#define BLOCKS_NONE UINT32_MAX

struct block {
    uint32_t refs;
    uint32_t prev, next; /* in the free or the eviction list, BLOCKS_NONE at the ends */
    uint32_t holders;    /* the owner's: exclusive or of the slots whose tables have it */
    uint64_t since_us;   /* when it was last released */
    uint64_t salt;       /* of a named one */
    bool named;
};

struct block_list {
    uint32_t head, tail, count;
};

typedef void (*blocks_forget_fn)(void *ctx, uint32_t id);
/* A cached block is about to be evicted; its name and content are still there. */
typedef void (*blocks_evict_fn)(void *ctx, uint32_t id, uint64_t now_us);

struct blocks {
    struct block *at; /* [total] */
    uint32_t total;   /* block 0 included */
    uint32_t usable;  /* ids below are given; total unless the pool was made smaller */
    uint32_t retired;
    uint32_t cached_most; /* cap on cached blocks, 0 = none */
    uint32_t salt_most;   /* the same for those of one salt */
    struct salts salts;   /* cached blocks by salt */
    struct block_list free, cached;
    uint32_t referenced;
    uint64_t evictions;
    struct ek_hist evicted_age; /* seconds from the last release to the eviction */
    blocks_forget_fn forget;
    void *ctx;
    blocks_evict_fn evicted; /* NULL = not told */
    void *evicted_ctx;
};

/* 0, -EINVAL when total < 2, -ENOMEM. */
int blocks_init(struct blocks *b, uint32_t total, blocks_forget_fn forget, void *ctx);
void blocks_done(struct blocks *b);

/* Blocks that can be taken now: free and cached. */
uint32_t blocks_available(const struct blocks *b);
/* One block with one reference; evicts the oldest cached one when none is free. -EAGAIN. */
int blocks_take(struct blocks *b, uint64_t now_us, uint32_t *ret_id);
/* One more reference to a referenced or cached block. */
void blocks_ref(struct blocks *b, uint32_t id);
/* One reference less. The last one moves the block to the cache (named) or to the free list. Of a
 * chain the deepest block is to be given first, so that it is evicted first. */
void blocks_give(struct blocks *b, uint32_t id, uint64_t now_us);
/* A referenced block has a name now, which belongs to a salt. */
void blocks_name(struct blocks *b, uint32_t id, uint64_t salt);
/* Takes one block's name away; a cached one is free then. */
void blocks_forget(struct blocks *b, uint32_t id);
/* Evicts the oldest cached block. There must be one. */
void blocks_evict_oldest(struct blocks *b, uint64_t now_us);
/* Takes every name away, so that the cache is empty and stays so until new names are given. */
void blocks_forget_all(struct blocks *b);
/* Sets the caps on cached blocks, of all and of one salt (0 = none), and evicts what is above. */
void blocks_cap(struct blocks *b, uint32_t most, uint32_t salt_most, uint64_t now_us);
/* Makes the pool smaller or larger, 2 .. total blocks, block 0 included. What is referenced stays
 * until it is given back. */
void blocks_resize(struct blocks *b, uint32_t usable, uint64_t now_us);
/* Referenced blocks whose ids are not given any more: they are in the way of a smaller pool. */
static inline uint32_t blocks_above(const struct blocks *b)
{
    return b->total - b->usable - b->retired;
}
/* A referenced block's references and name go to a block that was just taken. The caller renames
 * it in the tables and in the names. */
void blocks_move(struct blocks *b, uint32_t from, uint32_t to);
/* Recounts everything; `refs[id]`, when not NULL, is what the tables really hold. NULL when all is
 * right, else what is wrong. */
const char *blocks_check(const struct blocks *b, const uint32_t *refs);
