/*
 * A collective is: all members of the team arrive, the last one meets the other ranks, all leave
 * and do their share of the work; then the same again, before anybody touches the data. `phase`
 * rises when the last rank arrives. A rank that waits spins, then sleeps on the word; `failed` is
 * set once, by a rank that waited too long or by cpu_group_abort(), and wakes all.
 *
 * `data` of a rank is written by it before it arrives and read by others after all have arrived;
 * `at` counts its arrivals and tells which is missing. Ranks of a stage meet in their own circle.
 *
 * From one stage to the next there is a link for each rank: `sent` and `taken` count, so that who
 * sends waits until its rows are taken, and one that takes until there are some. `told` counts
 * steps of the last stage; it is read, with the pointer beside it, by the same rank of the first.
 */
#include "kernels/cpu/group.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/span.h"
#include "kernels/mpi/wire.h"

#define SPINS  1500 /* pauses before sleeping */
#define CHUNK  64u  /* columns that are added together: a few cache lines of one writer */
#define NAP_US 100000u

/* A number that others wait for to change. */
struct group_word {
    _Atomic uint32_t value, sleepers;
};

struct group_place {
    _Alignas(64) _Atomic uint64_t at;
    float *data;
};

struct circle { /* of a stage */
    _Alignas(64) struct group_word phase;
    _Atomic uint32_t arrived;
};

struct stage_link { /* from a rank to the same one of the next stage, of the last to the first */
    _Alignas(64) struct group_word sent, taken, told;
    const float *data;
    size_t stride;
    const int32_t *last;
};

struct ek_group {
    _Atomic uint32_t failed, missing;
    _Atomic uint32_t away; /* ranks doing what others wait for, by a deadline of their own */
    uint32_t ranks, each;  /* of all stages, of one */
    uint64_t deadline_us;
    struct cpu_span *span; /* NULL: all ranks are here */
    struct group_place place[EK_MOST_RANKS];
    struct circle circle[EK_MOST_RANKS];
    struct stage_link link[EK_MOST_RANKS];
};

struct group_end {
    struct ek_collective base;
    struct ek_group *group;
    struct circle *circle;
    struct group_place *place; /* of the first rank of the stage */
    struct stage_link *before, *behind;
    struct cpu_pool *pool;
    int result; /* of the last meeting: written by the last member, read behind the barrier */
    int (*fn)(void *ctx); /* of group_meet(): written by member 0, read by the last one */
    void *ctx;
};

static struct group_end *end_of(struct ek_collective *c)
{
    return (struct group_end *)c; /* its first field */
}

static void wake(struct group_word *w)
{
    (void)syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void count_up(struct group_word *w)
{
    atomic_fetch_add(&w->value, 1);
    if (atomic_load(&w->sleepers) > 0)
        wake(w);
}

void cpu_group_abort(struct ek_group *g)
{
    atomic_store(&g->failed, 1);
    if (g->span)
        ek_wire_cut(cpu_span_wire(g->span));  /* nor do other nodes wait for us */
    for (uint32_t i = 0; i < g->ranks; i++) { /* one about to sleep looks again soon */
        wake(&g->circle[i].phase);
        wake(&g->link[i].sent);
        wake(&g->link[i].taken);
        wake(&g->link[i].told);
    }
}

/* The rank of a circle that has arrived the fewest times. */
static uint32_t fewest(struct ek_group *g, uint32_t first)
{
    uint32_t least = first;

    for (uint32_t r = first + 1; r < first + g->each; r++)
        if (atomic_load(&g->place[r].at) < atomic_load(&g->place[least].at))
            least = r;
    return least;
}

static void sleep_on(struct group_word *w, uint32_t seen)
{
    const struct timespec nap = {.tv_nsec = NAP_US * 1000};

    atomic_fetch_add(&w->sleepers, 1);
    if (atomic_load(&w->value) == seen)
        (void)syscall(SYS_futex, &w->value, FUTEX_WAIT_PRIVATE, seen, &nap, NULL, 0);
    atomic_fetch_sub(&w->sleepers, 1);
}

/* Until the word is no longer `seen`; -ETIMEDOUT behind the deadline. */
static int await(struct ek_group *g, struct group_word *w, uint32_t seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&w->value, memory_order_acquire) != seen)
            return atomic_load(&g->failed) ? EK_ECOMM : 0;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    uint64_t last = ek_now_us(), waited = 0;
    while (atomic_load(&w->value) == seen && !atomic_load(&g->failed)) {
        uint64_t now = ek_now_us(), spent = now - last;
        if (atomic_load(&g->away) == 0)
            waited += spent < 2 * NAP_US ? spent : 2 * NAP_US; /* more: all of us were stopped */
        last = now;
        if (g->deadline_us > 0 && waited > g->deadline_us)
            return -ETIMEDOUT;
        sleep_on(w, seen);
    }
    return atomic_load(&g->failed) ? EK_ECOMM : 0;
}

/* What a wait came to: `rank` was waited for. */
static int waited_for(struct ek_group *g, uint32_t rank, int r)
{
    if (r != -ETIMEDOUT)
        return r;
    atomic_store(&g->missing, rank);
    cpu_group_abort(g);
    return EK_ECOMM;
}

static void go_away(struct ek_group *g, int (*fn)(void *ctx), void *ctx)
{
    atomic_fetch_add(&g->away, 1);
    if (fn(ctx) < 0)
        cpu_group_abort(g);
    atomic_fetch_sub(&g->away, 1);
}

/* By one thread of each rank of a stage. */
static int meet(struct group_end *e, int (*fn)(void *ctx), void *ctx)
{
    struct ek_group *g = e->group;
    struct circle *c = e->circle;
    uint32_t phase = atomic_load_explicit(&c->phase.value, memory_order_acquire);

    if (atomic_load(&g->failed))
        return EK_ECOMM;
    atomic_fetch_add(&e->place[e->base.rank].at, 1);
    if (atomic_fetch_add(&c->arrived, 1) + 1 < g->each) {
        int r = await(g, &c->phase, phase);
        return waited_for(g, r < 0 ? fewest(g, e->base.stage * g->each) : 0, r);
    }
    atomic_store(&c->arrived, 0);
    if (fn) {
        go_away(g, fn, ctx);
    }
    count_up(&c->phase);
    return atomic_load(&g->failed) ? EK_ECOMM : 0;
}

static void meet_last(void *ctx)
{
    struct group_end *e = ctx;
    e->result = meet(e, NULL, NULL);
}

static int group_barrier(struct ek_collective *c, uint32_t member)
{
    struct group_end *e = end_of(c);

    (void)member;
    cpu_pool_barrier_last(e->pool, meet_last, e);
    return e->result;
}

static void meet_last_with(void *ctx)
{
    struct group_end *e = ctx;
    e->result = meet(e, e->fn, e->ctx);
}

/* See struct cpu_span_meet. */
static int group_meet(struct ek_collective *c, uint32_t member, int (*fn)(void *ctx), void *ctx)
{
    struct group_end *e = end_of(c);

    if (member == 0) {
        e->fn = fn;
        e->ctx = ctx;
    }
    cpu_pool_barrier_last(e->pool, meet_last_with, e);
    return e->result;
}

static void go_alone(void *ctx)
{
    struct group_end *e = ctx;

    go_away(e->group, e->fn, e->ctx);
    e->result = atomic_load(&e->group->failed) ? EK_ECOMM : 0;
}

static int group_alone(struct ek_collective *c, uint32_t member, int (*fn)(void *ctx), void *ctx)
{
    struct group_end *e = end_of(c);

    if (member == 0) {
        e->fn = fn;
        e->ctx = ctx;
    }
    cpu_pool_barrier_last(e->pool, go_alone, e);
    return e->result;
}

/* This member's share of `units` among all members of all ranks. */
static void share_of(const struct group_end *e, uint32_t member, uint64_t units,
                     uint64_t *ret_first, uint64_t *ret_end)
{
    const uint64_t team = cpu_pool_threads(e->pool), all = team * e->base.ranks;
    const uint64_t who = e->base.rank * team + member;

    *ret_first = units * who / all;
    *ret_end = units * (who + 1) / all;
}

static void add_chunk(const struct group_end *e, size_t at, uint32_t n)
{
    float sum[CHUNK];

    memcpy(sum, e->place[0].data + at, n * sizeof(*sum));
    for (uint32_t r = 1; r < e->base.ranks; r++) {
        const float *more = e->place[r].data + at;
        for (uint32_t i = 0; i < n; i++)
            sum[i] += more[i];
    }
    for (uint32_t r = 0; r < e->base.ranks; r++)
        memcpy(e->place[r].data + at, sum, n * sizeof(*sum));
}

static int group_reduce(struct ek_collective *c, const struct ek_exchange *x)
{
    struct group_end *e = end_of(c);
    const uint64_t chunks = (x->width + CHUNK - 1) / CHUNK;
    uint64_t unit, end;

    if (x->member == 0)
        e->place[c->rank].data = x->data;
    int r = group_barrier(c, x->member);
    if (r < 0)
        return r;
    share_of(e, x->member, x->rows * chunks, &unit, &end);
    for (; unit < end; unit++) {
        uint32_t col = (uint32_t)(unit % chunks) * CHUNK;
        add_chunk(e, unit / chunks * x->stride + col,
                  x->width - col < CHUNK ? x->width - col : CHUNK);
    }
    return group_barrier(c, x->member);
}

static int group_gather(struct ek_collective *c, const struct ek_exchange *x)
{
    struct group_end *e = end_of(c);
    const uint32_t team = cpu_pool_threads(e->pool), first = x->begin[c->rank];
    const uint32_t width = x->begin[c->rank + 1] - first;
    const uint64_t chunks = (width + CHUNK - 1) / CHUNK, units = x->rows * chunks;

    if (x->member == 0)
        e->place[c->rank].data = x->data;
    int r = group_barrier(c, x->member);
    for (uint64_t unit = units * x->member / team; r == 0 && unit < units * (x->member + 1) / team;
         unit++) {
        uint32_t col = (uint32_t)(unit % chunks) * CHUNK;
        uint32_t n = width - col < CHUNK ? width - col : CHUNK;
        size_t at = unit / chunks * x->stride + first + col;
        for (uint32_t other = 0; other < c->ranks; other++)
            if (other != c->rank)
                memcpy(e->place[other].data + at, (const float *)x->data + at, n * sizeof(float));
    }
    return r < 0 ? r : group_barrier(c, x->member);
}

/* By the last member: the rows are there, until they are taken. */
static void offer(void *ctx)
{
    struct group_end *e = ctx;
    struct stage_link *l = e->behind;
    const uint32_t taken = atomic_load(&l->taken.value);

    count_up(&l->sent);
    int r = await(e->group, &l->taken, taken);
    e->result = waited_for(e->group, (e->base.stage + 1) * e->group->each + e->base.rank, r);
}

static int group_send(struct ek_collective *c, const struct ek_exchange *x)
{
    struct group_end *e = end_of(c);

    if (x->member == 0) {
        e->behind->data = x->data;
        e->behind->stride = x->stride;
    }
    cpu_pool_barrier_last(e->pool, offer, e);
    return e->result;
}

static void await_rows(void *ctx)
{
    struct group_end *e = ctx;
    struct stage_link *l = e->before;

    int r = await(e->group, &l->sent, atomic_load(&l->taken.value));
    e->result = waited_for(e->group, (e->base.stage - 1) * e->group->each + e->base.rank, r);
}

static void all_taken(void *ctx)
{
    struct group_end *e = ctx;
    count_up(&e->before->taken);
}

static int group_recv(struct ek_collective *c, const struct ek_exchange *x)
{
    struct group_end *e = end_of(c);
    const uint64_t team = cpu_pool_threads(e->pool);

    cpu_pool_barrier_last(e->pool, await_rows, e);
    if (e->result < 0)
        return e->result;
    for (uint64_t row = x->rows * (uint64_t)x->member / team;
         row < x->rows * (x->member + 1ull) / team; row++)
        memcpy((float *)x->data + row * x->stride, e->before->data + row * e->before->stride,
               x->width * sizeof(float));
    cpu_pool_barrier_last(e->pool, all_taken, e);
    return 0;
}

static void group_tell(struct ek_collective *c, const int32_t *last, uint32_t count)
{
    struct group_end *e = end_of(c);

    (void)count;
    e->behind->last = last;
    count_up(&e->behind->told);
}

static int group_hear(struct ek_collective *c, uint32_t steps, uint32_t count,
                      const int32_t **ret_last)
{
    struct group_end *e = end_of(c);
    struct group_word *told = &e->before->told;
    int r = atomic_load(&e->group->failed) ? EK_ECOMM : 0;

    (void)count;
    for (uint32_t seen; r == 0 && (int32_t)((seen = atomic_load(&told->value)) - steps) < 0;)
        r = waited_for(e->group, e->group->ranks - e->group->each + c->rank,
                       await(e->group, told, seen));
    if (r == 0)
        *ret_last = e->before->last;
    return r;
}

static int group_state(struct ek_collective *c)
{
    return atomic_load(&end_of(c)->group->failed) ? EK_ECOMM : 0;
}

static void group_leave(struct ek_collective *c)
{
    free(c);
}

int cpu_group_join(struct ek_group *g, uint32_t rank, struct cpu_pool *pool,
                   struct ek_collective **ret_end)
{
    static const struct ek_collective_ops ops = {.barrier = group_barrier,
                                                 .reduce = group_reduce,
                                                 .gather = group_gather,
                                                 .send = group_send,
                                                 .recv = group_recv,
                                                 .tell = group_tell,
                                                 .hear = group_hear,
                                                 .state = group_state,
                                                 .leave = group_leave};
    static const struct cpu_span_meet meet = {.all = group_meet, .own = group_alone};
    const uint32_t first = g->span ? cpu_span_first(g->span) : 0;

    if (rank < first || rank - first >= g->ranks)
        return -EINVAL;
    struct group_end *e = calloc(1, sizeof(*e));
    if (!e)
        return -ENOMEM;
    rank -= first;
    const uint32_t stage = rank / g->each;
    *e = (struct group_end){.base = {&ops, rank % g->each, g->each, stage, g->ranks / g->each},
                            .group = g,
                            .circle = &g->circle[stage],
                            .place = &g->place[stage * g->each],
                            .before = &g->link[(rank + g->ranks - g->each) % g->ranks],
                            .behind = &g->link[rank],
                            .pool = pool};
    if (!g->span) {
        *ret_end = &e->base;
        return 0;
    }
    int r = cpu_span_join(g->span, &e->base, &meet, pool, ret_end);
    if (r < 0)
        free(e);
    return r;
}

uint32_t cpu_group_missing(const struct ek_group *g)
{
    return atomic_load(&g->missing);
}

int cpu_group_new(uint32_t ranks, uint32_t stages, uint64_t deadline_us,
                  struct ek_group **ret_group)
{
    if (ranks == 0 || ranks > EK_MOST_RANKS || stages == 0 || ranks % stages != 0)
        return -EINVAL;
    struct ek_group *g = aligned_alloc(64, sizeof(*g));
    if (!g)
        return -ENOMEM;
    memset(g, 0, sizeof(*g));
    g->ranks = ranks;
    g->each = ranks / stages;
    g->deadline_us = deadline_us;
    atomic_store(&g->missing, UINT32_MAX);
    *ret_group = g;
    return 0;
}

int cpu_group_span(struct ek_group *g, uint32_t first, uint32_t ranks, uint32_t stages,
                   struct ek_wire *wire)
{
    const struct cpu_span_place at = {first, g->ranks, ranks, stages};
    return cpu_span_new(&at, wire, &g->span);
}

uint64_t cpu_group_span_bytes(uint32_t ranks)
{
    return cpu_span_bytes(ranks);
}

void cpu_group_free(struct ek_group *g)
{
    if (g)
        cpu_span_free(g->span);
    free(g);
}
