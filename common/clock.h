/* Time. Decisions never read it: they get `now_us` as a parameter. */
#pragma once

#include <stdint.h>

#define EK_US_PER_S 1000000ull

/* CLOCK_MONOTONIC in microseconds; never goes back, not affected by the wall clock. */
uint64_t ek_now_us(void);

/* CLOCK_REALTIME in microseconds since the epoch; for logs and API timestamps only. */
uint64_t ek_wall_us(void);
