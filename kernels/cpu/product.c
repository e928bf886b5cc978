/*
 * A product with some panels of a weight. Plain types go to the tier's gemm in pieces of inputs
 * that stay in the caches. Kept numbers (8 or 4 bits) are expanded, a few panels and some columns
 * at a time, into scratch that stays in the first cache, multiplied there, and the sums scaled: at
 * the end of a row, or for each group. So they cost memory and bandwidth of what they are, and the
 * arithmetic of the graph's type plus the expansion, which many rows share. Tiers that multiply
 * whole numbers take those of 8 and 4 bits as they are, in bf16 graphs.
 *
 * What an element gets does not depend on how many rows or panels are done together.
 */
#include <string.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/product.h"
#include "kernels/num.h"
#include "kernels/quant.h"

_Static_assert(CPU_K_CHUNK % CPU_K_STEP == 0, "sums are continued");
_Static_assert(CPU_GEMM_WORK(CPU_ROW_CHUNK, CPU_K_CHUNK) <= CPU_INPUT_BYTES, "pairs fit");

/* Rounded inputs of a product: those of each CPU_K_CHUNK by themselves, or all in one place. */
struct inputs {
    size_t step; /* bytes from one to the next; 0: there is not room for all */
    bool there;  /* they are from the product before */
};

/* `each`: bytes of a whole chunk. */
static struct inputs inputs_of(const struct ek_device *d, const struct cpu_product *p, size_t each)
{
    const struct cpu_weight *w = p->w, *before = p->before;
    const size_t chunks = (w->cols + CPU_K_CHUNK - 1) / CPU_K_CHUNK;
    const bool fit = chunks * each <= CPU_INPUT_BYTES;

    return (struct inputs){.step = fit ? each : 0,
                           .there = fit && before && before->cols == w->cols &&
                                    before->dtype == w->dtype && before->ops == w->ops &&
                                    cpu_in_quads(d, before) == cpu_in_quads(d, w)};
}

static void plain(const struct ek_device *d, const struct cpu_product *p)
{
    const struct cpu_weight *w = p->w;
    const char *at = d->weight_memory.at + w->at + p->panel * w->panel_bytes;
    const uint32_t chunk = CPU_K_CHUNK;
    const struct inputs in = inputs_of(d, p, CPU_GEMM_WORK(p->rows, chunk));
    const char *next = p->next > 0 ? d->weight_memory.at + w->at + p->next * w->panel_bytes : NULL;
    const size_t input_bytes = CPU_PANEL * (ek_dtype_bits(w->dtype) / 8);

    for (uint32_t k = 0; k < w->cols; k += chunk) {
        struct cpu_gemm g = {
            .dtype = w->dtype,
            .rows = p->rows,
            .panels = p->panels,
            .k = w->cols - k < chunk ? w->cols - k : chunk,
            .x = p->x + k,
            .x_stride = p->x_stride,
            .w = at + k * input_bytes,
            .panel_bytes = w->panel_bytes,
            .next = w->cols - k > chunk ? at + (k + chunk) * input_bytes : next,
            .c = p->c,
            .c_stride = p->c_stride,
            .add = k > 0,
            .wide = w->wide,
            .rounded = in.there,
            .work = (uint32_t *)(void *)(p->scratch + k / chunk * in.step),
        };
        w->ops->gemm(&g);
    }
}

/* Some panels of kept numbers being multiplied. */
struct kept_rows {
    const struct ek_device *d;
    const struct cpu_product *p;
    const char *at; /* the first of `panels` */
    uint32_t panels;
    bool pairs;
    float *c;
    size_t c_stride;
};

/* Columns [k, k + n) of one group. */
static void expand_some(const struct kept_rows *q, uint32_t k, uint32_t n, char *out,
                        size_t out_bytes)
{
    static const int16_t none[2][CPU_PANEL] = {{0},
                                               {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8,
                                                8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8}};
    const struct cpu_weight *w = q->p->w;

    for (uint32_t i = 0; i < q->panels; i++) {
        const char *panel = q->at + i * w->panel_bytes;
        struct cpu_expand e = {.from = w->dtype,
                               .pairs = q->pairs,
                               .numbers =
                                   panel + (size_t)k * CPU_PANEL * ek_dtype_bits(w->dtype) / 8,
                               .zeros = none[w->dtype == EK_I4],
                               .k = n,
                               .out = out + i * out_bytes};
        if (w->zero_at > 0)
            e.zeros = (const int16_t *)(const void *)(panel + w->zero_at) +
                      (size_t)(k / w->group) * CPU_PANEL;
        w->ops->expand(&e);
    }
}

/* Sums of the columns [k, end) of one group into q->c. */
static void sum_group(const struct kept_rows *q, uint32_t k, uint32_t end)
{
    const uint32_t some = CPU_EXPAND_BYTES / CPU_EXPAND_PANELS / CPU_PANEL / (q->pairs ? 2 : 4);
    char *out = q->p->scratch + CPU_INPUT_BYTES;
    const size_t out_bytes = CPU_EXPAND_BYTES / CPU_EXPAND_PANELS;

    for (uint32_t at = k; at < end; at += some) {
        uint32_t n = end - at < some ? end - at : some;
        expand_some(q, at, n, out, out_bytes);
        struct cpu_gemm g = {
            .dtype = q->pairs ? EK_BF16 : EK_F32,
            .rows = q->p->rows,
            .panels = q->panels,
            .k = n,
            .x = q->p->x + at,
            .x_stride = q->p->x_stride,
            .w = out,
            .panel_bytes = out_bytes,
            .c = q->c,
            .c_stride = q->c_stride,
            .add = at > k,
            .work = (uint32_t *)(void *)q->p->scratch,
        };
        q->p->w->ops->gemm(&g);
    }
}

static void scale_group(const struct kept_rows *q, uint32_t group, float *c)
{
    const struct cpu_weight *w = q->p->w;

    for (uint32_t i = 0; i < q->panels; i++) {
        const char *at = q->at + i * w->panel_bytes + w->scale_at;
        const float *scale = (const float *)(const void *)at + (size_t)group * CPU_PANEL;
        float power[CPU_PANEL];
        for (uint32_t k = 0; k < CPU_PANEL && w->powers; k++)
            power[k] = cpu_from_power((uint8_t)at[(size_t)group * CPU_PANEL + k]);
        w->ops->scale_panel(c + (size_t)i * CPU_PANEL, q->p->c_stride, q->c + (size_t)i * CPU_PANEL,
                            q->c_stride, w->powers ? power : scale, q->p->rows, group > 0);
    }
}

static void kept(const struct ek_device *d, const struct cpu_product *p)
{
    const struct cpu_weight *w = p->w;
    const char *first = d->weight_memory.at + w->at;
    float *sums = (float *)(void *)(p->scratch + CPU_INPUT_BYTES + CPU_EXPAND_BYTES);

    for (uint32_t panel = 0; panel < p->panels; panel += CPU_EXPAND_PANELS) {
        float *c = p->c + (size_t)panel * CPU_PANEL;
        struct kept_rows q = {.d = d,
                              .p = p,
                              .at = first + (p->panel + panel) * w->panel_bytes,
                              .panels = p->panels - panel,
                              .pairs = d->graph->dtype == EK_BF16 && w->ops->pairs,
                              .c = w->groups > 1 ? sums : c};
        q.panels = q.panels < CPU_EXPAND_PANELS ? q.panels : CPU_EXPAND_PANELS;
        q.c_stride = w->groups > 1 ? CPU_EXPAND_PANELS * CPU_PANEL : p->c_stride;
        for (uint32_t group = 0; group < w->groups; group++) {
            uint32_t k = group * w->group;
            sum_group(&q, k, w->cols - k < w->group ? w->cols : k + w->group);
            scale_group(&q, group, c);
        }
    }
}

_Static_assert(QUADS_WORK(CPU_ROW_CHUNK, CPU_K_CHUNK, QUADS_BYTES_MOST) <= CPU_INPUT_BYTES,
               "rounded inputs fit");

#define FEW_ROWS 8u /* whose inputs of a whole row stay in the second cache beside the weights */

/* Some panels, their inputs a chunk after another. */
static void some_panels(const struct cpu_product *p, struct cpu_quads q, const struct inputs *in)
{
    const struct cpu_weight *w = p->w;

    for (uint32_t k = 0; k < w->cols; k += CPU_K_CHUNK) {
        q.first = k;
        q.k = w->cols - k < CPU_K_CHUNK ? w->cols - k : CPU_K_CHUNK;
        q.x = p->x + k;
        q.add = k > 0;
        q.work = p->scratch + k / CPU_K_CHUNK * in->step;
        w->ops->quads(&q);
    }
}

/* Numbers of 8 or 4 bits as they are, with inputs rounded to 8 bits. */
static void whole_numbers(const struct ek_device *d, const struct cpu_product *p)
{
    const struct cpu_weight *w = p->w;
    const struct inputs in = inputs_of(d, p, QUADS_WORK(p->rows, CPU_K_CHUNK, w->ops->quads_bytes));
    struct cpu_quads q = {.dtype = w->dtype,
                          .rows = p->rows,
                          .panels = p->panels,
                          .group = w->groups > 1 ? w->group : (uint32_t)QUADS_PADDED(w->cols),
                          .x_stride = p->x_stride,
                          .c_stride = p->c_stride,
                          .w = d->weight_memory.at + w->at + p->panel * w->panel_bytes,
                          .panel_bytes = w->panel_bytes,
                          .scale_at = w->scale_at,
                          .zero_at = w->zero_at,
                          .c = p->c,
                          .rounded = in.there};

    if (p->rows > FEW_ROWS || w->cols <= CPU_K_CHUNK || in.step == 0 || !w->ops->quads_in_order) {
        some_panels(p, q, &in);
        return;
    }
    q.panels = 1;
    for (uint32_t panel = 0; panel < p->panels; panel++) {
        some_panels(p, q, &in);
        q.w = (const char *)q.w + w->panel_bytes;
        q.c += CPU_PANEL;
        q.rounded = true;
    }
}

void cpu_multiply(const struct ek_device *d, const struct cpu_product *p)
{
    if (ek_dtype_packed(p->w->dtype) && cpu_in_quads(d, p->w))
        whole_numbers(d, p);
    else if (ek_dtype_packed(p->w->dtype))
        kept(d, p);
    else
        plain(d, p);
}

float cpu_kept_value(const struct ek_device *d, const struct cpu_weight *w, const char *panel,
                     uint32_t k, uint32_t col)
{
    const uint8_t *numbers = (const uint8_t *)panel;
    const size_t at = (size_t)(k / w->group) * CPU_PANEL + col;
    int16_t zero = ek_kept_zero(w->dtype);
    float scale, number;

    if (w->powers)
        scale = cpu_from_power((uint8_t)panel[w->scale_at + at]);
    else
        memcpy(&scale, panel + w->scale_at + at * sizeof(scale), sizeof(scale));
    if (w->zero_at > 0)
        memcpy(&zero, panel + w->zero_at + at * sizeof(zero), sizeof(zero));
    if (w->dtype == EK_F4_E2M1) {
        const bool quads = cpu_in_quads(d, w);
        const size_t byte =
            quads ? cpu_quads_index(w->dtype, k, col) : (size_t)(k / 2) * CPU_PANEL + col;
        const uint32_t up = quads ? k & 4u : k % 2 * 4;
        return cpu_from_f4(numbers[byte] >> up & 15u) * scale;
    }
    if (w->dtype == EK_F8_E4M3)
        return cpu_from_f8(numbers[(size_t)k * CPU_PANEL + col]) * scale;
    if (cpu_in_quads(d, w)) {
        uint8_t byte = numbers[cpu_quads_index(w->dtype, k, col)];
        number = w->dtype == EK_I4 ? (float)(byte >> (k & 4u) & 15u) : (float)(byte - 128);
    } else if (w->dtype == EK_I4) {
        uint8_t byte = numbers[(size_t)(k / 2) * CPU_PANEL + col];
        number = (float)(byte >> k % 2 * 4 & 15u);
    } else {
        number = (float)(int8_t)numbers[(size_t)k * CPU_PANEL + col];
    }
    return (number - (float)zero) * scale;
}
