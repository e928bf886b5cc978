/*
 * Attention over the paged cache. A span is some rows of one sequence; for one KV head, all query
 * heads of those rows (at most CPU_MOST_ROWS at a time) share each K and V block that is read.
 *
 * The context is visited in order of position, in tiles of CPU_TILE positions counted from 0, with
 * a running maximum and sum. A query takes part in the tiles from the first position it may see to
 * its own; positions outside weigh exactly 0. So its result depends on its position and the cache
 * alone, not on which other queries shared the blocks, nor on where the blocks lie.
 *
 * Cache: for each block, layer and head K as [head_dim][block_size] (a vector is one element of
 * all keys) and V as [block_size][dim].
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

#define SCORES (CPU_TILE + CPU_SLACK) /* floats from one query's scores to the next one's */

struct query {
    uint32_t from, to; /* positions it sees: [from, to) */
    uint32_t row, head;
    float most, sum; /* running maximum and sum */
};

struct attend {
    const struct ek_device *d;
    const struct ek_op *op;
    const uint32_t *table;
    uint32_t kv_head, count;
    uint32_t from, to; /* union of what the queries see */
    struct query query[CPU_MOST_ROWS];
    float *q, *acc, *scores;
};

size_t cpu_attention_scratch(uint32_t dim)
{
    return CPU_MOST_ROWS * (2 * (size_t)dim + SCORES) * sizeof(float);
}

/* One key: its elements lie block_size apart, in the column that begins at `to`. */
static void write_key(const struct ek_device *d, char *to, const float *k, uint32_t n)
{
    const uint32_t bs = d->shape.block_size;
    uint16_t half[64];

    if (d->graph->dtype == EK_F32) {
        for (uint32_t i = 0; i < n; i++)
            memcpy(to + (size_t)i * bs * sizeof(float), &k[i], sizeof(float));
        return;
    }
    for (uint32_t at = 0; at < n; at += 64) {
        uint32_t count = n - at < 64 ? n - at : 64;
        d->ops->store(d->graph->dtype, half, k + at, count);
        for (uint32_t i = 0; i < count; i++)
            memcpy(to + (size_t)(at + i) * bs * sizeof(half[0]), &half[i], sizeof(half[0]));
    }
}

void cpu_kv_write(const struct ek_device *d, const struct ek_step *step, const struct ek_op *op,
                  uint32_t row)
{
    const uint32_t n = op->u.attention.head_dim, bs = d->shape.block_size;
    const uint32_t slot = ek_step_kv_slots(step)[row];
    const size_t elem = ek_dtype_bits(d->graph->dtype) / 8;

    for (uint32_t h = 0; h < op->u.attention.kv_heads; h++) {
        const float *k = cpu_row(d, op->src, row) + (size_t)(op->u.attention.q_heads + h) * n;
        const float *v = k + (size_t)op->u.attention.kv_heads * n;
        char *block = cpu_kv_at(d, slot / bs, op->layer, h);
        char *v_to = block + d->shape.k_bytes + (size_t)(slot % bs) * d->shape.dim * elem;
        write_key(d, block + slot % bs * elem, k, n);
        d->ops->store(d->graph->dtype, v_to, v, n);
    }
}

/* The scores of one query in the tile at `base` become weights; those of positions that the others
 * see and it does not, from `first` to `end`, become 0. */
static void weigh(struct attend *a, uint32_t index, uint32_t base, uint32_t first, uint32_t end)
{
    struct query *q = &a->query[index];
    float *s = a->scores + (size_t)index * SCORES, *acc = a->acc + (size_t)index * a->d->shape.dim;
    uint32_t from = q->from > first ? q->from : first, to = q->to < end ? q->to : end;

    if (from >= to) {
        memset(s + (first - base), 0, (end - first) * sizeof(float));
        return;
    }
    bool fresh = isinf(q->most); /* nothing accumulated yet */
    float factor = a->d->ops->softmax(s + (from - base), to - from, a->op->u.attention.scale,
                                      a->op->u.attention.softcap, &q->most, &q->sum);
    memset(s + (first - base), 0, (from - first) * sizeof(float));
    memset(s + (to - base), 0, (end - to) * sizeof(float));
    if (!fresh && factor != 1.0f)
        a->d->ops->scale(acc, acc, a->d->shape.dim, factor);
}

static void tile(struct attend *a, uint32_t base)
{
    const struct ek_device *d = a->d;
    const uint32_t bs = d->shape.block_size;
    uint32_t first = a->from / bs * bs, end = (a->to + bs - 1) / bs * bs;
    struct cpu_block b = {.dtype = d->graph->dtype, .rows = a->count};

    first = first > base ? first : base;
    end = end < base + CPU_TILE ? end : base + CPU_TILE;
    b.dim = d->graph->head_dim;
    b.keys = bs;
    b.in = a->q;
    b.in_stride = d->shape.dim;
    b.out_stride = SCORES;
    for (uint32_t at = first; at < end; at += b.blocks * bs) {
        for (b.blocks = 0; b.blocks < CPU_BLOCKS && at + b.blocks * bs < end; b.blocks++)
            b.kv[b.blocks] = cpu_kv_at(d, a->table[at / bs + b.blocks], a->op->layer, a->kv_head);
        b.out = a->scores + (at - base);
        d->ops->scores(&b);
    }
    for (uint32_t i = 0; i < a->count; i++)
        weigh(a, i, base, first, end);
    b.dim = d->shape.dim;
    b.blocks = 1;
    b.in_stride = SCORES;
    b.out = a->acc;
    b.out_stride = d->shape.dim;
    for (uint32_t at = first; at < end; at += bs) {
        b.kv[0] = cpu_kv_at(d, a->table[at / bs], a->op->layer, a->kv_head) + d->shape.k_bytes;
        b.keys = a->to - at < bs ? a->to - at : bs; /* what lies behind was never written */
        b.in = a->scores + (at - base);
        d->ops->mix(&b);
    }
}

static void add_query(struct attend *a, uint32_t row, uint32_t head, uint32_t position)
{
    const uint32_t n = a->op->u.attention.head_dim, window = a->op->u.attention.window;
    float *q = a->q + (size_t)a->count * a->d->shape.dim;
    struct query *new = &a->query[a->count++];

    *new = (struct query){.to = position + 1, .row = row, .head = head, .most = -INFINITY};
    new->from = window > 0 && new->to > window ? new->to - window : 0;
    memcpy(q, cpu_row(a->d, a->op->src, row) + (size_t)head * n, n * sizeof(float));
    a->from = a->count == 1 || new->from < a->from ? new->from : a->from;
    a->to = a->count == 1 || new->to > a->to ? new->to : a->to;
}

static void flush(struct attend *a)
{
    const uint32_t n = a->op->u.attention.head_dim, dim = a->d->shape.dim;

    memset(a->acc, 0, (size_t)a->count * dim * sizeof(float));
    for (uint32_t base = a->from / CPU_TILE * CPU_TILE; base < a->to; base += CPU_TILE)
        tile(a, base);
    for (uint32_t i = 0; i < a->count; i++) {
        const struct query *q = &a->query[i];
        float *out = cpu_row(a->d, a->op->dst, q->row) + (size_t)q->head * n;
        a->d->ops->scale(out, a->acc + (size_t)i * dim, n, 1.0f / q->sum);
    }
    a->count = 0;
}

void cpu_attend(const struct ek_device *d, const struct ek_step *step, const struct ek_op *op,
                const struct cpu_span *span, uint32_t kv_head, char *scratch)
{
    const uint32_t group = op->u.attention.q_heads / op->u.attention.kv_heads;
    struct attend a = {.d = d, .op = op, .kv_head = kv_head};

    a.table = ek_step_tables(step) + ek_step_seqs(step)[span->seq].table;
    a.q = (float *)(void *)scratch;
    a.acc = a.q + (size_t)CPU_MOST_ROWS * d->shape.dim;
    a.scores = a.acc + (size_t)CPU_MOST_ROWS * d->shape.dim;
    for (uint32_t i = 0; i < span->rows; i++)
        for (uint32_t h = 0; h < group; h++) {
            uint32_t row = span->row + i;
            add_query(&a, row, kv_head * group + h, ek_step_positions(step)[row]);
            if (a.count == CPU_MOST_ROWS)
                flush(&a);
        }
    if (a.count > 0)
        flush(&a);
}
