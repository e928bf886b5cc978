/*
 * The CUDA backend inside. It is plain C over the driver's table (driver.h); kernels come as images
 * that the build embeds (images.h) and are found by name. table.c is what others see, shape.c says
 * how many bytes everything takes, load.c uploads weights, kv.c owns the pools, program.c turns the
 * operation list into launches, step.c packs a step and runs it, graph.c records decode steps,
 * rank.c and group.c let several cards compute one model. offload.c chooses weights that stay in
 * host memory, stream.c brings them to the card when a step needs them.
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
#include "kernels/cuda/offload.h"
#include "kernels/cuda/weight.h"

#define CUDA_MOST_SPLITS 1024u         /* parts of contexts in one step, besides one per row */
#define CUDA_TILE_PAIRS  32768u        /* rows and heads with results of parts of tiles' contexts */
#define CUDA_HANDLE      (64ull << 20) /* bytes of a piece of the KV pool */
#define CUDA_BUCKETS     29u           /* sizes of recorded decode steps below the most */
#define CUDA_EXPERT_ROWS 1024u         /* rows whose experts are computed together */
#define CUDA_LT_SPACE    (32ull << 20) /* workspace of cuBLASLt */
#define CUDA_PANEL       (64ull << 20) /* of a packed weight that are expanded together */
#define CUDA_PACKED_ROWS 32u           /* rows whose products read packed numbers 16 at a time */
#define CUDA_SKINNY_ROWS 64u           /* of plain weights: choices.skinny */
#define CUDA_ROUNDED_F8  89            /* compute capability from which inputs become E4M3 */
#define CUDA_FUSED_MOST  512u          /* most whose products expand them in registers */
#define CUDA_PANEL_ROWS  65536u        /* of it at most; at least 128 */

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

/* What a layer of the KV cache has of a block: K of all heads [head][position][dim], then the same
 * of V where there is one. Of int8 the numbers are stored plus 128, and behind those of K, and of
 * V, lie their scales f32 [head][position]. */
struct cuda_cells {
    size_t at, bytes;   /* in the block */
    size_t plane_bytes; /* of K with its scales */
    size_t scale_at;    /* where in a plane those begin; 0 = there are none */
};

struct cuda_value {
    size_t at; /* in the arena */
    uint32_t stride;
    enum ek_dtype dtype;
};

/* Where everything lies. Pure: from graph and ceilings. */
struct cuda_shape {
    uint32_t block_shift, rows, logit_rows; /* rows: of a value, rounded up for products */
    uint32_t logit_stride, mask_words;
    uint32_t most_items, most_tiles, tile_rows; /* tile_rows: of a sequence in one tile; 0 = the
                                                   plain kernel attends */
    uint32_t row_groups;                        /* of a KV head's query heads in decode */
    uint32_t head_most; /* 64, 128 or 256: which kernels attend in layers of heads up to that; */
    bool wide;          /* and some layers have larger ones */
    uint32_t row_units; /* blocks of decode that a part of a context keeps busy in the layers that
                           read most */
    uint32_t latent_groups; /* of heads, each of which a block of latent attention takes; 0 = it is
                               plain, or there is none */
    size_t weight_bytes, arena_bytes, zeroed_bytes;
    struct cuda_offload offload;
    size_t host_bytes, stream_bytes, slot_bytes; /* in host memory; of them copied in each step; of
                                                    one of the buffers that they are copied to */
    size_t block_bytes;                          /* of the KV cache, all layers */
    size_t step_bytes, result_bytes, mask_bytes; /* of the staging buffers, too */
    size_t step_at, slot_at, token_at, row_table_at, pick_at, logits_at, mask_at, result_at;
    size_t pairs;         /* of rows and experts; 0 without mixtures of experts */
    uint32_t expert_rows; /* whose experts are computed together, */
    size_t pair_most;     /* and what the arena would grow by if those of all rows were */
    uint32_t inner_stride, out_stride;
    size_t route_at, order_at, from_at, inner_at, out_at;
    size_t word_at, adjusted_at, piece_at, draw_at, partial_at, counter_at, space_at;
    uint32_t most_tile_parts; /* of contexts of tiles, of either kernel */
    size_t tile_partial_at, tile_counter_at;
    size_t panel_at; /* scratch for a panel of a packed weight, or for parts of sums */
    size_t rounded_at, row_scale_at; /* of the product at hand, where some round their inputs */
    bool rounds, rounds_f8;          /* to int8, to E4M3 */
    size_t arrived_at;               /* how many parts of each tile of a fused product are done */
    bool forms[CU_FORMS];            /* which products have */
    bool expert_forms[CU_FORMS];     /* which experts have */
    uint32_t part_stride; /* of ranks: the logits of one, those of all as they come, squares */
    size_t part_at, gather_at, square_at;
    size_t state_bytes; /* of a sequence's recurrent state */
    size_t said_at;     /* what rows say of its heads, of the operation at hand */
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

/* shape.c. take() takes count * size bytes at the end of a memory of *sum bytes; it sticks at
 * SIZE_MAX on overflow. */
size_t cuda_shape_take(size_t *sum, size_t count, size_t size);
int cuda_graph_offered(const struct ek_graph *g, uint32_t block_size, struct ek_fault *fault);
/* weights, values, rope_at may be NULL (only sizes wanted). -EOVERFLOW, -ENOMEM. */
int cuda_shape_of(const struct ek_plan_request *q, struct cuda_shape *ret_shape,
                  struct cuda_weight *weights, struct cuda_value *values, size_t *rope_at);
/* -EBADMSG with a fault when weights were to stay in host memory and that frees nothing. */
int cuda_shape_offload(const struct ek_plan_request *q, const struct cuda_shape *s,
                       struct ek_fault *fault);
/* How many rows of a packed weight with so many columns are expanded together. */
uint32_t cuda_panel_rows(uint32_t cols);
/* In how many parts of k a fused product with such a weight is computed. */
uint32_t cuda_fused_parts(uint32_t n, uint32_t k, uint32_t form);

/* shape_attend.c: what attention and the cache need of the memories; a layer's part of a block. */
void cuda_shape_attend(const struct ek_plan_request *q, struct cuda_shape *s);
struct cuda_cells cuda_cells_of(const struct ek_graph *g, uint32_t block_size, uint32_t layer);

/* weights.c: how a weight is kept on the device, without `at`. */
struct cuda_weight cuda_weight_of(const struct ek_graph *g, uint32_t index);
/* Whether nothing is multiplied with it: f32, as vectors are, even where experts have a row each.
 */
bool cuda_is_bias(const struct ek_graph *g, uint32_t index);

/* images.c or the tests' stand-in: kernels as the build made them. */
struct cuda_image {
    const void *data;
    const char *name;
};
extern const struct cuda_image cuda_images[]; /* data NULL ends the list */

/* kernels.c: -ENODEV with a fault when the images do not fit the card. Names depend on the dtype
 * and head size, so it comes with the graph. */
int cuda_kernels_load(struct ek_device *d, struct ek_fault *fault);
void cuda_kernels_unload(struct ek_device *d);
/* What a kernel is called for the graph; the dynamic shared memory of its launches. */
uint32_t cuda_kernel_of(const struct ek_device *d, enum cuda_kernel k, char *name, size_t size);
int cuda_launch(struct ek_device *d, enum cuda_kernel k, uint32_t x, uint32_t y, uint32_t threads,
                void *args);

/* times.c: what EVENKEEL_CUDA_TIMES asks for: on stderr, when the device is closed, how long each
 * kernel took, launched one after the other (no graphs, no overlap). NULL: it does not. mark()
 * comes behind each launch, with its kernel or, CUDA_KERNELS for cuBLASLt, and two numbers that
 * tell its size; begin() before the first of a step. */
struct cuda_times *cuda_times_open(struct ek_device *d);
void cuda_times_close(struct ek_device *d);
int cuda_times_begin(struct ek_device *d);
int cuda_times_mark(struct ek_device *d, enum cuda_kernel k, uint32_t x, uint32_t y);

/* load.c: weights and rope tables to the device. */
int cuda_weights_load(struct ek_device *d, const struct ek_weight_files *files,
                      ek_progress_fn progress, void *ctx, struct ek_fault *fault);

/* stream.c. open() takes host memory and buffers; -ENOMEM with a fault when memory cannot be had or
 * pinned. begin() before the first launch of a step; await() before and leave() after the one that
 * reads an item; settle() when a step was given up. time() copies some to see how long that takes.
 */
int cuda_stream_open(struct ek_device *d, struct ek_fault *fault);
void cuda_stream_close(struct ek_device *d);
int cuda_stream_begin(struct ek_device *d, uint32_t rows);
int cuda_stream_await(struct ek_device *d, uint32_t item);
int cuda_stream_leave(struct ek_device *d, uint32_t item);
int cuda_stream_settle(struct ek_device *d);
int cuda_stream_time(struct ek_device *d, uint64_t *ret_us); /* of a step's copies; 0 = not known */

/* kv.c */
/* Before it: as ek_backend.kv_host(). */
int cuda_kv_host(struct ek_device *d, void *at);
int cuda_kv_open(struct ek_device *d, const struct ek_kv_params *p);
int cuda_kv_resize(struct ek_device *d, uint32_t blocks);
void cuda_kv_close(struct ek_device *d);
int cuda_kv_read(struct ek_device *d, uint32_t tier, uint32_t block, void *to);
int cuda_kv_write(struct ek_device *d, uint32_t tier, uint32_t block, const void *from);
/* Whether a step's copies name blocks that there are: 0 or -EBADMSG. Then enqueues them. */
int cuda_kv_copies_check(const struct ek_device *d, const struct ek_step *step);
int cuda_kv_copies(struct ek_device *d, const struct ek_step *step, cu_handle stream);

/* choices.c: what the environment asks for, before all else of a load: empties d->note, to which a
 * sentence goes for what it does not know. And another sentence behind what is there. */
void cuda_choices_read(struct ek_device *d);
__attribute__((format(printf, 2, 3))) void cuda_note(struct ek_device *d, const char *format, ...);

/* swap.c: block copies before or beside computing. begin() enqueues those of a step before its
 * forward (-EBADMSG: nothing was), end() before its end; settle() waits for them when the step was
 * given up. `other` is the flight of the step before. */
int cuda_swap_open(struct ek_device *d);
void cuda_swap_close(struct ek_device *d);
int cuda_swap_begin(struct ek_device *d, struct cuda_flight *f, const struct cuda_flight *other,
                    const struct ek_step *step);
int cuda_swap_end(struct ek_device *d, const struct cuda_flight *f);
int cuda_swap_settle(struct ek_device *d);
/* Whether a forward reads or writes a block of the card that the copies of a step do; pure. Blocks
 * hold 1 << shift positions; `work` has room for two numbers for each copy. */
bool cuda_swap_meets(const struct ek_step *copies, const struct ek_step *forward, uint32_t shift,
                     uint32_t *work);

/* states.c: recurrent states. open() with the pool: EK_EDEVMEM; -EINVAL when there are fewer than
 * sequences. check(): -EBADMSG when two of a step have the same. */
int cuda_states_open(struct ek_device *d, uint32_t states);
void cuda_states_close(struct ek_device *d);
int cuda_states_check(struct ek_device *d, const struct ek_step *step);
int cuda_state_copy(struct ek_device *d, uint32_t from, uint32_t to); /* enqueued */
int cuda_state_read(struct ek_device *d, uint32_t state, void *to);
int cuda_state_write(struct ek_device *d, uint32_t state, const void *from);

/* program_recur.c: why it cannot compute an operation, NULL = it can or does not have it; floats
 * that a row says of the heads of an operation, at most. */
const char *cuda_recur_refuse(const struct ek_op *op);
uint32_t cuda_recur_said(const struct ek_graph *g);

/* program_latent.c: why it cannot compute an operation, NULL = it can or does not have it; into how
 * many groups all latent attentions of a graph divide their heads, and heads of one; 0 = the plain
 * kernel attends. */
const char *cuda_latent_refuse(const struct ek_op *op);
uint32_t cuda_latent_groups(const struct ek_graph *g, uint32_t *ret_each);

/* program.c: `tiles` and `items` of attention; latent attention has only tiles. */
int cuda_program_make(struct ek_device *d);
int cuda_program_run(struct ek_device *d, uint32_t rows, uint32_t logit_rows, uint32_t tiles,
                     uint32_t items);

/* product.c: one product for so many rows, by the kernels that are fastest; and up to how many rows
 * that is a fused one on a card of this compute capability, with cuBLASLt beside it or without. */
int cuda_product(struct ek_device *d, const struct cu_gemm_args *a, uint32_t rows);
/* The same of a product and the activation behind it, which takes all that it stores: whether few
 * enough rows are done so, and by one launch. */
bool cuda_product_joins(const struct ek_device *d, const struct cu_gemm_args *a, uint32_t rows);
int cuda_product_glu(struct ek_device *d, const struct cu_gemm_args *a,
                     const struct cu_rows_args *glu, uint32_t rows);
uint32_t cuda_fused_rows(int capability, bool lt);
/* Up to how many rows products of E4M3 are left to the own kernels. */
uint32_t cuda_e4m3_rows(int capability, bool lt);

/* lt.c: cuBLASLt, if it is there and wanted; NULL else. */
struct cuda_lt *cuda_lt_open(struct ek_device *d);
void cuda_lt_close(struct cuda_lt *lt);
/* 1 when it was enqueued, 0 when the own kernel has to do it, a code. */
int cuda_lt_gemm(struct ek_device *d, const struct cu_gemm_args *g, uint32_t rows);
/* The same of inputs that were rounded to E4M3, g->scale_stride rows of scales apart: as many as
 * this says, 0 = it does not do that. */
uint32_t cuda_lt_e4m3_rows(struct ek_device *d, const struct cu_gemm_args *g, uint32_t rows);
int cuda_lt_e4m3(struct ek_device *d, const struct cu_gemm_args *g, uint32_t rows);

/* attend_choose.c: sets attend_tile and tile_rows, after a trial where it chooses wgmma; before any
 * weight is loaded. EK_EDEVICE with a fault when the card fails in that. Then what they are. */
int cuda_attend_choose(struct ek_device *d, struct ek_fault *fault);
const char *cuda_attend_name(const struct ek_device *d);

/* step.c */
int cuda_step_forward(struct ek_device *d, const struct ek_step *step);
int cuda_step_sample(struct ek_device *d, const struct ek_step *step, const struct ek_masks *masks);
int cuda_step_wait(struct ek_device *d, uint64_t id, struct ek_result *ret_result, size_t bytes,
                   uint64_t timeout_us);
bool cuda_step_idle(const struct ek_device *d);

/* rank.c: the same as calls that return before the work is enqueued. begin() meets the other ranks;
 * the arena and the flights are there. */
int cuda_rank_begin(struct ek_device *d, struct ek_fault *fault);
void cuda_rank_end(struct ek_device *d);
int cuda_rank_forward(struct ek_device *d, const struct ek_step *step);
int cuda_rank_sample(struct ek_device *d, const struct ek_step *step, const struct ek_masks *masks);
int cuda_rank_wait(struct ek_device *d, uint64_t id, struct ek_result *ret_result, size_t bytes,
                   uint64_t timeout_us);

/* room.c: what is free of a card without a context, or 0; what the pool may take of d->plan.share,
 * at the end of a load: records what steps of decode need, and measures. */
#define CUDA_LATER (128ull << 20) /* of what the driver and libraries take after the measure */
size_t cuda_room_found(const struct cu_driver *cu, int device, size_t total_bytes);
int cuda_room_measure(struct ek_device *d);

/* graph.c: runs a decode step of so many rows, recorded where that can be. */
int cuda_graph_run(struct ek_device *d, uint32_t rows, uint32_t tiles, uint32_t items);
void cuda_graphs_free(struct ek_device *d);
/* Records the steps of all buckets before there is one. Those that cannot be are tried again in
 * their steps; ret_all: all were. Not for one of several ranks, which would wait for one another.
 */
int cuda_graphs_record(struct ek_device *d, bool *ret_all);
uint32_t cuda_bucket_rows(const struct ek_device *d,
                          uint32_t bucket); /* rising; 0 behind the last */

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
