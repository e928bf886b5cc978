/*
 * A fixed team of threads that run one function together, with a barrier among them. The thread
 * that calls cpu_pool_run() is member 0; only one thread may do so at a time. A team as large as
 * the usable cores is pinned, each member to one of them; a smaller one goes where the kernel puts
 * it. Waiting spins for as long as a wake takes here, measured when the team begins, then sleeps in
 * a futex: so it costs at most twice what the better of both would.
 */
#pragma once

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

struct cpu_pool;

typedef void (*cpu_pool_fn)(void *ctx, uint32_t member);

#define CPU_MOST_THREADS 256u
/* Of each thread. Sanitizers give each vector of an unrolled loop a place of its own. */
#ifdef EK_CHECK
#define CPU_STACK_BYTES (2u << 20)
#else
#define CPU_STACK_BYTES (256u << 10)
#endif

/* Starts threads - 1 threads, on `cores` (NULL: all that are usable), and measures for some ms.
 * -ENOMEM, -EAGAIN. */
int cpu_pool_new(uint32_t threads, const cpu_set_t *cores, struct cpu_pool **ret_pool);
void cpu_pool_free(struct cpu_pool *p); /* accepts NULL; nothing may be running */
/* Pure. Pauses before a waiter sleeps, when a wake and a pause take so long: as long as a wake, but
 * 10 us at least and 100 at most. */
uint32_t cpu_pool_spins(uint64_t wake_ns, uint64_t pause_ns);
/* Runs fn(ctx, 0 .. threads-1), the last on return. */
void cpu_pool_run(struct cpu_pool *p, cpu_pool_fn fn, void *ctx);
/* For members, inside fn: none goes on before all have come. */
void cpu_pool_barrier(struct cpu_pool *p);
/* The same; the last to come calls last(ctx) before any goes on. */
void cpu_pool_barrier_last(struct cpu_pool *p, void (*last)(void *ctx), void *ctx);
/* For a thread beside the team that waits for it or for work: whether the value changed while
 * members would spin, before they sleep. */
bool cpu_pool_spin(const struct cpu_pool *p, const _Atomic uint32_t *value, uint32_t old);
/* Pins the calling thread to the core of member 0, if members are pinned. */
void cpu_pool_pin(struct cpu_pool *p);
uint32_t cpu_pool_threads(const struct cpu_pool *p);
/* Cores that this process may use, by affinity and the cgroup's quota; of the last perhaps a part.
 * Two CPUs that are one core's threads count as one.
 * *ret_whole: those that it may use all of. Both at least 1. */
uint32_t cpu_usable_cores(uint32_t *ret_whole);
/* The same where so many CPUs are wanted: all of them, not one of each core, if that is too few. */
uint32_t cpu_usable_cpus(uint32_t wanted, uint32_t *ret_whole);
