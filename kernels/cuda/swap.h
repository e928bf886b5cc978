/* Copies of blocks between the pools, before or beside computing. */
#pragma once

#include "kernels/cuda/cuda.h"

/* Block copies before or beside computing. begin() enqueues those of a step before its
 * forward (-EBADMSG: nothing was), end() before its end; settle() waits for them when the step was
 * given up. `other` is the flight of the step before. */
int cuda_swap_open(struct ek_device *d);
void cuda_swap_close(struct ek_device *d);
int cuda_swap_begin(struct ek_device *d, struct cuda_flight *f, const struct cuda_flight *other,
                    const struct ek_step *step);
int cuda_swap_end(struct ek_device *d, const struct cuda_flight *f);
int cuda_swap_settle(struct ek_device *d);
/* Whether a forward reads or writes a block of the card that the copies of a step do; pure. Blocks
 * hold 1 << shift positions; `work` has room for two numbers for each copy. */
bool cuda_swap_meets(const struct ek_step *copies, const struct ek_step *forward, uint32_t shift,
                     uint32_t *work);
