/*
 * The host tier: one store of host blocks for two kinds of guests.
 *
 *   preempted entries   swap.c: an entry's blocks are held by references until it resumes, so that
 *                       nothing is computed twice; at most `swap_most` blocks (--swap-space)
 *   evicted prefixes    offload.c: a named block that leaves the device keeps its name here and is
 *                       found again by it; least recently used first out; at most `cached_most`
 *                       blocks (--kv-offloading-size)
 *
 * A host block of a full prefix has its name, whichever request brought it, so a block that several
 * share is moved once, out and in: what is on its way to the device is waited for, not copied
 * again.
 *
 * Copies travel at the head of the next step that is written and are done one after the other in
 * the order in which they were decided; a device block may therefore be given to another entry at
 * once. When there is no room (blocks, tables, copies in a step) an entry is recomputed and a
 * prefix is dropped; what a step that is taken back would have brought here is forgotten.
 *
 * Part of the scheduler's state, split off for its own concept. Pure; engine thread; nothing is
 * allocated after host_init().
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/step.h"
#include "server/engine/blocks.h"
#include "server/engine/prefix.h"

struct engine_params;
struct entry;
struct sched;

#define HOST_NONE UINT32_MAX

struct host_move {
    uint64_t out_step; /* that fills the block: without that step it holds nothing */
    uint64_t in_step;  /* that last copied it to the device */
};

struct host {
    bool on;
    struct blocks blocks;
    struct prefix names;
    struct host_move *moves;           /* [blocks] */
    uint32_t swap_most, cached_most;   /* blocks; together all but block 0 */
    uint32_t *tables;                  /* [table_count][table_most] host blocks of entries */
    uint32_t *free_tables, free_count; /* one for each sequence */
    uint32_t table_count;
    struct ek_block_copy *copies; /* for the next step, in order */
    uint32_t copy_count, held;    /* held: places that are promised */
    uint32_t most;                /* copies in a step */
    uint32_t declined;            /* moves in a row that seemed dearer than computing */
    uint64_t gone, back, skipped; /* prefix blocks of this period: moved here, back, and dropped */
};

/* What an entry has in the host tier. */
struct swapped {
    uint32_t table;  /* HOST_NONE = nothing */
    uint32_t blocks; /* of it */
    uint32_t tokens; /* that they hold */
};

/* Copies in a step for block tables of that length, whatever the size of the host tier. */
uint32_t host_copies(uint32_t table_most);
/* host_blocks < 2 leaves it off. 0 or -ENOMEM. */
int host_init(struct sched *s, const struct engine_params *p);
void host_done(struct host *h);
/* Caps of one salt and of all on prefixes that are kept; see blocks_cap(). */
void host_cap(struct host *h, uint64_t salt_share, uint64_t now_us);
/* Every entry loses what it has here, so that its tokens are computed again. How many had some. */
uint32_t host_drop_swapped(struct sched *s, uint64_t now_us);
/* Nothing that is here is there any more. */
void host_empty(struct sched *s, uint64_t now_us);
/* The device is lost, and what it had here is not: forgets what never came. After the steps in
 * flight were taken back. */
void host_kept(struct sched *s, uint64_t now_us);
/* Leaves room for so many blocks of preempted entries and empties it; what is above is not given
 * any more, so that a device that is new never has memory for it. After a loss. False when it
 * changes nothing. */
bool host_shrink(struct sched *s, uint64_t swap_blocks, uint64_t now_us);
/* Adds a copy to the next step. There must be room. */
void host_copy(struct host *h, struct ek_block_copy copy);
/* One reference less to a host block. */
void host_give(struct host *h, uint32_t id, uint64_t now_us);
/* The host block that has the name and content of a device block, 0 when there is none. */
uint32_t host_twin(const struct sched *s, uint32_t device_block);
/* Takes a free host block for the content of a device block, with its name if it has one. */
uint32_t host_take(struct sched *s, uint32_t device_block, uint64_t now_us);
/* True when by the measured rates so many copies take no longer than computing the tokens, or
 * nothing is known; now and then against the odds, to measure. Counts a refusal. */
bool host_worth(struct sched *s, uint32_t copies, uint32_t tokens, uint64_t *declined);
/* A step is taken back: forgets what it would have brought here. */
void host_cancel(struct sched *s, uint64_t step, uint64_t now_us);
/* Moves the copies that are due into the step. */
void host_write(struct host *h, struct ek_step *step);
const char *host_check(struct sched *s);

/* swap.c. Saves a running entry's blocks before they are given back. False when there is no room,
 * or when copying out and in takes longer than computing again. */
bool swap_out(struct sched *s, struct entry *e, uint64_t now_us);
void swap_drop(struct sched *s, struct entry *e, uint64_t now_us);
/* The host block that holds this block of the entry's table, 0 = none. */
uint32_t swap_find(const struct sched *s, const struct entry *e, uint32_t index);

/* offload.c. A named device block is about to be evicted: keeps its content if that is worth it.
 * A blocks_evict_fn; ctx is the scheduler. */
void offload_evicted(void *ctx, uint32_t id, uint64_t now_us);
/* The host block with this name, 0 when there is none. */
uint32_t offload_find(const struct host *h, struct prefix_name name, struct prefix_name parent,
                      const int32_t *tokens);
/* Whether a step that is not done yet copies the host block to the device. */
bool offload_moving(const struct sched *s, uint32_t id);
