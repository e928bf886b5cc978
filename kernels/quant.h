/*
 * Reading quantized weights (struct ek_quant) as floats, for backends that unpack them when they
 * load.
 */
#pragma once

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
/* Elements [col, col + count) of a row. */
void ek_quant_values(const struct ek_quant *q, const struct ek_weight_files *files, uint32_t row,
                     uint32_t col, uint32_t count, float *ret_values);
