/* A card among several: its own thread. */
#pragma once

#include "kernels/cuda/cuda.h"

/* The same as calls that return before the work is enqueued. begin() meets the other ranks;
 * the arena and the flights are there. */
int cuda_rank_begin(struct ek_device *d, struct ek_fault *fault);
void cuda_rank_end(struct ek_device *d);
int cuda_rank_forward(struct ek_device *d, const struct ek_step *step);
int cuda_rank_sample(struct ek_device *d, const struct ek_step *step, const struct ek_masks *masks);
int cuda_rank_wait(struct ek_device *d, uint64_t id, struct ek_result *ret_result, size_t bytes,
                   uint64_t timeout_us);
