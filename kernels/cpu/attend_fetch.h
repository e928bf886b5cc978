/*
 * What attention in pairs and in quads fetches while it multiplies.
 *
 * The queries of a call are walked in groups, each of which reads all of its K or V. If the first
 * one fetched all that comes next, memory would be asked for everything in a sixth of the time and
 * be idle in the rest; so the groups take turns, a vector of sums each. A group that is alone
 * fetches in the order in which it reads.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/tier.h"

/* Group `index` of `count`; `alone` is known when the code is compiled. */
struct turn {
    bool alone;
    uint32_t index, count;
};

/* What is fetched while a vector of V is walked through the blocks, from one of its rows to the
 * next one's `step` bytes. Alone: the same place in the block that comes next. In turns: lines as
 * they lie; of n vectors the i-th fetches the i-th of n parts of the blocks that come next. */
struct fetch {
    bool any;
    uint32_t block;
    size_t at, step;
    size_t piece, end; /* bytes: for each block that is walked through; of a block, whole pieces */
};

/* `at`: byte of the vector in a row of V; `rows` of V in a block. */
static inline __attribute__((always_inline)) struct fetch
fetch_from(const struct cpu_block *b, size_t at, uint32_t rows, struct turn t)
{
    const uint32_t vectors = b->dim / 16, vector = (uint32_t)(at / 64), first = vector * b->blocks;
    const size_t piece = (size_t)rows * 64;

    if (t.alone)
        return (struct fetch){.any = true, .at = at, .step = (size_t)b->dim * 4};
    return (struct fetch){.any = vector % t.count == t.index,
                          .block = first / vectors,
                          .at = first % vectors * piece,
                          .step = 64,
                          .piece = piece,
                          .end = vectors * piece};
}

/* Where to fetch from during a block; on to the next one. In another group's turn it is `kv`, which
 * is being read. */
static inline __attribute__((always_inline)) const char *
fetch_next(const struct cpu_block *b, struct fetch *f, const char *kv, struct turn t)
{
    const char *next = f->any ? (const char *)b->next[f->block] + f->at : kv;

    f->at += f->piece;
    if (t.alone) {
        f->block++;
    } else if (f->at == f->end) {
        f->at = 0;
        f->block++;
    }
    return next;
}

#define TURN_ALONE    ((struct turn){.alone = true, .count = 1})
#define TURN_OF(i, n) ((struct turn){.index = i, .count = n})

/* By groups of at most six queries, of equal height give or take one: fn(rows, row, turn). Two
 * groups have seven rows at least. */
#define EACH_GROUP(most, all, fn)                                                                  \
    for (uint32_t i = 0, n = ((all) + (most)-1) / (most); i < n; i++) {                            \
        const uint32_t row = i * (all) / n, rows = (i + 1) * (all) / n - row;                      \
        switch (n == 1 ? rows : 8 + rows) {                                                        \
        case 1: fn(1, row, TURN_ALONE); break;                                                     \
        case 2: fn(2, row, TURN_ALONE); break;                                                     \
        case 3: fn(3, row, TURN_ALONE); break;                                                     \
        case 4: fn(4, row, TURN_ALONE); break;                                                     \
        case 5: fn(5, row, TURN_ALONE); break;                                                     \
        case 6: fn(6, row, TURN_ALONE); break;                                                     \
        case 8 + 3: fn(3, row, TURN_OF(i, n)); break;                                              \
        case 8 + 4: fn(4, row, TURN_OF(i, n)); break;                                              \
        case 8 + 5: fn(5, row, TURN_OF(i, n)); break;                                              \
        case 8 + 6: fn(6, row, TURN_OF(i, n)); break;                                              \
        }                                                                                          \
    }
