/* Which kernel attends to prompts. */
#pragma once

#include "kernels/cuda/cuda.h"

/* Sets attend_tile and tile_rows, after a trial where it chooses wgmma; before any
 * weight is loaded. EK_EDEVICE with a fault when the card fails in that. Then what they are. */
int cuda_attend_choose(struct ek_device *d, struct ek_fault *fault);
const char *cuda_attend_name(const struct ek_device *d);
