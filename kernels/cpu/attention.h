/* Attention of rows over the KV cache. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct cpu_item;
struct ek_device;
struct ek_op;
struct ek_step;

/* Attends for one item; what `next` (may be NULL) will read is fetched meanwhile. */
void cpu_attend(const struct ek_device *d, const struct ek_step *step, const struct ek_op *op,
                const struct cpu_item *item, const struct cpu_item *next, char *scratch);
/* Combines the parts of an item that were attended for by themselves. */
void cpu_attend_combine(const struct ek_device *d, const struct ek_op *op,
                        const struct cpu_item *item, uint32_t parts, char *scratch);
/* What a part of a span of so many rows leaves, for one head of K and V of `dim` values. */
size_t cpu_partial_floats(uint32_t dim, const struct ek_op *op, uint32_t rows);
size_t cpu_attention_scratch(uint32_t dim);
