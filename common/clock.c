/*
 * Reads the clocks for the threads that do things (engine loop, network threads, evenkeeld's loop),
 * which pass the time on to the modules that decide.
 */
#include "common/clock.h"

#include <time.h>

static uint64_t read_clock(clockid_t id)
{
    struct timespec t;
    if (clock_gettime(id, &t) != 0)
        return 0;
    return (uint64_t)t.tv_sec * EK_US_PER_S + (uint64_t)t.tv_nsec / 1000u;
}

uint64_t ek_now_us(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t ek_wall_us(void)
{
    return read_clock(CLOCK_REALTIME);
}
