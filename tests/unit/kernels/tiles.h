/*
 * Tile instructions (AMX) on machines without them, for tests: the CPU refuses each one with
 * SIGILL, and a handler does what the manual says and goes on behind it. So the real object code of
 * the tier "amx" runs, with its encodings, its tile configuration and its own memory accesses.
 *
 * Follows the pseudo-code of Intel's Software Developer's Manual (volume 2): LDTILECFG, TILELOADD,
 * TILESTORED, TILEZERO, TILERELEASE, TDPBF16PS, TDPBSSD, TDPBSUD, TDPBUSD, TDPBUUD, with what they
 * fault on. What is not shown by it: a processor's own arithmetic and speed.
 *
 * A test that links tiles.c and wraps cpu_tier_list() and cpu_tier_find() (the linker's --wrap) has
 * "amx" in its list where the other instructions of that tier are there.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/tier.h"

/* Whether the instructions are done by the handler; how many it did so far in this process. */
bool tiles_emulated(void);
uint64_t tiles_count(void);

/* Whether "amx" has nothing of its own to show: only products of bf16 go through tiles, and the
 * rest is not worth the time of the handler. */
static inline bool tiles_idle(const struct cpu_ops *ops, enum ek_dtype graph)
{
    return ops == &cpu_ops_amx && tiles_emulated() && graph != EK_BF16;
}
