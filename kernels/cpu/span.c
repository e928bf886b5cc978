/*
 * One piece of a collective: every rank packs its part into `block` [ranks][piece], the last one to
 * come to the barrier shares the node's parts with the other nodes, then every rank takes what it
 * needs out of the block, and a second barrier keeps the next piece from being packed too early.
 */
#include "kernels/cpu/span.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/group.h"
#include "kernels/cpu/pool.h"
#include "kernels/wire.h"

#define PIECE (256u << 10) /* floats of a rank that go at once: 1 MiB */
#define CHUNK 256u         /* of them that are added together */

struct cpu_span {
    uint32_t first, local, ranks;
    struct ek_wire *wire;
    _Atomic size_t each; /* floats of a rank in the piece at hand; all ranks write the same */
    float *block;        /* [ranks][each] */
};

struct end {
    struct ek_collective base;
    struct ek_collective *inner;
    struct cpu_span *span;
    struct cpu_pool *pool;
};

/* Rows and columns of a matrix that go at once; columns counted from where a rank's begin. */
struct piece {
    uint32_t row, rows, col, cols;
};

static struct end *end_of(struct ek_collective *c)
{
    return (struct end *)c; /* its first field */
}

uint64_t cpu_span_bytes(uint32_t ranks)
{
    return (uint64_t)ranks * PIECE * sizeof(float);
}

uint32_t cpu_span_first(const struct cpu_span *s)
{
    return s->first;
}

struct ek_wire *cpu_span_wire(const struct cpu_span *s)
{
    return s->wire;
}

static int share(void *ctx)
{
    struct cpu_span *s = ctx;
    return ek_wire_share(s->wire, s->block, atomic_load(&s->each) * s->local);
}

/* The part of a rank's columns that is in the piece. */
static uint32_t cols_of(const struct ek_exchange *x, const struct piece *p, uint32_t rank)
{
    const uint32_t width = x->begin ? x->begin[rank + 1] - x->begin[rank] : x->width;
    const uint32_t left = width > p->col ? width - p->col : 0;

    return left < p->cols ? left : p->cols;
}

static float *cell(const struct ek_exchange *x, const struct piece *p, uint32_t row, uint32_t rank)
{
    return (float *)x->data + (size_t)(p->row + row) * x->stride + (x->begin ? x->begin[rank] : 0) +
           p->col;
}

/* This member's part of n things. */
static void mine(const struct end *e, const struct ek_exchange *x, uint32_t n, uint32_t *ret_first,
                 uint32_t *ret_end)
{
    const uint32_t team = cpu_pool_threads(e->pool);

    *ret_first = (uint32_t)((uint64_t)n * x->member / team);
    *ret_end = (uint32_t)((uint64_t)n * (x->member + 1) / team);
}

static void pack(const struct end *e, const struct ek_exchange *x, const struct piece *p)
{
    const uint32_t rank = e->base.rank, cols = cols_of(x, p, rank);
    float *to = e->span->block + rank * (size_t)p->rows * p->cols;
    uint32_t at, end;

    for (uint32_t row = 0; row < p->rows; row++) {
        mine(e, x, cols, &at, &end);
        if (end > at)
            memcpy(to + (size_t)row * p->cols + at, cell(x, p, row, rank) + at,
                   (end - at) * sizeof(*to));
    }
}

static void take_sum(const struct end *e, const struct ek_exchange *x, const struct piece *p)
{
    const size_t each = (size_t)p->rows * p->cols;
    const uint32_t chunks = (p->cols + CHUNK - 1) / CHUNK;
    uint32_t unit, end;

    mine(e, x, p->rows * chunks, &unit, &end);
    for (; unit < end; unit++) {
        const uint32_t row = unit / chunks, col = unit % chunks * CHUNK;
        const uint32_t n = p->cols - col < CHUNK ? p->cols - col : CHUNK;
        const float *part = e->span->block + (size_t)row * p->cols + col;
        float *sum = cell(x, p, row, 0) + col;
        memcpy(sum, part, n * sizeof(*sum));
        for (uint32_t r = 1; r < e->base.ranks; r++) {
            part += each;
            for (uint32_t i = 0; i < n; i++)
                sum[i] += part[i];
        }
    }
}

static void take_columns(const struct end *e, const struct ek_exchange *x, const struct piece *p)
{
    uint32_t unit, end;

    mine(e, x, p->rows * e->base.ranks, &unit, &end);
    for (; unit < end; unit++) {
        const uint32_t row = unit / e->base.ranks, rank = unit % e->base.ranks;
        const float *part = e->span->block + ((size_t)rank * p->rows + row) * p->cols;
        if (rank != e->base.rank)
            memcpy(cell(x, p, row, rank), part, cols_of(x, p, rank) * sizeof(*part));
    }
}

static int do_piece(struct end *e, const struct ek_exchange *x, const struct piece *p)
{
    if (x->member == 0)
        atomic_store(&e->span->each, (size_t)p->rows * p->cols);
    pack(e, x, p);
    int r = cpu_group_meet(e->inner, x->member, share, e->span);
    if (r < 0)
        return r;
    if (x->begin)
        take_columns(e, x, p);
    else
        take_sum(e, x, p);
    return e->inner->ops->barrier(e->inner, x->member);
}

/* In pieces; `width` is the most columns that a rank has. */
static int do_all(struct end *e, const struct ek_exchange *x, uint32_t width)
{
    const uint32_t cols = width < PIECE ? width : PIECE, rows = cols > 0 ? PIECE / cols : 1;
    /* Nobody may still be reading what a member is about to write here. */
    int r = e->inner->ops->barrier(e->inner, x->member);

    for (uint32_t row = 0; r == 0 && row < x->rows; row += rows)
        for (uint32_t col = 0; r == 0 && col < width; col += cols) {
            const struct piece p = {.row = row,
                                    .rows = x->rows - row < rows ? x->rows - row : rows,
                                    .col = col,
                                    .cols = width - col < cols ? width - col : cols};
            r = do_piece(e, x, &p);
        }
    return r;
}

static int span_reduce(struct ek_collective *c, const struct ek_exchange *x)
{
    struct ek_exchange whole = *x;

    whole.begin = NULL; /* every rank has all columns */
    return do_all(end_of(c), &whole, x->width);
}

static int span_gather(struct ek_collective *c, const struct ek_exchange *x)
{
    uint32_t width = 0;

    for (uint32_t r = 0; r < c->ranks; r++)
        if (x->begin[r + 1] - x->begin[r] > width)
            width = x->begin[r + 1] - x->begin[r];
    return do_all(end_of(c), x, width);
}

static int span_barrier(struct ek_collective *c, uint32_t member)
{
    struct end *e = end_of(c);

    if (member == 0)
        atomic_store(&e->span->each, 1);
    return cpu_group_meet(e->inner, member, share, e->span);
}

static int span_state(struct ek_collective *c)
{
    struct end *e = end_of(c);
    return e->inner->ops->state(e->inner);
}

static void span_leave(struct ek_collective *c)
{
    struct end *e = end_of(c);

    e->inner->ops->leave(e->inner);
    free(e);
}

int cpu_span_join(struct cpu_span *s, struct ek_collective *inner, struct cpu_pool *pool,
                  struct ek_collective **ret_end)
{
    static const struct ek_collective_ops ops = {.barrier = span_barrier,
                                                 .reduce = span_reduce,
                                                 .gather = span_gather,
                                                 .state = span_state,
                                                 .leave = span_leave};
    struct end *e = calloc(1, sizeof(*e));

    if (!e)
        return -ENOMEM;
    *e = (struct end){.base = {&ops, s->first + inner->rank, s->ranks, 0, 1},
                      .inner = inner,
                      .span = s,
                      .pool = pool};
    *ret_end = &e->base;
    return 0;
}

int cpu_span_new(uint32_t first, uint32_t local, uint32_t ranks, struct ek_wire *wire,
                 struct cpu_span **ret_span)
{
    if (local == 0 || ranks > EK_MOST_RANKS || first + local > ranks || ranks % local != 0)
        return -EINVAL;
    struct cpu_span *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    *s = (struct cpu_span){.first = first, .local = local, .ranks = ranks, .wire = wire};
    s->block = calloc(ranks, PIECE * sizeof(*s->block)); /* pages come with their first use */
    if (!s->block) {
        free(s);
        return -ENOMEM;
    }
    *ret_span = s;
    return 0;
}

void cpu_span_free(struct cpu_span *s)
{
    if (s)
        free(s->block);
    free(s);
}
