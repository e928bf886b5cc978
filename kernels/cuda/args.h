/*
 * What host and kernels agree on: the step as it lies on the device and one struct of arguments per
 * kernel. Each kernel takes exactly one such struct by value. Plain C and CUDA both include it.
 *
 * Counts that change from step to step are not arguments: kernels read them from the step header on
 * the device. So a launch recorded once in a graph serves every later step of its bucket; the grid
 * is for the bucket, and blocks behind the last row leave.
 *
 * Addresses on the device are 64-bit numbers here, because the host must never follow them.
 */
#pragma once

#include <stdint.h>

#include "kernels/graph.h"
#include "kernels/step.h"

typedef uint64_t cu_addr;

#define CU_TILE_ROWS   64u /* query rows (token, head) of a block of prefill attention */
#define CU_HEADS       8u  /* query heads of a KV head that one block of decode attention takes */
#define CU_ROW_THREADS 128 /* of such a block */
#define CU_SPLIT_LEAST 64u
/* Floats of a part's result for a head: its numbers, its maximum and sum, and room so that numbers
 * begin at 16 bytes. */
#define CU_PARTIAL(head_dim) ((head_dim) + 4u)
#define CU_TILE_UNIT         128u /* positions: a part of a tile's context begins at a multiple, */
#define CU_TILE_LEAST        512u /* and has about so many at least */
#define CU_DIM_MOST          512u /* elements of a head, */
#define CU_DIM_NARROW        256u /* of one that is not wide */
/* Attention in shared memory (attend_wide.cuh): rows and heads that a block attends for, positions
 * of a tile, its threads, and all of its shared memory. Heads are padded to `dim`. */
#define CU_WIDE_PAIRS 32u
#define CU_WIDE_KEYS  32u
/* Blocks that share the heads of queries of a decode, of one head of keys. */
#define CU_WIDE_GROUPS(heads) (((heads) + CU_WIDE_PAIRS - 1) / CU_WIDE_PAIRS)
#define CU_WIDE_THREADS(dim)  ((dim) > 64 ? 256u : 128u)
#define CU_WIDE_SCORES        (CU_WIDE_KEYS + 4u) /* numbers from pair to pair, */
#define CU_WIDE_WEIGHTS       (CU_WIDE_KEYS + 8u) /* the same of 16 bits */
#define CU_WIDE_SHARED(dim)                                                                        \
    ((CU_WIDE_PAIRS + CU_WIDE_KEYS) * ((dim) + 8u) * 2u +                                          \
     CU_WIDE_PAIRS * (CU_WIDE_SCORES * 4u + CU_WIDE_WEIGHTS * 2u + 4u) + CU_WIDE_KEYS * 8u)
/* Weights times the scales of values of int8 are multiplied with this, and their sums divided by
 * it, so that those in 16 bits are normal numbers more often. */
#define CU_I8_LIFT  64.0f
#define CU_I8_LEAST 1e-30f /* a largest number below this is 0: its inverse might not be finite */

/* One row that attends alone, or a part of its context: attention for one KV head of it. */
struct cu_item {
    uint32_t row, table;    /* of the step; first entry of its block table */
    uint32_t position;      /* of the row */
    uint32_t from, to;      /* positions of this part */
    uint32_t part, parts;   /* which of how many */
    uint32_t first_partial; /* index of part 0 among all partial results of heads */
};

/* Rows of one sequence that attend together, or a part of their context. */
struct cu_tile {
    uint32_t row, rows, table, position; /* of its first row */
    uint32_t from, to;                   /* positions of this part; a first one is a multiple */
    uint32_t part, parts;                /* of CU_TILE_UNIT; which of how many */
    uint32_t first_partial, pad;         /* of part 0 among the results of parts */
};

/* Header of the step on the device; `*_at` are byte offsets from its start. */
struct cu_step {
    uint32_t rows, seqs, logit_rows, sets, items, tiles, scores, hiddens;
    uint32_t token_at, position_at, kv_slot_at, seq_at, table_at, set_at, item_at, tile_at;
    uint32_t word_at, score_at, hidden_at, pad;
    cu_addr kv;     /* the KV pool, which a resize may move */
    cu_addr states; /* the recurrent states, 0 = there are none */
};

struct cu_slot {
    struct ek_slot_set set; /* its `output` grows with the history */
    int32_t last;           /* token last sampled, -1 before the first */
    uint32_t pad;
};

/* A row whose next, known token is scored; its logits are behind the sampled ones. */
struct cu_score {
    uint32_t target, slot;
};

/* What the device says of a step besides the sequences. */
struct cu_flags {
    uint32_t bad; /* a row asked for a token that was never sampled */
    uint32_t pad;
};

/* A matrix of activations or weights as elementwise kernels see it. */
struct cu_view {
    cu_addr at;
    uint32_t stride; /* elements from row to row */
    uint32_t dtype;  /* EK_F32, EK_F16, EK_BF16 */
};

/* How the rows of a weight lie: numbers of the type to compute with, or numbers of 8 or 4 bits as
 * packed.cuh says, with scales f32 [row][group] and zeros int16 [row][group] behind them. */
enum cu_form { CU_PLAIN, CU_I8, CU_F8, CU_I4, CU_FORMS };

struct cu_packing {
    uint32_t form, groups; /* groups of a row */
    uint32_t group_shift;  /* log2 of the columns that share a scale; 31: all of a row */
    uint32_t pad;
    uint64_t scale_at, zero_at; /* from the weight's begin; zero_at 0 = no zeros of its own */
};

struct cu_prepare_args {
    cu_addr step, slots, words, tokens, row_table, picks, flags;
    uint32_t slot_words, pad; /* room of a slot in `words` */
};

struct cu_embed_args {
    cu_addr step, tokens;
    struct cu_view weight, dst;
    struct cu_packing packing;
    uint32_t width;
    float scale;
    uint32_t first, count;     /* tokens whose rows are here; those of others are zero */
    uint32_t by_position, pad; /* rows are those of positions */
};

/* dst = norm(src); with `add` src += add * add_scale before. Per row `heads` groups. */
struct cu_norm_args {
    cu_addr step, weight; /* weight 0 = ones; f32 [group] */
    struct cu_view src, dst, add;
    uint32_t group, first, heads, picked; /* picked: rows are logit rows */
    float eps, offset, add_scale;
    uint32_t adds;
    uint32_t add_width; /* elements of a row that are added */
};

/* squares[row] = the sum of the squares of x[first ..][group]; with `by`: dst = x by the root of
 * squares / whole + eps, times the weights. Of a rank, whose group is a part of `whole`. */
struct cu_squares_args {
    cu_addr step, weight, squares; /* weight 0 = ones */
    struct cu_view src, dst;
    uint32_t group, first, picked, whole;
    float eps, offset;
};

/* dst[row][begin[r] ..] = from[r][row], as ranks have sent them: [ranks][rows of the grid]. */
struct cu_unpack_args {
    cu_addr step, from;
    struct cu_view dst;
    uint32_t ranks, stride; /* of a row of `from` */
    uint32_t begin[EK_MOST_RANKS + 1];
    uint32_t pad;
};

struct cu_angle_args {
    cu_addr step, inv_freq, table; /* table: [rows][count] pairs (cos, sin) */
    uint32_t count;
    float factor;
    uint32_t above, pad; /* dynamic, as in struct ek_rope; 0 = not */
    double theta, grow;
};

/* Rotates heads of x in place; with `layer` < layers of the cache writes K and V as well. */
struct cu_rope_args {
    cu_addr step, table;
    struct cu_view x;
    uint32_t first_col, heads, head_dim, rotary; /* heads 0: only the cache is written */
    uint32_t writes;                             /* 1: K and V go to the cache */
    uint32_t k_col, kv_heads;                    /* K from column k_col, V behind all of K */
    uint32_t block_shift;                        /* log2 of the block size */
    uint64_t block_bytes, plane_bytes, layer_at; /* of a block; of K in it; where K begins */
    uint32_t kv_f8, neighbours;                  /* as E4M3, divided by: */
    float k_scale, v_scale;
    uint64_t scale_at; /* as int8, whose scales begin there in a plane; 0 = it is not */
    float warm;
    uint32_t warm_from, warm_every; /* as those of EK_OP_ROPE */
    uint32_t latent;                /* 1: the cache has no V, which is a part of K */
};

/* dst = act(src[:n]) * src[n:], dst += src * scale, cap of dst, rows picked: by `kind`. */
enum cu_rows_kind { CU_ROWS_GLU, CU_ROWS_ADD, CU_ROWS_SOFTCAP, CU_ROWS_PICK, CU_ROWS_BIAS };

struct cu_rows_args {
    cu_addr step, picks, bias; /* bias f32 [width] */
    struct cu_view src, dst;
    uint32_t kind, width, act, picked;
    float scale; /* or the cap */
};

/* c[rows, n] = scale * x[rows, k] * w[n, k]^T + bias. */
struct cu_gemm_args {
    cu_addr step;
    struct cu_view x, c;
    cu_addr w, bias; /* bias 0 = none; f32 [n] */
    struct cu_packing packing;
    uint32_t n, k, picked;
    float scale;
    cu_addr partials, counters;  /* of parts: f32 of a tile for each, how many of a tile are done */
    uint32_t parts;              /* of k, which fused products compute apart */
    float input_scale;           /* of x where it is rounded to 8 bits, 0 = each row's own, */
    float input_most;            /* of magnitudes up to this, 0 = all */
    uint32_t scale_stride;       /* of row_scales */
    cu_addr rounded, row_scales; /* then: as w is, int8 or E4M3, [rows][chunks of 64]; f32 [groups
                                    of a row of w][scale_stride rows]; 0 = as it is */
    cu_addr blocks; /* scales of w for cuBLASLt: f32 [blocks of 128 rows][groups]; 0 = none */
};

/* dst = act(c[:n / 2]) * c[n / 2:] of the product's c, which is not stored. */
struct cu_glu_args {
    struct cu_gemm_args gemm;
    struct cu_view dst;
    uint32_t act, pad;
};

/* Fused products (fused.cu): blocks of 64 or 128 rows by so many columns of c; as many stages in
 * flight as the shared memory of every card holds. Slices: of 32 columns in 64 bytes of w. */
#define CU_FUSED_COLS                 128u
#define CU_FUSED_STAGE(slices, rows)  (((rows) * (slices) + CU_FUSED_COLS) * 64u)
#define CU_FUSED_STAGES(slices, rows) ((96u << 10) / CU_FUSED_STAGE(slices, rows))
/* The same where both operands are as wide (tile.cuh: rounded.cu, skinny.cu). */
#define CU_TILE_STAGE(rows)  (((rows) + CU_FUSED_COLS) * 64u)
#define CU_TILE_STAGES(rows) ((96u << 10) / CU_TILE_STAGE(rows))

/* Rows [first, first + rows) of a packed weight as numbers of 16 bits, rows lie `stride` apart. */
struct cu_expand_args {
    cu_addr w, dst;
    struct cu_packing packing;
    uint32_t first, rows, k, stride;
};

#define CU_CHUNKS 0x80000000u /* in a window: its multiples, see ek_first_seen() */

struct cu_attend_args {
    cu_addr step, partials, counters; /* partials f32 [head][dim + 2], counters of items' heads */
    struct cu_view x, dst;            /* x: q heads from column 0 */
    cu_addr row_table;                /* [rows] first entry of each row's block table */
    cu_addr sinks;                    /* f32 [q_heads]: one more score of each row; 0 = none */
    uint32_t q_heads, kv_heads, head_dim, window, block_shift;
    uint32_t kv_f8; /* the cache is of E4M3; the scale of K is in `scale` */
    float scale, softcap, v_scale;
    uint32_t key_dim; /* 0, or latent (latent.cu): then head_dim is that of V and dst */
    uint64_t block_bytes, plane_bytes, layer_at;
    uint64_t scale_at; /* the cache is of int8: as in struct cu_rope_args */
    uint32_t subs;     /* blocks that share a tile (attend_wide.cuh) */
    uint32_t pad;
    cu_addr tile_partials, tile_counters; /* of tiles' parts: attend.cuh; [part][kv_head] */
};

/* A mixture of experts, for rows [first, first + chunk) of the step. A pair is a row and one of its
 * experts; `order` lists pairs by expert, `from` says where those of each begin. */
struct cu_route {
    uint32_t expert;
    float share;
};

struct cu_experts_args {
    cu_addr step, route, order, from, inner, out; /* inner [pairs in order], out f32 [pairs] */
    struct cu_view router, src, dst;
    cu_addr gate, up, down;                /* of the first expert */
    cu_addr gate_bias, up_bias, down_bias; /* the same; f32 [inner_width], [n]; 0 = none */
    uint64_t gate_step, down_step;         /* bytes from expert to expert; up is shaped like gate */
    struct cu_packing gate_packing, down_packing;
    uint32_t count, top, normalise, act, picked, first, chunk;
    uint32_t k, inner_width, n, inner_stride, out_stride;
    cu_addr correction; /* f32 [count], 0 = none; this and below: struct ek_routing */
    cu_addr each;       /* f32 [count] that shares are multiplied with, 0 = none */
    uint32_t sigmoid, share_in, groups, groups_top, group_best;
    float scale, least;
    uint32_t pad;
};

/* The sampler: a piece of so many logits is a warp's at a time; weights are counted in buckets by
 * their upper bits; so many tokens are collected of a row with a top-k or top-p. */
#define CU_COLDEST 1e-5f /* temperatures below are greedy */
/* Words of an adjusted row: logits, a bit per token; the next begins at a multiple of 16 bytes. */
#define CU_ADJUSTED(stride, words) ((stride) + (((words) + 3u) & ~3u))
#define CU_PIECE                   1024u
#define CU_DRAW_BUCKETS            1024u
#define CU_DRAW_LIST               2048u

/* What is found of a piece of a row of logits. Places: a logit's key above, its inverted id below,
 * so that the larger one comes first and of equals the lower id; 0 = none. */
struct cu_piece {
    unsigned long long largest, best; /* of the raw logits; of those that may be chosen */
    unsigned long long mass;          /* of all weights, in units of 2^-40 */
    float sum;                        /* of exp(raw logit - largest) */
    uint32_t count;                   /* of weights above 0 */
};

/* Of a row from which a token is drawn. */
struct cu_draw {
    unsigned long long mass[CU_DRAW_BUCKETS];
    uint32_t count[CU_DRAW_BUCKETS];
    uint32_t listed, pad;
    unsigned long long list[CU_DRAW_LIST]; /* bits of the weight above, inverted id below */
};
#define CU_DRAW_CLEARED (CU_DRAW_BUCKETS * 12u + 8u) /* bytes before `list` */

/* results: struct cu_flags, the sequences, the scores, the hidden states. */
struct cu_sample_args {
    cu_addr step, slots, words, logits, masks, results; /* masks 0 = none */
    cu_addr adjusted;                                   /* [logit row] f32 and a bit per token */
    cu_addr pieces, draws;                              /* [logit row][piece], [logit row] */
    struct cu_view hidden;                              /* what the logits are made of */
    uint32_t vocab, logit_stride, mask_words, slot_words, hidden_width;
    uint32_t weighed, collected, pad; /* which kernels ran before ek_sample */
};

/* Sizes and alignment are the same on both sides. */
#if defined(__cplusplus)
#define CU_SAME(type, bytes) static_assert(sizeof(type) == (bytes), "layout")
#else
#define CU_SAME(type, bytes) _Static_assert(sizeof(type) == (bytes), "layout")
#endif
CU_SAME(struct cu_item, 32);
CU_SAME(struct cu_tile, 40);
CU_SAME(struct cu_step, 96);
CU_SAME(struct cu_view, 16);
CU_SAME(struct cu_packing, 32);
CU_SAME(struct cu_piece, 32);
CU_SAME(struct cu_draw, CU_DRAW_CLEARED + CU_DRAW_LIST * 8);
CU_SAME(struct cu_slot, sizeof(struct ek_slot_set) + 8);
