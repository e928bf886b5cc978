/*
 * The pool's size, written by pool.c alone. A device that is `resizable` has memory for `device`
 * blocks: when the pool was made smaller and no block above its end is in use, or is to be larger,
 * the owner of the scheduler resizes the device with no step in flight. What is in use above the
 * end is moved below it by a step of its own, as soon as there is room; no entry is preempted for
 * it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/step.h"

struct sched;

struct pool {
    uint32_t limit;    /* blocks by the limit; more are usable while a live request needs them */
    uint32_t accept;   /* the same for new requests, for which a change counts at once */
    uint32_t floor;    /* more are wanted for a change of the limit that is to come */
    uint32_t wanted;   /* of all that; usable are so many, but not above the device's */
    uint32_t device;   /* that the device has memory for */
    bool resizable;    /* the device can take and give back memory for blocks */
    int error;         /* of the last resize */
    uint64_t retry_us; /* a resize failed: not again before */
    struct ek_block_copy *migrants; /* [copies of a step] in flight, from above the pool's end */
    uint32_t migrant_count;
};

/* 0 or -ENOMEM. */
int pool_init(struct pool *p, uint32_t blocks, uint32_t copies);
void pool_done(struct pool *p);

/* The device can take and give back memory for blocks, until it says that it cannot. */
void sched_pool_resizable(struct sched *s);
/* The most that a new request may need, by the limit of blocks; 0 = all. */
void sched_accept_limit(struct sched *s, uint64_t kv_blocks);
/* The limit has changed to that. */
void sched_pool_limit(struct sched *s, uint64_t kv_blocks, uint64_t now_us);
/* A live request needs so many blocks, block 0 included. */
void sched_pool_needs(struct sched *s, uint64_t blocks, uint64_t now_us);
/* The number of blocks that the device is to have now, 0 = it is right. With no step in flight. */
uint32_t sched_pool_due(const struct sched *s, uint64_t now_us);
/* What came of it: 0 or a code. Requests that cannot fit without the memory end with the code;
 * after -ENOTSUP the device is not resizable. */
void sched_pool_done(struct sched *s, uint32_t blocks, int code, uint64_t now_us);
/* The device is to have at least so many blocks, whatever the limit says; 0 = no more than that. */
void sched_pool_floor(struct sched *s, uint32_t blocks, uint64_t now_us);

/* Gives as many blocks as are wanted now. */
void sched_fit_pool(struct sched *s, uint64_t now_us);
/* Whether the next step has to wait until none is in flight, for the pool's sake. */
bool sched_pool_holds(const struct sched *s, uint64_t now_us);
/* Plans a step that only moves blocks. False when none is needed. */
bool sched_migrate(struct sched *s, uint64_t now_us, struct ek_step *step);
/* That step is done, or taken back. */
void sched_migrated(struct sched *s, bool done, uint64_t now_us);
