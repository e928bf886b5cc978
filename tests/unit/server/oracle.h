/*
 * The equality oracle: under load, preemption, swap, recomputation, any chunking, prefix hits, a
 * full pool, live limit changes, aborts of others and steps that lack memory, each request's greedy
 * output is bitwise what it is alone: token ids, logprob bits and the bits of the alternatives.
 *
 * A run has a set of prompts whose outputs alone are computed once for each type of weights
 * (one sequence, a large pool, no prefix cache, whole prompts), and worlds: an engine of its own on
 * the real CPU backend, shaped by the seed and the world's number alone. Which step an arrival
 * meets depends on threads, so a replay repeats the world, not the interleaving; the equality must
 * hold for every interleaving.
 *
 * One thread runs it; the engine's own thread only wakes it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* dtype x depth by a world's number modulo 8, block size modulo 5, host tier modulo 3: 120 kinds.
 * In every seventh world steps lack memory, in every sixth two stages share the layers. */
#define ORACLE_WORLD_REQUESTS 84u /* requests of a world, so that 24 worlds are 2,016 */
#define ORACLE_WORLDS_LEAST   24u /* of a run: fewer requests are spread over so many */

#define ORACLE_SHARED 1000000u /* worlds from this one on have several tenants and long prompts */

struct oracle;

/* What all worlds together have been through: an oracle that saw no preemption proves nothing. */
struct oracle_totals {
    uint64_t worlds, requests, compared_tokens, aborted, refused, stopped;
    uint64_t steps, shared_steps, preemptions, recomputed_tokens, swapped_in_blocks, prefix_hits,
        evictions;
    uint64_t offload_in_blocks, pool_resizes, migrated_blocks;
    uint64_t failed_steps, failed_resizes, victims; /* victims: requests that ended for them */
    uint64_t limit_changes, pool_changes, full_pools;
};

/* Opens the model and computes the outputs alone. 0 or a negative code with a sentence in
 * oracle_wrong(); the oracle is made in both cases unless there was no memory. */
int oracle_new(const char *model_dir, uint64_t seed, struct oracle **ret_oracle);
void oracle_free(struct oracle *o); /* NULL is fine */

/* Runs one world with so many requests. 0, or -EBADMSG with the failing request in
 * oracle_wrong(). */
int oracle_world(struct oracle *o, uint64_t world, uint32_t requests);
const char *oracle_wrong(const struct oracle *o);
void oracle_totals(const struct oracle *o, struct oracle_totals *ret_totals);
