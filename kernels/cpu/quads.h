/*
 * Products of whole numbers: weights of 8 or 4 bits with inputs that are rounded to 8 bits as they
 * come, a scale for each QUADS_GROUP of them. The sum of a group is exact; it is then multiplied
 * with the scale of the inputs and added in f32 to the others that share a scale of weights; their
 * sum is multiplied with that, at the end of its group or of the call, and added to what c holds.
 * With zeros of the weights' own each group is multiplied with both scales at once. So an element's
 * value is a fixed sequence of operations, whatever stands beside it.
 *
 * Panels hold, for each four (8 bits) or eight (4 bits) inputs, 32 columns of four bytes: the
 * numbers of adjacent inputs, as 0 to 255 with 128 as zero; of 4 bits those of the first four
 * inputs in the low halves and those of the next four in the high halves, with 8 as zero, or codes
 * of EK_F4_E2M1, which a table makes twice their number and 12: there the scales of inputs are half
 * of what they were. Inputs are padded to whole eights with zeros.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/graph.h"

#define QUADS_GROUP 32u
#define QUADS_LEAST                                                                                \
    0x03000000         /* bits of 2^-121: a group whose largest input is less is all zeros */
#define QUADS_EIGHT 8u /* inputs that lie together: the numbers of a row are padded to that */

struct cpu_quads {
    enum ek_dtype dtype;       /* EK_I8, EK_I4 or EK_F4_E2M1 */
    uint32_t rows, panels, k;  /* at most CPU_ROW_CHUNK rows of CPU_K_CHUNK inputs */
    uint32_t first;            /* where in the row x begins, a multiple of QUADS_GROUP */
    uint32_t group;            /* inputs with one scale of weights, a multiple of QUADS_GROUP */
    const float *x;            /* [rows][k] */
    size_t x_stride, c_stride; /* floats */
    const void *w;             /* the first panel, from its begin */
    size_t panel_bytes;
    /* in a panel: [groups][32] f32 (EK_F4_E2M1: cpu_from_power()), int16; zero_at 0 = none of its
     * own */
    size_t scale_at, zero_at;
    float *c;
    bool add;     /* continues from what c holds */
    bool rounded; /* work holds these inputs already: a call with them left them there */
    char *work;   /* QUADS_WORK(rows, k, cpu_ops.quads_bytes) bytes */
};

/* Rounded inputs of `bytes` each; for each group the scale, and the sum times the number that
 * stands for zero. */
#define QUADS_PADDED(k) (((size_t)(k) + QUADS_GROUP - 1) / QUADS_GROUP * QUADS_GROUP)
#define QUADS_WORK(rows, k, bytes)                                                                 \
    ((size_t)(rows) * ((bytes)*QUADS_PADDED(k) + QUADS_PADDED(k) / QUADS_GROUP * 8))
#define QUADS_BYTES_MOST 2

/* Byte of an input's number in a panel; of 4 bits it is in the high half when `k & 4`. */
static inline size_t cpu_quads_index(enum ek_dtype t, uint32_t k, uint32_t col)
{
    if (t != EK_I8)
        return (size_t)(k / 8) * 128 + col * 4 + k % 4;
    return (size_t)(k / 4) * 128 + col * 4 + k % 4;
}

/* What stands for zero in a panel, or in the table. */
static inline uint32_t cpu_quads_zero(enum ek_dtype t)
{
    return t == EK_I8 ? 128 : t == EK_I4 ? 8 : 12;
}

/* Twice the numbers of EK_F4_E2M1, and 12. */
#define QUADS_TABLE_F4 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0

/* Of the inputs those from `at` on, about `most` of them: with whole groups of weights, but for the
 * last and where each of these is one. */
static inline struct cpu_quads cpu_quads_part(const struct cpu_quads *q, uint32_t at, uint32_t most)
{
    const uint32_t begin = q->first + at, left = q->k - at;
    uint32_t end = (begin + most) / q->group * q->group;
    struct cpu_quads part = *q;

    if (end <= begin)
        end = (begin / q->group + 1) * q->group;
    part.first = begin;
    part.k = end - begin < left ? end - begin : left;
    part.add = q->add || at > 0;
    return part;
}

/* For machines with AVX2 and FMA; with AVX512_VNNI; and with AMX_INT8, too: the same bits. */
void cpu_quads_avx2(const struct cpu_quads *q);
void cpu_quads_vnni(const struct cpu_quads *q);
void cpu_quads_amx(const struct cpu_quads *q);
