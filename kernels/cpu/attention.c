/*
 * Attention over the paged cache. A span is some rows of one sequence; for one KV head, all query
 * heads of those rows (at most CPU_QUERIES at a time) share each K and V block that is read.
 *
 * The context is visited in order of position, in tiles of CPU_TILE positions counted from 0, with
 * a running maximum and sum. A query takes part in the tiles from the first position it may see to
 * its own; positions outside weigh exactly 0. So its result depends on its position and the cache
 * alone, not on which other queries shared the blocks, nor on where the blocks lie.
 *
 * Each CPU_PART positions are summed by themselves and combined in order. One member does all parts
 * of an item in turn; where there are fewer items than members, each part is an item of its own and
 * what comes of it is combined when all are done: with the same bits.
 *
 * Cache: for each block, layer and head K as [head_dim][block_size] (a vector is one element of
 * all keys) and V as [block_size][dim]; in tiers with pairs two adjacent elements of a key, and of
 * V two adjacent keys, lie side by side (struct cpu_block).
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

#define SCORES (CPU_TILE + CPU_SLACK) /* floats from one query's scores to the next one's */

struct query {
    uint32_t from, to; /* positions it sees: [from, to) */
    uint32_t row, head;
    float most, sum; /* running maximum and sum of the part */
};

/* A sum over some positions; none if `sum` is 0. */
struct sum {
    float most, sum;
    float *acc; /* [dim] */
};

struct attend {
    const struct ek_device *d;
    const struct ek_op *op;
    const uint32_t *table;
    uint32_t kv_head, count;
    uint32_t from, to; /* union of what the queries see */
    bool pairs;        /* q are bf16, and so become the scores */
    struct query query[CPU_QUERIES];
    float *q, *acc, *whole, *scores;
    struct sum total[CPU_QUERIES]; /* of the parts so far, in `whole` */
    /* What comes after this item, to be fetched meanwhile: the K of these blocks of `next_head`. */
    const uint32_t *next_table;
    uint32_t next_head, next_blocks;
};

size_t cpu_attention_scratch(uint32_t dim)
{
    return CPU_QUERIES * (3 * (size_t)dim + SCORES) * sizeof(float);
}

size_t cpu_partial_floats(const struct ek_device *d, const struct ek_op *op, uint32_t rows)
{
    const uint32_t group = op->u.attention.q_heads / op->u.attention.kv_heads;

    return (size_t)rows * group * (d->shape.dim + 2);
}

static bool in_pairs(const struct ek_device *d)
{
    return d->ops->pairs && d->graph->dtype == EK_BF16 && d->graph->head_dim % 2 == 0 &&
           d->shape.block_size % 2 == 0;
}

/* The K and V of one token and head, in 32 bits each. */
static void write_f32(const struct ek_device *d, char *block, uint32_t key, const float *k,
                      const float *v)
{
    const uint32_t bs = d->shape.block_size, n = d->graph->head_dim;
    float *to = (float *)(void *)block;

    for (uint32_t i = 0; i < n; i++)
        to[cpu_key_index(false, bs, i, key)] = k[i];
    memcpy(block + d->shape.k_bytes + key * d->shape.dim * sizeof(float), v, n * sizeof(float));
}

/* The same in 16 bits, rounded in pieces, where two adjacent elements of a key and two adjacent
 * keys of V lie side by side. */
static void write_pairs(const struct ek_device *d, char *block, uint32_t key, const float *k,
                        const float *v)
{
    const uint32_t bs = d->shape.block_size, dim = d->shape.dim, n = d->graph->head_dim;
    uint16_t half[64], *v_to = (uint16_t *)(void *)(block + d->shape.k_bytes);
    uint32_t *k_to = (uint32_t *)(void *)block + key;

    v_to += cpu_value_index(true, dim, 0, key);
    for (uint32_t at = 0; at < n; at += 64) {
        uint32_t count = n - at < 64 ? n - at : 64;
        d->ops->store(d->graph->dtype, half, k + at, count);
        for (uint32_t i = 0; i < count; i += 2)
            memcpy(k_to + (size_t)(at + i) / 2 * bs, half + i, sizeof(*k_to));
        d->ops->store(d->graph->dtype, half, v + at, count);
        for (uint32_t i = 0; i < count; i++)
            v_to[(size_t)(at + i) * 2] = half[i];
    }
}

static void write_half(const struct ek_device *d, char *block, uint32_t key, const float *k,
                       const float *v)
{
    const uint32_t bs = d->shape.block_size, n = d->graph->head_dim;
    uint16_t half[64], *k_to = (uint16_t *)(void *)block;
    uint16_t *v_to = (uint16_t *)(void *)(block + d->shape.k_bytes);

    for (uint32_t at = 0; at < n; at += 64) {
        uint32_t count = n - at < 64 ? n - at : 64;
        d->ops->store(d->graph->dtype, half, k + at, count);
        for (uint32_t i = 0; i < count; i++)
            k_to[cpu_key_index(false, bs, at + i, key)] = half[i];
    }
    d->ops->store(d->graph->dtype, v_to + (size_t)key * d->shape.dim, v, n);
}

void cpu_kv_write(const struct ek_device *d, const struct ek_step *step, const struct ek_op *op,
                  uint32_t row)
{
    const uint32_t n = op->u.attention.head_dim, bs = d->shape.block_size;
    const uint32_t slot = ek_step_kv_slots(step)[row];

    for (uint32_t h = 0; h < op->u.attention.kv_heads; h++) {
        const float *k = cpu_row(d, op->src, row) + (size_t)(op->u.attention.q_heads + h) * n;
        const float *v = k + (size_t)op->u.attention.kv_heads * n;
        char *block = cpu_kv_at(d, slot / bs, op->layer, h);
        if (d->graph->dtype == EK_F32)
            write_f32(d, block, slot % bs, k, v);
        else if (in_pairs(d))
            write_pairs(d, block, slot % bs, k, v);
        else
            write_half(d, block, slot % bs, k, v);
    }
}

/* The scores of one query in the tile at `base` become weights; those of positions that the others
 * see and it does not, from `first` to `end`, become 0. */
static void weigh(struct attend *a, uint32_t index, uint32_t base, uint32_t first, uint32_t end)
{
    const struct cpu_ops *ops = a->d->ops;
    const size_t size = a->pairs ? sizeof(uint16_t) : sizeof(float);
    struct query *q = &a->query[index];
    float *s = a->scores + (size_t)index * SCORES, *acc = a->acc + (size_t)index * a->d->shape.dim;
    uint32_t from = q->from > first ? q->from : first, to = q->to < end ? q->to : end;
    char *weight = (char *)s;

    if (from >= to) {
        memset(weight + (first - base) * size, 0, (end - first) * size);
        return;
    }
    bool fresh = isinf(q->most); /* nothing accumulated yet */
    float factor = (a->pairs ? ops->softmax_pairs
                             : ops->softmax)(s + (from - base), to - from, a->op->u.attention.scale,
                                             a->op->u.attention.softcap, &q->most, &q->sum);
    if (a->pairs && from > base)
        memmove(weight + (from - base) * size, s + (from - base), (to - from) * size);
    memset(weight + (first - base) * size, 0, (from - first) * size);
    memset(weight + (to - base) * size, 0, (end - to) * size);
    if (!fresh && factor != 1.0f)
        ops->scale(acc, acc, a->d->shape.dim, factor);
}

static const char *kv_of(const struct attend *a, uint32_t block, uint32_t head)
{
    return cpu_kv_at(a->d, block, a->op->layer, head);
}

/* Points b at up to CPU_BLOCKS blocks of [at, end), and at what is read a phase later: their V
 * behind their K; behind V the K of the next tile or, at the end, of the next item. */
static void take_blocks(const struct attend *a, bool v, uint32_t at, uint32_t end,
                        struct cpu_block *b)
{
    const size_t behind = a->d->shape.k_bytes;
    const uint32_t bs = a->d->shape.block_size;

    for (b->blocks = 0; b->blocks < CPU_BLOCKS && at < end; b->blocks++, at += bs) {
        const char *kv = kv_of(a, a->table[at / bs], a->kv_head);
        uint32_t next = (at + CPU_TILE < a->to ? at + CPU_TILE : at % CPU_TILE) / bs;
        b->kv[b->blocks] = v ? kv + behind : kv;
        b->next[b->blocks] = kv + behind;
        if (v && at + CPU_TILE < a->to)
            b->next[b->blocks] = kv_of(a, a->table[next], a->kv_head);
        else if (v && next < a->next_blocks)
            b->next[b->blocks] = kv_of(a, a->next_table[next], a->next_head);
    }
}

static void tile(struct attend *a, uint32_t base)
{
    const struct ek_device *d = a->d;
    const uint32_t bs = d->shape.block_size;
    uint32_t first = a->from / bs * bs, end = (a->to + bs - 1) / bs * bs;
    struct cpu_block b = {
        .dtype = d->graph->dtype, .pairs = a->pairs, .rows = a->count, .keys = bs};
    const uint32_t unit = a->pairs ? 2 : 1; /* weights in 4 bytes */

    first = first > base ? first : base;
    end = end < base + CPU_TILE ? end : base + CPU_TILE;
    b.dim = d->graph->head_dim;
    b.in = a->q;
    b.in_stride = d->shape.dim;
    b.out_stride = SCORES;
    for (uint32_t at = first; at < end; at += b.blocks * bs) {
        take_blocks(a, false, at, end, &b);
        b.out = a->scores + (at - base);
        d->ops->scores(&b);
    }
    for (uint32_t i = 0; i < a->count; i++)
        weigh(a, i, base, first, end);
    b.dim = d->shape.dim;
    b.in_stride = SCORES;
    b.out = a->acc;
    b.out_stride = d->shape.dim;
    for (uint32_t at = first, whole = a->to / bs * bs; at < end; at += b.blocks * bs) {
        take_blocks(a, true, at, at < whole && whole < end ? whole : end, &b);
        b.keys = at < whole ? bs : a->to - at; /* what lies behind was never written */
        b.in = a->scores + (at - base) / unit;
        d->ops->mix(&b);
    }
}

static void add_query(struct attend *a, uint32_t row, uint32_t head, uint32_t position)
{
    const uint32_t n = a->op->u.attention.head_dim, window = a->op->u.attention.window;
    const float *from = cpu_row(a->d, a->op->src, row) + (size_t)head * n;
    float *q = a->q + (size_t)a->count * a->d->shape.dim;
    struct query *new = &a->query[a->count++];

    *new = (struct query){.to = position + 1, .row = row, .head = head, .most = -INFINITY};
    new->from = window > 0 && new->to > window ? new->to - window : 0;
    if (a->pairs)
        a->d->ops->store(EK_BF16, q, from, n);
    else
        memcpy(q, from, n * sizeof(float));
    a->from = a->count == 1 || new->from < a->from ? new->from : a->from;
    a->to = a->count == 1 || new->to > a->to ? new->to : a->to;
}

/* The sums over one part, into `acc` and the queries. */
static void sum_part(struct attend *a, uint32_t part)
{
    const uint32_t first = part * CPU_PART, from = a->from > first ? a->from : first;
    const uint32_t end = a->to - first < CPU_PART ? a->to : first + CPU_PART;

    memset(a->acc, 0, (size_t)a->count * a->d->shape.dim * sizeof(float));
    for (uint32_t i = 0; i < a->count; i++) {
        a->query[i].most = -INFINITY;
        a->query[i].sum = 0.0f;
    }
    for (uint32_t base = from / CPU_TILE * CPU_TILE; base < end; base += CPU_TILE)
        tile(a, base);
}

static void combine(const struct ek_device *d, struct sum *total, const struct sum *part)
{
    const uint32_t dim = d->shape.dim;

    if (part->sum == 0.0f)
        return;
    if (total->sum == 0.0f) {
        total->most = part->most;
        total->sum = part->sum;
        memcpy(total->acc, part->acc, dim * sizeof(float));
        return;
    }
    const float most = total->most > part->most ? total->most : part->most;
    const float before = expf(total->most - most), now = expf(part->most - most);
    d->ops->scale(total->acc, total->acc, dim, before);
    d->ops->add(total->acc, part->acc, dim, now);
    total->sum = total->sum * before + part->sum * now;
    total->most = most;
}

static void write_out(const struct attend *a, uint32_t index, const struct sum *total)
{
    const struct query *q = &a->query[index];
    const uint32_t n = a->op->u.attention.head_dim;

    a->d->ops->scale(cpu_row(a->d, a->op->dst, q->row) + (size_t)q->head * n, total->acc, n,
                     1.0f / total->sum);
}

static struct sum part_of(const struct attend *a, uint32_t index)
{
    const struct query *q = &a->query[index];

    return (struct sum){q->most, q->sum, a->acc + (size_t)index * a->d->shape.dim};
}

static void flush(struct attend *a)
{
    const uint32_t first = a->from / CPU_PART, last = (a->to - 1) / CPU_PART;

    for (uint32_t i = 0; i < a->count; i++)
        a->total[i] = (struct sum){.acc = a->whole + (size_t)i * a->d->shape.dim};
    for (uint32_t part = first; part <= last; part++) {
        sum_part(a, part);
        for (uint32_t i = 0; i < a->count; i++) {
            const struct sum sum = part_of(a, i);
            if (first == last)
                write_out(a, i, &sum);
            else
                combine(a->d, &a->total[i], &sum);
        }
    }
    for (uint32_t i = 0; i < a->count && first < last; i++)
        write_out(a, i, &a->total[i]);
    a->count = 0;
}

/* Where a part of an item leaves what it comes to: for each query maximum, sum and [dim]. */
static float *partial_at(const struct ek_device *d, const struct cpu_item *item, uint32_t part,
                         uint32_t query)
{
    return item->partial + (item->queries * (size_t)part + query) * (d->shape.dim + 2);
}

/* The same for one part only; the queries before these were `before`. */
static void flush_part(struct attend *a, const struct cpu_item *item, uint32_t before)
{
    const bool has = a->to > item->part * CPU_PART && a->from / CPU_PART <= item->part;

    if (has)
        sum_part(a, item->part);
    for (uint32_t i = 0; i < a->count; i++) {
        const struct sum sum = has ? part_of(a, i) : (struct sum){-INFINITY, 0.0f, a->acc};
        float *to = partial_at(a->d, item, item->part, before + i);
        to[0] = sum.most;
        to[1] = sum.sum;
        memcpy(to + 2, sum.acc, a->d->shape.dim * sizeof(float));
    }
    a->count = 0;
}

void cpu_attend_combine(const struct ek_device *d, const struct ek_op *op,
                        const struct cpu_item *item, uint32_t parts, char *scratch)
{
    const uint32_t group = item->queries / item->span->rows;
    struct attend a;

    a.d = d;
    a.op = op;
    for (uint32_t i = 0; i < item->queries; i++) {
        struct sum total = {.acc = (float *)(void *)scratch};
        for (uint32_t part = 0; part < parts; part++) {
            float *from = partial_at(d, item, part, i);
            combine(d, &total, &(struct sum){from[0], from[1], from + 2});
        }
        a.query[0].row = item->span->row + i / group;
        a.query[0].head = item->head * group + i % group;
        write_out(&a, 0, &total);
    }
}

void cpu_attend(const struct ek_device *d, const struct ek_step *step, const struct ek_op *op,
                const struct cpu_item *item, const struct cpu_item *next, char *scratch)
{
    const uint32_t group = op->u.attention.q_heads / op->u.attention.kv_heads;
    const struct cpu_span *span = item->span;
    struct attend a; /* the queries are set as they come */

    a.d = d;
    a.op = op;
    a.kv_head = item->head;
    a.pairs = in_pairs(d);
    a.count = a.next_head = a.next_blocks = 0;
    a.next_table = NULL;
    a.table = ek_step_tables(step) + ek_step_seqs(step)[span->seq].table;
    if (next && op->u.attention.window == 0) {
        const struct ek_step_seq *q = &ek_step_seqs(step)[next->span->seq];
        a.next_table = ek_step_tables(step) + q->table;
        a.next_blocks = q->blocks;
        a.next_head = next->head;
    }
    a.q = (float *)(void *)scratch;
    a.acc = a.q + (size_t)CPU_QUERIES * d->shape.dim;
    a.whole = a.acc + (size_t)CPU_QUERIES * d->shape.dim;
    a.scores = a.whole + (size_t)CPU_QUERIES * d->shape.dim;
    for (uint32_t i = 0; i < span->rows * group; i++) {
        const uint32_t row = span->row + i / group;
        add_query(&a, row, item->head * group + i % group, ek_step_positions(step)[row]);
        if (a.count < CPU_QUERIES && i + 1 < span->rows * group)
            continue;
        if (item->partial)
            flush_part(&a, item, i + 1 - a.count);
        else
            flush(&a);
    }
}
