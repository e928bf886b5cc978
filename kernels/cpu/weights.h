/* Packing of weights, at load. */
#pragma once

#include "kernels/backend.h"

struct ek_device;

/* Fills d->weight_memory. -EBADMSG with fault. */
int cpu_weights_load(struct ek_device *d, const struct ek_weight_files *files,
                     ek_progress_fn progress, void *ctx, struct ek_fault *fault);
