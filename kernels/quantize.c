/*
 * Quantizing plain weights: symmetric, to the nearest. 8 bits take the largest magnitude of a row
 * as it is. With 4 bits a few large values cost all others precision, so a group tries scales down
 * to 0.65 of that, of both signs (15 numbers on one side of zero, 16 with it), and keeps the one
 * with the least squared error.
 *
 * The loops are written so that any compiler makes vectors of them: this is most of the time that
 * loading with --quantization takes.
 */
#include <math.h>
#include <string.h>

#include "kernels/num.h"
#include "kernels/quant.h"

#define TRIED 8u    /* scales of each sign */
#define STEP  0.05f /* of the largest, between two of them */

/* Adding this to a float below 2^22 rounds it to a whole number, which its low bits then hold. */
#define ROUND 12582912.0f

static inline __attribute__((always_inline)) float quantize_bound(float x, float least, float most)
{
    x = x > most ? most : x;
    return x < least ? least : x;
}

float ek_quantize_most(const float *values, uint32_t count, float most)
{
    for (uint32_t i = 0; i < count; i++) {
        float size = fabsf(values[i]);
        most = size > most ? size : most;
    }
    return most;
}

float ek_quantize_scale(enum ek_dtype t, float most)
{
    return most / (t == EK_I8 ? 127.0f : 448.0f);
}

static float inverse(float scale)
{
    return scale != 0.0f ? 1.0f / scale : 0.0f;
}

#define LANES 64u /* so many that a compiler makes vectors of the loop and does not unroll it */

/* In LANES sums, whatever the count: what lies behind it is zero and has no error. */
static inline __attribute__((always_inline)) float error_of(const float *values, uint32_t count,
                                                            float scale)
{
    const float by = inverse(scale);
    float part[LANES] = {0}, sum = 0.0f;

    for (const float *v = values, *end = values + count; v < end; v += LANES)
        for (size_t k = 0; k < LANES; k++) {
            float off = quantize_bound(v[k] * by + ROUND - ROUND, -8.0f, 7.0f) * scale - v[k];
            part[k] += off * off;
        }
    for (uint32_t k = 0; k < LANES; k++)
        sum += part[k];
    return sum;
}

static float error4(const float *values, uint32_t count, float scale)
{
    return error_of(values, count, scale);
}

#if defined(__x86_64__)
/* Twice the lanes. Without fused multiply-adds, so that the same scale wins on every machine. */
__attribute__((target("avx2"))) static float error4_avx2(const float *values, uint32_t count,
                                                         float scale)
{
    return error_of(values, count, scale);
}
#endif

typedef float (*error_fn)(const float *values, uint32_t count, float scale);

static error_fn error_here(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        return error4_avx2;
#endif
    return error4;
}

float ek_quantize_scale4(const float *values, uint32_t count)
{
    const float most = ek_quantize_most(values, count, 0.0f);
    float best = most / 8.0f, least = INFINITY, room[EK_I4_GROUP] = {0};

    const error_fn error_at = error_here();

    memcpy(room, values, count * sizeof(*values));
    for (uint32_t i = 0; i < 2 * TRIED; i++) {
        const uint32_t step = i / 2;
        float scale = most / 8.0f * (1.0f - STEP * (float)step) * (i % 2 ? -1.0f : 1.0f);
        float error = error_at(room, count, scale);
        if (error < least) {
            least = error;
            best = scale;
        }
    }
    return best;
}

void ek_quantize(enum ek_dtype t, float scale, const float *values, uint32_t count,
                 uint8_t *ret_numbers)
{
    const float by = inverse(scale), most = t == EK_I8 ? 127.0f : 7.0f;
    const float least = t == EK_I8 ? -127.0f : -8.0f;
    const uint32_t middle = (uint32_t)ek_kept_zero(t);

    if (t == EK_F8_E4M3) {
        for (uint32_t i = 0; i < count; i++)
            ret_numbers[i] = cpu_to_f8(values[i] * by);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        float x = quantize_bound(values[i] * by, least, most) + ROUND;
        ret_numbers[i] = (uint8_t)(cpu_to_bits(x) + middle);
    }
}
