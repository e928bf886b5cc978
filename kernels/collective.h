/*
 * What ranks of the CPU that compute one model together ask of each other: a barrier, the sum of
 * what all of them have, the columns that each of them has (kernels/cpu/group.c, by shared memory;
 * kernels/cpu/span.c, between nodes).
 * The backend makes the group, each rank joins it once and then makes the same calls in the same
 * order as all others of its stage. Where there are stages, the same rank of the next one takes the
 * rows that it is handed, and the first stage hears of the last one what was sampled. What cards
 * ask of each other is enqueued: kernels/cuda/group.h.
 *
 * Sums are added in the same order each time, so the same text comes from each run. A rank that
 * stays away longer than the group's deadline, or leaves, fails the group for good: every call of
 * every rank is EK_ECOMM from then on, and the process ends.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/graph.h"

/* A matrix of this rank: `rows` rows of `width` columns, `stride` elements apart. */
struct ek_exchange {
    void *data;
    enum ek_dtype dtype;
    uint32_t rows, width;
    size_t stride;
    const uint32_t *begin; /* gather: rank r has columns [begin[r], begin[r + 1]) */
    uint32_t member;       /* CPU: which member of the rank's team calls; all do */
    uint32_t slots;        /* send: of which tell() speaks */
};

struct ek_collective { /* one rank's end */
    const struct ek_collective_ops {
        int (*barrier)(struct ek_collective *c, uint32_t member);
        /* data = the sum of all ranks' data. */
        int (*reduce)(struct ek_collective *c, const struct ek_exchange *x);
        /* data = every rank's columns, own ones included. */
        int (*gather)(struct ek_collective *c, const struct ek_exchange *x);
        /* Hands rows to the next stage; returns when it has taken them. */
        int (*send)(struct ek_collective *c, const struct ek_exchange *x);
        /* data = the rows that the stage before hands on. */
        int (*recv)(struct ek_collective *c, const struct ek_exchange *x);
        /* By one thread of a rank of the last stage: one more step has been sampled, and `last` are
         * the tokens of its `count` slots. They may change once the first stage has sent rows that
         * hang on them. */
        void (*tell)(struct ek_collective *c, const int32_t *last, uint32_t count);
        /* By one thread of a rank of the first stage: waits until it has been told of so many
         * steps. `count` is that of tell(). */
        int (*hear)(struct ek_collective *c, uint32_t steps, uint32_t count,
                    const int32_t **ret_last);
        /* 0, or EK_ECOMM once the group has failed. Does not wait. */
        int (*state)(struct ek_collective *c);
        void (*leave)(struct ek_collective *c); /* frees this end */
    } * ops;
    uint32_t rank, ranks; /* of a stage */
    uint32_t stage, stages;
};
