/*
 * What a program may ask of the race checker (races.h), from C: find these with dlsym() in the
 * library of kernels that was built with it. One thread at a time, as with shim_run.h.
 */
#pragma once

#include <stdbool.h>

#include "tests/cuda/shim_run.h"

enum races_kind {
    RACES_SHARED,  /* two threads at one place of shared memory, one of them writing, in no order */
    RACES_GLOBAL,  /* the same of global memory, in one block or in two */
    RACES_COPY,    /* an asynchronous copy is under way there */
    RACES_UNSET,   /* shared memory is read that nobody of this block has written */
    RACES_OUTSIDE, /* behind the block's shared memory, or behind an array */
    RACES_UNALIGNED,  /* an address that the width of the access does not divide */
    RACES_LANES,      /* an exchange or a barrier that not all come to who are asked for */
    RACES_UNREPEATED, /* other bytes when threads and blocks take turns in another order */
    RACES_KINDS
};

#if defined(__cplusplus)
extern "C" {
#endif
/* From now on what is found is counted and not printed, and the program may end well; or not. */
void races_expect(bool expected);
/* What was found of this kind since the last time; then it is forgotten. */
unsigned races_take(enum races_kind kind);
/* Whether each launch is done twice, in opposite orders, and must leave the same bytes. */
void races_repeat(bool repeats);
#if defined(__cplusplus)
}
#endif
