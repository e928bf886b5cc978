/*
 * One item of an attention of the CPU backend by itself: some tokens at the end of a long context,
 * for one head of K and V. Of a device there is what an attention looks at: a graph of one layer, a
 * paged cache, one sequence, its queries. The cache holds as many heads as fit, side by side in
 * each block as in a server, and the blocks of the sequence are scattered over it, so that caches,
 * translations of addresses and what the processor fetches by itself have as hard a time as there.
 */
#include <errno.h>
#include <stdlib.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/shape.h"
#include "kernels/step.h"
#include "server/bench/attend.h"

#define BLOCK   16u  /* tokens */
#define SCATTER 167u /* blocks from one of the sequence to the next one's; odd */

struct bench_attend {
    struct ek_device d;
    struct ek_graph graph;
    struct ek_op op;
    struct cpu_cells cells;
    struct cpu_value values[2]; /* queries, outputs: [rows][heads][ATTEND_GROUP][ATTEND_DIM] */
    struct cpu_row_span span;
    struct ek_step *step;
    char *scratch;
};

static double head_bytes(const struct attend_shape *s)
{
    const double elems = 2.0 * ATTEND_DIM * s->keys;

    return s->dtype == EK_I8 ? elems + 2.0 * sizeof(float) * s->keys : 2.0 * elems;
}

void bench_attend_work(const struct attend_shape *s, double *ret_bytes, double *ret_flops)
{
    const double scores = (double)s->rows * ATTEND_GROUP * s->keys;

    *ret_bytes = head_bytes(s);
    *ret_flops = scores * 2.0 * (2.0 * ATTEND_DIM + SOFTMAX_OPS);
}

/* The sequence: its blocks take turns all over the cache. */
static int step_new(const struct attend_shape *s, struct ek_step **ret_step)
{
    const uint32_t blocks = s->keys / BLOCK;
    const struct ek_step_ceiling ceiling = {.rows = s->rows, .seqs = 1, .entries = blocks};
    struct ek_step *step = calloc(1, ek_step_size(&ceiling));

    if (!step)
        return -ENOMEM;
    ek_step_layout(step, &ceiling);
    step->rows = s->rows;
    step->seqs = 1;
    step->entries = blocks;
    *ek_step_seqs(step) =
        (struct ek_step_seq){.rows = s->rows, .context = s->keys, .blocks = blocks};
    for (uint32_t i = 0; i < s->rows; i++)
        ek_step_positions(step)[i] = s->keys - s->rows + i;
    for (uint32_t i = 0; i < blocks; i++)
        ek_step_tables(step)[i] = (uint32_t)((uint64_t)i * SCATTER % blocks);
    *ret_step = step;
    return 0;
}

/* The parts of a device that do not depend on the cache's size. */
static void device_set(struct bench_attend *a, const struct cpu_ops *ops,
                       const struct attend_shape *s, uint32_t heads)
{
    a->graph = (struct ek_graph){.layers = 1,
                                 .kv_heads = heads,
                                 .head_dim = ATTEND_DIM,
                                 .dtype = EK_BF16,
                                 .kv_i8 = s->dtype == EK_I8};
    a->d.ops = ops;
    a->d.threads = 1;
    a->d.graph = &a->graph;
    a->d.cells = &a->cells;
    a->d.values = a->values;
    a->d.shape.dim = ATTEND_DIM;
    a->d.shape.block_size = BLOCK;
    a->d.shape.block_bytes = cpu_cells_of(&a->graph, BLOCK, &a->cells);
    a->op = (struct ek_op){
        .kind = EK_OP_ATTENTION, .dst = 1, .weight = EK_NO_WEIGHT, .bias = EK_NO_WEIGHT};
    a->op.u.attention.q_heads = heads * ATTEND_GROUP;
    a->op.u.attention.kv_heads = heads;
    a->op.u.attention.head_dim = ATTEND_DIM;
    a->op.u.attention.scale = 0.088388f; /* one over the root of ATTEND_DIM */
    a->span = (struct cpu_row_span){.rows = s->rows};
}

int bench_attend_new(const struct cpu_ops *ops, const struct attend_shape *s, char *cache,
                     size_t cache_bytes, struct bench_attend **ret_attend)
{
    const uint32_t most = (uint32_t)((double)cache_bytes / head_bytes(s));
    struct bench_attend *a = calloc(1, sizeof(*a));
    int r = -ENOMEM;

    if (!a)
        return r;
    /* blocks end at whole lines: a head less may fit than their numbers alone say */
    for (uint32_t heads = most; heads > 0; heads--) {
        device_set(a, ops, s, heads);
        if (s->keys / BLOCK * a->d.shape.block_bytes <= cache_bytes)
            break;
    }
    const uint32_t width = a->op.u.attention.q_heads * ATTEND_DIM;
    const size_t bytes = (size_t)s->rows * width * sizeof(float);
    a->values[0] = (struct cpu_value){.stride = width, .width = width};
    a->values[1] = (struct cpu_value){.at = bytes, .stride = width, .width = width};
    a->d.kv = (struct cpu_memory){cache, cache_bytes};
    a->d.arena = (struct cpu_memory){calloc(2, bytes), 2 * bytes};
    a->scratch = aligned_alloc(64, (cpu_attention_scratch(ATTEND_DIM) + 63) & ~(size_t)63);
    if (!a->d.arena.at || !a->scratch)
        goto out;
    for (size_t i = 0; i < (size_t)s->rows * width; i++)
        cpu_row(&a->d, 0, 0)[i] = 0.25f;
    r = step_new(s, &a->step);
    if (r < 0)
        goto out;

    *ret_attend = a;
    a = NULL;
out:
    bench_attend_free(a);
    return r;
}

void bench_attend_free(struct bench_attend *a)
{
    if (!a)
        return;
    free(a->d.arena.at);
    free(a->scratch);
    free(a->step);
    free(a);
}

void bench_attend_run(struct bench_attend *a, uint32_t turn)
{
    const struct cpu_item item = {.span = &a->span, .head = turn % a->graph.kv_heads};

    cpu_attend(&a->d, a->step, &a->op, &item, NULL, a->scratch);
}

const float *bench_attend_row(const struct bench_attend *a, uint32_t turn, uint32_t row,
                              uint32_t head)
{
    return cpu_row(&a->d, 1, row) +
           (size_t)(turn % a->graph.kv_heads * ATTEND_GROUP + head) * ATTEND_DIM;
}
