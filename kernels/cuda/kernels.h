/* The kernels of a card: from the images of the build to a launch. */
#pragma once

#include "kernels/cuda/cuda.h"

/* images.c or the tests' stand-in: kernels as the build made them. */
struct cuda_image {
    const void *data;
    const char *name;
};
extern const struct cuda_image cuda_images[]; /* data NULL ends the list */

/* kernels.c: -ENODEV with a fault when the images do not fit the card. Names depend on the dtype
 * and head size, so it comes with the graph. */
int cuda_kernels_load(struct ek_device *d, struct ek_fault *fault);
void cuda_kernels_unload(struct ek_device *d);
/* What a kernel is called for the graph; the dynamic shared memory of its launches. */
uint32_t cuda_kernel_of(const struct ek_device *d, enum cuda_kernel k, char *name, size_t size);
int cuda_launch(struct ek_device *d, enum cuda_kernel k, uint32_t x, uint32_t y, uint32_t threads,
                void *args);

/* times.c: what EVENKEEL_CUDA_TIMES asks for: on stderr, when the device is closed, how long each
 * kernel took, launched one after the other (no graphs, no overlap). NULL: it does not. mark()
 * comes behind each launch, with its kernel or, CUDA_KERNELS for cuBLASLt, and two numbers that
 * tell its size; begin() before the first of a step. */
struct cuda_times *cuda_times_open(struct ek_device *d);
void cuda_times_close(struct ek_device *d);
int cuda_times_begin(struct ek_device *d);
int cuda_times_mark(struct ek_device *d, enum cuda_kernel k, uint32_t x, uint32_t y);
