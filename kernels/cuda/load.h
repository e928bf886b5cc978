/* Weights and rope tables to the card. */
#pragma once

#include "kernels/cuda/cuda.h"

/* Weights and rope tables to the device. */
int cuda_weights_load(struct ek_device *d, const struct ek_weight_files *files,
                      ek_progress_fn progress, void *ctx, struct ek_fault *fault);
