/*
 * Weights from file ranges into the form that the kernels read: converted to the type to compute
 * with, matrices packed in panels of 32 rows (tier.h). The team shares the panels of a matrix; the
 * caller's progress function is called between matrices, by the caller's thread.
 */
#include <errno.h>
#include <string.h>

#include "common/err.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/num.h"
#include "kernels/quant.h"

#define SOME 256u /* elements of a quantized row that are unpacked together */

struct pack {
    struct ek_device *d;
    const struct ek_weight_files *files;
    const struct ek_weight *source;
    const struct cpu_weight *weight;
};

/* The bytes of one stored row: in which part it lies. */
static const char *stored_row(const struct pack *p, uint32_t row)
{
    const struct ek_weight *s = p->source;
    uint32_t part = 0;

    while (part + 1 < s->parts && row >= s->part[part].rows)
        row -= s->part[part++].rows;
    const char *file = p->files->file[s->part[part].file].data;
    size_t row_bytes = (size_t)s->cols * (ek_dtype_bits(s->source) / 8);
    return file + s->part[part].offset_bytes + row * row_bytes;
}

/* A quantized row, to a panel as its row `panel_row`, else to `to` in order. */
static void unpack_row(const struct pack *p, uint32_t row, char *to, uint32_t panel_row)
{
    const struct ek_weight *s = p->source;
    const struct cpu_weight *w = p->weight;
    uint32_t part = 0;
    float some[SOME];

    while (part + 1 < s->parts && row >= s->part[part].rows)
        row -= s->part[part++].rows;
    const struct ek_quant *q = &p->d->graph->quants[s->quant + part];
    for (uint32_t k = 0; k < w->cols; k += SOME) {
        uint32_t count = w->cols - k < SOME ? w->cols - k : SOME;
        ek_quant_values(q, p->files, row, k, count, some);
        for (uint32_t i = 0; i < count; i++) {
            size_t at = w->layout == CPU_PANELS
                            ? cpu_panel_index(p->d->ops->pairs, w->dtype, k + i, panel_row)
                            : k + i;
            cpu_store(w->dtype, to, at, some[i]);
        }
    }
}

static void pack_panel(const struct pack *p, uint32_t panel)
{
    const struct cpu_weight *w = p->weight;
    char *to = p->d->weight_memory.at + w->at + panel * w->panel_bytes;

    for (uint32_t col = 0; col < CPU_PANEL && panel * CPU_PANEL + col < w->rows; col++) {
        if (p->source->quantized) {
            unpack_row(p, panel * CPU_PANEL + col, to, col);
            continue;
        }
        const char *from = stored_row(p, panel * CPU_PANEL + col);
        for (uint32_t k = 0; k < w->cols; k++)
            cpu_store(w->dtype, to, cpu_panel_index(p->d->ops->pairs, w->dtype, k, col),
                      cpu_load(p->source->source, from, k));
    }
}

static void pack_rows(const struct pack *p, uint32_t first, uint32_t end)
{
    const struct cpu_weight *w = p->weight;
    char *to = p->d->weight_memory.at + w->at;

    for (uint32_t row = first; row < end; row++) {
        if (p->source->quantized) {
            size_t bytes = (size_t)w->cols * (ek_dtype_bits(w->dtype) / 8);
            unpack_row(p, row, to + row * bytes, 0);
            continue;
        }
        const char *from = stored_row(p, row);
        for (uint32_t k = 0; k < w->cols; k++)
            cpu_store(w->dtype, to, (size_t)row * w->cols + k,
                      cpu_load(p->source->source, from, k));
    }
}

static void pack_member(void *ctx, uint32_t member)
{
    const struct pack *p = ctx;
    const struct cpu_weight *w = p->weight;
    uint64_t units = w->layout == CPU_PANELS ? w->panels : w->rows, threads = p->d->threads;
    uint32_t first = (uint32_t)(units * member / threads);
    uint32_t end = (uint32_t)(units * (member + 1) / threads);

    if (w->layout != CPU_PANELS) {
        pack_rows(p, first, end);
        return;
    }
    for (uint32_t panel = first; panel < end; panel++)
        pack_panel(p, panel);
}

/* The quantized parts of a weight: shapes that fit, within the files. */
static int check_quants(const struct ek_graph *g, const struct ek_weight *w,
                        const struct ek_weight_files *files, struct ek_fault *fault)
{
    uint64_t rows = 0;

    if (w->parts == 0 || w->parts > EK_MOST_PARTS || w->quant > g->quant_count ||
        w->parts > g->quant_count - w->quant)
        return ek_fault_set(fault, w->name, "%s names parts that are not there", w->name);
    for (uint32_t i = 0; i < w->parts; i++) {
        const struct ek_quant *q = &g->quants[w->quant + i];
        if (q->rows != w->part[i].rows || q->cols != w->cols)
            return ek_fault_set(fault, w->name, "%s has quantized parts of other shapes", w->name);
        int r = ek_quant_check(q, w->name, files, fault);
        if (r < 0)
            return r;
        rows += q->rows;
    }
    return rows == w->rows ? 0 : ek_fault_set(fault, w->name, "%s lacks rows", w->name);
}

static int check_parts(const struct ek_weight *w, const struct ek_weight_files *files,
                       struct ek_fault *fault)
{
    uint64_t row_bytes = (uint64_t)w->cols * (ek_dtype_bits(w->source) / 8), rows = 0;

    for (uint32_t i = 0; i < w->parts && i < EK_MOST_PARTS; i++) {
        const struct ek_weight_part *p = &w->part[i];
        if (p->file >= files->count)
            return ek_fault_set(fault, w->name, "%s lies in a file that is not there", w->name);
        uint64_t size = files->file[p->file].size_bytes;
        if (p->offset_bytes > size || p->rows > (size - p->offset_bytes) / (row_bytes + !row_bytes))
            return ek_fault_set(fault, w->name, "%s reaches past the end of its file", w->name);
        rows += p->rows;
    }
    if (w->parts == 0 || w->parts > EK_MOST_PARTS || rows != w->rows)
        return ek_fault_set(fault, w->name, "%s has %llu rows in its files but needs %u", w->name,
                            (unsigned long long)rows, w->rows);
    return 0;
}

int cpu_weights_load(struct ek_device *d, const struct ek_weight_files *files,
                     ek_progress_fn progress, void *ctx, struct ek_fault *fault)
{
    const struct ek_graph *g = d->graph;
    uint64_t done = 0, total = 0;

    for (uint32_t i = 0; i < g->weight_count; i++) {
        int r = g->weights[i].quantized ? check_quants(g, &g->weights[i], files, fault)
                                        : check_parts(&g->weights[i], files, fault);
        if (r < 0)
            return r;
        total += d->weights[i].bytes;
    }
    for (uint32_t i = 0; i < g->weight_count; i++) {
        struct pack p = {d, files, &g->weights[i], &d->weights[i]};
        cpu_pool_run(d->pool, pack_member, &p);
        done += d->weights[i].bytes;
        if (progress)
            progress(ctx, done, total);
    }
    return 0;
}
