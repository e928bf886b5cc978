/*
 * An engine on the null backend, with its thread: what its tests share. Waits are on events, with a
 * bound that only a broken engine reaches. Header only, because a unit test is one source file.
 */
#pragma once

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "common/clock.h"
#include "server/engine/engine.h"
#include "tests/sim/null_backend.h"

#define VOCAB  997u
#define WAIT_S 20

struct engine_world {
    struct engine_params p;
    struct engine *e;
    struct ek_device *d;
    pthread_mutex_t lock;
    pthread_cond_t news;
    uint32_t delivered[ENGINE_WORKERS_MOST];
    int dead_code;
};

static inline void on_deliver(void *ctx, uint32_t worker)
{
    struct engine_world *w = ctx;
    pthread_mutex_lock(&w->lock);
    w->delivered[worker]++;
    pthread_cond_broadcast(&w->news);
    pthread_mutex_unlock(&w->lock);
}

static inline void on_dead(void *ctx, int code, const char *why)
{
    struct engine_world *w = ctx;
    assert_non_null(why);
    pthread_mutex_lock(&w->lock);
    w->dead_code = code;
    pthread_cond_broadcast(&w->news);
    pthread_mutex_unlock(&w->lock);
}

static inline void open_device(struct engine_world *w)
{
    struct ek_step_ceiling c;
    engine_ceiling(&w->p, &c);
    const struct null_params np = {c,          w->p.blocks, w->p.host_blocks, w->p.block_size,
                                   w->p.vocab, w->p.states};
    assert_int_equal(null_open(&np, &w->d), 0);
}

static inline void prepare(struct engine_world *w, uint32_t depth)
{
    *w = (struct engine_world){.lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER};
    w->p = (struct engine_params){
        .max_seqs = 8,
        .max_batched_tokens = 32,
        .max_model_len = 256,
        .block_size = 8,
        .blocks = 65,
        .vocab = VOCAB,
        .depth = depth,
        .deliver = on_deliver,
        .dead = on_dead,
        .ctx = w,
    };
    w->p.limits.value[LIMIT_RUNNING_SEQS] = w->p.limits.ceiling[LIMIT_RUNNING_SEQS] = 8;
    w->p.limits.value[LIMIT_BATCHED_TOKENS] = w->p.limits.ceiling[LIMIT_BATCHED_TOKENS] = 32;
    w->p.limits.floor[LIMIT_RUNNING_SEQS] = 1;
    w->p.limits.value[LIMIT_PREFIX_CACHING] = w->p.limits.ceiling[LIMIT_PREFIX_CACHING] = 1;
    w->p.limits.value[LIMIT_QUEUED_REQS] = w->p.limits.ceiling[LIMIT_QUEUED_REQS] = 16;
    open_device(w);
    w->d->step_us = 200;
}

static inline void start(struct engine_world *w)
{
    assert_int_equal(engine_new(&w->p, &null_backend, w->d, &w->e, NULL), 0);
}

static inline void close_world(struct engine_world *w)
{
    engine_free(w->e);
    null_close(w->d);
}

static inline struct request *make(uint32_t n, uint32_t max_new)
{
    int32_t prompt[200];
    for (uint32_t i = 0; i < 20; i++)
        prompt[i] = (int32_t)(i < 8 ? i : n * 20 + i);
    struct req_ask ask = {.prompt = prompt,
                          .prompt_tokens = 20,
                          .max_new_tokens = max_new,
                          .sampling.top_p = 1,
                          .sampling.seed = n,
                          .arrival_us = ek_now_us(),
                          .worker = n % 2};
    struct request *r = request_new(&ask);
    assert_non_null(r);
    return r;
}

static inline struct request *submit(struct engine_world *w, uint32_t n, uint32_t max_new)
{
    struct request *r = make(n, max_new);
    assert_int_equal(engine_submit(w->e, r, NULL, NULL), 0);
    return r;
}

static inline void wait_until(struct engine_world *w, const atomic_int *state, int want,
                              const atomic_uint *count, uint32_t least)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += WAIT_S;
    pthread_mutex_lock(&w->lock);
    while ((state && atomic_load(state) != want) || (count && atomic_load(count) < least))
        assert_int_equal(pthread_cond_timedwait(&w->news, &w->lock, &t), 0);
    pthread_mutex_unlock(&w->lock);
}

static inline void wait_done(struct engine_world *w, const struct request *r)
{
    wait_until(w, &r->state, REQ_DONE, NULL, 0);
}

static inline void wait_dead(struct engine_world *w)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += WAIT_S;
    pthread_mutex_lock(&w->lock);
    while (w->dead_code == 0)
        assert_int_equal(pthread_cond_timedwait(&w->news, &w->lock, &t), 0);
    pthread_mutex_unlock(&w->lock);
}

static inline void check_output(const struct request *r, uint32_t least)
{
    uint64_t sum = 0;
    uint32_t n = atomic_load(&r->out_count);
    assert_true(n >= least);
    for (uint32_t i = 0; i < 20; i++)
        sum += null_mark(r->ask.prompt[i], i);
    for (uint32_t i = 0; i < n; i++) {
        int32_t token = null_next(sum, r->ask.sampling.seed, 20 + i, VOCAB);
        assert_int_equal(r->out[i].id, token);
        sum += null_mark(token, 20 + i);
    }
}
