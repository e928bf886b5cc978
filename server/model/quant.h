/*
 * Quantized checkpoints as published: fp8 (one scale, one per row or one per block), compressed-
 * tensors (int8, packed 1 to 8 bits, fp8), GPTQ and AWQ. config.json names the method; what each
 * matrix has is read from the names and shapes of its tensors, so that lists of exceptions need not
 * be understood.
 */
#pragma once

#include "server/model/json.h"
#include "server/model/parameters.h"
#include "server/model/safetensors.h"

#define EK_MXFP4_GROUP 32u /* columns of a block */
#define QUANT_INPUT_GROUP                                                                          \
    128u /* columns of an input that share a scale, with weights in blocks                         \
          */

/* Reads quantization_config. A method or format that is not known is named, with those that are. */
int config_read_quant(const struct model_json *j, struct config_quant_params *ret_quant);

/* What --quantization asks for. */
enum quant_load { QUANT_AS_IT_IS, QUANT_LOAD_INT8, QUANT_LOAD_INT4, QUANT_LOAD_FP8 };
/* Whether a model with these files can be had so: the method of the checkpoint by its own name, or
 * for a plain one int8, int4 or fp8. -EBADMSG with a fault. `name` may be NULL. */
int quant_load_find(const char *name, const struct config_quant_params *p,
                    enum quant_load *ret_load, struct ek_fault *fault);
const char *quant_load_name(enum quant_load load);                  /* "int8"; "" as it is */
const char *quant_method_name(const struct config_quant_params *p); /* "" when there is none */
/* How a matrix of `cols` columns that is quantized while it is loaded will be kept: `wide` as
 * in struct model_choice. */
enum ek_dtype quant_load_form(enum quant_load load, uint32_t cols, bool wide, uint32_t *ret_group);

/* The matrix [rows, cols] called `name` (without ".weight"). 1 with *ret_quant if it is quantized,
 * its tensors then marked used; 0 if it is not, -EBADMSG with a fault. */
int quant_find(const struct st_set *tensors, const struct config_quant_params *p, const char *name,
               uint32_t rows, uint32_t cols, struct ek_quant *ret_quant, struct ek_fault *fault);
/* Whose numbers, where gate and up lie joined and each has its own. */
enum quant_half { HALF_NONE, HALF_GATE, HALF_UP };
/* The same of one of `count` matrices [rows, cols] that lie in tensors of three dimensions, as
 * those of all experts of a layer: NAME.weight_packed or NAME_packed, its scales likewise. */
struct quant_slice {
    const char *name;
    uint32_t index, count, rows, cols;
    enum quant_half half;
};
int quant_find_slice(const struct st_set *tensors, const struct config_quant_params *p,
                     const struct quant_slice *slice, struct ek_quant *ret_quant,
                     struct ek_fault *fault);
/* The same where they lie transposed, [count, cols, all], of which rows from `first` on are meant:
 * numbers of 8 bits with a scale for each row or one, or of E2M1. */
struct quant_lane {
    struct quant_slice of;
    uint32_t first, all;
};
int quant_find_lane(const struct st_set *tensors, const struct config_quant_params *p,
                    const struct quant_lane *lane, struct ek_quant *ret_quant,
                    struct ek_fault *fault);
/* Whether the checkpoint was made for inputs of this matrix that are rounded to its type, and with
 * which scale: its own, or 0 = each row's. False as well when that scale is missing or no scale. */
bool quant_rounds_input(const struct st_set *tensors, const struct config_quant_params *p,
                        const struct ek_quant *q, const char *name, float *ret_scale);
/* Whether a tensor that nothing reads belongs to a quantized model: scales of activations, of the
 * KV cache, shapes. */
bool quant_harmless(const char *name);
