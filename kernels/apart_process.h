/*
 * The engine's process as the lead has it (apart.h): asked for and ended through the launcher, and
 * how it ended. Engine thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/apart_memory.h"

#define APART_PIECE_US (100u * 1000u)         /* of a wait for it, between two looks at the clock */
#define APART_LOAD_US  (600u * 1000u * 1000u) /* without progress an engine that loads hangs */

struct apart_lead {
    struct ek_open_params open;
    struct ek_apart_memory *m;
    int failed; /* of the last step that failed in this engine, its code */
    /* What stats() points to: */
    struct apart_words words;
};

/* What is called while an engine loads; either may be NULL. */
struct apart_patience {
    ek_progress_fn progress;
    ek_meanwhile_fn meanwhile;
    void *ctx;
};

/* Asks for an engine and waits until it is loaded. 0, or how that failed. */
int apart_start(struct apart_lead *l, const struct apart_patience *p, struct ek_fault *fault);
/* Until it has ended. EK_EDEVICE: the launcher has; -ETIMEDOUT. */
int apart_end(struct apart_lead *l);
/* Whether another one would be begun. */
int apart_check(const struct apart_lead *l, struct ek_fault *fault);
bool apart_has_ended(const struct apart_lead *l);
/* The launcher has ended, and with it the engine, whose end is then not told. */
bool apart_is_alone(const struct apart_lead *l);
/* What was counted goes on with the next engine; what was in memory is gone with this one. */
void apart_keep_counts(struct apart_lead *l);
/* Ends what is left of it. */
void apart_how_lost(struct apart_lead *l, struct ek_device_end *ret_end);
