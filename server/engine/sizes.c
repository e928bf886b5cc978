/*
 * How much memory the engine's tables will take, summed as sched.c, engine.c and request.c allocate
 * it (sizes.h). Called by the memory plan.
 */
#include "server/engine/sizes.h"

#include "server/engine/constrain.h"
#include "server/engine/engine.h"
#include "server/engine/sched.h"

#define ARENA_CHUNK 8448u /* the least of an arena, and heads of its chunks */

uint64_t engine_block_table_bytes(uint32_t block_size)
{
    /* Powers of two: salts have as many buckets as blocks or more, names twice as many. Between
     * the powers this is their average. */
    const uint64_t bucket = sizeof(uint32_t) * 3 / 2, cell = sizeof(uint32_t) * 3;

    return sizeof(struct block) + sizeof(struct salt_node) + sizeof(struct salt_link) + bucket +
           2 * sizeof(struct prefix_name) + block_size * sizeof(int32_t) + cell + sizeof(uint32_t) +
           sizeof(struct host_move) + sizeof(uint32_t);
}

/* Of snapshots; what they need for each block is counted with the blocks. */
static uint64_t states_table_bytes(const struct engine_params *p)
{
    if (p->states == 0)
        return 0;
    return (p->states - p->max_seqs + 1ull) * sizeof(struct snapshot) +
           states_copies(p->max_seqs, p->states) * sizeof(struct ek_block_copy);
}

uint64_t engine_table_bytes(const struct engine_params *p)
{
    uint64_t table = (p->max_model_len + p->block_size - 1) / p->block_size;
    uint64_t queue = p->limits.ceiling[LIMIT_QUEUED_REQS];
    uint64_t seq = sizeof(struct slot) + 3 * sizeof(uint32_t) + table * sizeof(uint32_t) +
                   SCHED_DEPTH * sizeof(struct flight_seq);
    struct ek_step_ceiling c;

    if (queue == 0 || queue > UINT32_MAX / 4)
        queue = SCHED_QUEUE_ANY;
    if (p->host_blocks >= 2) /* and the host tier's */
        seq += table * sizeof(uint32_t) + sizeof(uint32_t);
    engine_ceiling(p, &c);
    return sizeof(struct sched) + p->max_seqs * seq +
           (queue + (uint64_t)SCHED_ENTRIES_BESIDE * p->max_seqs) *
               (sizeof(struct entry) + sizeof(uint32_t)) +
           SCHED_DEPTH * (uint64_t)ek_step_size(&c) +
           ek_result_bytes(c.seqs, c.scores, p->hidden ? c.seqs : 0, p->hidden) +
           constrain_bytes(p->max_seqs, p->vocab) +
           host_copies((uint32_t)table) * sizeof(struct ek_block_copy) + table * sizeof(uint32_t) +
           states_table_bytes(p);
}

uint64_t engine_request_bytes(uint32_t tokens)
{
    return sizeof(struct request) + ARENA_CHUNK + (uint64_t)tokens * sizeof(struct req_token);
}
