/* What both forms of attention with 16 lanes weigh with. */
#pragma once

#include <immintrin.h>

/* 2^x for x up to about 0, to 4e-6: weights are rounded to 8 or 16 bits. */
static inline __attribute__((always_inline)) __m512 power_of_2(__m512 x)
{
    x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x); /* not a number stays none */
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 r = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(0.0096663685f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.055921976f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.24022349f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.69312105f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}
