/*
 * States of a member: waiting for a generation, running, at a barrier. Two words are waited on:
 * `generation` (raised by cpu_pool_run and by the end) and `phase` (raised by the last to come to a
 * barrier). A waiter counts itself in the word's `sleepers` before it sleeps and a waker looks at
 * them after it changed the word; both are sequentially consistent, so no wake is lost. `fn`, `ctx`
 * and `stop` are written before `generation` rises and read after it was seen to rise.
 */
#include "kernels/cpu/pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/cgroup.h"
#include "common/clock.h"
#include "kernels/cpu/nodes.h"

/* How long a waiter spins is measured when a team begins. A pause takes some 20 ns on one machine
 * and 60 on another; a wake takes 5 us where nothing stands between, and 50 in a virtual machine.
 */
#define LEAST_NS       10000u  /* what barriers usually take */
#define MOST_NS        100000u /* longer keeps the core from others */
#define LONE_WAKE_NS   30000u  /* of a team of one, whose wake cannot be measured */
#define LEAST_PAUSE_NS 5u      /* where it cannot be measured */
#define TRIAL_PAUSES   500u
#define TRIAL_WAKES    9u
#define TRIAL_US       5000u /* in all: where wakes take longer the bound above decides anyway */
#define TRIAL_REST     50000 /* ns: until all sleep again */

struct word {
    _Atomic uint32_t value, sleepers;
    char pad[56]; /* a cache line of its own */
};

struct pool_thread {
    struct cpu_pool *pool;
    pthread_t thread;
    uint32_t index;
};

struct cpu_pool {
    struct word generation, phase;
    _Atomic uint32_t arrived;
    uint32_t threads, started;
    /* Pauses before sleeping: none where members share a core, where one that waits would keep the
     * other off it. */
    _Atomic uint32_t spins;
    bool stop, bound; /* bound: to cores of its own */
    cpu_pool_fn fn;
    void *ctx;
    cpu_set_t cores;
    struct pool_thread member[];
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void pool_await(struct word *w, uint32_t old, uint32_t spins)
{
    for (uint32_t i = 0; i < spins; i++) {
        if (atomic_load_explicit(&w->value, memory_order_acquire) != old)
            return;
        relax();
    }
    atomic_fetch_add(&w->sleepers, 1);
    while (atomic_load(&w->value) == old)
        (void)syscall(SYS_futex, &w->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&w->sleepers, 1);
}

static void advance(struct word *w)
{
    atomic_fetch_add(&w->value, 1);
    if (atomic_load(&w->sleepers) > 0)
        (void)syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void cpu_pool_barrier_last(struct cpu_pool *p, void (*last)(void *ctx), void *ctx)
{
    uint32_t phase = atomic_load_explicit(&p->phase.value, memory_order_acquire);

    if (p->threads > 1 && atomic_fetch_add(&p->arrived, 1) + 1 < p->threads) {
        pool_await(&p->phase, phase, atomic_load_explicit(&p->spins, memory_order_relaxed));
        return;
    }
    if (last)
        last(ctx);
    if (p->threads > 1) {
        atomic_store(&p->arrived, 0);
        advance(&p->phase);
    }
}

void cpu_pool_barrier(struct cpu_pool *p)
{
    cpu_pool_barrier_last(p, NULL, NULL);
}

/* Where there are more cores than members, each may be on all of them: the first cores are also
 * those that other servers of this machine would take, and a scheduler that may not move them lets
 * one starve the others. */
static void pin(const struct cpu_pool *p, uint32_t index)
{
    uint32_t cores = (uint32_t)CPU_COUNT(&p->cores), nth = cores ? index % cores : 0;

    if (p->threads < cores) {
        if (p->bound)
            (void)pthread_setaffinity_np(pthread_self(), sizeof(p->cores), &p->cores);
        return;
    }
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &p->cores) || nth-- > 0)
            continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        (void)pthread_setaffinity_np(pthread_self(), sizeof(one), &one); /* only a preference */
        return;
    }
}

static void *member_main(void *arg)
{
    struct pool_thread *m = arg;
    struct cpu_pool *p = m->pool;
    uint32_t seen = 0;

    (void)pthread_setname_np(pthread_self(), "compute"); /* for top and debuggers */
    pin(p, m->index);
    for (;;) {
        pool_await(&p->generation, seen, atomic_load_explicit(&p->spins, memory_order_relaxed));
        seen++; /* the next generation begins only after the barrier below */
        if (p->stop)
            return NULL;
        p->fn(p->ctx, m->index);
        cpu_pool_barrier(p);
    }
}

void cpu_pool_run(struct cpu_pool *p, cpu_pool_fn fn, void *ctx)
{
    p->fn = fn;
    p->ctx = ctx;
    if (p->threads > 1)
        advance(&p->generation);
    fn(ctx, 0);
    cpu_pool_barrier(p);
}

uint32_t cpu_pool_spins(uint64_t wake_ns, uint64_t pause_ns)
{
    uint64_t spin_ns = wake_ns;

    if (spin_ns < LEAST_NS)
        spin_ns = LEAST_NS;
    if (spin_ns > MOST_NS)
        spin_ns = MOST_NS;
    return (uint32_t)(spin_ns / (pause_ns > LEAST_PAUSE_NS ? pause_ns : LEAST_PAUSE_NS));
}

static void nothing(void *ctx, uint32_t member)
{
    (void)ctx;
    (void)member;
}

/* A run of nothing, from sleep, wakes the members and then the caller: the middle of some such. */
static uint64_t wake_ns(struct cpu_pool *p)
{
    const struct timespec rest = {.tv_nsec = TRIAL_REST};
    const uint64_t until = ek_now_us() + TRIAL_US;
    uint64_t us[TRIAL_WAKES] = {0};
    uint32_t n = 0;

    while (n < TRIAL_WAKES && (n == 0 || ek_now_us() < until)) {
        (void)nanosleep(&rest, NULL); /* shorter is no harm */
        const uint64_t begin = ek_now_us();
        cpu_pool_run(p, nothing, NULL);
        const uint64_t took = ek_now_us() - begin;
        uint32_t at = n++;
        for (; at > 0 && us[at - 1] > took; at--)
            us[at] = us[at - 1];
        us[at] = took;
    }
    return us[n / 2] * 1000 / 2;
}

static void choose_spins(struct cpu_pool *p)
{
    const uint64_t begin = ek_now_us();

    for (uint32_t i = 0; i < TRIAL_PAUSES; i++)
        relax();
    const uint64_t pause_ns = (ek_now_us() - begin) * 1000 / TRIAL_PAUSES;
    const uint64_t wake = p->threads > 1 ? wake_ns(p) : LONE_WAKE_NS;
    atomic_store_explicit(&p->spins, cpu_pool_spins(wake, pause_ns), memory_order_relaxed);
}

int cpu_pool_new(uint32_t threads, const cpu_set_t *cores, struct cpu_pool **ret_pool)
{
    pthread_attr_t attr;
    int r = -ENOMEM;

    struct cpu_pool *p = calloc(1, sizeof(*p) + threads * sizeof(p->member[0]));
    if (!p || pthread_attr_init(&attr) != 0) {
        free(p);
        return r;
    }
    (void)pthread_attr_setstacksize(&attr, CPU_STACK_BYTES);
    p->threads = threads;
    p->bound = cores != NULL;
    if (cores)
        p->cores = *cores;
    else
        cpu_usable_set(threads, &p->cores);
    const int all = CPU_COUNT(&p->cores);
    for (p->started = 1; p->started < threads; p->started++) {
        struct pool_thread *m = &p->member[p->started];
        m->pool = p;
        m->index = p->started;
        r = -pthread_create(&m->thread, &attr, member_main, m);
        if (r < 0)
            goto out;
    }
    if (all <= 0 || threads <= (uint32_t)all)
        choose_spins(p);
    *ret_pool = p;
    p = NULL;
    r = 0;
out:
    pthread_attr_destroy(&attr);
    cpu_pool_free(p);
    return r;
}

void cpu_pool_free(struct cpu_pool *p)
{
    if (!p)
        return;
    p->stop = true;
    advance(&p->generation);
    for (uint32_t i = 1; i < p->started; i++)
        (void)pthread_join(p->member[i].thread, NULL);
    free(p);
}

void cpu_pool_pin(struct cpu_pool *p)
{
    pin(p, 0);
}

bool cpu_pool_spin(const struct cpu_pool *p, const _Atomic uint32_t *value, uint32_t old)
{
    const uint32_t spins = atomic_load_explicit(&p->spins, memory_order_relaxed);

    for (uint32_t i = 0; i < spins; i++) {
        if (atomic_load_explicit(value, memory_order_acquire) != old)
            return true;
        relax();
    }
    return false;
}

uint32_t cpu_pool_threads(const struct cpu_pool *p)
{
    return p->threads;
}

uint32_t cpu_usable_cores(uint32_t *ret_whole)
{
    return cpu_usable_cpus(1, ret_whole);
}

uint32_t cpu_usable_cpus(uint32_t wanted, uint32_t *ret_whole)
{
    cpu_set_t set;
    uint32_t cores = CPU_MOST_THREADS, whole, quota;

    quota = ek_cgroup_cores(EK_CGROUP_SELF, "/sys/fs/cgroup", &whole);
    cpu_usable_set(wanted, &set);
    if ((uint32_t)CPU_COUNT(&set) < cores)
        cores = (uint32_t)CPU_COUNT(&set);
    if (quota > 0 && quota < cores)
        cores = quota;
    *ret_whole = whole < cores ? whole : cores;
    return cores;
}
