/*
 * A checker of races for kernels on the shim, exact where a sanitizer of processors' threads can
 * only guess: kernels are compiled with -fsanitize=thread, and the calls which that puts before
 * each access come here (races.cc) instead of to its runtime. Who may see what (races_order.cc):
 *
 *   __syncthreads    orders all that the threads of the block did
 *   __syncwarp       orders what the lanes of its mask did, and what they knew of others
 *   exchanges, mma   order nothing: they let lanes wait, and move registers
 *   __threadfence    makes what its thread knows ready to be published, and makes known what it
 *                    or its block has received
 *   atomics          never race with each other; those on global memory publish and receive what
 *                    fences around them allow, so that blocks can be ordered as well
 *   cp.async         may happen at any time up to its wait, and then counts as a write of the
 *                    thread that waited
 *
 * Blocks of a launch are in no order; launches follow each other. Shared memory is new for each
 * block. Compiled without EK_RACES all of this is nothing. What it cannot see: launches on streams
 * that are not ordered, places that no test visits, what the hardware gets wrong.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tests/cuda/races_run.h"

#if defined(EK_RACES)

/* Bytes on both sides of dynamic shared memory that nobody may touch. */
#define SHIM_GUARD 65536

/* ---- told by shim.cc ---- */
void races_memory(const void *stacks, size_t bytes); /* that is nobody's but a thread's own */
void races_launch(const char *kernel, const void *args, size_t bytes);
void races_block(unsigned index, unsigned threads, unsigned char *dynamic, size_t bytes);
void races_thread(int index); /* goes on now; -1: none */
void races_barrier();
void races_warp(unsigned first, uint32_t mask); /* __syncwarp() of these lanes */
void races_fence();
void races_copy(void *to, const void *from, bool valid, const void *pc);
void races_copied(void *to, const void *from, bool valid, const void *pc);
bool races_lanes(const char *why); /* the block cannot go on; whether that was expected */
bool races_repeats();
void races_rewind();                    /* after the first of two runs */
void races_compare(const char *kernel); /* after the second */

/* ---- told by shim.h, in kernels ---- */
void races_atomic(const void *p, size_t bytes, const void *pc);
/* A row of ldmatrix, or what else an instruction wants at a multiple of its width. */
void races_aligned(const void *p, size_t bytes, const void *pc);

#else

#define SHIM_GUARD 0

static inline void races_memory(const void *, size_t)
{
}
static inline void races_launch(const char *, const void *, size_t)
{
}
static inline void races_block(unsigned, unsigned, unsigned char *, size_t)
{
}
static inline void races_thread(int)
{
}
static inline void races_barrier()
{
}
static inline void races_warp(unsigned, uint32_t)
{
}
static inline void races_fence()
{
}
static inline void races_copy(void *, const void *, bool, const void *)
{
}
static inline void races_copied(void *, const void *, bool, const void *)
{
}
static inline bool races_lanes(const char *)
{
    return false;
}
static inline bool races_repeats()
{
    return false;
}
static inline void races_rewind()
{
}
static inline void races_compare(const char *)
{
}
static inline void races_atomic(const void *, size_t, const void *)
{
}
static inline void races_aligned(const void *, size_t, const void *)
{
}

#endif
