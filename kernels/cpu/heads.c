/*
 * A product for each head by itself, as latent attention has them: queries into the space of the
 * latent, and what was attended out of it. All heads are one piece of work, in panels of 32 columns
 * and blocks of rows, of which each member takes a run. A head's last panel may be wider than the
 * head: it goes through a buffer, for the columns behind it are the next head's.
 */
#include <string.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/heads.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/rows.h"

/* Some panels of a head, for some rows. */
struct heads_part {
    uint32_t head, row, rows, panel, panels;
};

static void heads_product(const struct cpu_member *m, const struct ek_op *op,
                          const struct heads_part *p, char *scratch, float *to, size_t to_stride)
{
    const struct ek_device *d = m->d;
    const struct cpu_weight *w = &d->weights[op->weight + p->head];
    const size_t step = w->cols + op->u.heads.rest;
    const struct cpu_product product = {.w = w,
                                        .x = cpu_row(d, op->src, p->row) + p->head * step,
                                        .x_stride = d->values[op->src].stride,
                                        .c = to,
                                        .c_stride = to_stride,
                                        .rows = p->rows,
                                        .panel = p->panel,
                                        .panels = p->panels,
                                        .scratch = scratch};

    cpu_multiply(d, &product);
}

/* The panel that a head ends in, and what is behind the product. */
static void heads_end(const struct cpu_member *m, const struct ek_op *op,
                      const struct heads_part *p, char *scratch)
{
    const struct ek_device *d = m->d;
    const struct cpu_weight *w = &d->weights[op->weight];
    const size_t rest = op->u.heads.rest, from = w->rows / CPU_PANEL * CPU_PANEL;
    const size_t src_at = p->head * (w->cols + rest) + w->cols, dst_at = p->head * (w->rows + rest);
    float edge[CPU_ROW_CHUNK * CPU_PANEL];
    struct heads_part last = *p;

    last.panel = w->panels - 1;
    last.panels = 1;
    if (from < w->rows)
        heads_product(m, op, &last, scratch, edge, CPU_PANEL);
    for (uint32_t i = 0; i < p->rows; i++) {
        float *to = cpu_row(d, op->dst, p->row + i) + dst_at;
        memcpy(to + from, edge + (size_t)i * CPU_PANEL, (w->rows - from) * sizeof(*to));
        memcpy(to + w->rows, cpu_row(d, op->src, p->row + i) + src_at, rest * sizeof(*to));
    }
}

static void heads_part(const struct cpu_member *m, const struct ek_op *op, struct heads_part p,
                       char *scratch)
{
    const struct ek_device *d = m->d;
    const struct cpu_weight *w = &d->weights[op->weight];
    const uint32_t whole = w->rows / CPU_PANEL, end = p.panel + p.panels;
    const size_t step = w->rows + op->u.heads.rest;
    float *to = cpu_row(d, op->dst, p.row) + p.head * step + (size_t)p.panel * CPU_PANEL;

    p.panels = (end < whole ? end : whole) - p.panel;
    if (p.panel < whole)
        heads_product(m, op, &p, scratch, to, d->values[op->dst].stride);
    if (end == w->panels)
        heads_end(m, op, &p, scratch);
}

void cpu_heads(const struct cpu_member *m, const struct ek_op *op, char *scratch)
{
    const uint32_t panels = m->d->weights[op->weight].panels, heads = op->u.heads.count;
    const uint64_t blocks = (m->rows + CPU_ROW_CHUNK - 1) / CPU_ROW_CHUNK;
    const uint64_t all = (uint64_t)panels * heads, units = blocks * all, threads = m->d->threads;
    const uint64_t end = units * (m->index + 1) / threads;

    for (uint64_t unit = units * m->index / threads; unit < end;) {
        const uint64_t block = unit / all;
        struct heads_part p = {.head = (uint32_t)(unit % all / panels),
                               .row = (uint32_t)(m->rows * block / blocks),
                               .panel = (uint32_t)(unit % panels)};
        p.rows = (uint32_t)(m->rows * (block + 1) / blocks) - p.row;
        p.panels = panels - p.panel;
        p.panels = end - unit < p.panels ? (uint32_t)(end - unit) : p.panels;
        unit += p.panels;
        heads_part(m, op, p, scratch);
    }
}
