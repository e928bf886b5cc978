/*
 * A backend that computes nothing but notices everything: a KV slot holds a mark of the token and
 * position written there, and the next token is a hash of all the marks that a sequence reads
 * through its block table. So a wrong table, a stale block, a wrong position, a lost sampling state
 * or a token from the wrong step change the output, which null_next() predicts.
 *
 * With state slots each row also changes the state of its sequence's slot, which knows how many
 * tokens it holds and a sum over them in their order: a row at another position than the next one,
 * or upon a state that is not that of the tokens before it, is a violation.
 *
 * A step is executed as late as possible, in wait(), so that a change to it meanwhile shows. Writes
 * to a block that another sequence uses in the same or an earlier step in flight are violations,
 * which wait() and forward() answer with EK_EDEVICE and `device->violation`.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend.h"

struct null_params {
    struct ek_step_ceiling ceiling;
    uint32_t blocks, host_blocks, block_size, vocab, states;
};

struct ek_device {
    struct null_params p;
    uint64_t *marks;      /* [blocks][block_size] */
    uint64_t *host_marks; /* [host_blocks][block_size] */
    struct null_state {
        uint32_t tokens;
        uint64_t sum;
    } * states;          /* [states] */
    uint64_t stale_step; /* planned on top of one that failed; nobody will use what it gives */
    struct null_slot {
        uint64_t seed, step; /* step that sampled `last` */
        int32_t last;
        uint32_t history; /* tokens of it, 0 = none is kept */
        uint64_t history_sum;
        uint32_t words;
    } * slots;
    struct null_use {
        uint64_t step; /* last step that uses the block */
        uint32_t slot, before_slot;
        uint64_t before;
    } * uses; /* [blocks] */
    const struct ek_step *flying[2];
    uint32_t count;
    int forward_fails, sample_fails, wait_fails; /* code for the next call, 0 = none */
    bool always_fails;                           /* wait_fails stays */
    atomic_int resize_fails;                     /* the same, for one that takes memory */
    uint32_t most_blocks;                        /* p.blocks at the beginning */
    atomic_int hangs;                            /* wait() only answers -ETIMEDOUT */
    uint32_t step_us;                            /* each step takes so long; 0 = no time */
    uint64_t failed;                             /* last step that wait_fails made fail */
    uint64_t steps, rows;
    const char *violation;
    atomic_int check_code; /* what check() says, 0 = it would come back */
    uint32_t checks;
    atomic_uint revive_fails; /* so often, with revive_code */
    int revive_code;
    atomic_uint revivals; /* that are left; revive() fails then */
    uint32_t revived, released;
    atomic_int loads;    /* revive() has not ended while it is 1 */
    atomic_int vanished; /* is_lost() */
    bool revive_fault;   /* what how_lost() says of the end */
    bool revive_unsure;  /* the same */
    int revive_signal;   /* the same */
    int32_t poison;      /* wait() of a step with this token is EK_EDEVICE; 0 = none */
};

extern const struct ek_backend null_backend;
/* The same, but what was lost comes back empty. */
extern const struct ek_backend null_reviving_backend;
/* All that was on the device is gone. */
void null_lose(struct ek_device *d);
/* What is in the host tier, which outlives it. */
void null_lose_host(struct ek_device *d);

int null_open(const struct null_params *p, struct ek_device **ret_device);
void null_close(struct ek_device *d);

#define NULL_WIDTH 4u /* of a hidden state: four pieces of the sum of marks */

/* The logit of a scored token: of its mark; lse is 0 and the rank the position. */
float null_score(int32_t token, uint32_t position);
/* The mark of a token at a position; a sequence's sum of marks and its seed give its next token. */
uint64_t null_mark(int32_t token, uint32_t position);
int32_t null_next(uint64_t sum, uint64_t seed, uint32_t context, uint32_t vocab);
