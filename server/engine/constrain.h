/*
 * Constrained output: before a step is sampled, the tokens that each request's grammar allows next.
 * That depends on the token before, so while another step is in flight the sampling of a step with
 * constrained rows waits for that one's result; its forward runs meanwhile, and masks are found
 * while it does.
 */
#pragma once

#include <stdbool.h>

#include "kernels/backend.h"

struct flight;
struct request;
struct sched;

/* Bytes of masks for so many rows. */
size_t constrain_bytes(uint32_t rows, uint32_t vocab);
/* With `count` tokens out: has the form of its answer begun, and with which token? Engine thread.
 */
bool constrain_begun(struct request *r, uint32_t count, uint32_t *ret_first);
/* Whether a row of this step is sampled for a live request with a grammar. */
bool constrain_needed(const struct sched *s, const struct flight *f);
/* Fills the masks of a step; all steps before it have landed. Returns how many rows have one. */
uint32_t constrain_fill(const struct sched *s, const struct flight *f, const struct ek_step *step,
                        uint32_t vocab, struct ek_masks *masks);
