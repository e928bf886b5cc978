/* Sampling of a step, on the device thread. */
#pragma once

struct ek_device;
struct ek_masks;
struct ek_result;
struct ek_step;

/* One job on the device thread. 0 or a code for the step. */
int cpu_sample(struct ek_device *d, const struct ek_step *step, const struct ek_masks *masks,
               struct ek_result *result);
