/*
 * Launches of latent attention and of its products by heads (latent.cu).
 */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/program.h"
#include "kernels/cuda/shape.h"

#define WIDE 8u /* numbers that kernels copy together */

const char *cuda_latent_refuse(const struct ek_op *op)
{
    if (op->kind != EK_OP_ATTENTION || op->u.attention.value_dim == 0)
        return NULL;
    if (op->u.attention.kv_heads != 1)
        return "has latent attention with several heads of keys, which the CUDA backend does not "
               "do";
    return op->u.attention.value_dim > CU_LATENT_VALUE
               ? "has latents of more than 512 elements, which the CUDA backend does not do"
               : NULL;
}

/* The fewest groups of equal size that blocks have room for. */
static uint32_t groups_of(uint32_t heads)
{
    uint32_t groups = (heads + CU_LATENT_PAIRS - 1) / CU_LATENT_PAIRS;

    while (heads % groups != 0)
        groups++;
    return groups;
}

uint32_t cuda_latent_groups(const struct ek_graph *g, uint32_t *ret_each)
{
    uint32_t heads = 0;

    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct ek_op *op = &g->ops[i];
        if (op->kind != EK_OP_ATTENTION)
            continue;
        if (heads > 0 && op->u.attention.q_heads != heads)
            return 0;
        heads = op->u.attention.q_heads;
    }
    if (heads == 0 || g->dtype == EK_F32 || g->head_dim % WIDE != 0 || g->value_dim % WIDE != 0 ||
        g->head_dim > CU_LATENT_DIM || g->value_dim > CU_LATENT_VALUE)
        return 0;
    *ret_each = heads / groups_of(heads);
    return groups_of(heads);
}

static void make_heads(struct maker *m)
{
    struct ek_device *d = m->d;
    const struct ek_op *op = m->op;
    const struct ek_weight *w = &d->graph->weights[op->weight];
    const uint32_t rest = op->u.heads.rest;
    const bool wide =
        d->graph->dtype != EK_F32 && w->cols % WIDE == 0 && (w->cols + rest) % WIDE == 0;
    const uint32_t tile = wide ? CU_HEADS_TILE : CU_HEADS_PLAIN;
    const uint32_t tiles = (w->rows + tile - 1) / tile;

    cuda_program_add(m, RUN_HEADS, wide ? K_HEADS : K_HEADS_PLAIN, wide ? CU_LATENT_THREADS : 256,
                     tiles * op->u.heads.count)
        ->args.heads = (struct cu_heads_args){.step = step_addr(d),
                                              .w = weight_addr(d, op->weight),
                                              .w_step = cuda_weight_step(&d->weights[op->weight]),
                                              .src = value_view(d, op->src),
                                              .dst = value_view(d, op->dst),
                                              .heads = op->u.heads.count,
                                              .n = w->rows,
                                              .k = w->cols,
                                              .rest = rest,
                                              .tiles = tiles};
}

static void make_attention(struct maker *m)
{
    const uint32_t groups = m->d->shape.latent_groups;
    const struct ek_op *op = m->op;

    cuda_program_rope(m, op->u.attention.keys, NULL, op);
    struct cu_attend_args a = cuda_program_attends(m);
    a.key_dim = op->u.attention.head_dim;
    a.head_dim = op->u.attention.value_dim;
    a.kv_heads = groups > 0 ? groups : 1;
    cuda_program_add(m, RUN_LATENT, groups > 0 ? K_LATENT : K_LATENT_PLAIN, CU_LATENT_THREADS, 1)
        ->args.attend = a;
}

bool cuda_latent_make(struct maker *m)
{
    if (m->op->kind == EK_OP_HEADS) {
        make_heads(m);
        return true;
    }
    if (m->op->kind != EK_OP_ATTENTION || m->op->u.attention.value_dim == 0)
        return false;
    make_attention(m);
    return true;
}

int cuda_latent_run(struct ek_device *d, struct cuda_launch *l, uint32_t rows, uint32_t tiles)
{
    if (l->run == RUN_HEADS) {
        const uint32_t tile = l->kernel == K_HEADS ? CU_HEADS_TILE : CU_HEADS_PLAIN;
        return cuda_launch(d, l->kernel, l->columns, (rows + tile - 1) / tile, l->threads,
                           &l->args);
    }
    if (l->kernel == K_LATENT_PLAIN)
        return cuda_launch(d, l->kernel, rows, l->args.attend.q_heads, l->threads, &l->args);
    const uint64_t units = (uint64_t)tiles * l->args.attend.kv_heads;
    return cuda_launch(d, l->kernel, units < d->row_blocks ? (uint32_t)units : d->row_blocks, 1,
                       l->threads, &l->args);
}
