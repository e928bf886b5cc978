/*
 * Seats: what a running entry occupies on the device, a sampling slot and a block table. A seat is
 * free, taken, or leaving (its entry is gone while a step in flight uses it). The module owns the
 * tables and the references that they hold to blocks; so it knows without a look at them how many
 * blocks a preemption would give back. What a step plans and brings of a seat (how much is settled
 * and named, what is to be sent, its snapshot) is written by admit.c, plan.c, results.c and
 * snapshots.c. Part of the scheduler's state; engine thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/engine/prefix.h"

struct blocks;
struct states;

#define SEATS_NONE UINT32_MAX

struct seat {
    uint32_t entry;           /* SEATS_NONE: free or leaving */
    uint64_t lease;           /* which stay this is, never used twice */
    uint32_t inflight;        /* steps in flight that use it */
    uint32_t blocks;          /* of its table */
    uint32_t own;             /* of them those that are in no other table */
    uint32_t settled;         /* tokens in the cache by steps that are done */
    uint32_t named;           /* full blocks that went through the prefix cache */
    struct prefix_name tail;  /* name of the last of them */
    uint32_t adjacent;        /* blocks of its table that follow the one before in memory */
    bool quiet;               /* its blocks get no names: the cache was reset since */
    bool set_due;             /* the slot's sampling state is to be sent */
    uint32_t saved;           /* where its last snapshot was taken, or what it goes on from */
    uint32_t pending, rolled; /* snapshot + 1, 0 = none: of a block that has no name yet; that the
                                 next one may replace */
    uint32_t sure; /* tokens in the cache even if the next step is taken back, with its copies */
};

struct seats {
    struct seat *at; /* [count] */
    uint32_t count, table_most, block_size;
    uint32_t *tables;           /* [count][table_most] */
    uint32_t *free, free_count; /* the last one is taken next */
    uint32_t *leaving, leaving_count;
    uint64_t next_lease;
    uint64_t held_blocks, held_adjacent; /* sums over seats */
};

/* 0 or -ENOMEM. */
int seats_init(struct seats *s, uint32_t count, uint32_t table_most, uint32_t block_size);
void seats_done(struct seats *s);

static inline uint32_t *seats_table(const struct seats *s, uint32_t seat)
{
    return s->tables + (size_t)seat * s->table_most;
}
/* Of a table for so many tokens. */
static inline uint32_t seats_blocks_for(const struct seats *s, uint32_t tokens)
{
    return (tokens + s->block_size - 1) / s->block_size;
}
/* The free seat that is taken next; there is one. Its table may be filled before that. */
static inline uint32_t seats_next(const struct seats *s)
{
    return s->free[s->free_count - 1];
}
/* The next free seat is the entry's. */
void seats_take(struct seats *s, uint32_t entry);
/* The table got one block more, behind the others, with a reference to it. */
void seats_grown(struct seats *s, struct blocks *b, uint32_t seat);
/* Makes the table long enough for `tokens`. -EAGAIN when no block is left; what was got stays. */
int seats_grow(struct seats *s, struct blocks *b, uint32_t seat, uint32_t tokens, uint64_t now_us);
/* Blocks that come back when steps in flight are done. */
uint32_t seats_limbo(const struct seats *s);
/* The snapshot that is pending for the seat is wanted no more. */
void seat_drop_snapshot(struct seat *t, struct states *states);
/* The seat's entry is gone: frees it now, or when the steps that use it are done. */
void seats_leave(struct seats *s, struct blocks *b, struct states *states, uint32_t seat,
                 uint64_t now_us);
/* A step in flight that used the seat is over. */
void seats_landed(struct seats *s, struct blocks *b, struct states *states, uint32_t seat,
                  uint64_t now_us);
/* Blocks have moved: tables name the new places, `to` by the old ones, 0 = it stays. */
void seats_rename(struct seats *s, const uint32_t *to);
