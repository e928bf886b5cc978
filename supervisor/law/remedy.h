/*
 * What a server is started with after it ran out of memory: a ladder of steps for each class, each
 * tried once within a day, the next one only when the last did not help. Limits change on evidence
 * of memory alone; for every other class there is no ladder, only the wait before the next start.
 * The ladder and its arithmetic are common/ladder.h's, which `evenkeelctl diagnose` tells, too.
 *
 *   STARTUP_OOM  wait for memory of the process before; token budget; memory share; conservative
 *   BURST_OOM    token budget and sequences and share; the same again; conservative
 *   FRAG_OOM     expandable segments; token budget; conservative
 *   HOST_OOM     half of the swap space; none
 *
 * Dead ends are not in it: the same flags again, fewer sequences for weights that do not fit, a
 * shorter max_model_len that was not allowed, a smaller share when the share was the reason.
 *
 * A step is counted from what ran. What is not known is not lowered: a number that was assumed may
 * lie above the one that failed. Where the server can say its plan without starting, a step whose
 * plan does not fit, or takes more than the plan that failed, is passed over (remedy_fits()).
 *
 * What was learned holds for a day (REMEDY_KEEP_S): the load that taught it will have changed.
 * Pure; the memory lies in the state file. Owned by the server.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/ladder.h"
#include "supervisor/law/oom.h"

#define REMEDY_KEEP_S 86400.0
#define REMEDY_WAIT_S LADDER_WAIT_S /* for memory of the process before */
#define REMEDY_STEPS  LADDER_MOST

struct dialect;
struct ek_strings;

/* What a start has, by its flags or as the server said; 0 = not known, not set or not capped. */
struct remedy_settings {
    uint32_t tokens, seqs; /* --max-num-batched-tokens, --max-num-seqs */
    double share;          /* --gpu-memory-utilization */
    double swap_gib;       /* --swap-space */
    bool no_swap;          /* a cap of 0 */
    bool expandable;       /* PYTORCH_CUDA_ALLOC_CONF */
};

/* Kept across starts and in the state file. Times are wall clock. */
struct remedy_memory {
    struct remedy_settings caps;
    uint64_t until_us; /* of the caps; 0 = none */
    struct {
        uint8_t steps; /* bit per step of the ladder that was taken */
        uint64_t wall_us;
    } tried[CRASH_COUNT];
};

struct remedy_case {
    enum crash_class cls;
    struct oom_numbers numbers;
    const struct dialect *dialect;
    struct remedy_settings now;    /* what it was started with */
    uint32_t tokens_min, seqs_min; /* floors that the operator set */
    bool soon;                     /* it began right after another process ended */
    uint64_t wall_us;
};

/* What a server says of a command line without starting: its plan. */
struct remedy_facts {
    bool known;                   /* it answered */
    bool fits;                    /* else it refused: no room, or a flag */
    uint64_t bytes;               /* of the plan, 0 = not known */
    struct remedy_settings plans; /* with it; 0 where it did not say */
};

struct remedy_plan {
    bool found;
    uint8_t step;  /* which of the ladder this is, from 0 */
    uint8_t steps; /* of the ladder, with this one: remedy_take() remembers them */
    struct remedy_settings caps;
    double wait_s; /* at least so long before the start */
    char why[160]; /* "max_num_batched_tokens 1536 instead of 2048, ..." */
};

/* The next step that was not tried and changes something. Without one, found is false. */
struct remedy_plan remedy_next(const struct remedy_memory *m, const struct remedy_case *c);
void remedy_take(struct remedy_memory *m, const struct remedy_case *c,
                 const struct remedy_plan *plan);
/* Whether a step helps by the plans before and with it; a plan that is not known says nothing
 * against it. If not, why says so. */
bool remedy_fits(const struct remedy_case *c, const struct remedy_facts *before,
                 const struct remedy_facts *with, char *why, size_t size);
/* Before a restart by plan of memory that lies in pieces, though nothing failed: the first step of
 * FRAG_OOM alone, which is then not tried a second time. settled: it is not evenkeeld's to choose.
 * False when it changes nothing. */
bool remedy_worn(struct remedy_memory *m, const struct dialect *d, bool settled, uint64_t wall_us);
/* It did not start with that: without it again, and for a day not with it. False if it had none. */
bool remedy_unworn(struct remedy_memory *m);
/* Remembers a step as tried without taking it. */
void remedy_pass(struct remedy_memory *m, const struct remedy_case *c,
                 const struct remedy_plan *plan);
void remedy_forget(struct remedy_memory *m);
/* The name of a class's step, "token_budget"; NULL after its last. */
const char *remedy_step(enum crash_class cls, uint32_t step);
/* A limit for the next start that is no lack of memory: lower ones only, 0 = none. False when it
 * changes nothing. */
bool remedy_cap(struct remedy_memory *m, uint32_t seqs, uint32_t tokens, uint64_t wall_us);
/* Forgets what is older than a day; times in the future become now. True if caps ended. */
bool remedy_expire(struct remedy_memory *m, uint64_t wall_us);
/* Whether there is a ladder for the class at all. */
bool remedy_exists(enum crash_class cls);

/* What a server's flags say, and where they are silent its file (of --config; zeros without one):
 * 0 for what neither says, or what is no number. */
void remedy_read(const struct dialect *d, char *const *argv, const struct remedy_settings *file,
                 struct remedy_settings *ret_settings);
/* argv with the caps in force where they are lower than what the server has (ret_argv's strings and
 * the list are the caller's; free with remedy_free()). 0 or -ENOMEM. */
int remedy_argv(const struct dialect *d, char *const *argv, const struct remedy_settings *has,
                const struct remedy_settings *caps, char ***ret_argv);
void remedy_free(char **argv);
/* What of the caps is in force beside what the server has: "--max-num-seqs 16 instead of 64, ...";
 * "" and false when nothing is. */
bool remedy_text(const struct dialect *d, const struct remedy_settings *has,
                 const struct remedy_settings *caps, char *text, size_t size);
