/* What graphs the CPU computes, and where everything lies in its memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cpu_cells;
struct cpu_memory;
struct cpu_shape;
struct cpu_value;
struct cpu_weight;
struct ek_fault;
struct ek_graph;
struct ek_plan_request;

int cpu_graph_offered(const struct ek_graph *g, struct ek_fault *fault); /* -EBADMSG, -ENOTSUP */
void cpu_weight_shape(const struct ek_graph *g, uint32_t index, struct cpu_weight *ret_weight);
/* Fills in the layers of the KV cache, unless `cells` is NULL; bytes of a block, SIZE_MAX: too
 * many.
 */
size_t cpu_cells_of(const struct ek_graph *g, uint32_t block_size, struct cpu_cells *cells);
/* weights, values and rope_at may be NULL (only sizes wanted), else are filled in. -EOVERFLOW. */
int cpu_shape_of(const struct ek_plan_request *q, uint32_t threads, struct cpu_shape *ret_shape,
                 struct cpu_weight *weights, struct cpu_value *values, size_t *rope_at);
/* Floats from row to row of a value: whole panels. Rows that are a multiple of 4096 bytes apart
 * would all lie in the same few places of the first cache, which the rows of a block would then
 * take from each other. */
uint32_t cpu_row_stride(uint32_t width);
/* Zeroed memory, in huge pages where that can be had if `huge`. EK_EDEVMEM. */
int cpu_map(size_t bytes, bool huge, struct cpu_memory *ret_memory);
void cpu_unmap(struct cpu_memory *m);
