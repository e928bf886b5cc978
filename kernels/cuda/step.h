/* Packs a step, runs it, and waits for its result. */
#pragma once

#include "kernels/cuda/cuda.h"

int cuda_step_forward(struct ek_device *d, const struct ek_step *step);
int cuda_step_sample(struct ek_device *d, const struct ek_step *step, const struct ek_masks *masks);
int cuda_step_wait(struct ek_device *d, uint64_t id, struct ek_result *ret_result, size_t bytes,
                   uint64_t timeout_us);
