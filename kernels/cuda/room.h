/* What of a card's memory the pool may take. */
#pragma once

#include "kernels/cuda/cuda.h"

/* What is free of a card without a context, or 0; what the pool may take of d->plan.share,
 * at the end of a load: records what steps of decode need, and measures. */
#define CUDA_LATER (128ull << 20) /* of what the driver and libraries take after the measure */
size_t cuda_room_found(const struct cu_driver *cu, int device, size_t total_bytes);
int cuda_room_measure(struct ek_device *d);
