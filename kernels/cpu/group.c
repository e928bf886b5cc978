/*
 * A collective is: all members of the team arrive, the last one meets the other ranks, all leave
 * and do their share of the work; then the same again, before anybody touches the data. `phase`
 * rises when the last rank arrives. A rank that waits spins, then sleeps on the word; `failed` is
 * set once, by who waited too long or by cpu_group_abort(), and wakes all.
 *
 * `data` of a rank is written by it before it arrives and read by others after all have arrived;
 * `at` counts its arrivals and tells who is missing.
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

#define SPINS  1500 /* pauses before sleeping */
#define CHUNK  64u  /* columns that are added together: a few cache lines of one writer */
#define NAP_US 100000u

struct place {
    _Alignas(64) _Atomic uint64_t at;
    float *data;
};

struct ek_group {
    _Alignas(64) _Atomic uint32_t phase;
    _Atomic uint32_t sleepers, arrived, failed, missing;
    uint32_t ranks;
    uint64_t deadline_us;
    struct place place[EK_MOST_RANKS];
};

struct end {
    struct ek_collective base;
    struct ek_group *group;
    struct cpu_pool *pool;
    int result; /* of the last meeting: written by the last member, read behind the barrier */
};

static struct end *end_of(struct ek_collective *c)
{
    return (struct end *)c; /* its first field */
}

static void wake(struct ek_group *g)
{
    (void)syscall(SYS_futex, &g->phase, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void cpu_group_abort(struct ek_group *g)
{
    atomic_store(&g->failed, 1);
    atomic_fetch_add(&g->phase, 1); /* whoever sleeps or is about to */
    wake(g);
}

/* The rank that has arrived the fewest times. */
static void name_missing(struct ek_group *g)
{
    uint32_t least = 0;

    for (uint32_t r = 1; r < g->ranks; r++)
        if (atomic_load(&g->place[r].at) < atomic_load(&g->place[least].at))
            least = r;
    atomic_store(&g->missing, least);
}

static void sleep_on(struct ek_group *g, uint32_t phase)
{
    const struct timespec nap = {.tv_nsec = NAP_US * 1000};

    atomic_fetch_add(&g->sleepers, 1);
    if (atomic_load(&g->phase) == phase)
        (void)syscall(SYS_futex, &g->phase, FUTEX_WAIT_PRIVATE, phase, &nap, NULL, 0);
    atomic_fetch_sub(&g->sleepers, 1);
}

static int await(struct ek_group *g, uint32_t phase)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&g->phase, memory_order_acquire) != phase)
            return atomic_load(&g->failed) ? EK_ECOMM : 0;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    uint64_t last = ek_now_us(), waited = 0;
    while (atomic_load(&g->phase) == phase) {
        uint64_t now = ek_now_us(), spent = now - last;
        waited += spent < 2 * NAP_US ? spent : 2 * NAP_US; /* more: all of us were stopped */
        last = now;
        if (g->deadline_us > 0 && waited > g->deadline_us) {
            name_missing(g);
            cpu_group_abort(g);
            break;
        }
        sleep_on(g, phase);
    }
    return atomic_load(&g->failed) ? EK_ECOMM : 0;
}

/* By one thread of each rank. */
static int meet(struct ek_group *g, uint32_t rank)
{
    uint32_t phase = atomic_load_explicit(&g->phase, memory_order_acquire);

    if (atomic_load(&g->failed))
        return EK_ECOMM;
    atomic_fetch_add(&g->place[rank].at, 1);
    if (atomic_fetch_add(&g->arrived, 1) + 1 < g->ranks)
        return await(g, phase);
    atomic_store(&g->arrived, 0);
    atomic_fetch_add(&g->phase, 1);
    if (atomic_load(&g->sleepers) > 0)
        wake(g);
    return atomic_load(&g->failed) ? EK_ECOMM : 0;
}

static void meet_last(void *ctx)
{
    struct end *e = ctx;
    e->result = meet(e->group, e->base.rank);
}

static int group_barrier(struct ek_collective *c, uint32_t member)
{
    struct end *e = end_of(c);

    (void)member;
    cpu_pool_barrier_last(e->pool, meet_last, e);
    return e->result;
}

/* This member's share of `units` among all members of all ranks. */
static void share_of(const struct end *e, uint32_t member, uint64_t units, uint64_t *ret_first,
                     uint64_t *ret_end)
{
    const uint64_t team = cpu_pool_threads(e->pool), all = team * e->base.ranks;
    const uint64_t who = e->base.rank * team + member;

    *ret_first = units * who / all;
    *ret_end = units * (who + 1) / all;
}

static void add_chunk(struct ek_group *g, size_t at, uint32_t n)
{
    float sum[CHUNK];

    memcpy(sum, g->place[0].data + at, n * sizeof(*sum));
    for (uint32_t r = 1; r < g->ranks; r++) {
        const float *more = g->place[r].data + at;
        for (uint32_t i = 0; i < n; i++)
            sum[i] += more[i];
    }
    for (uint32_t r = 0; r < g->ranks; r++)
        memcpy(g->place[r].data + at, sum, n * sizeof(*sum));
}

static int group_reduce(struct ek_collective *c, const struct ek_exchange *x)
{
    struct end *e = end_of(c);
    const uint64_t chunks = (x->width + CHUNK - 1) / CHUNK;
    uint64_t unit, end;

    if (x->member == 0)
        e->group->place[c->rank].data = x->data;
    int r = group_barrier(c, x->member);
    if (r < 0)
        return r;
    share_of(e, x->member, x->rows * chunks, &unit, &end);
    for (; unit < end; unit++) {
        uint32_t col = (uint32_t)(unit % chunks) * CHUNK;
        add_chunk(e->group, unit / chunks * x->stride + col,
                  x->width - col < CHUNK ? x->width - col : CHUNK);
    }
    return group_barrier(c, x->member);
}

static int group_gather(struct ek_collective *c, const struct ek_exchange *x)
{
    struct end *e = end_of(c);
    const uint32_t team = cpu_pool_threads(e->pool), first = x->begin[c->rank];
    const uint32_t width = x->begin[c->rank + 1] - first;
    const uint64_t chunks = (width + CHUNK - 1) / CHUNK, units = x->rows * chunks;

    if (x->member == 0)
        e->group->place[c->rank].data = x->data;
    int r = group_barrier(c, x->member);
    for (uint64_t unit = units * x->member / team; r == 0 && unit < units * (x->member + 1) / team;
         unit++) {
        uint32_t col = (uint32_t)(unit % chunks) * CHUNK;
        uint32_t n = width - col < CHUNK ? width - col : CHUNK;
        size_t at = unit / chunks * x->stride + first + col;
        for (uint32_t other = 0; other < c->ranks; other++)
            if (other != c->rank)
                memcpy(e->group->place[other].data + at, (const float *)x->data + at,
                       n * sizeof(float));
    }
    return r < 0 ? r : group_barrier(c, x->member);
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
                                                 .state = group_state,
                                                 .leave = group_leave};

    if (rank >= g->ranks)
        return -EINVAL;
    struct end *e = calloc(1, sizeof(*e));
    if (!e)
        return -ENOMEM;
    *e = (struct end){.base = {&ops, rank, g->ranks}, .group = g, .pool = pool};
    *ret_end = &e->base;
    return 0;
}

uint32_t cpu_group_missing(const struct ek_group *g)
{
    return atomic_load(&g->missing);
}

int cpu_group_new(uint32_t ranks, uint64_t deadline_us, struct ek_group **ret_group)
{
    if (ranks == 0 || ranks > EK_MOST_RANKS)
        return -EINVAL;
    struct ek_group *g = aligned_alloc(64, sizeof(*g));
    if (!g)
        return -ENOMEM;
    memset(g, 0, sizeof(*g));
    g->ranks = ranks;
    g->deadline_us = deadline_us;
    atomic_store(&g->missing, UINT32_MAX);
    *ret_group = g;
    return 0;
}

void cpu_group_free(struct ek_group *g)
{
    free(g);
}
