/*
 * Quantized checkpoints as published: fp8 (one scale, one per row or one per block), compressed-
 * tensors (int8, packed 1 to 8 bits, fp8), GPTQ and AWQ. config.json names the method; what each
 * matrix has is read from the names and shapes of its tensors, so that lists of exceptions need not
 * be understood.
 */
#pragma once

#include "server/model/config.h"
#include "server/model/safetensors.h"

/* Reads quantization_config. A method or format that is not known is named, with those that are. */
int config_read_quant(const struct model_json *j, struct config_quant_params *ret_quant);

/* The matrix [rows, cols] called `name` (without ".weight"). 1 with *ret_quant if it is quantized,
 * its tensors then marked used; 0 if it is not, -EBADMSG with a fault. */
int quant_find(const struct st_set *tensors, const struct config_quant_params *p, const char *name,
               uint32_t rows, uint32_t cols, struct ek_quant *ret_quant, struct ek_fault *fault);
/* Whether a tensor that nothing reads belongs to a quantized model: scales of activations, of the
 * KV cache, shapes. */
bool quant_harmless(const char *name);
