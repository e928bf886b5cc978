/* Numbers that tell models apart: the server and its engine's process, two nodes, and a file of
 * prefixes must have the same. */
#pragma once

#include <stdint.h>

#include "kernels/backend.h"

/* What a graph computes, as a number: the same for the same list, shapes and constants. */
uint64_t ek_graph_sum(const struct ek_graph *g);
/* Of some bytes of many of its weights: tells a model from another one of the same shape. */
uint64_t ek_weight_sum(const struct ek_graph *g, const struct ek_weight_files *files);
