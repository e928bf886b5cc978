/*
 * What attention and the KV cache take: which kernels serve a graph, their room in the arena, and
 * where a layer lies in a block. Pure, for shape.c; program.c asks where a layer's cells are.
 */
#include "kernels/cuda/shape.h"

#include "kernels/cuda/args_latent.h"

/* Latent attention takes rows of prompts and of decode as tiles; each part of one has a place for
 * the results of each pair of each group of heads. */
static void shape_latent(const struct ek_plan_request *q, struct cuda_shape *s)
{
    uint32_t each = 0;

    s->row_groups = 1;
    s->latent_groups = cuda_latent_groups(q->graph, &each);
    if (s->latent_groups == 0)
        return;
    s->tile_rows = CU_LATENT_PAIRS / each;
    s->most_tile_parts = CUDA_TILE_PAIRS / CU_LATENT_PAIRS / s->latent_groups;
    s->most_tiles = q->ceiling.rows / s->tile_rows + q->ceiling.seqs + 1 + s->most_tile_parts;
    s->tile_counter_at = cuda_shape_take(
        &s->arena_bytes, (size_t)s->most_tile_parts * s->latent_groups, sizeof(uint32_t));
}

/* What the layers that attend differ in. */
struct attends {
    uint32_t heads, tile_rows; /* the most; the fewest */
    uint32_t narrow;           /* the largest head that is no wide one */
    bool even;                 /* what is copied at once is whole in all heads */
    uint32_t units[2];         /* blocks for a part: the fewest of layers without a window, or of
                                  those with one */
};

static void look_at(const struct ek_graph *g, const struct ek_op *op, struct attends *a,
                    struct cuda_shape *s)
{
    const uint32_t heads = op->u.attention.q_heads, kv = op->u.attention.kv_heads,
                   group = heads / kv;
    const uint32_t dim = op->u.attention.head_dim;
    const uint32_t row_groups = (group + CU_HEADS - 1) / CU_HEADS;
    const uint32_t rows = group > CU_TILE_ROWS ? 0 : CU_TILE_ROWS / group;
    const uint32_t unit = g->kv_f8 || g->kv_i8 ? 16 : 8; /* what is copied at once */
    const bool wide = dim > CU_DIM_NARROW;
    const uint32_t units = kv * (wide ? CU_WIDE_GROUPS(group) : row_groups);
    uint32_t *least = &a->units[op->u.attention.window > 0];

    a->heads = heads > a->heads ? heads : a->heads;
    a->tile_rows = rows < a->tile_rows ? rows : a->tile_rows;
    a->narrow = !wide && dim > a->narrow ? dim : a->narrow;
    a->even = a->even && dim % unit == 0;
    *least = *least == 0 || units < *least ? units : *least;
    s->wide = s->wide || wide;
    s->row_groups = row_groups > s->row_groups ? row_groups : s->row_groups;
}

/* Which attention kernels serve the graph, and what they need. */
static void shape_attention(const struct ek_plan_request *q, struct cuda_shape *s)
{
    const struct ek_graph *g = q->graph;
    struct attends a = {.tile_rows = CU_TILE_ROWS, .even = true};

    s->row_groups = 1;
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].kind == EK_OP_ATTENTION)
            look_at(g, &g->ops[i], &a, s);
    const bool fast = g->dtype != EK_F32 && a.even && a.tile_rows > 0 && a.heads > 0;
    s->head_most = a.narrow <= 64 ? 64 : a.narrow <= 128 ? 128 : 256;
    s->wide = s->wide && fast;
    s->row_units = a.units[0] > 0 ? a.units[0] : a.units[1];
    s->tile_rows = fast ? a.tile_rows : 0;
    s->most_items = fast ? q->ceiling.seqs + CUDA_MOST_SPLITS : 0;
    s->most_tile_parts = fast ? CUDA_TILE_PAIRS / CU_TILE_ROWS / g->kv_heads : 0;
    s->most_tiles =
        fast ? q->ceiling.rows / a.tile_rows + q->ceiling.seqs + 1 + s->most_tile_parts : 0;
    s->partial_at = cuda_shape_take(&s->arena_bytes, (size_t)s->most_items * a.heads,
                                    CU_PARTIAL(g->head_dim) * sizeof(float));
    s->counter_at = cuda_shape_take(&s->arena_bytes, (size_t)s->most_items * g->kv_heads,
                                    s->row_groups * sizeof(uint32_t));
    s->tile_counter_at = cuda_shape_take(&s->arena_bytes, (size_t)s->most_tile_parts * g->kv_heads,
                                         CU_TILE_ROWS / CU_WIDE_PAIRS * sizeof(uint32_t));
}

/* The heads of keys of a layer. */
static void heads_of(const struct ek_graph *g, uint32_t layer, uint32_t *ret_heads,
                     uint32_t *ret_dim)
{
    *ret_heads = g->kv_heads;
    *ret_dim = g->head_dim;
    for (uint32_t i = 0; i < g->op_count && g->kv_mixed; i++) {
        const struct ek_op *op = &g->ops[i];
        if (op->kind != EK_OP_ATTENTION || op->layer != layer)
            continue;
        *ret_heads = op->u.attention.kv_heads;
        *ret_dim = op->u.attention.head_dim;
        return;
    }
}

/* V of latent attention is a part of K. */
struct cuda_cells cuda_cells_of(const struct ek_graph *g, uint32_t block_size, uint32_t layer)
{
    const size_t elem = g->kv_f8 || g->kv_i8 ? 1 : ek_dtype_bits(g->dtype) / 8;
    const size_t planes = g->value_dim > 0 ? 1 : 2;
    struct cuda_cells c = {0};
    size_t end = 0;

    for (uint32_t i = g->kv_mixed ? 0 : layer; i <= layer; i++) {
        uint32_t heads, dim;
        size_t plane = 0;
        heads_of(g, i, &heads, &dim);
        (void)cuda_shape_take(&plane, (size_t)heads * dim, block_size * elem);
        c.scale_at =
            g->kv_i8 ? cuda_shape_take(&plane, (size_t)heads * block_size, sizeof(float)) : 0;
        c.plane_bytes = plane;
        c.bytes = planes * plane;
        if (!g->kv_mixed)
            (void)cuda_shape_take(&end, layer, c.bytes);
        c.at = end; /* SIZE_MAX: too many for this */
        (void)cuda_shape_take(&end, planes, plane);
    }
    return c;
}

void cuda_shape_attend(const struct ek_plan_request *q, struct cuda_shape *s)
{
    const struct ek_graph *g = q->graph;

    if (g->value_dim > 0)
        shape_latent(q, s);
    else
        shape_attention(q, s);
    if (g->layers == 0)
        return;
    const struct cuda_cells last = cuda_cells_of(g, q->block_size, g->layers - 1);
    s->block_bytes = last.at;
    (void)cuda_shape_take(&s->block_bytes, 1, last.bytes);
}
