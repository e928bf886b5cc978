/*
 * What the engine decides by itself, in words: why requests wait, and bursts of preemptions. The
 * law acts on neither alone, but the question "why do 16 wait?" is answered. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "supervisor/law/policy.h"

/* "16 wait: each is expected to grow to about 64 blocks, 9 fit". limit: of running sequences, 0 =
 * not known. False and an empty text where nothing waits or the sample does not say. */
bool waiting_why(const struct sample *s, uint32_t limit, char *ret_text, size_t size);

struct waiting {
    uint64_t held_us, free_us; /* the engine holds since, and holds none since; 0 = not */
    bool said;                 /* once an episode */
    uint64_t burst_us;         /* a burst of preemptions goes on since, 0 = none */
    uint64_t last_us;          /* of the last preemption seen */
    double last, recomputed;   /* counters as last seen, and when the burst began */
    double began;              /* preemptions before the burst */
    double usage_most;
};

/* A server began, or another answers: counters are unknown again. */
void waiting_start(struct waiting *w);
/* At each sample; window: of the policy. True with a note to record. */
bool waiting_step(struct waiting *w, const struct sample *s, const struct window *window,
                  uint32_t limit, uint64_t now_us, struct decision *ret_note);
