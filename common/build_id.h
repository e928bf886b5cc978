/* The number that the linker gave this build of the program (its GNU build id): programs of one
 * version may be of two builds, and what they share as plain structs be laid out in two ways. */
#pragma once

#include <stdint.h>

#define EK_BUILD_ID_BYTES 20u

/* Filled with zeros behind a shorter one; all are zeros where the program was linked without. */
void ek_build_id(uint8_t ret_id[EK_BUILD_ID_BYTES]);
