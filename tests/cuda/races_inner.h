/*
 * What the parts of the race checker share: the order of things (races_order.cc), who touched what
 * (races.cc), repeated launches (races_repeat.cc), reports (races_report.cc). Time is a count of
 * events that order something; an access has the time of the last one before it.
 */
#pragma once

#include "tests/cuda/races.h"

enum : uint32_t {
    RACES_WHO = 0x3fffffffu,    /* block << 10 | thread */
    RACES_ATOMIC = 0x40000000u, /* of an access: not a plain one */
    RACES_ASYNC = 0x80000000u   /* a copy that is not waited for yet */
};

struct races_access {
    uint32_t time, who, pc; /* pc from the library's begin; time 0: none */
};

struct races_state {
    uint32_t now, launch, block; /* times: now, when the launch began, when the block began */
    uint32_t barrier;            /* what the block did before is known to all of it */
    uint32_t me, threads;        /* who runs; of a block */
    bool running, extra,
        fenced; /* someone runs; __syncwarp since the barrier; a fence in the launch */
    const char *kernel;
};
extern struct races_state races_g;

/* Whether an access of another thread of this block, or of another block, is before what runs. */
bool races_seen(uint32_t thread, uint32_t time);
bool races_known(const struct races_access &a, uintptr_t at);
void races_order_launch();
void races_order_block();
void races_order_atomic(uintptr_t at);

void races_before_write(uintptr_t at, size_t bytes);

/* before: NULL or what it is in conflict with. */
void races_report(enum races_kind kind, const char *what, uintptr_t at, size_t bytes,
                  const void *pc, const struct races_access *before);
uint32_t races_pc(const void *pc);
