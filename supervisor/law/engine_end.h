/*
 * The end of an engine's process whose server goes on (evenkeel-server --engine-process): why it
 * ended, by the classes of a whole server's end, and what is lower for the next one, by the same
 * ladders, counted from the limits that held. What is not a limit while it serves (a share of the
 * device, an allocator's mode) is passed over: it is for a start. Where a lack of host memory has
 * no step left, half of the token budget is the last one: what a step computes with is the part of
 * the engine's memory that follows a limit.
 *
 * Pure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "supervisor/law/oom.h"
#include "supervisor/law/remedy.h"

/* What the server says of it: server/net/losses.h. */
struct engine_end {
    uint64_t number;
    uint64_t until_us;  /* CLOCK_MONOTONIC: the server waits no longer; 0 = not said */
    bool ended;         /* its process ended by itself; else a step failed or hung */
    int signal, status; /* by which it ended; of one that did not, 0 */
    int exit_code;      /* with which a server would have ended that computes in its own process */
    uint64_t oom_kills; /* that the server saw in its cgroup, which evenkeeld may not know */
    char why[160];      /* its own sentence */
    uint32_t running;   /* requests in work, 0 = it was idle */
    uint64_t steps;
    double served_s;
    uint32_t tokens, seqs; /* the limits that held */
    uint64_t swap_bytes;
};

/* What evenkeeld saw itself. */
struct engine_seen {
    uint64_t oom_kills; /* more in its cgroup than before */
    unsigned xid;       /* that the kernel reported shortly before, 0 = none */
    bool xid_final;
};

/* What the server is told. */
struct engine_answer {
    struct crash_verdict verdict;
    struct remedy_plan plan; /* of the ladder; not found: none, or the step that follows it */
    uint32_t tokens, seqs;   /* 0 = as it was */
    bool set_swap;
    uint64_t swap_bytes;
    char why[160]; /* "--max-num-batched-tokens 1536 instead of 2048", "" = nothing changes */
};

/* `c` has the floors, the dialect and the time; the rest of it is filled here, for remedy_take().
 */
void engine_end_judge(const struct engine_end *loss, const struct engine_seen *seen,
                      const struct remedy_memory *m, struct remedy_case *c,
                      struct engine_answer *ret_answer);
