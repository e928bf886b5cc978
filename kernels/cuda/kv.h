/* The pools of the KV cache, on the card and in host memory. */
#pragma once

#include "kernels/cuda/cuda.h"

/* Before it: as ek_backend.kv_host(). */
int cuda_kv_host(struct ek_device *d, void *at);
int cuda_kv_open(struct ek_device *d, const struct ek_kv_params *p);
int cuda_kv_resize(struct ek_device *d, uint32_t blocks);
void cuda_kv_close(struct ek_device *d);
int cuda_kv_read(struct ek_device *d, uint32_t tier, uint32_t block, void *to);
int cuda_kv_write(struct ek_device *d, uint32_t tier, uint32_t block, const void *from);
/* Whether a step's copies name blocks that there are: 0 or -EBADMSG. Then enqueues them. */
int cuda_kv_copies_check(const struct ek_device *d, const struct ek_step *step);
int cuda_kv_copies(struct ek_device *d, const struct ek_step *step, cu_handle stream);
