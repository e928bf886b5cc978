/* Recurrent states of slots, and their snapshots. */
#pragma once

#include "kernels/cuda/cuda.h"

/* Recurrent states. open() with the pool: EK_EDEVMEM; -EINVAL when there are fewer than
 * sequences. check(): -EBADMSG when two of a step have the same. */
int cuda_states_open(struct ek_device *d, uint32_t states);
void cuda_states_close(struct ek_device *d);
int cuda_states_check(struct ek_device *d, const struct ek_step *step);
int cuda_state_copy(struct ek_device *d, uint32_t from, uint32_t to); /* enqueued */
int cuda_state_read(struct ek_device *d, uint32_t state, void *to);
int cuda_state_write(struct ek_device *d, uint32_t state, const void *from);
