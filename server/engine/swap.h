/*
 * The host tier of preempted entries. A preemption copies the entry's blocks to host blocks; its
 * resumption copies back what the prefix cache does not hold any more, so that nothing is computed
 * twice. Copies travel at the head of the next step that is written, outgoing ones before incoming
 * ones, and are done in that order: a device block may therefore be given to somebody else at once.
 * When there is no room (host blocks, tables, copies in a step) the entry is recomputed instead;
 * when a step with copies is taken back, what it would have saved is recomputed too.
 *
 * Part of the scheduler's state, split off for its own concept. Pure; engine thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/step.h"
#include "server/engine/blocks.h"

struct entry;
struct sched;

#define SWAP_NONE UINT32_MAX

struct swap {
    bool on;
    struct blocks host;                /* no block of it is ever named */
    uint32_t *tables;                  /* [table_count][table_most] host block ids */
    uint32_t *free_tables, free_count; /* one for each sequence */
    uint32_t table_count;
    struct ek_block_copy *out, *in; /* for the next step */
    uint32_t out_count, in_count;
    uint32_t most; /* copies in a step */
};

/* What an entry has in the host tier. */
struct swapped {
    uint32_t table;  /* SWAP_NONE = nothing */
    uint32_t blocks; /* of it */
    uint32_t tokens; /* that they hold */
    uint64_t step;   /* that copies them out */
};

/* Copies in a step for block tables of that length, whatever the size of the host tier. */
uint32_t swap_copies(uint32_t table_most);
/* host_blocks < 2 leaves it off. 0 or -ENOMEM. */
int swap_init(struct sched *s, uint32_t host_blocks);
void swap_done(struct swap *w);

/* Saves a running entry's blocks before they are given back. False when there is no room, or when
 * by the measured rates copying out and in takes longer than computing again. */
bool swap_out(struct sched *s, struct entry *e, uint64_t now_us);
/* Copies back into the seat's table what lies after its first `hits` blocks, and forgets the host
 * blocks. Returns the tokens that are in the cache then. */
uint32_t swap_in(struct sched *s, struct entry *e, uint32_t hits, uint64_t now_us);
void swap_drop(struct sched *s, struct entry *e, uint64_t now_us);
/* A step is taken back: drops what it would have saved. */
void swap_cancel(struct sched *s, uint64_t step, uint64_t now_us);
/* Moves the copies that are due into the step. */
void swap_write(struct sched *s, struct ek_step *step);
const char *swap_check(struct sched *s);
