/*
 * How a team's members take pieces of a product by counters (share.h). Called by run.c in each
 * product.
 */
#include "kernels/cpu/share.h"

#include "kernels/cpu/device.h"
#include "kernels/cpu/product.h"

#define PIECES      8u /* that a member's part is cut into, at most */
#define PIECE_UNITS 4u /* of at least so many panels: neighbours share what they fetch ahead */
#define HELPS       7u /* other members whose parts are looked at: each look is a line of a cache */

struct cpu_share cpu_share_of(struct cpu_taken *taken, uint32_t member, uint32_t threads,
                              uint32_t rows, uint32_t panels)
{
    const uint64_t blocks = (rows + CPU_ROW_CHUNK - 1) / CPU_ROW_CHUNK;

    return (struct cpu_share){.taken = taken,
                              .threads = threads,
                              .panels = panels,
                              .all_rows = rows,
                              .units = blocks * panels,
                              .blocks = blocks,
                              .part = member,
                              .parts_left = threads - 1 < HELPS ? threads : HELPS + 1};
}

/* The next piece of the part [first, end). */
static bool take(struct cpu_share *s, uint64_t first, uint64_t end)
{
    _Atomic uint32_t *count = &s->taken[s->part].count;
    const uint64_t least = (end - first + PIECES - 1) / PIECES;
    const uint64_t piece = (least + PIECE_UNITS - 1) / PIECE_UNITS * PIECE_UNITS;

    if (atomic_load_explicit(count, memory_order_relaxed) >= end - first)
        return false;
    const uint64_t at =
        first + atomic_fetch_add_explicit(count, (uint32_t)piece, memory_order_relaxed);
    if (at >= end)
        return false;
    s->unit = at;
    s->end = end - at < piece ? end : at + piece;
    return true;
}

static bool take_any(struct cpu_share *s)
{
    for (; s->parts_left > 0; s->parts_left--) {
        if (take(s, s->units * s->part / s->threads, s->units * (s->part + 1) / s->threads))
            return true;
        s->part = s->part + 1 < s->threads ? s->part + 1 : 0;
    }
    return false;
}

bool cpu_share_next(struct cpu_share *s)
{
    if (s->unit >= s->end && !take_any(s))
        return false;
    const uint64_t block = s->unit / s->panels;
    s->row = (uint32_t)(s->all_rows * block / s->blocks);
    s->rows = (uint32_t)(s->all_rows * (block + 1) / s->blocks) - s->row;
    s->panel = (uint32_t)(s->unit % s->panels);
    s->count = s->panels - s->panel;
    s->count = s->end - s->unit < s->count ? (uint32_t)(s->end - s->unit) : s->count;
    s->unit += s->count;
    return true;
}
