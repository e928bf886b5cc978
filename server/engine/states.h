/*
 * Snapshots of recurrent state: a pool of state slots of the device (kernels/step.h) behind those
 * of the sequences. A snapshot belongs to a full block that has a name, and is the state behind its
 * last token; it goes when the block loses its name. Every snapshot is in exactly one state:
 *
 *   free     of no use
 *   pending  being filled for a block that has no name yet; its slot knows it
 *   kept     of a named block, in a list: the one unused for longest at the head
 *
 * Copies are done one after the other at the head of the step that is planned next, in the order in
 * which they were decided, so a snapshot may be given to another slot at once. Pure; engine
 * thread; nothing is allocated after states_init().
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/step.h"

#define STATES_NONE  UINT32_MAX
#define STATES_EVERY 128u /* tokens that a snapshot is to save, at least; see snapshots.c */

struct snapshot {
    uint32_t block;      /* 0 = free or pending */
    bool pending;        /* else free or kept */
    uint32_t prev, next; /* kept or free */
    uint64_t step;       /* that fills it: without that step it holds nothing */
    uint64_t owner;      /* lease of the slot that may take it for a later one, 0 = it stays */
};

struct states {
    bool on;                   /* the model has recurrent state */
    uint32_t first, count;     /* slots [first, first + count) are snapshots */
    uint32_t every;            /* STATES_EVERY, or what a test says */
    struct snapshot *at;       /* [count] */
    uint32_t *of_block;        /* [blocks] snapshot + 1, 0 = none */
    uint32_t blocks;           /* of the device */
    uint32_t free, head, tail; /* of the lists */
    uint32_t kept, pending;
    struct ek_block_copy *copies; /* [2 * first] for the next step, in order */
    uint32_t copy_count;
    uint64_t taken, evicted, used; /* snapshots; how often one was made use of */
};

/* `states` slots in all, of which a sequence has one each; 0 = off. 0 or -ENOMEM. */
int states_init(struct states *s, uint32_t seqs, uint32_t states, uint32_t blocks);
void states_done(struct states *s);
/* Copies that a step may have. */
static inline uint32_t states_copies(uint32_t seqs, uint32_t states)
{
    return states > 0 ? 2 * seqs : 0; /* each takes one over and leaves one */
}

/* The snapshot of a block, or STATES_NONE. */
uint32_t states_find(const struct states *s, uint32_t block);
/* A pending one that is filled by `step`: free, or the one unused for longest.
 * STATES_NONE when there is none. */
uint32_t states_take(struct states *s, uint64_t step);
/* The same without a step, of those that are free: its content is written by other means. */
uint32_t states_place(struct states *s);
/* A kept one is pending again, for another block. */
void states_retake(struct states *s, uint32_t at, uint64_t step);
/* A pending one is free. */
void states_give(struct states *s, uint32_t at);
/* A pending one is the block's, which keeps the one that it has; block 0: none. */
void states_keep(struct states *s, uint32_t at, uint32_t block);
/* A kept one is used. */
void states_touch(struct states *s, uint32_t at);
/* The block loses its name, or it is another block's from now on. */
void states_forget(struct states *s, uint32_t block);
void states_move(struct states *s, uint32_t from, uint32_t to);
/* A step is taken back: kept ones that it would have filled are free. */
void states_cancel(struct states *s, uint64_t step);
/* Adds a copy to the next step. */
void states_copy(struct states *s, uint32_t from, uint32_t to);
/* Adds the copies that are due to those that the step has. */
void states_write(struct states *s, struct ek_step *step);
/* Recounts; `pending` are known to slots. NULL, or what is wrong. */
const char *states_check(const struct states *s, uint32_t pending);
