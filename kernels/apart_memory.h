/* What lead and engine share: see apart.h. Inside kernels/ only. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/build_id.h"
#include "common/err.h"
#include "kernels/apart.h"

#define APART_SLOTS  2u /* steps in flight */
#define APART_ORDERS 16u
#define APART_WORDS  96u /* of a name in the stats */

enum apart_state { APART_STARTING, APART_LOADED, APART_FAILED };
enum apart_kind {
    APART_FORWARD,
    APART_SAMPLE,
    APART_KV_OPEN,
    APART_KV_RESIZE,
    APART_KV_READ,
    APART_KV_WRITE
};

struct apart_order {
    uint32_t kind, slot;
    uint32_t masked; /* APART_SAMPLE: with the slot's masks */
    uint32_t blocks; /* APART_KV_RESIZE; APART_KV_READ, _WRITE: which one, */
    uint32_t tier;   /* and of which tier */
};

/* Of the stats; "" = none. */
struct apart_words {
    char attention[APART_WORDS], products[APART_WORDS], collectives[APART_WORDS], note[640];
};

/* Written by the engine, or by the lead while there is none; read by any thread of the lead: even =
 * whole. */
struct apart_stats {
    atomic_uint turn;
    struct ek_device_stats stats;               /* its texts are below */
    struct ek_device_stats rank[EK_MOST_RANKS]; /* no texts; of several ranks */
    uint64_t busy_us, steps; /* of the engines before; by the lead, while there is none */
    struct apart_words words;
};

struct ek_apart_memory {
    uint32_t abi;
    uint32_t size;                    /* of this struct, */
    char program[24];                 /* and the version of its maker, and its build: the other */
    uint8_t build[EK_BUILD_ID_BYTES]; /* process may be begun by a file that was replaced since */
    int fd;                           /* of the process that mapped it first: the lead */
    uint64_t bytes;
    struct ek_apart_order want;
    struct ek_kv_params kv;
    uint64_t step_at[APART_SLOTS], masks_at[APART_SLOTS], result_at[APART_SLOTS];
    uint64_t step_bytes, masks_bytes, result_bytes; /* of one slot */
    uint64_t block_at, block_bytes, state_bytes;    /* a block's or a state's content on its way */
    uint64_t host_at, host_bytes; /* behind `bytes`: the host tier, which outlives engines; 0 bytes:
                                     it is the engine's */

    /* Of the engine that there is now; the lead clears it before it asks for one. */
    atomic_int pid;
    atomic_uint ended; /* 1: status, stopped and oom_kills are valid */
    int status;
    bool stopped;
    atomic_uint sent; /* its last signal came from outside, */
    atomic_int sent_by;
    uint64_t oom_kills;
    atomic_uint state;
    int code;
    struct ek_fault fault;
    atomic_ullong done_bytes, total_bytes;
    atomic_ullong late_us; /* by how much its waits for steps outlasted what they were told: so long
                              it got no processor */

    atomic_uint posted;   /* orders; the engine sleeps on it */
    atomic_uint answered; /* counts what the lead may wait for, which sleeps on it */
    struct apart_order order[APART_ORDERS];
    struct {
        atomic_ullong id; /* of the step whose result is there, 0 = none */
        int code;
    } landed[APART_SLOTS];
    atomic_int replied; /* 1: `reply` is to the last order that is no step's */
    int reply;
    struct apart_stats stats;
};

/* Sleeps until the word is not `seen`, at most so long; the word lies in shared memory. */
void apart_sleep(atomic_uint *word, uint32_t seen, uint64_t timeout_us);
/* Adds one, and wakes threads that sleep on it. */
void apart_raise(atomic_uint *word);

/* Makes it, for an engine that is opened like that. -ENOMEM and others with a fault. */
int apart_layout(const struct ek_open_params *p, const struct ek_plan_request *q,
                 struct ek_apart_memory **ret_memory, struct ek_fault *fault);
/* Room for the host tier behind the rest, and for each of several ranks to begin on a page; its
 * pages come with their first use, or when a card's engine pins them. Once; where the backend has a
 * kv_host(). */
int apart_layout_host(const struct ek_open_params *open, const struct ek_kv_params *p,
                      struct ek_apart_memory *m);

static inline void *apart_at(struct ek_apart_memory *m, uint64_t at)
{
    return (uint8_t *)m + at;
}

/* Of one block of a tier, or of a state. */
static inline size_t apart_tier_bytes(const struct ek_apart_memory *m, uint32_t tier)
{
    return tier == EK_TIER_STATE ? m->state_bytes : m->block_bytes;
}
