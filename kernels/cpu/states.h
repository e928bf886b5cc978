/* Recurrent states of sequences and their snapshots. */
#pragma once

#include <stdint.h>

struct cpu_memory;
struct ek_device;
struct ek_step;

/* EK_EDEVMEM; -EINVAL when there are fewer than sequences. */
int cpu_states_map(const struct ek_device *d, uint32_t states, struct cpu_memory *ret_memory);
void cpu_state_copy(struct ek_device *d, uint32_t from, uint32_t to);
/* Clears the state of sequences that begin in this step; before any operation, copies done. */
int cpu_states_check(struct ek_device *d, const struct ek_step *step); /* -EBADMSG */
void cpu_states_begin(struct ek_device *d, const struct ek_step *step);
