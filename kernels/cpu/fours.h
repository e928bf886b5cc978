/* Products of four adjacent whole numbers of 8 bits, 16 lanes at a time (AVX512_VNNI). */
#pragma once

#include <immintrin.h>

/* sum += a x b, `a` without a sign. The compiler's own intrinsic is not used: GCC 12 copies sums
 * before it and reads the same vector again and again. */
static inline __attribute__((always_inline)) void fours_add(__m512i *sum, __m512i a, __m512i b)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(a), "v"(b));
}
