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
 * all keys) and V as [block_size][values], of a latent attention too: there V is the first part of
 * K, which so lies here twice, as each of the two products reads it; in tiers with pairs two
 * adjacent elements of a key, and of V two adjacent keys, lie side by side (struct cpu_block); in 8
 * bits with scales as cache.h says.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cache.h"
#include "kernels/cpu/device.h"

#define SCORES   (CPU_TILE + CPU_SLACK) /* floats from one query's scores to the next one's */
#define FEW      6u                     /* queries that a block is read for once, in all tiers */
#define AHEAD    8192u                  /* bytes that they fetch ahead, at most */
#define TOGETHER 64u /* positions: four vectors of K, in pairs and quads multiplied at once */

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
    const struct cpu_cells *cells;
    const uint32_t *table;
    uint32_t kv_head, count;
    uint32_t from, to;                  /* union of what the queries see */
    uint32_t tile, tile_end;            /* what is attended to now, whole blocks */
    uint32_t ahead;                     /* positions from what is read to what is fetched */
    bool pairs;                         /* q are bf16, and so become the scores */
    const struct cpu_quad_cache *quads; /* or whole numbers; NULL: neither, or pairs */
    struct query query[CPU_QUERIES];
    float *q, *acc, *whole, *scores;
    struct sum total[CPU_QUERIES]; /* of the parts so far, in `whole` */
    /* What comes after this item, to be fetched meanwhile: the K of these blocks of `next_head`. */
    const uint32_t *next_table;
    uint32_t next_head, next_blocks;
    struct cpu_unit unit[CPU_QUERIES], weight[CPU_QUERIES]; /* of q and of the tile's weights */
    float k_scale[SCORES], v_scale[SCORES];                 /* int8: of the tile's positions */
};

size_t cpu_attention_scratch(uint32_t dim)
{
    return CPU_QUERIES * (3 * (size_t)dim + SCORES) * sizeof(float);
}

size_t cpu_partial_floats(uint32_t dim, const struct ek_op *op, uint32_t rows)
{
    const uint32_t group = op->u.attention.q_heads / op->u.attention.kv_heads;

    return (size_t)rows * group * (dim + 2);
}

/* The scores of positions [from, to) of the tile at `base` become weights, from the quad of the
 * first to that of the last. */
static float weigh_quads(struct attend *a, uint32_t index, uint32_t base, uint32_t from,
                         uint32_t to)
{
    const struct cpu_ops *ops = a->d->ops;
    const float scale = a->op->u.attention.scale, cap = a->op->u.attention.softcap;
    const uint32_t at = (from - base) & ~3u, skip = from % 4, n = to - base - at;
    struct query *q = &a->query[index];
    float *s = a->scores + (size_t)index * SCORES;
    struct cpu_quad_scores w = {.s = s + at,
                                .skip = skip,
                                .n = n,
                                .scale = scale,
                                .k = a->k_scale + at,
                                .v = a->v_scale + at,
                                .most = &q->most,
                                .sum = &q->sum,
                                .to = (uint32_t *)(void *)s + at / 2,
                                .unit = &a->weight[index]};

    if (cap > 0.0f) {
        ops->times(w.s + skip, w.k + skip, n - skip);
        ops->scale(w.s + skip, w.s + skip, n - skip, scale);
        ops->softcap(w.s + skip, n - skip, cap);
        w.k = NULL;
        w.scale = 1.0f;
    }
    return a->quads->softmax(&w);
}

/* The same as floats or pairs, from the first one itself. */
static float weigh_some(struct attend *a, uint32_t index, uint32_t base, uint32_t from, uint32_t to)
{
    const struct cpu_ops *ops = a->d->ops;
    struct query *q = &a->query[index];
    const uint32_t at = from - base, n = to - from;
    float *s = a->scores + (size_t)index * SCORES;
    char *weight = (char *)s;
    const bool kept = a->d->graph->kv_i8;

    if (kept)
        ops->times(s + at, a->k_scale + at, n);
    float factor = (a->pairs ? ops->softmax_pairs : ops->softmax)(
        s + at, n, a->op->u.attention.scale, a->op->u.attention.softcap, &q->most, &q->sum);
    if (kept)
        ops->times(s + at, a->v_scale + at, n);
    if (a->pairs && at > 0)
        memmove(weight + at * sizeof(uint16_t), s + at, n * sizeof(uint16_t));
    return factor;
}

/* The scores of one query in the tile at `base` become weights; those of positions that the others
 * see and it does not, from `first` to `end`, become 0. */
static void weigh(struct attend *a, uint32_t index, uint32_t base, uint32_t first, uint32_t end)
{
    const size_t size = a->pairs || a->quads ? sizeof(uint16_t) : sizeof(float);
    const uint32_t unit = a->quads ? 4 : 1; /* positions that are written together */
    struct query *q = &a->query[index];
    float *acc = a->acc + (size_t)index * a->d->shape.dim;
    uint32_t from = q->from > first ? q->from : first, to = q->to < end ? q->to : end;
    char *weight = (char *)(a->scores + (size_t)index * SCORES);

    if (from >= to) {
        memset(weight + (first - base) * size, 0, (end - first) * size);
        a->weight[index].one = 0.0f;
        return;
    }
    bool fresh = isinf(q->most); /* nothing accumulated yet */
    float factor = (a->quads ? weigh_quads : weigh_some)(a, index, base, from, to);
    from = from / unit * unit;
    to = (to + unit - 1) / unit * unit;
    memset(weight + (first - base) * size, 0, (from - first) * size);
    memset(weight + (to - base) * size, 0, (end - to) * size);
    if (!fresh && factor != 1.0f)
        a->d->ops->scale(acc, acc, a->cells->values, factor);
}

static const char *kv_of(const struct attend *a, uint32_t block, uint32_t head)
{
    return cpu_kv_at(a->d, block, a->cells, head);
}

/* What is read `ahead` positions after K or V of the block at `at`: the V of a tile follow its K,
 * then come the K of the next tile or, at the end, of the next item. */
static const char *block_ahead(const struct attend *a, bool v, uint32_t at)
{
    const uint32_t bs = a->d->shape.block_size, tile = a->tile_end - a->tile;
    const size_t behind = a->cells->k_bytes;
    uint32_t next = at + a->ahead;

    if (next < a->tile_end)
        return kv_of(a, a->table[next / bs], a->kv_head) + (v ? behind : 0);
    if (!v) {
        next -= tile;
        return kv_of(a, a->table[(next < a->tile_end ? next : at) / bs], a->kv_head) + behind;
    }
    if (next < a->to)
        return kv_of(a, a->table[next / bs], a->kv_head);
    next = (next - a->tile_end) / bs;
    if (next < a->next_blocks)
        return kv_of(a, a->next_table[next], a->next_head);
    return kv_of(a, a->table[at / bs], a->kv_head) + behind; /* nothing: it is there */
}

/* Points b at up to `most` blocks of [at, end), and at what is read some blocks later. */
static void take_blocks(const struct attend *a, bool v, uint32_t at, uint32_t end, uint32_t most,
                        struct cpu_block *b)
{
    const size_t behind = v ? a->cells->k_bytes : 0;
    const uint32_t bs = a->d->shape.block_size;

    for (b->blocks = 0; b->blocks < most && at < end; b->blocks++, at += bs) {
        b->kv[b->blocks] = kv_of(a, a->table[at / bs], a->kv_head) + behind;
        b->next[b->blocks] = block_ahead(a, v, at);
    }
}

/* The scales of the positions [first, end) of an int8 cache; those of the next tile are fetched. */
static void read_scales(struct attend *a, uint32_t base, uint32_t first, uint32_t end)
{
    const struct cpu_shape *s = &a->d->shape;
    const struct cpu_cells *c = a->cells;
    const size_t bytes = s->block_size * sizeof(float);

    for (uint32_t at = first; at < end; at += s->block_size) {
        const char *kv = kv_of(a, a->table[at / s->block_size], a->kv_head);
        memcpy(a->k_scale + (at - base), kv + c->k_scale_at, bytes);
        memcpy(a->v_scale + (at - base), kv + c->v_scale_at, bytes);
        if (at + CPU_TILE >= a->to)
            continue;
        kv = kv_of(a, a->table[(at + CPU_TILE) / s->block_size], a->kv_head);
        __builtin_prefetch(kv + c->k_scale_at);
        __builtin_prefetch(kv + c->v_scale_at);
    }
}

static void score_tile(struct attend *a, uint32_t base, uint32_t first, uint32_t end)
{
    const struct ek_device *d = a->d;
    struct cpu_block b = {.dtype = d->graph->kv_i8 ? EK_I8 : d->graph->dtype,
                          .pairs = a->pairs,
                          .rows = a->count,
                          .dim = a->cells->keys,
                          .keys = d->shape.block_size,
                          .in = a->q,
                          .in_stride = d->shape.dim,
                          .out_stride = SCORES};

    for (uint32_t at = first; at < end; at += b.blocks * b.keys) {
        take_blocks(a, false, at, end, CPU_BLOCKS, &b);
        b.out = a->scores + (at - base);
        if (a->quads)
            a->quads->scores(&b, a->unit);
        else
            d->ops->scores(&b);
    }
}

/* Sums of whole numbers, rounded at the same positions for all queries and sizes of blocks: at the
 * multiples of CPU_QUAD_SPAN. A larger block is taken in pieces. */
static void mix_quads(struct attend *a, uint32_t base, uint32_t first, uint32_t end)
{
    const uint32_t bs = a->d->shape.block_size, most = bs < CPU_QUAD_SPAN ? CPU_BLOCKS : 1;
    struct cpu_block b = {.dtype = EK_I8,
                          .rows = a->count,
                          .dim = a->cells->values,
                          .keys = bs < CPU_QUAD_SPAN ? bs : CPU_QUAD_SPAN,
                          .in_stride = SCORES,
                          .out = a->acc,
                          .out_stride = a->d->shape.dim};

    for (uint32_t at = first; at < end; at += b.blocks * b.keys) {
        const uint32_t stop = (at / CPU_QUAD_SPAN + 1) * CPU_QUAD_SPAN, inside = at % bs;
        const size_t skip = cpu_quad_value_index(b.dim, 0, inside);
        b.in = a->scores + (at - base) / 2;
        take_blocks(a, true, at - inside, stop < end ? stop : end, most, &b);
        b.kv[0] = (const char *)b.kv[0] + skip;
        b.next[0] = (const char *)b.next[0] + skip;
        a->quads->mix(&b, a->weight);
    }
}

static void mix_tile(struct attend *a, uint32_t base, uint32_t first, uint32_t end)
{
    const struct ek_device *d = a->d;
    const uint32_t bs = d->shape.block_size, whole = a->to / bs * bs;
    const uint32_t unit = a->pairs ? 2 : 1; /* weights in 4 bytes */
    struct cpu_block b = {.dtype = d->graph->kv_i8 ? EK_I8 : d->graph->dtype,
                          .pairs = a->pairs,
                          .rows = a->count,
                          .dim = a->cells->values,
                          .keys = bs,
                          .in_stride = SCORES,
                          .out = a->acc,
                          .out_stride = d->shape.dim};

    for (uint32_t at = first; at < end; at += b.blocks * bs) {
        b.in = a->scores + (at - base) / unit;
        take_blocks(a, true, at, at < whole && whole < end ? whole : end, CPU_BLOCKS, &b);
        b.keys = at < whole ? bs : a->to - at; /* what lies behind was never written */
        d->ops->mix(&b);
    }
}

static void tile(struct attend *a, uint32_t base)
{
    const uint32_t bs = a->d->shape.block_size;
    uint32_t first = a->from / bs * bs, end = (a->to + bs - 1) / bs * bs;

    first = first > base ? first : base;
    end = end < base + CPU_TILE ? end : base + CPU_TILE;
    a->tile = first;
    a->tile_end = end;
    if (a->d->graph->kv_i8)
        read_scales(a, base, first, end);
    score_tile(a, base, first, end);
    for (uint32_t i = 0; i < a->count; i++)
        weigh(a, i, base, first, end);
    if (a->quads)
        mix_quads(a, base, first, end);
    else
        mix_tile(a, base, first, end);
}

static void add_query(struct attend *a, uint32_t row, uint32_t head, uint32_t position)
{
    const uint32_t n = a->op->u.attention.head_dim, window = a->op->u.attention.window;
    const float *from = cpu_row(a->d, a->op->src, row) + (size_t)head * n;
    float *q = a->q + (size_t)a->count * a->d->shape.dim;
    struct query *new = &a->query[a->count++];

    *new = (struct query){.to = position + 1, .row = row, .head = head, .most = -INFINITY};
    new->from = ek_first_seen(position, window, a->op->u.attention.chunks);
    if (a->pairs)
        a->d->ops->store(EK_BF16, q, from, n);
    else if (a->quads)
        a->quads->query((uint32_t *)(void *)q, from, n, &a->unit[a->count - 1]);
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
    const uint32_t n = a->cells->value_dim;
    const float *sinks = cpu_vector(a->d, a->op->bias);
    float by = 1.0f / total->sum;

    if (sinks) { /* one more weight, of nothing */
        const float most = total->most > sinks[q->head] ? total->most : sinks[q->head];
        const float own = expf(total->most - most);
        by = own / (total->sum * own + expf(sinks[q->head] - most));
    }
    a->d->ops->scale(cpu_row(a->d, a->op->dst, q->row) + (size_t)q->head * n, total->acc, n, by);
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
static float *partial_at(uint32_t dim, const struct cpu_item *item, uint32_t part, uint32_t query)
{
    return item->partial + (item->queries * (size_t)part + query) * (dim + 2);
}

/* The same for one part only; the queries before these were `before`. */
static void flush_part(struct attend *a, const struct cpu_item *item, uint32_t before)
{
    const bool has = a->to > item->part * CPU_PART && a->from / CPU_PART <= item->part;

    if (has)
        sum_part(a, item->part);
    for (uint32_t i = 0; i < a->count; i++) {
        const struct sum sum = has ? part_of(a, i) : (struct sum){-INFINITY, 0.0f, a->acc};
        float *to = partial_at(a->d->shape.dim, item, item->part, before + i);
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
    a.cells = &d->cells[op->layer];
    for (uint32_t i = 0; i < item->queries; i++) {
        struct sum total = {.acc = (float *)(void *)scratch};
        for (uint32_t part = 0; part < parts; part++) {
            float *from = partial_at(d->shape.dim, item, part, i);
            combine(d, &total, &(struct sum){from[0], from[1], from + 2});
        }
        a.query[0].row = item->span->row + i / group;
        a.query[0].head = item->head * group + i % group;
        write_out(&a, 0, &total);
    }
}

/* Positions. Few queries take block after block, and what they fetch is in the first cache when
 * they come to it: for that it may be no more than a part of that cache. In pairs and quads they
 * take some blocks `together`, and fetch those that they take next. Many walk all blocks of a call
 * for each strip of columns; they fetch a whole tile ahead, into the second cache. */
static uint32_t fetched_ahead(uint32_t bs, size_t k_bytes, bool together, bool many)
{
    const size_t blocks = AHEAD / k_bytes;

    if (together && !many)
        return bs > TOGETHER ? bs : TOGETHER;
    if (many || blocks * bs > CPU_TILE)
        return CPU_TILE;
    return blocks > 0 ? (uint32_t)blocks * bs : bs;
}

void cpu_attend(const struct ek_device *d, const struct ek_step *step, const struct ek_op *op,
                const struct cpu_item *item, const struct cpu_item *next, char *scratch)
{
    const uint32_t group = op->u.attention.q_heads / op->u.attention.kv_heads;
    const struct cpu_row_span *span = item->span;
    struct attend a; /* the queries are set as they come */

    a.d = d;
    a.op = op;
    a.cells = &d->cells[op->layer];
    a.kv_head = item->head;
    a.pairs = cpu_cache_pairs(d, a.cells);
    a.quads = cpu_cache_quads(d, a.cells);
    a.count = a.next_head = a.next_blocks = 0;
    a.ahead = fetched_ahead(d->shape.block_size, a.cells->k_bytes, a.pairs || a.quads,
                            span->rows * group > FEW);
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
