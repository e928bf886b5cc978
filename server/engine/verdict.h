/*
 * What a lost device means for the limits of the one that takes its place. evenkeeld judges
 * it by the classes and ladders of a whole server's end; a server without evenkeeld, or without an
 * answer in time, goes on by a rule of its own: after an end that may have been for
 * lack of memory half the token budget, for as long as losses count towards the budget of restarts.
 *
 * Limits are of the schedule alone: whatever is said here, no text changes by it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend.h"

struct limits;
struct limits_change;

#define VERDICT_TOKENS_LEAST 64u                 /* below that prompts crawl */
#define VERDICT_LASTS_US     (600u * 1000000ull) /* as ENGINE_REVIVAL_WINDOW_US */

/* A device that was lost. */
struct engine_loss {
    uint64_t number;         /* of this server's losses, from 1 */
    uint64_t at_us, wait_us; /* when; for so long an answer is waited for */
    int code;                /* with which the step failed; EK_EDEVICE when its process ended */
    int exit_code; /* with which a server would have ended that computes in its own process */
    struct ek_device_end end;
    uint64_t steps;        /* that had ended by then */
    uint32_t running;      /* requests that were in work, 0 = it was idle */
    uint64_t served_us;    /* since it was loaded */
    uint32_t tokens, seqs; /* the limits that held */
    uint64_t swap_bytes;   /* room for preempted requests in the host tier */
    bool asked;            /* an answer may come */
};

/* What is to hold from now on; 0 = as it was. */
struct engine_verdict {
    uint32_t tokens, seqs;
    bool set_swap;
    uint64_t swap_bytes;
    char cls[24], why[160]; /* "HOST_OOM"; one sentence */
};

/* How it went on. */
struct engine_judged {
    const struct engine_loss *loss;
    bool answered;              /* by evenkeeld; else by the rule of its own */
    struct engine_verdict with; /* only what was lower than before */
    const char *refused;        /* why its limits could not be set, NULL = they could */
};

/* Whether a loss may have been for lack of memory: the step said so, or another process ended the
 * process (SIGKILL is what the kernel sends then; SIGBUS what it sends for a page that it cannot
 * have), or it ended without a word. A fault at an address, an assertion or a hang is none: smaller
 * steps would cost speed and cure nothing. */
bool verdict_may_be_memory(const struct engine_loss *loss);
/* The rule for a loss that is not judged. */
void verdict_own(const struct engine_loss *loss, struct engine_verdict *ret_verdict);
/* Leaves only what lowers these limits, within their floors; the change of limits for it. False
 * when there is none. */
bool verdict_change(struct engine_verdict *v, const struct limits *l, bool answered,
                    struct limits_change *ret_change);
