/* Conversion of single numbers between the storage types and f32 on the host, rounding to nearest
 * even. For every backend, and for weights as they are read. */
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/graph.h"

static inline float cpu_from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static inline uint32_t cpu_to_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

static inline float cpu_from_bf16(uint16_t h)
{
    return cpu_from_bits((uint32_t)h << 16);
}

static inline uint16_t cpu_to_bf16(float f)
{
    uint32_t u = cpu_to_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u); /* a quiet NaN, never infinity */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float cpu_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, frac = h & 1023u;

    if (exp == 31)
        return cpu_from_bits(sign | 0x7f800000u | frac << 13);
    if (exp != 0)
        return cpu_from_bits(sign | (exp + 112u) << 23 | frac << 13);
    float tiny = (float)frac * 0x1p-24f;
    return sign ? -tiny : tiny;
}

static inline uint16_t cpu_to_f16(float f)
{
    uint32_t u = cpu_to_bits(f), sign = u >> 16 & 0x8000u, mag = u & 0x7fffffffu;

    if (mag > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (mag >> 13 & 1023u));
    if (mag >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (mag < 0x38800000u) { /* below 2^-14: adding 0.5 rounds the bits at the place of 2^-24 */
        float r = cpu_from_bits(mag) + 0.5f;
        return (uint16_t)(sign | (cpu_to_bits(r) - 0x3f000000u));
    }
    uint32_t r = mag + 0xfffu + (mag >> 13 & 1u);
    return (uint16_t)(sign | (r - 0x38000000u) >> 13);
}

static inline float cpu_from_f8(uint8_t b) /* E4M3: no infinity */
{
    uint32_t sign = (uint32_t)(b & 0x80u) << 24, exponent = b >> 3 & 15u, fraction = b & 7u;

    if (exponent == 15 && fraction == 7)
        return cpu_from_bits(sign | 0x7fc00000u);
    if (exponent != 0)
        return cpu_from_bits(sign | (exponent + 120u) << 23 | fraction << 20);
    float tiny = (float)fraction * 0x1p-9f;
    return sign ? -tiny : tiny;
}

/* E2M1: a sign, two bits of exponent (none of them zero: 1, 2, 4) and one behind the point. */
static inline float cpu_from_f4(uint8_t code)
{
    return cpu_from_bits((code & 8u) << 28 | (code & 7u) << 22) * 0x1p126f;
}

/* Powers of two from 2^-127 to 2^127 (above: infinity), by the exponent and 127. */
static inline float cpu_from_power(uint8_t power)
{
    return cpu_from_bits(power > 0 ? (uint32_t)power << 23 : 0x400000u);
}

static inline uint8_t cpu_to_power(float f)
{
    return (uint8_t)(cpu_to_bits(f) >> 23);
}

/* Rounds to nearest even; what is beyond becomes the largest, 448. */
static inline uint8_t cpu_to_f8(float f)
{
    uint32_t u = cpu_to_bits(f), mag = u & 0x7fffffffu;
    uint8_t sign = (uint8_t)(u >> 24 & 0x80u);

    if (mag > 0x7f800000u)
        return sign | 0x7fu;
    if (mag >= 0x43e00000u) /* 448 */
        return sign | 0x7eu;
    if (mag < 0x3c800000u) { /* below 2^-6: adding 2^14 rounds the bits at the place of 2^-9 */
        float r = cpu_from_bits(mag) + 0x1p14f;
        return (uint8_t)(sign | (cpu_to_bits(r) - 0x46800000u));
    }
    uint32_t r = mag + 0x7ffffu + (mag >> 20 & 1u);
    return (uint8_t)(sign | (r - 0x3c000000u) >> 20);
}

/* Element i of an array of f32, f16, bf16 or int8 that may be unaligned. */
static inline float cpu_load(enum ek_dtype t, const void *p, size_t i)
{
    if (t == EK_I8)
        return (float)((const int8_t *)p)[i];
    if (t == EK_F32) {
        float f;
        memcpy(&f, (const char *)p + i * 4, 4);
        return f;
    }
    uint16_t h;
    memcpy(&h, (const char *)p + i * 2, 2);
    return t == EK_BF16 ? cpu_from_bf16(h) : cpu_from_f16(h);
}

static inline void cpu_store(enum ek_dtype t, void *p, size_t i, float f)
{
    if (t == EK_F32) {
        memcpy((char *)p + i * 4, &f, 4);
        return;
    }
    uint16_t h = t == EK_BF16 ? cpu_to_bf16(f) : cpu_to_f16(f);
    memcpy((char *)p + i * 2, &h, 2);
}
