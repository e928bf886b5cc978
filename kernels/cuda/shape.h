/* Where everything lies on a card, and in what form: from a graph and its ceilings. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/cuda/args.h"
#include "kernels/cuda/offload.h"
#include "kernels/cuda/weight.h"

#define CUDA_MOST_SPLITS 1024u         /* parts of contexts in one step, besides one per row */
#define CUDA_TILE_PAIRS  32768u        /* rows and heads with results of parts of tiles' contexts */
#define CUDA_EXPERT_ROWS 1024u         /* rows whose experts are computed together */
#define CUDA_LT_SPACE    (32ull << 20) /* workspace of cuBLASLt */
#define CUDA_PANEL       (64ull << 20) /* of a packed weight that are expanded together */
#define CUDA_FUSED_MOST  512u          /* most whose products expand them in registers */
#define CUDA_PANEL_ROWS  65536u        /* of it at most; at least 128 */

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

/* take() takes count * size bytes at the end of a memory of *sum bytes; it sticks at
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

/* program_recur.c: why it cannot compute an operation, NULL = it can or does not have it; floats
 * that a row says of the heads of an operation, at most. */
const char *cuda_recur_refuse(const struct ek_op *op);
uint32_t cuda_recur_said(const struct ek_graph *g);

/* program_latent.c: why it cannot compute an operation, NULL = it can or does not have it; into how
 * many groups all latent attentions of a graph divide their heads, and heads of one; 0 = the plain
 * kernel attends. */
const char *cuda_latent_refuse(const struct ek_op *op);
uint32_t cuda_latent_groups(const struct ek_graph *g, uint32_t *ret_each);
