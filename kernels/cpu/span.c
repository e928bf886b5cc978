/*
 * One piece of a collective: every rank packs its part into `block` [ranks][piece], the last one to
 * come to the barrier shares the node's parts with the other nodes, then every rank takes what it
 * needs out of the block, and a second barrier keeps the next piece from being packed too early.
 * Where nodes add a slice each, there is a barrier more: the ranks of a node add its slice of the
 * parts into that of the first rank, which the last one to come shares.
 *
 * `in` is written by the first rank of the stage before it meets the others, which read it behind
 * that; what is heard of the last stage is under `lock`.
 */
#include "kernels/cpu/span.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "kernels/cpu/pool.h"
#include "kernels/mpi/wire.h"

#define PIECE (256u << 10) /* floats of a rank that go at once: 1 MiB */
#define CHUNK 256u         /* of them that are added together */
#define LARGE (16u << 10)  /* from so many floats on fewer bytes are worth one wait more */
#define LATE  0.08 /* of the deadline: about how much longer the last stage waits than the first */

struct cpu_span {
    struct cpu_span_place at;
    uint32_t shares, stage; /* ranks of a stage; the first stage that is here */
    uint32_t stages;        /* that are here, whole ones or one in part */
    uint32_t nodes;         /* of a stage */
    struct ek_wire *wire;
    _Atomic size_t each;   /* floats of a rank in the piece at hand; all ranks write the same */
    float *block;          /* [shares][each]; NULL: stages are within nodes */
    struct ek_exchange in; /* where the rows of the stage before go */
    pthread_mutex_t lock;
    uint32_t told; /* steps */
    int32_t *last; /* of each slot */
};

struct span_end {
    struct ek_collective base;
    struct ek_collective *inner;
    const struct cpu_span_meet *meet;
    struct cpu_span *span;
    struct cpu_pool *pool;
    const struct ek_exchange *out; /* what is sent: by the last member of the team */
};

/* Rows and columns of a matrix that go at once; columns counted from where a rank's begin. */
struct piece {
    uint32_t row, rows, col, cols;
};

static struct span_end *end_of(struct ek_collective *c)
{
    return (struct span_end *)c; /* its first field */
}

uint64_t cpu_span_bytes(uint32_t ranks)
{
    return (uint64_t)ranks * PIECE * sizeof(float);
}

uint32_t cpu_span_first(const struct cpu_span *s)
{
    return s->at.first;
}

struct ek_wire *cpu_span_wire(const struct cpu_span *s)
{
    return s->wire;
}

/* ---- sums and columns over the nodes of a stage ---- */

static int share(void *ctx)
{
    struct cpu_span *s = ctx;
    return ek_wire_share(s->wire, s->block, atomic_load(&s->each) * s->at.local);
}

static int scatter(void *ctx)
{
    struct cpu_span *s = ctx;
    return ek_wire_exchange(s->wire, s->block, s->at.local, atomic_load(&s->each));
}

static int collect(void *ctx)
{
    struct cpu_span *s = ctx;
    return ek_wire_exchange(s->wire, s->block, 0, atomic_load(&s->each));
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
static void mine(const struct span_end *e, const struct ek_exchange *x, uint32_t n,
                 uint32_t *ret_first, uint32_t *ret_end)
{
    const uint32_t team = cpu_pool_threads(e->pool);

    *ret_first = (uint32_t)((uint64_t)n * x->member / team);
    *ret_end = (uint32_t)((uint64_t)n * (x->member + 1) / team);
}

static void pack(const struct span_end *e, const struct ek_exchange *x, const struct piece *p)
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

/* to[0 .. n) = the sum of all ranks' parts, which lie `each` floats apart. */
static void add_parts(const struct span_end *e, const float *part, size_t each, float *to, size_t n)
{
    if (to != part)
        memcpy(to, part, n * sizeof(*to));
    for (uint32_t r = 1; r < e->base.ranks; r++) {
        part += each;
        for (size_t i = 0; i < n; i++)
            to[i] += part[i];
    }
}

/* `added`: the sums are in the first rank's part already. */
static void take_sum(const struct span_end *e, const struct ek_exchange *x, const struct piece *p,
                     bool added)
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
        if (added)
            memcpy(sum, part, n * sizeof(*sum));
        else
            add_parts(e, part, each, sum, n);
    }
}

/* This member's part of the node's slice: of all members of all ranks that are here. */
static void add_slice(const struct span_end *e, const struct ek_exchange *x, size_t each)
{
    const struct cpu_span *s = e->span;
    const uint32_t k = s->wire->node - s->wire->first;
    const size_t begin = ek_wire_slice(s->wire, each, k);
    const size_t all = ek_wire_slice(s->wire, each, k + 1) - begin;
    const uint32_t team = cpu_pool_threads(e->pool), members = team * s->at.local;
    const uint32_t who = e->inner->rank * team + x->member;

    for (size_t i = all * who / members; i < all * (who + 1) / members; i += CHUNK) {
        const size_t end = all * (who + 1) / members, n = end - i < CHUNK ? end - i : CHUNK;
        float *at = s->block + begin + i;
        add_parts(e, at, each, at, n);
    }
}

/* Whether fewer bytes go when each node adds a slice. */
static bool by_slices(const struct cpu_span *s, size_t each)
{
    return each >= LARGE && s->nodes * s->at.local > s->at.local + 1;
}

static void take_columns(const struct span_end *e, const struct ek_exchange *x,
                         const struct piece *p)
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

/* Adds what the ranks of all nodes have, a slice on each node. */
static int add_by_slices(struct span_end *e, const struct ek_exchange *x, const struct piece *p)
{
    int r = e->meet->all(e->inner, x->member, scatter, e->span);
    if (r < 0)
        return r;
    add_slice(e, x, (size_t)p->rows * p->cols);
    r = e->meet->all(e->inner, x->member, collect, e->span);
    if (r == 0)
        take_sum(e, x, p, true);
    return r;
}

static int do_piece(struct span_end *e, const struct ek_exchange *x, const struct piece *p)
{
    const size_t each = (size_t)p->rows * p->cols;
    int r;

    if (x->member == 0)
        atomic_store(&e->span->each, each);
    pack(e, x, p);
    if (!x->begin && by_slices(e->span, each)) {
        r = add_by_slices(e, x, p);
    } else {
        r = e->meet->all(e->inner, x->member, share, e->span);
        if (r == 0 && x->begin)
            take_columns(e, x, p);
        else if (r == 0)
            take_sum(e, x, p, false);
    }
    return r < 0 ? r : e->inner->ops->barrier(e->inner, x->member);
}

/* In pieces; `width` is the most columns that a rank has. */
static int do_all(struct span_end *e, const struct ek_exchange *x, uint32_t width)
{
    const uint32_t cols = width < PIECE ? width : PIECE, rows = cols > 0 ? PIECE / cols : 1;
    /* No rank may still be reading what a member is about to write here. */
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
    struct span_end *e = end_of(c);
    struct ek_exchange whole = *x;

    if (!e->span->block)
        return e->inner->ops->reduce(e->inner, x);
    whole.begin = NULL; /* every rank has all columns */
    return do_all(e, &whole, x->width);
}

static int span_gather(struct ek_collective *c, const struct ek_exchange *x)
{
    struct span_end *e = end_of(c);
    uint32_t width = 0;

    if (!e->span->block)
        return e->inner->ops->gather(e->inner, x);
    for (uint32_t r = 0; r < c->ranks; r++)
        if (x->begin[r + 1] - x->begin[r] > width)
            width = x->begin[r + 1] - x->begin[r];
    return do_all(e, x, width);
}

static int span_barrier(struct ek_collective *c, uint32_t member)
{
    struct span_end *e = end_of(c);

    if (!e->span->block)
        return e->inner->ops->barrier(e->inner, member);
    if (member == 0)
        atomic_store(&e->span->each, 1);
    return e->meet->all(e->inner, member, share, e->span);
}

/* ---- from stage to stage ---- */

/* The node that has this one's ranks of another stage. */
static uint32_t node_of(const struct cpu_span *s, uint32_t stage)
{
    return (stage * s->shares + s->at.first % s->shares) / s->at.local;
}

/* Rows to a node, or from it. */
static int move_rows(struct cpu_span *s, uint32_t node, bool out, const struct ek_exchange *x,
                     uint64_t late_us)
{
    struct ek_mpi_message m = {.node = node,
                               .tag = EK_MPI_ROWS,
                               .out = out,
                               .data = x->data,
                               .rows = x->rows,
                               .width = x->width * sizeof(float),
                               .stride = x->stride * sizeof(float)};
    return ek_wire_move(s->wire, &m, 1, late_us);
}

/* Each stage waits longer than the one before it: the one next to the fault reports it first. */
static uint64_t late_us(const struct cpu_span *s, uint32_t behind)
{
    return (uint64_t)((double)s->wire->stall_us * LATE * behind / (s->at.stages + 2));
}

/* One more step that was sampled. With the lock held. */
static int hear_one(struct cpu_span *s, uint32_t count)
{
    if (!s->last)
        s->last = calloc(count, sizeof(*s->last));
    if (!s->last) {
        ek_wire_cut(s->wire);
        return EK_ECOMM;
    }
    struct ek_mpi_message m = ek_mpi_flat(node_of(s, s->at.stages - 1), EK_MPI_ROWS, false, s->last,
                                          count * sizeof(*s->last));
    int r = ek_wire_move(s->wire, &m, 1, late_us(s, s->at.stages));
    s->told += r == 0;
    return r;
}

static int send_rows(void *ctx)
{
    struct span_end *e = ctx;
    struct cpu_span *s = e->span;
    uint32_t last = node_of(s, s->at.stages - 1), tag = EK_MPI_ROWS;
    size_t bytes;
    int r = 0;

    /* What the last stage says of steps that are not asked about must not fill the connection. */
    if (s->stage == 0 &&
        pthread_mutex_trylock(&s->lock) == 0) { /* else another thread reads it now */
        while (r == 0 && ek_wire_look(s->wire, &last, &tag, &bytes) == 1)
            r = hear_one(s, e->out->slots);
        pthread_mutex_unlock(&s->lock);
    }
    return r < 0 ? r : move_rows(s, node_of(s, e->base.stage + 1), true, e->out, 0);
}

static int span_send(struct ek_collective *c, const struct ek_exchange *x)
{
    struct span_end *e = end_of(c);

    if (e->inner->stage + 1 < e->span->stages)
        return e->inner->ops->send(e->inner, x);
    if (e->inner->rank > 0) /* it has the same rows */
        return e->inner->ops->state(e->inner);
    if (x->member == 0)
        e->out = x;
    return e->meet->own(e->inner, x->member, send_rows, e);
}

static int recv_rows(void *ctx)
{
    struct cpu_span *s = ctx;

    return move_rows(s, node_of(s, s->stage - 1), false, &s->in, late_us(s, s->stage));
}

static int span_recv(struct ek_collective *c, const struct ek_exchange *x)
{
    struct span_end *e = end_of(c);
    const struct ek_exchange *in = &e->span->in;

    if (e->inner->stage > 0)
        return e->inner->ops->recv(e->inner, x);
    if (e->inner->rank == 0 && x->member == 0)
        e->span->in = *x;
    int r = e->meet->all(e->inner, x->member, recv_rows, e->span);
    if (r < 0 || e->inner->ranks == 1)
        return r;
    uint32_t row, end;
    mine(e, x, x->rows, &row, &end);
    for (; e->inner->rank > 0 && row < end; row++)
        memcpy((float *)x->data + row * x->stride, (const float *)in->data + row * in->stride,
               x->width * sizeof(float));
    return e->inner->ops->barrier(e->inner, x->member); /* the first one goes on with its rows */
}

static void span_tell(struct ek_collective *c, const int32_t *last, uint32_t count)
{
    struct span_end *e = end_of(c);

    if (e->inner->rank == 0) /* what fails has failed the wire: the group is told by that */
        (void)ek_wire_tell(e->span->wire, node_of(e->span, 0), EK_MPI_ROWS, last,
                           count * sizeof(*last));
}

static int span_hear(struct ek_collective *c, uint32_t steps, uint32_t count,
                     const int32_t **ret_last)
{
    struct span_end *e = end_of(c);
    struct cpu_span *s = e->span;
    int r = e->inner->ops->state(e->inner);

    pthread_mutex_lock(&s->lock);
    while (r == 0 && (int32_t)(s->told - steps) < 0)
        r = hear_one(s, count);
    if (r == 0)
        *ret_last = s->last;
    pthread_mutex_unlock(&s->lock);
    return r;
}

/* ---- making and ending ---- */

static int span_state(struct ek_collective *c)
{
    struct span_end *e = end_of(c);
    return e->inner->ops->state(e->inner);
}

static void span_leave(struct ek_collective *c)
{
    struct span_end *e = end_of(c);

    e->inner->ops->leave(e->inner);
    free(e);
}

int cpu_span_join(struct cpu_span *s, struct ek_collective *inner, const struct cpu_span_meet *meet,
                  struct cpu_pool *pool, struct ek_collective **ret_end)
{
    static const struct ek_collective_ops ops = {.barrier = span_barrier,
                                                 .reduce = span_reduce,
                                                 .gather = span_gather,
                                                 .send = span_send,
                                                 .recv = span_recv,
                                                 .tell = span_tell,
                                                 .hear = span_hear,
                                                 .state = span_state,
                                                 .leave = span_leave};
    struct span_end *e = calloc(1, sizeof(*e));

    if (!e)
        return -ENOMEM;
    *e = (struct span_end){.base = {&ops, s->at.first % s->shares + inner->rank, s->shares,
                                    s->stage + inner->stage, s->at.stages},
                           .inner = inner,
                           .meet = meet,
                           .span = s,
                           .pool = pool};
    *ret_end = &e->base;
    return 0;
}

int cpu_span_new(const struct cpu_span_place *at, struct ek_wire *wire, struct cpu_span **ret_span)
{
    if (at->local == 0 || at->stages == 0 || at->ranks > EK_MOST_RANKS ||
        at->first + at->local > at->ranks || at->ranks % at->local != 0 ||
        at->ranks % at->stages != 0)
        return -EINVAL;
    const uint32_t shares = at->ranks / at->stages;
    if (shares % at->local != 0 && at->local % shares != 0)
        return -EINVAL;
    struct cpu_span *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    *s = (struct cpu_span){.at = *at,
                           .shares = shares,
                           .stage = at->first / shares,
                           .stages = at->local > shares ? at->local / shares : 1,
                           .nodes = shares > at->local ? shares / at->local : 1,
                           .wire = wire};
    if (s->nodes > 1) {
        wire->first = wire->node - wire->node % s->nodes;
        wire->count = s->nodes;
        s->block = calloc(shares, PIECE * sizeof(*s->block)); /* pages come with their first use */
        if (!s->block) {
            free(s);
            return -ENOMEM;
        }
    }
    pthread_mutex_init(&s->lock, NULL);
    *ret_span = s;
    return 0;
}

void cpu_span_free(struct cpu_span *s)
{
    if (!s)
        return;
    pthread_mutex_destroy(&s->lock);
    free(s->last);
    free(s->block);
    free(s);
}
