/* What the environment chooses of ways between which a card has not decided yet. */
#pragma once

#include "kernels/cuda/cuda.h"

/* What the environment asks for, before all else of a load: empties d->note, to which a
 * sentence goes for what it does not know. And another sentence behind what is there. */
void cuda_choices_read(struct ek_device *d);
__attribute__((format(printf, 2, 3))) void cuda_note(struct ek_device *d, const char *format, ...);
