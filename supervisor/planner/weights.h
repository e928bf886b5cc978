/*
 * What the weights take in the memory of evenkeel-server's CPU backend, from config.json alone, to
 * the byte where it serves the family: matrices packed in panels, rows of 8 or 4 bits with their
 * scales, the head in 8 bits, an embedding of its own in 16. docs/planning.md works two examples by
 * hand. (A card's formula is plan_weight_bytes(): it stands for published copies.) Pure.
 */
#pragma once

#include "supervisor/planner/shape.h"

/* bits: 16, 8 and 4 for --quantization int8 and int4, 0 as the files are. A checkpoint that is
 * quantized already is what its files hold. */
double plan_own_weights(const struct plan_shape *s, uint32_t bits);
/* Those of one layer with a state; 0 where there is none. */
double plan_recurrent_layer(const struct plan_shape *s, uint32_t bits);
/* By whom it is served: `own` is this machine's CPU. */
double plan_weights_of(const struct plan_shape *s, uint32_t bits, bool own);
