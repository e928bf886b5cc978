/*
 * How the members of a team divide a product: piece by piece, each its own part first, whose
 * weights its caches know, then what members after it have left. So no member waits for a core that
 * others use too by more than a piece. Who computes a piece shows nowhere in its bits. Called by
 * run.c.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* How much of a member's part is taken: units of a product, items of an attention; in a cache line
 * of its own. 0 before all members begin. */
struct cpu_taken {
    _Alignas(64) _Atomic uint32_t count;
};

/* What a member takes of the units (blocks of rows) x (panels) of a product: runs of panels in one
 * block of rows. Blocks are of equal height, give or take one row. */
struct cpu_share {
    struct cpu_taken *taken; /* one a member */
    uint32_t threads, panels, all_rows;
    uint64_t units, unit, end, blocks; /* [unit, end): the piece that it has */
    uint32_t part, parts_left;
    uint32_t row, rows, panel, count; /* the run: rows [row, row + rows), panels alike */
};

struct cpu_share cpu_share_of(struct cpu_taken *taken, uint32_t member, uint32_t threads,
                              uint32_t rows, uint32_t panels);
/* The next run; false when nothing is left. */
bool cpu_share_next(struct cpu_share *s);
