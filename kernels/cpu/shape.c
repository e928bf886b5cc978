/*
 * How many bytes everything takes and where it lies. plan() prints these numbers before the first
 * allocation and load() allocates by the same function, so that the two cannot disagree.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "common/err.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/cache.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/shape.h"
#include "kernels/quant.h"

#define LINE     64u /* alignment of every array */
#define PARTIALS 4u  /* parts of attention of CPU_QUERIES queries, for each member */

static bool stored(enum ek_dtype t)
{
    return t == EK_F32 || t == EK_F16 || t == EK_BF16;
}

/* Whether a matrix of an operation is the weight. */
static bool serves(const struct ek_op *op, uint32_t index)
{
    if (op->kind == EK_OP_HEADS)
        return index - op->weight < op->u.heads.count;
    if (op->kind != EK_OP_EXPERTS)
        return op->weight == index;
    uint32_t n = op->u.experts.count;
    return index - op->weight < n || index - op->u.experts.up < n || index - op->u.experts.down < n;
}

/* Whether a weight of 8 or 4 bits can be kept as such: only products know it, and embeddings that
 * are tied to one. */
static bool cpu_shape_kept(const struct ek_graph *g, uint32_t index)
{
    const struct ek_weight *w = &g->weights[index];

    if (!ek_dtype_packed(w->dtype) || w->group % 2 != 0)
        return false;
    uint32_t group = w->group > 0 && w->group < w->cols ? w->group : w->cols;
    if (w->dtype == EK_I4 && !w->quantized && group > EK_I4_GROUP)
        return false;
    if (w->dtype == EK_F4_E2M1 && !w->quantized)
        return false; /* nothing is rounded to it */
    bool embeds = false, heads = false;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct ek_op *op = &g->ops[i];
        bool served = serves(op, index);
        if (op->bias == index)
            return false;
        heads = heads || (served && op->kind == EK_OP_LOGITS);
        embeds = embeds || (served && op->kind == EK_OP_EMBED);
        if (served && op->kind != EK_OP_LINEAR && op->kind != EK_OP_HEADS &&
            op->kind != EK_OP_EXPERTS && op->kind != EK_OP_LOGITS && op->kind != EK_OP_EMBED)
            return false;
    }
    /* a row of an embedding is read out of panels only: those of a product, or of its own where
     * that product is of another stage */
    return heads || !embeds || g->stages > 1;
}

int cpu_graph_offered(const struct ek_graph *g, struct ek_fault *fault)
{
    int r = ek_graph_check(g, fault);

    if (r < 0)
        return r;
    bool ok = stored(g->dtype);
    for (uint32_t i = 0; i < g->weight_count; i++)
        ok = ok && (g->weights[i].quantized || stored(g->weights[i].source)) &&
             (stored(g->weights[i].dtype) || cpu_shape_kept(g, i));
    if (ok && g->kv_i8 && g->head_dim > CPU_QUAD_DIM_MOST) {
        ek_fault_set(fault, "kv-cache-dtype",
                     "Keys of %u elements cannot be kept in int8, which goes up to %u: use "
                     "--kv-cache-dtype auto.",
                     g->head_dim, CPU_QUAD_DIM_MOST);
        return -ENOTSUP;
    }
    if (ok && g->kv_f8) {
        ek_fault_set(fault, "kv-cache-dtype",
                     "The CPU backend has no fp8 KV cache: use --kv-cache-dtype auto or "
                     "int8_per_token_head, or --device cuda.");
        return -ENOTSUP;
    }
    if (ok)
        return 0;
    ek_fault_set(fault, "dtype", "The CPU backend computes float32, float16 and bfloat16 only.");
    return -ENOTSUP;
}

/* A panel of kept numbers. */
static void shape_kept(const struct ek_graph *g, const struct ek_weight *w, struct cpu_weight *s)
{
    const size_t numbers =
        ((size_t)w->cols + QUADS_EIGHT - 1) / QUADS_EIGHT * QUADS_EIGHT * CPU_PANEL;
    bool zeros = false;

    for (uint32_t i = 0; w->quantized && i < w->parts; i++)
        zeros = zeros || g->quants[w->quant + i].zeros.file != UINT32_MAX;
    s->powers = ek_power_scales(w->dtype, w->group);
    s->group = w->group > 0 && w->group < w->cols ? w->group : w->cols;
    s->groups = w->cols / s->group + (w->cols % s->group != 0);
    s->scale_at = (numbers * ek_dtype_bits(w->dtype) / 8 + LINE - 1) & ~(size_t)(LINE - 1);
    s->zero_at = zeros ? s->scale_at + (size_t)s->groups * CPU_PANEL * sizeof(float) : 0;
    s->panel_bytes = s->scale_at + (size_t)s->groups * CPU_PANEL *
                                       (cpu_scale_bytes(s) + (zeros ? sizeof(int16_t) : 0));
    s->panel_bytes = (s->panel_bytes + LINE - 1) & ~(size_t)(LINE - 1);
}

void cpu_weight_shape(const struct ek_graph *g, uint32_t index, struct cpu_weight *ret_weight)
{
    const struct ek_weight *w = &g->weights[index];
    enum cpu_layout layout = CPU_VECTOR;

    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct ek_op *op = &g->ops[i];
        if (!serves(op, index))
            continue;
        if (op->kind == EK_OP_LINEAR || op->kind == EK_OP_LOGITS || op->kind == EK_OP_EXPERTS ||
            op->kind == EK_OP_HEADS)
            layout = CPU_PANELS;
        else if (op->kind == EK_OP_EMBED && layout == CPU_VECTOR)
            layout = ek_dtype_packed(w->dtype) ? CPU_PANELS : CPU_ROWS;
    }
    *ret_weight = (struct cpu_weight){
        .layout = layout,
        .dtype = layout == CPU_VECTOR ? EK_F32 : w->dtype,
        .rows = w->rows,
        .cols = w->cols,
        .panels = layout == CPU_PANELS ? w->rows / CPU_PANEL + (w->rows % CPU_PANEL != 0) : 0,
    };
    size_t elem = ek_dtype_bits(ret_weight->dtype) / 8;
    ret_weight->panel_bytes = CPU_PANEL * elem * (w->cols + (w->cols & 1)); /* whole pairs */
    if (layout == CPU_PANELS && ek_dtype_packed(w->dtype))
        shape_kept(g, w, ret_weight);
    ret_weight->bytes = layout == CPU_PANELS ? ret_weight->panels * ret_weight->panel_bytes
                                             : elem * w->rows * w->cols;
}

/* Takes count * size bytes at the end of a memory of *sum bytes; sticks at SIZE_MAX on overflow. */
static size_t cpu_shape_take(size_t *sum, size_t count, size_t size)
{
    size_t at = *sum, bytes, end;

    if (at == SIZE_MAX || __builtin_mul_overflow(count, size, &bytes) ||
        __builtin_add_overflow(at, bytes, &end) || end > SIZE_MAX / 2) {
        *sum = SIZE_MAX;
        return 0;
    }
    *sum = (end + LINE - 1) & ~(size_t)(LINE - 1);
    return at;
}

/* A layer of the KV cache whose heads are of so many elements, but for its place. */
static struct cpu_cells cells_of(const struct ek_graph *g, uint32_t block_size, uint32_t heads,
                                 uint32_t dim)
{
    const size_t elem = g->kv_i8 ? 1 : ek_dtype_bits(g->dtype) / 8;
    const uint32_t value_dim = g->value_dim > 0 ? g->value_dim : dim;
    struct cpu_cells c = {.keys = dim, .value_dim = value_dim, .heads = heads};

    c.values = (value_dim + 15) & ~15u;
    c.k_bytes = elem * dim * block_size;
    c.head_bytes = c.k_bytes + elem * c.values * block_size;
    if (g->kv_i8) {
        const size_t scales = block_size * sizeof(float);
        c.k_scale_at = (c.k_bytes + 15) & ~(size_t)15;
        c.k_bytes = (c.k_scale_at + scales + 15) & ~(size_t)15;
        c.v_scale_at = c.k_bytes + c.values * block_size;
        c.head_bytes = (c.v_scale_at + scales + 15) & ~(size_t)15;
    }
    return c;
}

/* Puts a layer's cells behind the others, of which there are *bytes; sticks at SIZE_MAX. */
static void cells_put(size_t *bytes, struct cpu_cells c, struct cpu_cells *to)
{
    size_t own;

    c.at = *bytes;
    if (__builtin_mul_overflow(c.heads, c.head_bytes, &own) ||
        __builtin_add_overflow(*bytes, own, bytes))
        *bytes = SIZE_MAX;
    if (to)
        *to = c;
}

size_t cpu_cells_of(const struct ek_graph *g, uint32_t block_size, struct cpu_cells *cells)
{
    size_t bytes = 0, sum = 0;

    for (uint32_t i = 0; i < g->layers && !g->kv_mixed; i++)
        cells_put(&bytes, cells_of(g, block_size, g->kv_heads, g->head_dim),
                  cells ? &cells[i] : NULL);
    for (uint32_t i = 0; i < g->op_count && g->kv_mixed; i++) {
        const struct ek_op *op = &g->ops[i];
        if (op->kind == EK_OP_ATTENTION && !op->u.attention.reads)
            cells_put(&bytes,
                      cells_of(g, block_size, op->u.attention.kv_heads, op->u.attention.head_dim),
                      cells ? &cells[op->layer] : NULL);
    }
    (void)cpu_shape_take(&sum, 1, bytes);
    return sum;
}

uint32_t cpu_row_stride(uint32_t width)
{
    const uint32_t whole = (width + CPU_PANEL - 1) & ~(CPU_PANEL - 1);

    return whole % (4096 / sizeof(float)) == 0 ? whole + CPU_PANEL : whole;
}

/* Values written before the pick have a row for each row of the step, the others for each logit. */
static void shape_values(const struct ek_plan_request *q, size_t *sum, struct cpu_value *values)
{
    const struct ek_graph *g = q->graph;

    for (uint32_t v = 0; v < g->value_count; v++) {
        uint32_t rows = q->logit_rows;
        const uint32_t stride = cpu_row_stride(g->value_width[v]);
        bool picked = false;
        for (uint32_t i = 0; i < g->op_count; i++) {
            picked = picked || g->ops[i].kind == EK_OP_PICK;
            if (!picked && g->ops[i].dst == v)
                rows = q->ceiling.rows > rows ? q->ceiling.rows : rows;
        }
        size_t at = cpu_shape_take(sum, (size_t)rows * stride, sizeof(float));
        if (values)
            values[v] = (struct cpu_value){at, stride, g->value_width[v]};
    }
}

int cpu_shape_of(const struct ek_plan_request *q, uint32_t threads, struct cpu_shape *ret_shape,
                 struct cpu_weight *weights, struct cpu_value *values, size_t *rope_at)
{
    const struct ek_graph *g = q->graph;
    const bool last = ek_graph_last(g); /* samples */
    struct cpu_shape s = {.logit_stride = (g->vocab + 31) & ~31u};
    size_t rows = q->ceiling.rows;

    s.block_size = q->block_size;
    s.dim = (g->head_dim + 15) & ~15u;
    s.block_bytes = cpu_cells_of(g, q->block_size, NULL);
    (void)cpu_shape_take(&s.state_bytes, g->state_floats, sizeof(float));
    for (uint32_t i = 0; i < g->weight_count; i++) {
        struct cpu_weight w;
        cpu_weight_shape(g, i, &w);
        w.at = cpu_shape_take(&s.weight_bytes, w.bytes, 1);
        if (weights)
            weights[i] = w;
    }
    shape_values(q, &s.arena_bytes, values);
    /* a rank's last panel may reach past the last row */
    s.logits_at = cpu_shape_take(&s.arena_bytes,
                                 last ? (size_t)q->logit_rows * s.logit_stride + CPU_PANEL : 0,
                                 sizeof(float));
    for (uint32_t i = 0; i < g->rope_count; i++) {
        size_t at = cpu_shape_take(&s.arena_bytes, rows * g->ropes[i].count, 2 * sizeof(float));
        if (rope_at)
            rope_at[i] = at;
    }
    s.token_at = cpu_shape_take(&s.arena_bytes, rows, sizeof(int32_t));
    s.square_at = cpu_shape_take(&s.arena_bytes, g->ranks > 0 ? rows : 0, sizeof(float));
    s.pick_at = cpu_shape_take(&s.arena_bytes, q->logit_rows, sizeof(uint32_t));
    s.span_at = cpu_shape_take(&s.arena_bytes, rows, sizeof(struct cpu_row_span));
    s.partial_floats = threads > 1 ? PARTIALS * CPU_QUERIES * (size_t)threads * (s.dim + 2) : 0;
    s.partial_at = cpu_shape_take(&s.arena_bytes, s.partial_floats, sizeof(float));
    s.scratch_bytes = cpu_attention_scratch(s.dim);
    if (s.scratch_bytes < CPU_PRODUCT_BYTES)
        s.scratch_bytes = CPU_PRODUCT_BYTES;
    cpu_experts_measure(g, rows > q->logit_rows ? rows : q->logit_rows, &s.experts);
    s.route_at = cpu_shape_take(&s.arena_bytes, s.experts.pairs, 2 * sizeof(float));
    s.order_at =
        cpu_shape_take(&s.arena_bytes, s.experts.pairs + s.experts.experts + 1, sizeof(uint32_t));
    s.inner_at =
        cpu_shape_take(&s.arena_bytes, s.experts.pairs, s.experts.inner_stride * sizeof(float));
    if (s.experts.scratch_bytes > s.scratch_bytes)
        s.scratch_bytes = s.experts.scratch_bytes;
    s.scratch_at = cpu_shape_take(&s.arena_bytes, threads, s.scratch_bytes);
    (void)cpu_shape_take(&s.slot_bytes, q->ceiling.seqs, sizeof(struct cpu_slot));
    s.last_at = cpu_shape_take(&s.slot_bytes, q->ceiling.seqs, sizeof(int32_t));
    s.choice_bytes = (size_t)s.logit_stride * 3 * sizeof(float);
    s.choice_at = cpu_shape_take(&s.slot_bytes, last ? threads : 0, s.choice_bytes);
    s.word_at = cpu_shape_take(&s.slot_bytes, last ? (size_t)q->ceiling.seqs * q->ceiling.words : 0,
                               sizeof(uint32_t));
    if (s.weight_bytes == SIZE_MAX || s.arena_bytes == SIZE_MAX || s.slot_bytes == SIZE_MAX ||
        s.block_bytes == SIZE_MAX)
        return -EOVERFLOW;
    *ret_shape = s;
    return 0;
}

int cpu_map(size_t bytes, bool huge, struct cpu_memory *ret_memory)
{
    if (bytes == 0) {
        *ret_memory = (struct cpu_memory){0};
        return 0;
    }
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return EK_EDEVMEM;
    if (huge)
        (void)madvise(at, bytes, MADV_HUGEPAGE); /* only faster */
    *ret_memory = (struct cpu_memory){at, bytes};
    return 0;
}

void cpu_unmap(struct cpu_memory *m)
{
    if (m->at)
        (void)munmap(m->at, m->bytes);
    *m = (struct cpu_memory){0};
}
