/* Weights that stay in host memory, brought to the card when a step needs them. */
#pragma once

#include "kernels/cuda/cuda.h"

/* Open() takes host memory and buffers; -ENOMEM with a fault when memory cannot be had or
 * pinned. begin() before the first launch of a step; await() before and leave() after the one that
 * reads an item; settle() when a step was given up. time() copies some to see how long that takes.
 */
int cuda_stream_open(struct ek_device *d, struct ek_fault *fault);
void cuda_stream_close(struct ek_device *d);
int cuda_stream_begin(struct ek_device *d, uint32_t rows);
int cuda_stream_await(struct ek_device *d, uint32_t item);
int cuda_stream_leave(struct ek_device *d, uint32_t item);
int cuda_stream_settle(struct ek_device *d);
int cuda_stream_time(struct ek_device *d, uint64_t *ret_us); /* of a step's copies; 0 = not known */
