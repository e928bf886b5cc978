/*
 * What an int8 KV cache wants of every tier: rounding a key or value to 8 bits, and products with
 * scales. Plain loops, compiled once in each tier, which makes vectors of them; no operation can be
 * fused with another, so all tiers give the same bits.
 */
#pragma once

#include "kernels/num.h"

/* A largest element below this is 0: its inverse might not be finite. */
#define ROUND8_LEAST 1e-30f

static float round8(int8_t *to, const float *from, uint32_t n)
{
    uint32_t most = 0; /* as whole numbers magnitudes are in order, and what is none is above */

    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = cpu_to_bits(from[i]) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    const float top = cpu_from_bits(most);
    if (most >= 0x7f800000u || top < ROUND8_LEAST) {
        memset(to, 0, n);
        return most >= 0x7f800000u ? __builtin_nanf("") : 0.0f;
    }
    const float by = 127.0f / top;
    for (uint32_t i = 0; i < n; i++)
        to[i] = (int8_t)(int32_t)__builtin_rintf(from[i] * by);
    return top / 127.0f;
}

static void times(float *x, const float *by, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] *= by[i];
}
