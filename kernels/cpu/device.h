/*
 * The CPU backend inside: the device, as its modules share it. cpu.c is the table that others see,
 * probe.c asks the machine, shape.c says how many bytes everything takes, weights.c packs, worker.c
 * owns the device thread and the jobs, run.c interprets the operations, rows.c has the small ones,
 * attention.c and sample.c are its two large ones, cache.c writes K and V, states.c has recurrent
 * state, tier.h is the arithmetic.
 *
 * Owner: the fields below `slots` and the memory are touched by the device thread and the team
 * while a step runs, by the caller of load(), kv_open() and kv_resize() with no step in flight.
 * The atomic counters may be read by any thread.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/collective.h"
#include "kernels/cpu/quads.h"
#include "kernels/cpu/tier.h"

enum cpu_layout {
    CPU_VECTOR, /* f32 in order: norms and biases */
    CPU_ROWS,   /* as stored, rows one after another: embeddings that are not tied */
    CPU_PANELS, /* packed for cpu_ops.gemm; rows behind the last are zero */
};

struct cpu_weight {
    const struct cpu_ops *ops; /* whose products it is for: its form (form_choice.h) */
    enum cpu_layout layout;
    enum ek_dtype dtype;
    uint32_t rows, cols, panels;
    size_t panel_bytes, at, bytes; /* at: place in the weight memory */
    /* A dtype of 8 or 4 bits: a panel holds numbers as struct cpu_expand has them, or those of
     * struct cpu_quads (cpu_in_quads()), then scales [groups][32] f32 (`powers`: bytes, see
     * cpu_from_power()), then zeros [groups][32] int16 where there are any. */
    uint32_t group, groups;   /* columns with one scale; how many of them */
    size_t scale_at, zero_at; /* in a panel; zero_at 0 = no zeros */
    bool powers;              /* of EK_F4_E2M1: see ek_power_scales() */
    bool wide;                /* as struct cpu_gemm has it */
};

struct cpu_value {
    size_t at; /* in the activation memory */
    uint32_t stride, width;
};

/* Rows of one sequence that attend together, for each KV head once. */
struct cpu_row_span {
    uint32_t seq, row, rows;
};

/* What a member does at once in an attention. */
struct cpu_item {
    const struct cpu_row_span *span;
    uint32_t head;    /* of K and V */
    float *partial;   /* NULL: all positions; else only those of `part`, which are left there */
    uint32_t part;    /* of CPU_PART positions */
    uint32_t queries; /* of the span, for `partial` */
};

struct cpu_slot {
    struct ek_slot_set set; /* its `output` grows with the history */
    uint64_t named;         /* number of the last step that named it, see cpu_states_check() */
};

struct cpu_experts_shape { /* of the largest mixture of experts; 0 where there is none */
    size_t pairs;          /* rows x experts of each */
    uint32_t experts, inner_stride;
    size_t scratch_bytes; /* of a thread */
};

/* What a layer of the KV cache has of a block. */
struct cpu_cells {
    uint32_t keys;      /* elements of K of a head */
    uint32_t value_dim; /* and of V, */
    uint32_t values;    /* padded to 16 */
    uint32_t heads;
    size_t at;         /* of the first head in the block */
    size_t k_bytes;    /* of one head: K [keys][block_size] */
    size_t head_bytes; /* then V [block_size][values] */
    size_t k_scale_at; /* with kv_i8: [block_size] f32 each, behind the numbers */
    size_t v_scale_at;
};

/* Where everything lies. Pure: from graph, ceilings and threads. */
struct cpu_shape {
    uint32_t dim;         /* head_dim of the largest layer, padded to 16 */
    uint32_t block_size;  /* tokens */
    size_t block_bytes;   /* all layers and heads, a multiple of 64 */
    size_t state_bytes;   /* recurrent state of a sequence, a multiple of 64 */
    size_t weight_bytes;  /* all weights */
    size_t arena_bytes;   /* values, logits, ropes, per-row and per-thread scratch */
    size_t slot_bytes;    /* slots and the sampler's scratch */
    size_t logits_at;     /* [logit_rows][logit_stride] */
    size_t token_at;      /* [rows] int32_t, FROM_PREVIOUS resolved */
    size_t square_at;     /* [rows] sums of squares, for a norm of all ranks together */
    size_t pick_at;       /* [logit_rows] row of each */
    size_t span_at;       /* [rows] struct cpu_row_span */
    size_t scratch_at;    /* [threads][scratch_bytes] */
    size_t scratch_bytes; /* of a thread: attention's, or rounded inputs of a product */
    size_t route_at;      /* experts: [pairs] struct cpu_route, by row */
    size_t order_at; /* [pairs] uint32_t, pairs by expert, then [experts + 1] where each begins */
    size_t inner_at; /* [pairs][inner_stride] */
    struct cpu_experts_shape experts;
    size_t partial_at; /* attention in parts: [partial_floats] */
    size_t partial_floats;
    size_t last_at;   /* in the slot memory: [seqs] int32_t */
    size_t choice_at; /* [threads] sampler's candidates */
    size_t choice_bytes;
    size_t word_at; /* in the slot memory: [seqs][ceiling.words] lists and history */
    uint32_t logit_stride;
};

struct cpu_memory { /* one mapping */
    char *at;
    size_t bytes;
};

struct cpu_flight {
    enum { CPU_FREE, CPU_FORWARD, CPU_SAMPLE, CPU_DONE } state;
    const struct ek_step *step;
    const struct ek_masks *masks;
    struct ek_result *result; /* for the ceiling of sequences */
};

struct ek_device {
    const struct cpu_ops *ops;
    struct cpu_pool *pool;
    struct cpu_worker *worker;
    uint32_t threads;
    struct ek_collective *peers; /* NULL: it computes alone */
    uint32_t samples;            /* jobs of that kind that are done, with peers */
    bool heap;                   /* the heap of the process is counted here */

    const struct ek_forms *forms; /* until load() has returned; NULL: none were chosen */
    const struct ek_graph *graph; /* NULL before load() */
    struct ek_plan_request plan;
    struct cpu_shape shape;
    struct cpu_weight *weights; /* [graph->weight_count] */
    struct cpu_value *values;   /* [graph->value_count] */
    struct cpu_cells *cells;    /* [graph->layers] */
    size_t *rope_at;            /* [graph->rope_count] cos and sin [rows][count] each */
    uint32_t vocab_begin[EK_MOST_RANKS + 1]; /* with peers: first token of each rank */
    struct cpu_memory weight_memory, arena, slot_memory, kv, host_kv, states;
    void *host_given; /* where host_kv lies, which is another's then; NULL = its own */
    uint32_t kv_blocks, host_blocks, state_count;
    uint64_t checked;       /* steps, by cpu_states_check() */
    struct cpu_slot *slots; /* [ceiling.seqs], in slot_memory */
    int32_t *last;          /* [ceiling.seqs] token last sampled, -1 before the first */

    _Atomic uint64_t weight_bytes, arena_bytes, kv_bytes, host_kv_bytes, state_bytes;
    _Atomic uint64_t steps, busy_us;
    _Atomic uint64_t reserved_high, used_high;
};

static inline void *cpu_arena(const struct ek_device *d, size_t at)
{
    return d->arena.at + at;
}

/* A norm's weight or a bias; NULL if there is none. */
static inline const float *cpu_vector(const struct ek_device *d, uint32_t weight)
{
    if (weight == EK_NO_WEIGHT)
        return NULL;
    return (const float *)(const void *)(d->weight_memory.at + d->weights[weight].at);
}

static inline float *cpu_row(const struct ek_device *d, uint16_t value, uint32_t row)
{
    const struct cpu_value *v = &d->values[value];
    return (float *)(void *)(d->arena.at + v->at) + (size_t)row * v->stride;
}

static inline float *cpu_logits(const struct ek_device *d, uint32_t logit_row)
{
    return (float *)(void *)(d->arena.at + d->shape.logits_at) +
           (size_t)logit_row * d->shape.logit_stride;
}

/* The recurrent state in a slot: graph->state_floats, on a line of 64 bytes. */
static inline float *cpu_state(const struct ek_device *d, uint32_t slot)
{
    return (float *)(void *)(d->states.at + slot * d->shape.state_bytes);
}

/* K of one head of a layer in a block; V follows k_bytes later. */
static inline char *cpu_kv_at(const struct ek_device *d, uint32_t block, const struct cpu_cells *c,
                              uint32_t head)
{
    return d->kv.at + block * d->shape.block_bytes + c->at + head * c->head_bytes;
}
