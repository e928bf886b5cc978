/*
 * Quantized weights: reading those of files (struct ek_quant) as floats, for backends that unpack
 * them when they load, or as numbers and scales, for those that keep them; and quantizing plain
 * ones.
 *
 * Kept numbers are bytes: EK_I8 as int8, EK_F8_E4M3, and for EK_I4 0 to 15. Their value is
 * (number - zero) * scale; without a zero of its own it is ek_kept_zero(). Those of EK_F4_E2M1 are
 * its codes and have no zeros; they may be kept as EK_I8 too, twice the number at half the scale.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/graph.h"

struct ek_fault;
struct ek_weight_files;

/* Whether all ranges lie within the files, with shapes that fit each other. -EBADMSG with a fault
 * that names `name`. ek_quant_values() relies on it. */
int ek_quant_check(const struct ek_quant *q, const char *name, const struct ek_weight_files *files,
                   struct ek_fault *fault);
/* The same for all parts of a weight of the graph, quantized or not; they make up its rows. */
int ek_weight_check(const struct ek_graph *g, uint32_t index, const struct ek_weight_files *files,
                    struct ek_fault *fault);
/* For loaders, in the order of weights: has the system read what weight `next` and some after it
 * need, from *ahead on, which is moved; gives back the pages of all files that were read. So a file
 * is read once, from beginning to end while weights are packed, and little of it stays resident. */
void ek_weights_fetch(const struct ek_graph *g, const struct ek_weight_files *files, uint32_t next,
                      uint32_t *ahead);
void ek_weights_forget(const struct ek_weight_files *files);
#define EK_WEIGHTS_RESIDENT (32u << 20) /* bytes of packed weights between two of these */
/* Elements [col, col + count) of a row. */
void ek_quant_values(const struct ek_quant *q, const struct ek_weight_files *files, uint32_t row,
                     uint32_t col, uint32_t count, float *ret_values);

static inline bool ek_dtype_packed(enum ek_dtype t)
{
    return t == EK_I8 || t == EK_I4 || t == EK_F8_E4M3 || t == EK_F4_E2M1;
}

static inline int16_t ek_kept_zero(enum ek_dtype t)
{
    return t == EK_I4 ? 8 : 0;
}

/* Numbers [col, col + count) of a row, to be kept as `t`: what ek_quant_form() gave, or EK_I8 where
 * that was of 4 bits; and scale and zero of the group that `col` lies in. */
void ek_quant_numbers(const struct ek_quant *q, const struct ek_weight_files *files,
                      enum ek_dtype t, uint32_t row, uint32_t col, uint32_t count,
                      uint8_t *ret_numbers);
void ek_quant_scale(const struct ek_quant *q, const struct ek_weight_files *files, enum ek_dtype t,
                    uint32_t row, uint32_t col, float *ret_scale, int16_t *ret_zero);

/* Quantizing a group of a row: the scale, then the numbers (no zeros). EK_I8 and EK_F8_E4M3 take
 * the scale of the largest magnitude, which is all they ask for; EK_I4 that of the least squared
 * error of those tried, from at most EK_I4_GROUP values. */
#define EK_I4_GROUP 128u
float ek_quantize_most(const float *values, uint32_t count, float most); /* largest magnitude */
float ek_quantize_scale(enum ek_dtype t, float most);                    /* EK_I8, EK_F8_E4M3 */
float ek_quantize_scale4(const float *values, uint32_t count);
void ek_quantize(enum ek_dtype t, float scale, const float *values, uint32_t count,
                 uint8_t *ret_numbers);
