/*
 * The tile instructions (AMX): eight registers of up to 16 rows of 64 bytes. This file says how
 * they are used here: 0 to 3 hold sums (two tiles of rows x two of columns, or one x four), 4 and 5
 * inputs, 6 and 7 weights. A function that uses them begins with tiles_begin() and ends with
 * tiles_end(), so no thread keeps any state and the kernel has none of it to save between products.
 *
 * The compiler's own intrinsics are not used: GCC 12 gives the configuration to the instruction as
 * an operand of 8 bytes and tile loads none at all, so it may drop or move the stores into the
 * memory that they read. Here the operand is the whole configuration and memory counts as read.
 */
#pragma once

#include <stdint.h>

struct tiles_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct tiles_config) == 64, "what the instruction reads");

/* Tiles of `rows` x `in_bytes` inputs, of weights with `steps` rows of 64 bytes, and of sums. */
static inline void tiles_begin(uint32_t rows, uint32_t in_bytes, uint32_t steps)
{
    struct tiles_config c = {.palette = 1};

    for (int t = 0; t < 8; t++) {
        c.row_bytes[t] = t == 4 || t == 5 ? (uint16_t)in_bytes : 64;
        c.rows[t] = t < 6 ? (uint8_t)rows : (uint8_t)steps;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c) : "memory");
}

static inline void tiles_end(void)
{
    __asm__ volatile("tilerelease" : : : "memory");
}

#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t : : : "memory")

/* Rows are `stride` bytes apart. */
#define TILE_LOAD(t, at, stride)                                                                   \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t                                               \
                     :                                                                             \
                     : "r"((const void *)(at)), "r"((int64_t)(stride))                             \
                     : "memory")
#define TILE_STORE(t, at, stride)                                                                  \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)"                                           \
                     :                                                                             \
                     : "r"((void *)(at)), "r"((int64_t)(stride))                                   \
                     : "memory")

/* Sums += inputs x weights: pairs of bf16; fours of int8 x uint8. */
#define TILE_PAIRS(sums, in, w)                                                                    \
    __asm__ volatile("tdpbf16ps %%tmm" #w ", %%tmm" #in ", %%tmm" #sums : : : "memory")
#define TILE_FOURS(sums, in, w)                                                                    \
    __asm__ volatile("tdpbsud %%tmm" #w ", %%tmm" #in ", %%tmm" #sums : : : "memory")

/* How rows are cut into tiles: of equal height, only the last may lack some. */
struct tiles_cut {
    uint32_t tiles, height;
};

static inline struct tiles_cut tiles_cut(uint32_t rows)
{
    const uint32_t tiles = (rows + 15) / 16;
    return (struct tiles_cut){tiles, (rows + tiles - 1) / tiles};
}
