/* Numbers that look random and are the same each time, and comparing floats: for the tests of what
 * the tiers of the CPU backend compute. */
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>

static inline float noise(uint32_t i)
{
    i = (i ^ 61u) * 0x9e3779b1u;
    i ^= i >> 15;
    i *= 0x85ebca6bu;
    return (float)(i >> 8) * 0x1p-23f - 1.0f;
}

static inline void near(float got, float want, float tolerance, const char *what)
{
    if (!(fabsf(got - want) <= tolerance * (1.0f + fabsf(want))))
        fail_msg("%s: %.9g instead of %.9g", what, (double)got, (double)want);
}

static inline void fill(float *x, size_t n, uint32_t seed, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = scale * noise((uint32_t)i + seed * 7919u);
}
