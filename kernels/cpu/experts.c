/*
 * A mixture of experts. The team first chooses experts for its own rows; one member orders the
 * pairs of row and expert by expert; then all share the panels of gate and up, and after a barrier
 * the columns of the result, each walking over the experts that were chosen at all.
 *
 * What a row gets does not depend on the others: its experts are added in order of their number,
 * and a product's element is the same however many rows are multiplied together (tier.h).
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/route.h"
#include "kernels/cpu/rows.h"

#define PANELS 8u /* of an output that are computed together, in scratch */

struct work {
    const struct ek_device *d;
    const struct ek_op *op;
    const struct cpu_member *m;
    struct cpu_route *route; /* [rows][top] */
    uint32_t *order, *from;  /* pairs by expert; [count + 1] where those of each begin */
    float *inner;            /* [pairs by expert][stride] */
    float *gathered, *out;   /* scratch: [CPU_ROW_CHUNK][k], scores before; then 2 x
                                [CPU_ROW_CHUNK][PANELS * 32] */
    char *scratch;           /* of products */
};

void cpu_experts_measure(const struct ek_graph *g, size_t rows, struct cpu_experts_shape *ret)
{
    struct cpu_experts_shape s = {0};

    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct ek_op *op = &g->ops[i];
        if (op->kind != EK_OP_EXPERTS)
            continue;
        uint32_t stride = (g->weights[op->weight].rows + CPU_PANEL - 1) & ~(CPU_PANEL - 1);
        size_t pairs = rows * op->u.experts.top;
        size_t floats = g->value_width[op->src] + 2 * (size_t)PANELS * CPU_PANEL;
        size_t bytes = CPU_ROW_CHUNK * floats * sizeof(float) + CPU_PRODUCT_BYTES;
        size_t scores = op->u.experts.count * sizeof(float);
        bytes = scores > bytes ? scores : bytes;
        s.pairs = pairs > s.pairs ? pairs : s.pairs;
        s.experts = op->u.experts.count > s.experts ? op->u.experts.count : s.experts;
        s.inner_stride = stride > s.inner_stride ? stride : s.inner_stride;
        s.scratch_bytes = bytes > s.scratch_bytes ? bytes : s.scratch_bytes;
    }
    *ret = s;
}

static void cpu_experts_choose(const struct work *w)
{
    const struct ek_op *op = w->op;
    const struct ek_routing *r = &op->u.experts.routing;
    const uint32_t top = op->u.experts.top;
    const struct cpu_routing routing = {.routing = r,
                                        .correction = cpu_vector(w->d, r->correction),
                                        .each = cpu_vector(w->d, r->each),
                                        .count = op->u.experts.count,
                                        .top = top,
                                        .scratch = w->gathered};

    for (uint32_t row = w->m->first; row < w->m->end; row++)
        cpu_route(&routing, cpu_row(w->d, op->u.experts.router, row), w->route + (size_t)row * top);
}

/* Pairs by expert, in order of row within each. */
static void order(const struct work *w)
{
    const uint32_t count = w->op->u.experts.count, pairs = w->m->rows * w->op->u.experts.top;

    memset(w->from, 0, (count + 1) * sizeof(*w->from));
    for (uint32_t p = 0; p < pairs; p++)
        w->from[w->route[p].expert + 1]++;
    for (uint32_t e = 0; e < count; e++)
        w->from[e + 1] += w->from[e];
    for (uint32_t p = 0; p < pairs; p++)
        w->order[w->from[w->route[p].expert]++] = p;
    for (uint32_t e = count; e > 0; e--) /* each now holds its end: the begin of the next */
        w->from[e] = w->from[e - 1];
    w->from[0] = 0;
}

struct expert_part {
    const float *x;
    size_t x_stride;
    uint32_t weight, rows, panel, panels;
    float *to;                       /* [rows][PANELS * 32] */
    const struct cpu_weight *before; /* as struct cpu_product has it */
};

static void multiply(const struct work *w, const struct expert_part *p)
{
    const struct cpu_product product = {.w = &w->d->weights[p->weight],
                                        .x = p->x,
                                        .x_stride = p->x_stride,
                                        .c = p->to,
                                        .c_stride = (size_t)PANELS * CPU_PANEL,
                                        .rows = p->rows,
                                        .panel = p->panel,
                                        .panels = p->panels,
                                        .scratch = w->scratch,
                                        .before = p->before};
    cpu_multiply(w->d, &product);
}

struct column_run {
    uint32_t first, count;
};

/* An expert's bias, if there is one, to some columns of its rows at `to`; the last panel may reach
 * past the last column. */
static void add_bias(const struct work *w, uint32_t weight, uint32_t expert, uint32_t rows,
                     struct column_run cols, float *to)
{
    if (weight == EK_NO_WEIGHT)
        return;
    const uint32_t width = w->d->weights[weight].cols, left = width - cols.first;
    const float *bias = cpu_vector(w->d, weight) + (size_t)expert * width + cols.first;
    const uint32_t n = cols.count < left ? cols.count : left;

    for (uint32_t i = 0; i < rows; i++)
        w->d->ops->add(to + (size_t)i * PANELS * CPU_PANEL, bias, n, 1.0f);
}

/* What src times its share gives, of what it gives by itself. */
static void scale_in(const struct work *w, uint32_t rows, uint32_t pair, float *x, uint32_t cols)
{
    for (uint32_t i = 0; i < rows && w->op->u.experts.routing.share_in;
         i++, x += PANELS * CPU_PANEL)
        for (uint32_t k = 0; k < cols; k++)
            x[k] *= w->route[w->order[pair + i]].share;
}

/* Rows [pair, pair + rows) in the order of experts: gate and up of some panels, combined. */
static void gate_up(const struct work *w, uint32_t expert, struct expert_part p, uint32_t pair)
{
    const size_t stride = w->d->shape.experts.inner_stride;
    float *gate = w->out, *up = w->out + (size_t)CPU_ROW_CHUNK * PANELS * CPU_PANEL;

    p.to = gate;
    p.weight = w->op->weight + expert;
    multiply(w, &p);
    if (w->op->u.experts.up != w->op->weight) { /* else act(x) * x of one product */
        p.before = &w->d->weights[p.weight];
        p.to = up;
        p.weight = w->op->u.experts.up + expert;
        multiply(w, &p);
    } else {
        for (uint32_t i = 0; i < p.rows; i++)
            memcpy(up + (size_t)i * PANELS * CPU_PANEL, gate + (size_t)i * PANELS * CPU_PANEL,
                   (size_t)p.panels * CPU_PANEL * sizeof(*up));
    }
    const struct column_run cols = {p.panel * CPU_PANEL, p.panels * CPU_PANEL};
    scale_in(w, p.rows, pair, gate, cols.count);
    scale_in(w, p.rows, pair, up, cols.count);
    add_bias(w, w->op->bias, expert, p.rows, cols, gate);
    add_bias(w, w->op->u.experts.up_bias, expert, p.rows, cols, up);
    for (uint32_t i = 0; i < p.rows; i++) {
        size_t at = (size_t)i * PANELS * CPU_PANEL;
        float *inner = w->inner + (pair + i) * stride + (size_t)p.panel * CPU_PANEL;
        w->d->ops->glu(inner, gate + at, up + at, p.panels * CPU_PANEL, w->op->u.experts.act);
    }
}

static void gather(const struct work *w, uint32_t pair, uint32_t rows)
{
    const uint32_t k = w->d->values[w->op->src].width, top = w->op->u.experts.top;

    for (uint32_t i = 0; i < rows; i++)
        memcpy(w->gathered + (size_t)i * k, cpu_row(w->d, w->op->src, w->order[pair + i] / top),
               k * sizeof(float));
}

/* Panels [panel, end) of one expert, for all its rows. */
static void inner_part(const struct work *w, uint32_t expert, uint32_t panel, uint32_t end)
{
    const uint32_t k = w->d->values[w->op->src].width;

    for (uint32_t pair = w->from[expert]; pair < w->from[expert + 1]; pair += CPU_ROW_CHUNK) {
        uint32_t rows = w->from[expert + 1] - pair;
        rows = rows < CPU_ROW_CHUNK ? rows : CPU_ROW_CHUNK;
        gather(w, pair, rows);
        for (uint32_t at = panel; at < end; at += PANELS) {
            struct expert_part p = {.x = w->gathered, .x_stride = k, .rows = rows, .panel = at};
            p.panels = end - at < PANELS ? end - at : PANELS;
            p.before = at > panel ? &w->d->weights[w->op->u.experts.up + expert] : NULL;
            gate_up(w, expert, p, pair);
        }
    }
}

/* An even share of the panels of all chosen experts. */
static void inner_share(const struct work *w)
{
    const uint32_t panels = w->d->weights[w->op->weight].panels, count = w->op->u.experts.count;
    uint64_t units = 0, at = 0;

    for (uint32_t e = 0; e < count; e++)
        units += w->from[e + 1] > w->from[e] ? panels : 0;
    uint64_t first = units * w->m->index / w->d->threads;
    uint64_t end = units * (w->m->index + 1) / w->d->threads;
    for (uint32_t e = 0; e < count && at < end; e++) {
        if (w->from[e + 1] == w->from[e])
            continue;
        uint64_t begin = first > at ? first - at : 0, stop = end - at < panels ? end - at : panels;
        if (begin < stop)
            inner_part(w, e, (uint32_t)begin, (uint32_t)stop);
        at += panels;
    }
}

/* Columns of `panels` panels from `panel`: what one expert adds to its rows. */
static void outer_part(const struct work *w, uint32_t expert, uint32_t panel, uint32_t panels)
{
    const uint32_t n = w->d->values[w->op->dst].width, top = w->op->u.experts.top;
    const uint32_t first = panel * CPU_PANEL, all = panels * CPU_PANEL;
    const uint32_t cols = n - first < all ? n - first : all;
    const size_t stride = w->d->shape.experts.inner_stride;

    for (uint32_t pair = w->from[expert]; pair < w->from[expert + 1]; pair += CPU_ROW_CHUNK) {
        struct expert_part p = {.x = w->inner + pair * stride,
                                .x_stride = stride,
                                .weight = w->op->u.experts.down + expert,
                                .rows = w->from[expert + 1] - pair,
                                .panel = panel,
                                .panels = panels,
                                .to = w->out};
        p.rows = p.rows < CPU_ROW_CHUNK ? p.rows : CPU_ROW_CHUNK;
        multiply(w, &p);
        add_bias(w, w->op->u.experts.down_bias, expert, p.rows, (struct column_run){first, cols},
                 w->out);
        for (uint32_t i = 0; i < p.rows; i++) {
            uint32_t which = w->order[pair + i];
            w->d->ops->add(cpu_row(w->d, w->op->dst, which / top) + first,
                           w->out + (size_t)i * PANELS * CPU_PANEL, cols,
                           w->op->u.experts.routing.share_in ? 1.0f : w->route[which].share);
        }
    }
}

static void outer_share(const struct work *w)
{
    const uint32_t n = w->d->values[w->op->dst].width;
    const uint64_t panels = w->d->weights[w->op->u.experts.down].panels, threads = w->d->threads;
    const uint32_t first = (uint32_t)(panels * w->m->index / threads);
    const uint32_t end = (uint32_t)(panels * (w->m->index + 1) / threads);

    for (uint32_t at = first; at < end; at += PANELS) {
        uint32_t some = end - at < PANELS ? end - at : PANELS, col = at * CPU_PANEL;
        uint32_t cols = n - col < some * CPU_PANEL ? n - col : some * CPU_PANEL;
        for (uint32_t row = 0; row < w->m->rows; row++)
            memset(cpu_row(w->d, w->op->dst, row) + col, 0, cols * sizeof(float));
        for (uint32_t e = 0; e < w->op->u.experts.count; e++)
            outer_part(w, e, at, some);
    }
}

void cpu_experts(const struct cpu_member *m, const struct ek_op *op, char *scratch)
{
    const struct ek_device *d = m->d;
    const struct cpu_shape *s = &d->shape;
    struct work w = {
        .d = d,
        .op = op,
        .m = m,
        .route = (struct cpu_route *)(void *)(d->arena.at + s->route_at),
        .order = (uint32_t *)(void *)(d->arena.at + s->order_at),
        .inner = (float *)(void *)(d->arena.at + s->inner_at),
        .gathered = (float *)(void *)scratch,
    };
    w.from = w.order + s->experts.pairs;
    w.out = w.gathered + (size_t)CPU_ROW_CHUNK * d->values[op->src].width;
    w.scratch = (char *)(w.out + 2 * (size_t)CPU_ROW_CHUNK * PANELS * CPU_PANEL);

    cpu_experts_choose(&w);
    cpu_pool_barrier(d->pool);
    if (m->index == 0)
        order(&w);
    cpu_pool_barrier(d->pool);
    inner_share(&w);
    cpu_pool_barrier(d->pool);
    outer_share(&w);
}
