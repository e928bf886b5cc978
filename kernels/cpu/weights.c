/*
 * Weights from file ranges into the form that the kernels read: converted to the type to compute
 * with, matrices packed in panels of 32 rows (tier.h). Those that are kept in 8 or 4 bits are taken
 * over from quantized files number by number, or quantized here. The team shares the panels of a
 * matrix; the caller's progress function is called between matrices, by the caller's thread.
 */
#include <errno.h>
#include <string.h>

#include "common/err.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/weights.h"
#include "kernels/num.h"
#include "kernels/quant.h"

#define SOME 128u /* elements of a row that are converted and placed together; even */

struct weight_pack {
    struct ek_device *d;
    const struct ek_weight_files *files;
    const struct ek_weight *source;
    const struct cpu_weight *weight;
};

static void convert(enum ek_dtype from, enum ek_dtype to, const char *source, uint32_t n, void *out)
{
    if (to == EK_F32)
        for (uint32_t i = 0; i < n; i++)
            cpu_store(EK_F32, out, i, cpu_load(from, source, i));
    else if (to == EK_BF16)
        for (uint32_t i = 0; i < n; i++)
            cpu_store(EK_BF16, out, i, cpu_load(from, source, i));
    else
        for (uint32_t i = 0; i < n; i++)
            cpu_store(to, out, i, cpu_load(from, source, i));
}

/* The part that a row lies in, and the row within the part's range. */
static uint32_t part_of(const struct ek_weight *s, uint32_t *row)
{
    uint32_t part = 0;

    while (part + 1 < s->parts && *row >= s->part[part].rows)
        *row -= s->part[part++].rows;
    *row += s->part[part].skip;
    return part;
}

/* n elements that lie `step` apart, one after the other to `room`. */
static void weights_gather(const char *from, size_t elem, uint32_t step, uint32_t n, char *room)
{
    for (uint32_t i = 0; i < n; i++)
        memcpy(room + i * elem, from + (size_t)i * step * elem, elem);
}

/* Elements [k, k + n) of a row of a quantized weight that lies transposed. */
static void turned_values(const struct weight_pack *p, uint32_t row, uint32_t k, uint32_t n,
                          float *ret)
{
    const struct ek_weight *s = p->source;
    const struct ek_quant *q = &p->d->graph->quants[s->quant];

    for (uint32_t i = 0; i < n; i++)
        ek_quant_values(q, p->files, s->part[0].skip + k + i, row, 1, ret + i);
}

/* Elements [k, k + n) of a row as `to`: where they lie, or converted to `room`, which holds SOME
 * floats. */
static const char *elements(const struct weight_pack *p, enum ek_dtype to, uint32_t row, uint32_t k,
                            uint32_t n, float *room)
{
    const struct ek_weight *s = p->source;
    float some[SOME];

    if (s->quantized && s->row_step > 0) {
        turned_values(p, row, k, n, some);
        convert(EK_F32, to, (const char *)some, n, room);
        return (const char *)room;
    }
    const uint32_t part = part_of(s, &row);
    k += s->first_col;
    if (s->quantized) {
        ek_quant_values(&p->d->graph->quants[s->quant + part], p->files, row, k, n, some);
        convert(EK_F32, to, (const char *)some, n, room);
        return (const char *)room;
    }
    const size_t elem = ek_dtype_bits(s->source) / 8;
    const char *from = p->files->file[s->part[part].file].data;
    from += s->part[part].offset_bytes + ek_weight_element(s, row, k) * elem;
    if (s->row_step > 0) {
        weights_gather(from, elem, s->col_step, n, (char *)some);
        convert(s->source, to, (const char *)some, n, room);
        return (const char *)room;
    }
    if (s->source == to)
        return from;
    convert(s->source, to, from, n, room);
    return (const char *)room;
}

/* The places are those of cpu_panel_index(), column `col`, from k on. */
static void place_words(uint32_t *to, uint32_t k, uint32_t col, const char *from, uint32_t n)
{
    to += (size_t)k * CPU_PANEL + col;
    for (uint32_t i = 0; i < n; i++)
        memcpy(to + (size_t)i * CPU_PANEL, from + (size_t)i * 4, 4);
}

static void place_halves(uint16_t *to, uint32_t k, uint32_t at, const char *from, uint32_t n)
{
    to += (size_t)k * CPU_PANEL + at;
    for (uint32_t i = 0; i < n; i++)
        memcpy(to + (size_t)i * CPU_PANEL, from + (size_t)i * 2, 2);
}

static void place(const struct weight_pack *p, void *to, uint32_t k, uint32_t col, const char *from,
                  uint32_t n)
{
    const enum ek_dtype t = p->weight->dtype;

    if (t == EK_F32) {
        place_words(to, k, col, from, n);
    } else if (t == EK_BF16 && p->weight->ops->pairs) { /* two of a row make a word */
        place_words(to, k / 2, col, from, n / 2);
        if (n % 2 != 0)
            memcpy((uint16_t *)to + cpu_panel_index(true, t, k + n - 1, col),
                   from + (size_t)(n - 1) * 2, 2);
    } else {
        place_halves(to, k, (uint32_t)cpu_panel_index(false, t, 0, col), from, n);
    }
}

/* By pieces of all its rows, so that what is written stays in the first cache. */
static void pack_panel(const struct weight_pack *p, uint32_t panel)
{
    const struct cpu_weight *w = p->weight;
    const uint32_t first = panel * CPU_PANEL;
    const uint32_t rows = w->rows - first < CPU_PANEL ? w->rows - first : CPU_PANEL;
    char *to = p->d->weight_memory.at + w->at + panel * w->panel_bytes;
    float room[SOME];

    for (uint32_t k = 0; k < w->cols; k += SOME) {
        uint32_t n = w->cols - k < SOME ? w->cols - k : SOME;
        for (uint32_t col = 0; col < rows; col++)
            place(p, to, k, col, elements(p, w->dtype, first + col, k, n, room), n);
    }
}

/* Kept numbers from column k on, even unless the row ends there. */
static void place_kept(enum ek_dtype t, char *panel, uint32_t k, uint32_t col,
                       const uint8_t *numbers, uint32_t n)
{
    uint8_t *to = (uint8_t *)panel + (size_t)k * CPU_PANEL * ek_dtype_bits(t) / 8 + col;

    if (ek_dtype_bits(t) == 8) {
        for (uint32_t i = 0; i < n; i++)
            to[(size_t)i * CPU_PANEL] = numbers[i];
        return;
    }
    for (uint32_t i = 0; i < n; i += 2, to += CPU_PANEL)
        *to = (uint8_t)((numbers[i] & 15u) | (i + 1 < n ? (uint32_t)numbers[i + 1] << 4 : 0));
}

/* The same where products take whole numbers. */
static void place_quads(enum ek_dtype t, char *panel, uint32_t k, uint32_t col,
                        const uint8_t *numbers, uint32_t n)
{
    uint8_t *to = (uint8_t *)panel;
    uint32_t i = 0;

    for (; t != EK_I8 && k % 8 == 0 && i + 8 <= n; i += 8) { /* whole eights of 4 bits at once */
        uint8_t *at = to + cpu_quads_index(t, k + i, col);
        for (uint32_t four = 0; four < 4; four++)
            at[four] = (uint8_t)((numbers[i + four] & 15u) | numbers[i + four + 4] << 4);
    }
    for (; i < n; i++) {
        uint8_t *at = to + cpu_quads_index(t, k + i, col);
        if (t == EK_I8)
            *at = numbers[i] ^ 0x80u;
        else
            *at |= (uint8_t)((numbers[i] & 15u) << ((k + i) & 4u));
    }
}

static void place_numbers(const struct weight_pack *p, char *panel, uint32_t k, uint32_t col,
                          const uint8_t *numbers, uint32_t n)
{
    if (cpu_in_quads(p->d, p->weight))
        place_quads(p->weight->dtype, panel, k, col, numbers, n);
    else
        place_kept(p->weight->dtype, panel, k, col, numbers, n);
}

/* Up to SOME columns of a row of a panel, whose files hold such numbers, from `k` on. */
static void keep_numbers(const struct weight_pack *p, char *panel, uint32_t row, uint32_t col,
                         uint32_t k)
{
    const struct cpu_weight *w = p->weight;
    uint32_t part = part_of(p->source, &row);
    const struct ek_quant *q = &p->d->graph->quants[p->source->quant + part];
    const uint32_t n = w->cols - k < SOME ? w->cols - k : SOME;
    uint8_t numbers[SOME];

    ek_quant_numbers(q, p->files, w->dtype, row, p->source->first_col + k, n, numbers);
    place_numbers(p, panel, k, col, numbers, n);
}

static void keep_scales(const struct weight_pack *p, char *panel, uint32_t row, uint32_t col)
{
    const struct cpu_weight *w = p->weight;
    uint32_t part = part_of(p->source, &row);
    const struct ek_quant *q = &p->d->graph->quants[p->source->quant + part];
    const uint32_t from = p->source->first_col;
    float *scales = (float *)(void *)(panel + w->scale_at);
    int16_t *zeros = (int16_t *)(void *)(panel + w->zero_at);

    for (uint32_t g = 0; g < w->groups; g++) {
        float scale;
        int16_t zero;
        ek_quant_scale(q, p->files, w->dtype, row, from + g * w->group, &scale, &zero);
        if (w->powers)
            ((uint8_t *)scales)[(size_t)g * CPU_PANEL + col] = cpu_to_power(scale);
        else
            scales[(size_t)g * CPU_PANEL + col] = scale;
        if (w->zero_at > 0)
            zeros[(size_t)g * CPU_PANEL + col] = zero;
    }
}

/* Elements of a row as floats: at most SOME. */
static void floats(const struct weight_pack *p, uint32_t row, uint32_t k, uint32_t n, float *ret)
{
    const char *from = elements(p, EK_F32, row, k, n, ret);

    if (from != (const char *)ret)
        memcpy(ret, from, n * sizeof(*ret));
}

/* One group of a row of plain numbers. */
static void quantize_group(const struct weight_pack *p, char *panel, uint32_t row, uint32_t col,
                           uint32_t group)
{
    const struct cpu_weight *w = p->weight;
    const uint32_t first = group * w->group;
    const uint32_t end = w->cols - first < w->group ? w->cols : first + w->group;
    float room[SOME], most = 0.0f, scale = 0.0f;
    uint8_t numbers[SOME];

    for (uint32_t k = first; k < end; k += SOME) {
        uint32_t n = end - k < SOME ? end - k : SOME;
        floats(p, row, k, n, room);
        most = ek_quantize_most(room, n, most);
        scale = w->dtype == EK_I4 ? ek_quantize_scale4(room, n) : ek_quantize_scale(w->dtype, most);
    }
    for (uint32_t k = first; k < end; k += SOME) {
        uint32_t n = end - k < SOME ? end - k : SOME;
        floats(p, row, k, n, room);
        ek_quantize(w->dtype, scale, room, n, numbers);
        place_numbers(p, panel, k, col, numbers, n);
    }
    ((float *)(void *)(panel + w->scale_at))[(size_t)group * CPU_PANEL + col] = scale;
}

static void pack_kept(const struct weight_pack *p, uint32_t panel)
{
    const struct cpu_weight *w = p->weight;
    const uint32_t first = panel * CPU_PANEL;
    const uint32_t rows = w->rows - first < CPU_PANEL ? w->rows - first : CPU_PANEL;
    char *to = p->d->weight_memory.at + w->at + panel * w->panel_bytes;

    /* Transposed rows lie in the same cache lines: those of a panel are read together. */
    for (uint32_t k = 0; p->source->quantized && k < w->cols; k += SOME)
        for (uint32_t col = 0; col < rows; col++)
            keep_numbers(p, to, first + col, col, k);
    for (uint32_t col = 0; col < rows; col++) {
        if (p->source->quantized)
            keep_scales(p, to, first + col, col);
        for (uint32_t g = 0; !p->source->quantized && g < w->groups; g++)
            quantize_group(p, to, first + col, col, g);
    }
}

static void pack_rows(const struct weight_pack *p, uint32_t first, uint32_t end)
{
    const struct cpu_weight *w = p->weight;
    const size_t elem = ek_dtype_bits(w->dtype) / 8;
    char *to = p->d->weight_memory.at + w->at;
    float room[SOME];

    for (uint32_t row = first; row < end; row++)
        for (uint32_t k = 0; k < w->cols; k += SOME) {
            uint32_t n = w->cols - k < SOME ? w->cols - k : SOME;
            memcpy(to + ((size_t)row * w->cols + k) * elem, elements(p, w->dtype, row, k, n, room),
                   n * elem);
        }
}

static void pack_member(void *ctx, uint32_t member)
{
    const struct weight_pack *p = ctx;
    const struct cpu_weight *w = p->weight;
    uint64_t units = w->layout == CPU_PANELS ? w->panels : w->rows, threads = p->d->threads;
    uint32_t first = (uint32_t)(units * member / threads);
    uint32_t end = (uint32_t)(units * (member + 1) / threads);

    if (w->layout != CPU_PANELS) {
        pack_rows(p, first, end);
        return;
    }
    for (uint32_t panel = first; panel < end; panel++) {
        if (ek_dtype_packed(w->dtype))
            pack_kept(p, panel);
        else
            pack_panel(p, panel);
    }
}

int cpu_weights_load(struct ek_device *d, const struct ek_weight_files *files,
                     ek_progress_fn progress, void *ctx, struct ek_fault *fault)
{
    const struct ek_graph *g = d->graph;
    uint64_t done = 0, total = 0, kept = 0; /* kept: done when pages were last given back */
    uint32_t ahead = 0;

    for (uint32_t i = 0; i < g->weight_count; i++) {
        int r = ek_weight_check(g, i, files, fault);
        if (r < 0)
            return r;
        total += d->weights[i].bytes;
    }
    for (uint32_t i = 0; i < g->weight_count; i++) {
        struct weight_pack p = {d, files, &g->weights[i], &d->weights[i]};
        ek_weights_fetch(g, files, i, &ahead);
        cpu_pool_run(d->pool, pack_member, &p);
        done += d->weights[i].bytes;
        if (done - kept >= EK_WEIGHTS_RESIDENT) {
            ek_weights_forget(files);
            kept = done;
        }
        if (progress)
            progress(ctx, done, total);
    }
    return 0;
}
