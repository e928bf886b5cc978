/*
 * Kept numbers as pairs of bf16 with AVX-512 (BW): what expand.h says, by 16 columns of two rows of
 * numbers at a time, in some 4 (int4 without zeros) to 11 (fp8) instructions; about as fast as the
 * memory delivers them.
 */
#pragma once

#include <immintrin.h>

#include "kernels/cpu/tier.h"

/* Bytes of 16 columns, widened. */
static inline __m512i pairs_bytes(const uint8_t *n)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)n));
}

static inline __m512i pairs_signed(const uint8_t *n)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)n));
}

/* Whole numbers of at most 9 bits: exact in the upper half of a float. */
static inline __m512i pairs_join(__m512i a, __m512i b)
{
    __m512i low = _mm512_castps_si512(_mm512_cvtepi32_ps(a));
    __m512i high = _mm512_castps_si512(_mm512_cvtepi32_ps(b));
    const __m512i upper = _mm512_set1_epi32(-65536);
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(low, 16), high, upper, 0xf8); /* l | h & u */
}

static inline __m512i pairs_zero(const int16_t *zero)
{
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256((const void *)zero));
}

/* Number 0 to 15 less 8, twice: the fifth bit of an index is the other number's. */
static inline __m512i pairs_table4(void)
{
    const uint64_t low[4] = {0xc0a0c0c0c0e0c100u, 0xbf80c000c040c080u, 0x404040003f800000u,
                             0x40e040c040a04080u};
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)low));
}

/* The sixteen numbers of EK_F4_E2M1, twice. */
static inline __m512i pairs_table_f4(void)
{
    const uint64_t all[4] = {0x3fc03f803f000000u, 0x40c0408040404000u, 0xbfc0bf80bf008000u,
                             0xc0c0c080c040c000u};
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)all));
}

/* `plain`: numbers are those of the table. */
static inline void pairs_four(const struct cpu_expand *e, bool plain, __m512i table)
{
    const __m512i mask = _mm512_set1_epi32(15);
    const __m512i zero[2] = {pairs_zero(e->zeros), pairs_zero(e->zeros + 16)};
    const uint8_t *n = e->numbers;
    char *out = e->out;

    for (uint32_t k = 0; k < e->k; k += 2, n += CPU_PANEL, out += 128)
        for (uint32_t h = 0; h < 2; h++) {
            if (h == 0) /* one line holds two rows of bytes */
                __builtin_prefetch(n + CPU_EXPAND_AHEAD);
            __m512i both = pairs_bytes(n + h * 16), r;
            if (plain)
                r = _mm512_permutexvar_epi16(_mm512_or_si512(both, _mm512_slli_epi32(both, 12)),
                                             table);
            else
                r = pairs_join(_mm512_sub_epi32(_mm512_and_si512(both, mask), zero[h]),
                               _mm512_sub_epi32(_mm512_srli_epi32(both, 4), zero[h]));
            _mm512_storeu_si512(out + h * 64, r);
        }
}

static inline void pairs_int8(const struct cpu_expand *e)
{
    const __m512i zero[2] = {pairs_zero(e->zeros), pairs_zero(e->zeros + 16)};
    const uint8_t *n = e->numbers;
    char *out = e->out;

    for (uint32_t k = 0; k < e->k; k += 2, n += 2 * CPU_PANEL, out += 128)
        for (uint32_t h = 0; h < 2; h++) {
            __builtin_prefetch(n + h * CPU_PANEL + CPU_EXPAND_AHEAD);
            __m512i a = _mm512_sub_epi32(pairs_signed(n + h * 16), zero[h]);
            __m512i b = _mm512_sub_epi32(pairs_signed(n + CPU_PANEL + h * 16), zero[h]);
            _mm512_storeu_si512(out + h * 64, pairs_join(a, b));
        }
}

/* In halves of a lane: the exponent moves by 3 places and gets the other bias; numbers without an
 * exponent come from a table of eight. */
static inline void pairs_float8(const struct cpu_expand *e)
{
    static const uint16_t tiny[32] = {0x0000, 0x3b00, 0x3b80, 0x3bc0,
                                      0x3c00, 0x3c20, 0x3c40, 0x3c60};
    const __m512i table = _mm512_loadu_si512(tiny), bias = _mm512_set1_epi16(120 << 7);
    const __m512i size = _mm512_set1_epi16(0x7f), exponent = _mm512_set1_epi16(0x78);
    const __m512i sign = _mm512_set1_epi16((short)0x8000);
    const uint8_t *n = e->numbers;
    char *out = e->out;

    for (uint32_t k = 0; k < e->k; k += 2, n += 2 * CPU_PANEL, out += 128)
        for (uint32_t h = 0; h < 2; h++) {
            __builtin_prefetch(n + h * CPU_PANEL + CPU_EXPAND_AHEAD);
            __m512i b = pairs_bytes(n + CPU_PANEL + h * 16);
            __m512i w = _mm512_or_si512(pairs_bytes(n + h * 16), _mm512_slli_epi32(b, 16));
            __m512i r = _mm512_add_epi16(_mm512_slli_epi16(_mm512_and_si512(w, size), 4), bias);
            r = _mm512_mask_permutexvar_epi16(r, _mm512_testn_epi16_mask(w, exponent), w, table);
            r = _mm512_ternarylogic_epi32(r, _mm512_slli_epi16(w, 8), sign, 0xf8);
            _mm512_storeu_si512(out + h * 64, r);
        }
}

static void pair_expand(const struct cpu_expand *e)
{
    bool plain = true;

    if (!e->pairs) {
        expand(e);
        return;
    }
    switch (e->from) {
    case EK_I4:
        for (uint32_t i = 0; i < CPU_PANEL; i++)
            plain = plain && e->zeros[i] == 8;
        pairs_four(e, plain, pairs_table4());
        break;
    case EK_F4_E2M1: pairs_four(e, true, pairs_table_f4()); break;
    case EK_I8: pairs_int8(e); break;
    case EK_F8_E4M3: pairs_float8(e); break;
    case EK_F32:
    case EK_F16:
    case EK_BF16: break; /* not kept numbers */
    }
}
