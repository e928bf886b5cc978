/*
 * Launches of rotation, of what is written to the KV cache, and of attention, for program.c: which
 * kernels a layer has depends on its heads and on the cache (shape_attend.c).
 */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/program.h"
#include "kernels/cuda/shape.h"

cu_addr cuda_angles_at(const struct ek_device *d, uint32_t table)
{
    size_t count = d->graph->ropes[table].count * sizeof(float);
    return cuda_arena(d, d->rope_at[table] + ((count + 255) & ~(size_t)255));
}

static float or_one(float scale)
{
    return scale != 0.0f ? scale : 1.0f;
}

void cuda_program_rope(struct maker *m, uint16_t value, const struct ek_op *rope,
                       const struct ek_op *attention)
{
    struct ek_device *d = m->d;
    const bool kept = attention && !attention->u.attention.reads && d->graph->kv_i8;

    struct cu_rope_args *a =
        &cuda_program_add(m, RUN_ROWS, kept && !rope ? K_KEEP : K_ROPE, 256, 1)->args.rope;
    *a = (struct cu_rope_args){.step = step_addr(d), .x = value_view(d, value)};
    if (rope) {
        a->table = cuda_angles_at(d, rope->u.rope.table);
        a->first_col = rope->u.rope.first_col;
        a->heads = rope->u.rope.heads;
        a->head_dim = rope->u.rope.head_dim;
        a->rotary = rope->u.rope.rotary_dim;
        a->neighbours = rope->u.rope.neighbours;
        a->warm = rope->u.rope.warm;
        a->warm_from = rope->u.rope.warm_from;
        a->warm_every = rope->u.rope.warm_every;
    }
    if (!attention || attention->u.attention.reads)
        return;
    const struct cuda_cells cells = cuda_cells_of(d->graph, d->plan.block_size, attention->layer);
    a->head_dim = attention->u.attention.head_dim;
    a->writes = 1;
    a->latent = attention->u.attention.value_dim > 0; /* `value` has nothing but the keys */
    a->k_col = a->latent ? 0 : attention->u.attention.q_heads * a->head_dim;
    a->kv_heads = attention->u.attention.kv_heads;
    a->block_shift = d->shape.block_shift;
    a->block_bytes = d->shape.block_bytes;
    a->plane_bytes = cells.plane_bytes;
    a->layer_at = cells.at;
    a->scale_at = cells.scale_at;
    a->kv_f8 = d->graph->kv_f8;
    a->k_scale = or_one(attention->u.attention.k_scale);
    a->v_scale = or_one(attention->u.attention.v_scale);
    if (!kept || !rope)
        return;
    const struct cu_rope_args keep = *a;
    a->writes = 0;
    cuda_program_add(m, RUN_ROWS, K_KEEP, 256, 1)->args.rope = keep;
}

struct cu_attend_args cuda_program_attends(const struct maker *m)
{
    struct ek_device *d = m->d;
    const struct ek_op *op = m->op;
    const bool f8 = d->graph->kv_f8, i8 = d->graph->kv_i8;
    const struct cuda_cells cells = cuda_cells_of(d->graph, d->plan.block_size, op->layer);

    return (struct cu_attend_args){
        .step = step_addr(d),
        .partials = cuda_arena(d, d->shape.partial_at),
        .counters = cuda_arena(d, d->shape.counter_at),
        .x = value_view(d, op->src),
        .dst = value_view(d, op->dst),
        .row_table = cuda_arena(d, d->shape.row_table_at),
        .sinks = weight_addr(d, op->bias),
        .q_heads = op->u.attention.q_heads,
        .kv_heads = op->u.attention.kv_heads,
        .head_dim = op->u.attention.head_dim,
        .window = op->u.attention.window | (op->u.attention.chunks ? CU_CHUNKS : 0),
        .block_shift = d->shape.block_shift,
        .kv_f8 = f8,
        .scale = op->u.attention.scale * (f8 ? or_one(op->u.attention.k_scale) : 1.0f),
        .softcap = op->u.attention.softcap,
        .v_scale = f8   ? or_one(op->u.attention.v_scale)
                   : i8 ? 1.0f / CU_I8_LIFT
                        : 1.0f,
        .block_bytes = d->shape.block_bytes,
        .plane_bytes = cells.plane_bytes,
        .layer_at = cells.at,
        .scale_at = cells.scale_at,
        .tile_partials = cuda_arena(d, d->shape.tile_partial_at),
        .tile_counters = cuda_arena(d, d->shape.tile_counter_at)};
}

void cuda_attend_make(struct maker *m)
{
    const bool tiles = m->d->shape.tile_rows > 0,
               wide = m->op->u.attention.head_dim > CU_DIM_NARROW;
    const enum cuda_kernel kernel = !tiles ? K_ATTEND_PLAIN : wide ? K_ATTEND_WIDE : K_ATTEND_ROW;

    cuda_program_add(m, RUN_ATTEND, kernel, CU_ROW_THREADS, 1)->args.attend =
        cuda_program_attends(m);
}

/* Tiles and items by blocks that have tiles of the context in shared memory (attend_wide.cuh). */
static int run_wide(struct ek_device *d, enum cuda_kernel k, struct cu_attend_args *a,
                    uint32_t tiles, uint32_t items)
{
    const uint32_t group = a->q_heads / a->kv_heads;
    const uint32_t most = k == K_ATTEND_WIDE ? d->wide_blocks : d->kept_blocks;
    const uint32_t dim = k == K_ATTEND_WIDE ? CU_DIM_MOST : d->shape.head_most;

    a->subs = (d->tile_rows * group + CU_WIDE_PAIRS - 1) / CU_WIDE_PAIRS;
    const uint64_t units =
        ((uint64_t)tiles * a->subs + (uint64_t)items * CU_WIDE_GROUPS(group)) * a->kv_heads;
    if (units == 0)
        return 0;
    return cuda_launch(d, k, units < most ? (uint32_t)units : most, 1, CU_WIDE_THREADS(dim), a);
}

int cuda_attend_run(struct ek_device *d, struct cuda_launch *l, uint32_t rows, uint32_t tiles,
                    uint32_t items)
{
    struct cu_attend_args *a = &l->args.attend;
    int r = 0;

    if (l->kernel == K_ATTEND_PLAIN)
        return cuda_launch(d, K_ATTEND_PLAIN, rows, a->q_heads, 128, a);
    if (l->kernel == K_ATTEND_WIDE)
        return run_wide(d, K_ATTEND_WIDE, a, tiles, items);
    if (items > 0) {
        uint32_t group = (a->q_heads / a->kv_heads + CU_HEADS - 1) / CU_HEADS;
        uint64_t units = (uint64_t)items * a->kv_heads * group;
        r = cuda_launch(d, K_ATTEND_ROW, units < d->row_blocks ? (uint32_t)units : d->row_blocks, 1,
                        CU_ROW_THREADS, a);
    }
    if (r == 0 && tiles > 0 && d->attend_tile == K_ATTEND_KEPT)
        r = run_wide(d, K_ATTEND_KEPT, a, tiles, 0);
    else if (r == 0 && tiles > 0)
        r = cuda_launch(d, d->attend_tile, tiles, a->kv_heads,
                        d->attend_tile == K_ATTEND_WGMMA ? 256 : 128, a);
    return r;
}
