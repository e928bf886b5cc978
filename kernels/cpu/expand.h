/*
 * Kept numbers of 8 or 4 bits as what a product multiplies with: floats, or pairs of bf16, which
 * hold any such number less its zero exactly (9 bits of sign and size; E4M3 has fewer). Scales are
 * not touched: the sums are multiplied with them.
 *
 * Plain loops over the 32 columns of a panel, compiled once in each tier, which makes vectors of
 * them. What bounds it: arithmetic, some 8 operations for a vector of two rows of numbers.
 */
#pragma once

#include "kernels/cpu/tier.h"
#include "kernels/num.h"

/* Numbers k and k + 1 (k even) of all columns. */
static inline __attribute__((always_inline)) void
expand_two(enum ek_dtype from, const uint8_t *n, const int16_t *zero, float *a, float *b)
{
    for (uint32_t i = 0; i < CPU_PANEL; i++) {
        if (from == EK_I4) {
            a[i] = (float)((int)(n[i] & 15u) - zero[i]);
            b[i] = (float)((int)(n[i] >> 4) - zero[i]);
        } else if (from == EK_F4_E2M1) { /* as for E4M3 below, by 126 */
            uint32_t x = n[i], y = x >> 4;
            a[i] = cpu_from_bits((x & 8u) << 28 | (x & 7u) << 22) * 0x1p126f;
            b[i] = cpu_from_bits((y & 8u) << 28 | (y & 7u) << 22) * 0x1p126f;
        } else if (from == EK_I8) {
            a[i] = (float)((int)(int8_t)n[i] - zero[i]);
            b[i] = (float)((int)(int8_t)n[i + CPU_PANEL] - zero[i]);
        } else { /* the exponent's bias differs by 120 */
            uint32_t x = n[i], y = n[i + CPU_PANEL];
            a[i] = cpu_from_bits((x & 0x80u) << 24 | (x & 0x7fu) << 20) * 0x1p120f;
            b[i] = cpu_from_bits((y & 0x80u) << 24 | (y & 0x7fu) << 20) * 0x1p120f;
        }
    }
}

static inline __attribute__((always_inline)) void expand_of(enum ek_dtype from,
                                                            const struct cpu_expand *e)
{
    const size_t step = ek_dtype_bits(from) == 4 ? CPU_PANEL : 2 * CPU_PANEL;
    const uint8_t *n = e->numbers;
    char *out = e->out;

    for (uint32_t k = 0; k < e->k; k += 2, n += step, out += e->pairs ? 128 : 256) {
        float a[CPU_PANEL], b[CPU_PANEL];
        uint32_t both[CPU_PANEL];
        __builtin_prefetch(n + CPU_EXPAND_AHEAD);
        expand_two(from, n, e->zeros, a, b);
        if (!e->pairs) {
            memcpy(out, a, sizeof(a));
            memcpy(out + sizeof(a), b, sizeof(b));
            continue;
        }
        for (uint32_t i = 0; i < CPU_PANEL; i++)
            both[i] = cpu_to_bits(a[i]) >> 16 | (cpu_to_bits(b[i]) & 0xffff0000u);
        memcpy(out, both, sizeof(both));
    }
}

static void expand(const struct cpu_expand *e)
{
    switch (e->from) {
    case EK_I8: expand_of(EK_I8, e); break;
    case EK_I4: expand_of(EK_I4, e); break;
    case EK_F4_E2M1: expand_of(EK_F4_E2M1, e); break;
    case EK_F8_E4M3: expand_of(EK_F8_E4M3, e); break;
    case EK_F32:
    case EK_F16:
    case EK_BF16: break; /* not kept numbers */
    }
}

/* A panel's columns of `rows` rows: c = from * scale, or c += from * scale. */
static void scale_panel(float *c, size_t c_stride, const float *from, size_t from_stride,
                        const float *scale, uint32_t rows, bool add)
{
    for (uint32_t row = 0; row < rows; row++, c += c_stride, from += from_stride)
        for (uint32_t i = 0; i < CPU_PANEL; i++)
            c[i] = add ? c[i] + from[i] * scale[i] : from[i] * scale[i];
}
