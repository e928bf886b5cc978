/* What a slot wants changed in its logits, and the history that it goes by. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ek_device;
struct ek_slot_set;
struct ek_step;

/* Changes a row of logits as the slot wants before anything is drawn; whether it wants anything. */
bool cpu_adjusts(const struct ek_slot_set *set);
void cpu_adjust(const struct ek_device *d, uint32_t slot, uint32_t position, float *logits,
                uint32_t *scratch);
/* Takes over a slot's setting with its words; adds a token to the history. */
void cpu_slot_set(struct ek_device *d, const struct ek_step *step, const struct ek_slot_set *set);
void cpu_slot_push(struct ek_device *d, uint32_t slot, int32_t token);
