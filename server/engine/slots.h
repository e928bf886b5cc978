/*
 * Slots: what a running entry occupies on the device, its sampling state and a block table. Steps
 * carry its number (kernels/step.h). A slot is free, taken, or leaving (its entry is gone while a
 * step in flight uses it). The module owns the tables and the references that they hold to blocks;
 * so it knows without reading them how many blocks a preemption would give back. What a step plans
 * and brings of a slot (how much is settled and named, what is to be sent, its snapshot) is written
 * by admit.c, plan.c, results.c and snapshots.c. Part of the scheduler's state; engine thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/engine/prefix.h"

struct blocks;
struct states;

#define SLOTS_NONE UINT32_MAX

struct slot {
    uint32_t entry;           /* SLOTS_NONE: free or leaving */
    uint64_t lease;           /* which stay this is, never used twice */
    uint32_t inflight;        /* steps in flight that use it */
    uint32_t blocks;          /* of its table */
    uint32_t own;             /* of them those that are in no other table */
    uint32_t settled;         /* tokens in the cache by steps that are done */
    uint32_t named;           /* full blocks that went through the prefix cache */
    struct prefix_name tail;  /* name of the last of them */
    uint32_t adjacent;        /* blocks of its table that follow the one before in memory */
    bool quiet;               /* its blocks get no names: the cache was reset since */
    bool set_due;             /* its sampling state is to be sent */
    uint32_t saved;           /* where its last snapshot was taken, or what it goes on from */
    uint32_t pending, rolled; /* snapshot + 1, 0 = none: of a block that has no name yet; that the
                                 next one may replace */
    uint32_t sure; /* tokens in the cache even if the next step is taken back, with its copies */
};

struct slots {
    struct slot *at; /* [count] */
    uint32_t count, table_most, block_size;
    uint32_t *tables;           /* [count][table_most] */
    uint32_t *free, free_count; /* the last one is taken next */
    uint32_t *leaving, leaving_count;
    uint64_t next_lease;
    uint64_t held_blocks, held_adjacent; /* sums over slots */
};

/* 0 or -ENOMEM. */
int slots_init(struct slots *s, uint32_t count, uint32_t table_most, uint32_t block_size);
void slots_done(struct slots *s);

static inline uint32_t *slots_table(const struct slots *s, uint32_t slot)
{
    return s->tables + (size_t)slot * s->table_most;
}
/* Of a table for so many tokens. */
static inline uint32_t slots_blocks_for(const struct slots *s, uint32_t tokens)
{
    return (tokens + s->block_size - 1) / s->block_size;
}
/* The free slot that is taken next; there is one. Its table may be filled before that. */
static inline uint32_t slots_next(const struct slots *s)
{
    return s->free[s->free_count - 1];
}
/* The next free slot is the entry's. */
void slots_take(struct slots *s, uint32_t entry);
/* The table got one block more, behind the others, with a reference to it. */
void slots_grown(struct slots *s, struct blocks *b, uint32_t slot);
/* Makes the table long enough for `tokens`. -EAGAIN when no block is left; what was got stays. */
int slots_grow(struct slots *s, struct blocks *b, uint32_t slot, uint32_t tokens, uint64_t now_us);
/* Blocks that come back when steps in flight are done. */
uint32_t slots_limbo(const struct slots *s);
/* The snapshot that is pending for the slot is wanted no more. */
void slot_drop_snapshot(struct slot *t, struct states *states);
/* The slot's entry is gone: frees it now, or when the steps that use it are done. */
void slots_leave(struct slots *s, struct blocks *b, struct states *states, uint32_t slot,
                 uint64_t now_us);
/* A step in flight that used the slot is over. */
void slots_landed(struct slots *s, struct blocks *b, struct states *states, uint32_t slot,
                  uint64_t now_us);
/* Blocks have moved: tables name the new places, `to` by the old ones, 0 = it stays. */
void slots_rename(struct slots *s, const uint32_t *to);
