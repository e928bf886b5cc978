/* Products of rows with packed weights. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/device.h"

/* c[rows, panels * 32] = x * w^T of some panels of a weight, of any type. */
struct cpu_product {
    const struct cpu_weight *w;
    const float *x;
    size_t x_stride;
    float *c; /* at the first panel */
    size_t c_stride;
    uint32_t rows, panel, panels; /* rows <= CPU_ROW_CHUNK */
    uint32_t next; /* panel of w that is multiplied after these, to be fetched; 0: not known */
    char *scratch; /* CPU_PRODUCT_BYTES */
    /* What was multiplied with the same rows of x just before, in this scratch, which has not
     * been written to since; NULL: nothing. Rounded inputs are used again where all had room. */
    const struct cpu_weight *before;
};
void cpu_multiply(const struct ek_device *d, const struct cpu_product *p);
/* What a kept number of a panel is worth. */
float cpu_kept_value(const struct ek_device *d, const struct cpu_weight *w, const char *panel,
                     uint32_t k, uint32_t col);
#define CPU_ROW_CHUNK     128u       /* rows of a product done together: their inputs stay in L2 */
#define CPU_K_CHUNK       1024u      /* and inputs, so that the panel stays in L1 and L2; even */
#define CPU_INPUT_BYTES   (3u << 19) /* of CPU_ROW_CHUNK rows 9216 rounded inputs of a byte */
#define CPU_EXPAND_PANELS 4u         /* panels of kept numbers that are expanded together */
#define CPU_EXPAND_BYTES  (32u << 10)
/* Rounded inputs, expanded numbers, the sums of a group. */
#define CPU_PRODUCT_BYTES                                                                          \
    (CPU_INPUT_BYTES + CPU_EXPAND_BYTES +                                                          \
     (size_t)CPU_ROW_CHUNK * CPU_EXPAND_PANELS * CPU_PANEL * sizeof(float))

/* Bytes of a scale in a panel. */
static inline size_t cpu_scale_bytes(const struct cpu_weight *w)
{
    return w->powers ? 1 : sizeof(float);
}

/* Whether a weight is multiplied as whole numbers and lies in memory so. */
static inline bool cpu_in_quads(const struct ek_device *d, const struct cpu_weight *w)
{
    return w->ops->quads && d->graph->dtype == EK_BF16 &&
           (w->dtype == EK_I8 || w->dtype == EK_I4 || w->powers) &&
           (w->groups == 1 || w->group % QUADS_GROUP == 0);
}
