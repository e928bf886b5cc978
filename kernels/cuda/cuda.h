/*
 * The CUDA backend inside. It is plain C over the driver's table (driver.h); kernels come as images
 * that the build embeds (images.h) and are found by name. table.c is what others see, shape.c says
 * how many bytes everything takes, load.c uploads weights, kv.c owns the pools, program.c turns the
 * operation list into launches, step.c packs a step and runs it, graph.c records decode steps,
 * rank.c and group.c let several cards compute one model. offload.c chooses weights that stay in
 * host memory, stream.c brings them to the card when a step needs them. Each declares its functions
 * in a header of its own; here is what they share, the device.
 *
 * Everything on the device lies in four places, all taken at start: weights (and two buffers for
 * those in host memory), one arena (values, logits, step, results, scratch), the KV pool and the
 * driver's own. A step allocates nothing.
 *
 * Owner: the caller of backend.h (one thread at a time), or where there are ranks the thread of
 * this one (rank.c says when); atomic counters may be read by any thread.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/cuda/args.h"
#include "kernels/cuda/args_latent.h"
#include "kernels/cuda/args_recur.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/shape.h"

#define CUDA_HANDLE      (64ull << 20) /* bytes of a piece of the KV pool */
#define CUDA_BUCKETS     29u           /* sizes of recorded decode steps below the most */
#define CUDA_PACKED_ROWS 32u           /* rows whose products read packed numbers 16 at a time */
#define CUDA_SKINNY_ROWS 64u           /* of plain weights: choices.skinny */
#define CUDA_ROUNDED_F8  89            /* compute capability from which inputs become E4M3 */

/* Those of products come in a row, by enum cu_form. */
enum cuda_kernel {
    K_PREPARE,
    K_EMBED,
    K_NORM,
    K_ANGLES,
    K_ROPE,
    K_ROWS,
    K_GEMV8,
    K_GEMV16 = K_GEMV8 + CU_FORMS,
    K_EXPAND = K_GEMV16 + CU_FORMS,  /* none of CU_PLAIN */
    K_FUSED64 = K_EXPAND + CU_FORMS, /* of CU_PLAIN for choices.skinny */
    K_FUSED128 = K_FUSED64 + CU_FORMS,
    K_ROUND = K_FUSED128 + CU_FORMS,
    K_ROUNDED8,
    K_ROUNDED16,
    K_ROUNDED64,
    K_ROUNDED128,
    K_ROUND_F8,
    K_ROUND_GROUPS,
    K_ROUNDED8_F8,
    K_ROUNDED16_F8,
    K_ROUNDED64_F8,
    K_ROUNDED128_F8,
    K_RESCALE,
    K_GEMM,
    K_GEMV8_AHEAD,
    K_GEMV8_GLU,
    K_GEMV16_GLU,
    K_KEEP,
    K_ATTEND_PLAIN,
    K_ATTEND_ROW,
    K_ATTEND_TILE,
    K_ATTEND_WGMMA,
    K_ATTEND_KEPT,
    K_ATTEND_WIDE,
    K_ROUTE,
    K_ORDER,
    K_EXPERT_UP,
    K_EXPERT_DOWN = K_EXPERT_UP + CU_FORMS,
    K_EXPERT_UP32 = K_EXPERT_DOWN + CU_FORMS,
    K_EXPERT_DOWN32 = K_EXPERT_UP32 + CU_FORMS,
    K_EXPERT_UP64 = K_EXPERT_DOWN32 + CU_FORMS, /* of plain weights only */
    K_EXPERT_DOWN64,
    K_EXPERT_SUM,
    K_SAMPLE,
    K_SAMPLE_SCAN,
    K_SAMPLE_WEIGH,
    K_SAMPLE_COLLECT,
    K_SCORE,
    K_HIDDEN,
    K_UNPACK,
    K_SQUARES,
    K_NORM_BY,
    K_CONV,
    K_CONV_KEEP,
    K_DELTA_SAID,
    K_DELTA,
    K_SCAN_SAID,
    K_SCAN,
    K_COLUMNS,
    K_CENTRE,
    K_HEADS,
    K_HEADS_PLAIN,
    K_LATENT,
    K_LATENT_PLAIN,
    CUDA_KERNELS
};

/* Weights in host memory that an operation reads together. */
struct cuda_item {
    char *host; /* pinned */
    size_t bytes;
    cu_ptr at;       /* where the card reads it: a buffer, or for the embedding the host's memory */
    cu_ptr in_place; /* the host's memory as the card sees it */
    bool pinned, experts;
};

struct cuda_buffer {
    cu_ptr at;
    size_t bytes;
};

enum cuda_run {
    RUN_ROWS,
    RUN_LOGIT_ROWS,
    RUN_GEMM,
    RUN_ATTEND,
    RUN_PICK,
    RUN_EXPERTS,
    RUN_SUM,
    RUN_GATHER,
    RUN_SEND,
    RUN_RECV,
    RUN_CONV,
    RUN_SEQS,
    RUN_HEADS,
    RUN_LATENT
};

/* Rows that all ranks sum, or that go from stage to stage. */
struct cuda_sum {
    struct cu_view of;
    bool picked;
};

/* One launch of the program. The grid's first side is the rows of the step, the logit rows or, of
 * RUN_SEQS, the sequences. */
struct cuda_launch {
    enum cuda_run run;
    enum cuda_kernel kernel;
    uint32_t threads, columns; /* the grid's second side; of experts, how many together */
    uint32_t item;             /* that is copied before and left behind after it; 0 = none */
    const struct ek_op *op;    /* of RUN_EXPERTS: it does so for some experts after the other */
    bool joins;                /* of RUN_GEMM: with few rows it does the GLU behind it, too */
    union {
        struct cu_embed_args embed;
        struct cu_norm_args norm;
        struct cu_angle_args angles;
        struct cu_rope_args rope;
        struct cu_rows_args rows;
        struct cu_gemm_args gemm;
        struct cu_attend_args attend;
        struct cu_experts_args experts;
        struct cu_prepare_args prepare;
        struct cu_squares_args squares;
        struct cu_unpack_args unpack;
        struct cu_conv_args conv;
        struct cu_delta_args delta;
        struct cu_scan_args scan;
        struct cu_columns_args columns;
        struct cu_centre_args centre;
        struct cu_heads_args heads;
        struct cuda_sum sum;
    } args;
};

/* What a slot's setting asks of the sampler: kernels that none of a step asks for are left out. */
enum cuda_draws { DRAWS_GREEDY = 0, DRAWS_ALL = 1, DRAWS_CUT = 2 };

enum cuda_flight_state { CUDA_FREE, CUDA_FORWARD, CUDA_SAMPLE };

/* Ways between which a card has not decided yet; by number of a value in choices.c. */
struct cuda_choices {
    uint8_t swap;    /* enum cuda_swap */
    uint8_t experts; /* most pairs of an expert that are multiplied together: enum cuda_pairs */
    uint8_t ahead;   /* 1: up to 8 rows by plain weights, with more loads under way */
    uint8_t skinny;  /* 1: own products for 17 to CUDA_SKINNY_ROWS rows of plain weights */
    uint8_t glu;     /* 1: products of few rows end with the activation */
    uint8_t carve;   /* 0: the driver's, else one value for all kernels: 0, 50, 100 % */
};
enum cuda_swap { SWAP_INLINE, SWAP_BESIDE };
enum cuda_pairs { PAIRS_16, PAIRS_32, PAIRS_64 };

struct cuda_flight {
    _Atomic int state; /* enum cuda_flight_state */
    const struct ek_step *step;
    int error;                /* found before anything was launched */
    char *up;                 /* pinned: the step as it is uploaded */
    char *results;            /* pinned: struct cu_flags, then the sequences */
    char *masks;              /* pinned */
    bool copied, late;        /* blocks were; the forward does not wait for that */
    uint32_t scores, hiddens; /* asked for */
    cu_handle begin, copying, copies, forward, done; /* events */
};

struct cuda_lt;

struct ek_device {
    struct cu_driver cu;
    cu_handle context, stream;
    int ordinal;
    bool retained;
    size_t found_bytes; /* of the card's memory, free before there was a context; 0 = not known */
    uint32_t multiprocessors;
    int capability;         /* 10 * major + minor */
    struct ek_group *group; /* NULL: alone */
    uint32_t rank_index;
    struct cuda_rank *rank; /* its thread, after load() */
    cu_handle module[16];
    uint32_t modules;
    cu_handle kernel[CUDA_KERNELS];
    struct cuda_times *times; /* NULL: not asked for */

    const struct ek_graph *graph; /* NULL before load() */
    struct ek_plan_request plan;
    struct cuda_shape shape;
    struct cuda_weight *weights;
    struct cuda_value *values;
    size_t *rope_at; /* in the arena: inverse frequencies, then the table */
    struct cuda_launch *program;
    uint32_t launches;
    struct cu_view hidden; /* what the logits are made of */
    uint8_t *draws;        /* [slot] how its tokens are found: enum cuda_draws */
    struct cuda_buffer weight_memory, arena;
    struct cuda_lt *lt;           /* NULL: own products only */
    uint32_t fused_rows;          /* up to so many: products take packed weights as they are */
    uint32_t e4m3_rows;           /* up to so many: own kernels multiply E4M3 */
    enum cuda_kernel attend_tile; /* of rows of prompts, */
    uint32_t row_blocks;          /* of decode attention, or latent, that the card holds at once; */
    uint32_t wide_blocks;         /* of K_ATTEND_WIDE, */
    uint32_t kept_blocks;         /* of K_ATTEND_KEPT */
    uint32_t tile_rows;           /* and how many of a sequence go into one tile of it */
    char note[768];               /* for the operator, found at load; "" = nothing */
    char products[288];           /* what computes large products, in words */
    char collectives[64];         /* what adds up for ranks, in words; "" = there is one */
    struct cuda_item *items;      /* of the weights in host memory */
    struct cuda_buffer slots;     /* two of shape.slot_bytes */
    cu_handle copier;             /* stream that fills them; NULL: nothing is copied */
    uint32_t next;                /* item to copy, of the step that is enqueued */
    uint32_t holds[CUDA_OFFLOAD_SLOTS]; /* which item, 0 = none */
    bool in_place;                      /* this step reads experts where they are */
    cu_handle begun;                    /* event: the step before is done with them */
    cu_handle full[CUDA_OFFLOAD_SLOTS]; /* events: it may be read, */
    cu_handle left[CUDA_OFFLOAD_SLOTS]; /* it was */

    struct cuda_choices choices;
    cu_handle swapper, ordered; /* stream of block copies and what it waits for; NULL: d->stream */
    uint32_t *swap_work;        /* [2 * copies of a step] */

    bool vmm;
    cu_ptr kv;
    size_t kv_reserved; /* address range */
    unsigned long long *kv_handles;
    uint32_t kv_handle_count;
    uint32_t kv_blocks, host_blocks, block_size;
    char *host_kv;
    size_t host_bytes;
    bool host_pinned, host_given; /* the caller's memory */

    struct cuda_buffer states; /* recurrent: of each slot, then snapshots */
    uint32_t state_count;
    uint64_t checked, *named; /* steps, and for each slot the last one that named it */
    uint32_t seqs;            /* of the step that is enqueued */

    struct cuda_flight flight[2];
    cu_handle recorded[CUDA_BUCKETS + 1]; /* the last: of as many rows as there can be */
    uint8_t seen[CUDA_BUCKETS + 1];       /* steps of a bucket that ran before it is recorded */
    bool records;

    _Atomic uint64_t weight_bytes, arena_bytes, kv_bytes, host_kv_bytes, steps, busy_us;
    _Atomic uint64_t state_bytes;
    _Atomic uint64_t room_bytes, context_bytes, others_bytes; /* room.c */
    _Atomic(const char *) attention; /* NULL before load(), after which `note` stays as it is */
    _Atomic uint64_t host_weight_bytes, stream_bytes, stream_us, stream_rows;
};

/* Whether no step is on its way. */
static inline bool cuda_step_idle(const struct ek_device *d)
{
    return d->flight[0].state == CUDA_FREE && d->flight[1].state == CUDA_FREE;
}

static inline cu_ptr cuda_arena(const struct ek_device *d, size_t at)
{
    return d->arena.at + at;
}

/* From a weight to the next one of those that are alike and lie together. */
static inline uint64_t cuda_weight_step(const struct cuda_weight *w)
{
    return (w->bytes + CUDA_ALIGN - 1) & ~(uint64_t)(CUDA_ALIGN - 1);
}

/* Where the card reads a weight, of experts in the step that is enqueued. */
static inline cu_ptr cuda_weight_at(const struct ek_device *d, uint32_t weight)
{
    const struct cuda_weight *w = &d->weights[weight];
    const struct cuda_item *item = w->item > 0 ? &d->items[w->item - 1] : NULL;

    if (!item)
        return d->weight_memory.at + w->at;
    return (item->experts && d->in_place ? item->in_place : item->at) + w->at;
}
