/*
 * Arguments of the kernels whose state goes from token to token (recur.cu) and of those that treat
 * columns and norms as few families need them (columns.cu); see args.h.
 */
#pragma once

#include "kernels/cuda/args.h"

#define CU_CONV_ROWS  8u   /* rows of a convolution that a block computes */
#define CU_STATE_ROWS 32u  /* of a head's state that a warp keeps, a register each */
#define CU_STATE_MOST 256u /* rows of a head's state */

/* Where an operation's part of a sequence's state lies: in the slot's, of `bytes` each. */
struct cu_state {
    uint64_t bytes;
    uint32_t at, pad; /* floats */
};

struct cu_conv_args {
    cu_addr step, weight, bias; /* f32 [kernel][width]; [width], 0 = none */
    struct cu_view src, dst;
    struct cu_state state;
    uint32_t first, width, kernel, silu;
};

/* What a row says of each head, once, so that the blocks of a head need not find it again:
 * f32 [row][stride]. Of a delta rule: for each head of k what q and k are multiplied with and
 * q' k', then for each head of v how much it takes over and what is left of the state. Of a scan:
 * for each head how far it goes and what is left of the state. */
struct cu_delta_args {
    cu_addr step, weight, bias, said; /* A and dt: f32 [v_heads] */
    struct cu_view src, gates, dst;
    struct cu_state state;
    uint32_t k_heads, v_heads, k_dim, v_dim, stride, twice;
};

struct cu_scan_args {
    cu_addr step, weight, bias, skip, said; /* f32 [heads] */
    struct cu_view src, steps, dst;
    struct cu_state state;
    uint32_t step_first, heads, groups, head_dim, state_dim, stride;
    float least, most;
};

/* EK_OP_TAKE, EK_OP_GATE, EK_OP_SCALE */
enum cu_columns_kind { CU_COLUMNS_TAKE, CU_COLUMNS_GATE, CU_COLUMNS_SCALE };

struct cu_columns_args {
    cu_addr step, weight; /* of a scale: one f32, 0 = none */
    struct cu_view src, dst;
    uint32_t kind, first, apart, group, to, width; /* apart: from run to run of `group` of src */
    uint32_t act, picked;
    float scale, rising, falling, slope;
};

/* A norm with weights for each of its groups (own), a bias, or of what is less its mean. */
struct cu_centre_args {
    cu_addr step, weight, bias; /* f32, 0 = ones, none */
    struct cu_view src, dst;
    uint32_t group, first, own, centred, picked;
    float eps, offset;
    uint32_t pad;
};
