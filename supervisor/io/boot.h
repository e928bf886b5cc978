/* Which boot of the machine this is: times of CLOCK_MONOTONIC mean something within one alone. */
#pragma once

#include <stdint.h>

/* A number made of the kernel's boot id; 0 when that cannot be read. */
uint64_t boot_id(void);
