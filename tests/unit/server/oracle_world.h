/*
 * A world of the oracle: an engine on its device, the requests that live in it, and how it is told
 * of news. Header only; oracle.c alone includes it.
 */
#pragma once

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/err.h"
#include "kernels/backend.h"
#include "server/engine/engine.h"
#include "server/model/model.h"
#include "tests/unit/server/faulty_backend.h"
#include "tests/unit/server/oracle.h"

#define PROMPTS     60u
#define LONGS       6u   /* behind them, for worlds with several tenants */
#define LONG_LEAST  300u /* tokens */
#define LONG_MOST   700u
#define BASES       6u
#define PROMPT_MOST 128u
#define OUT_MOST    40u
#define TOP         2u
#define LIVE_MOST   48u
#define MODEL_LEN   (PROMPT_MOST + OUT_MOST)
#define LONG_LEN    (LONG_MOST + OUT_MOST)
#define STALL_S     60 /* without any news while requests live: the engine hangs */
#define DTYPES      3u /* the third: bf16 with an int8 KV cache */

struct alone {
    uint32_t count;
    struct req_token out[OUT_MOST];
    struct req_top top[OUT_MOST][TOP];
};

struct prompt {
    uint32_t tokens;
    int32_t id[LONG_MOST];
    struct alone alone[DTYPES];
};

struct oracle {
    uint64_t seed;
    const struct ek_backend *backend;
    struct model *model[DTYPES];
    struct ek_forms forms[DTYPES]; /* drawn, as measuring may choose any */
    struct prompt prompts[PROMPTS + LONGS];
    bool longs_known; /* what they give alone */
    struct oracle_totals totals;
    char wrong[512];
};

struct job {
    struct request *req;
    uint32_t number, prompt;
    bool aborted;
};

/* An engine on its device, and what lives in it. `lock` guards news and dead. */
struct oracle_world {
    struct oracle *o;
    uint64_t rng, number;
    uint32_t dtype;
    struct engine_params p;
    uint32_t arrive_ppm, abort_ppm, limit_ppm, live_most;
    uint32_t stages;  /* of a pipeline, 1 = none */
    uint32_t tenants; /* 1 = all requests are of none */
    const struct ek_backend *backend;
    struct ek_device *device;
    struct faulty faulty; /* around the device */
    struct engine *engine;
    struct job live[LIVE_MOST];
    uint32_t live_count, submitted;

    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool news;
    char dead[160];
};

static const char *const dtype_names[DTYPES] = {"bf16", "float32", "bf16 with an int8 cache"};

static inline uint64_t draw(uint64_t *rng)
{
    uint64_t z = *rng += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static inline uint32_t pick(uint64_t *rng, uint32_t from, uint32_t to)
{
    return from + (uint32_t)(draw(rng) % (to - from + 1));
}

static inline bool chance(uint64_t *rng, uint32_t ppm)
{
    return draw(rng) % 1000000u < ppm;
}

/* The first thing that went wrong is the one that is told. */
__attribute__((format(printf, 2, 3))) static inline int wrong(struct oracle *o, const char *fmt,
                                                              ...)
{
    va_list ap;

    if (o->wrong[0] == '\0') {
        va_start(ap, fmt);
        vsnprintf(o->wrong, sizeof(o->wrong), fmt, ap);
        va_end(ap);
    }
    return -EBADMSG;
}

static inline void on_news(void *ctx, uint32_t worker)
{
    struct oracle_world *w = ctx;

    (void)worker;
    pthread_mutex_lock(&w->lock);
    w->news = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

static inline void on_dead(void *ctx, int exit_code, const char *why)
{
    struct oracle_world *w = ctx;

    pthread_mutex_lock(&w->lock);
    snprintf(w->dead, sizeof(w->dead), "the engine died with exit code %d: %s", exit_code, why);
    w->news = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

static inline int wait_news(struct oracle_world *w)
{
    struct timespec until;
    int r = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STALL_S;
    pthread_mutex_lock(&w->lock);
    while (!w->news && r == 0)
        r = pthread_cond_timedwait(&w->wake, &w->lock, &until);
    w->news = false;
    if (w->dead[0] != '\0')
        r = wrong(w->o, "%s", w->dead);
    else if (r != 0)
        r = wrong(w->o, "nothing happened for %d s: the engine hangs", STALL_S);
    pthread_mutex_unlock(&w->lock);
    return r;
}

static inline int open_device(struct oracle_world *w)
{
    const struct model *m = w->o->model[w->dtype];
    const struct ek_backend *b = w->stages > 1 ? ek_ranks_backend(w->o->backend) : w->o->backend;
    struct ek_open_params open = {.forms = &w->o->forms[w->dtype]};
    struct ek_plan_request q = {.graph = &m->graph, .block_size = w->p.block_size};
    struct ek_fault fault = {0};

    w->backend = b;
    if (w->stages > 1) {
        open.ranks = open.stages = w->stages;
        open.each = w->o->backend;
    }
    engine_ceiling(&w->p, &q.ceiling);
    q.logit_rows = w->p.max_seqs + q.ceiling.scores;
    struct ek_kv_params kv = {.blocks = w->p.blocks,
                              .host_blocks = w->p.host_blocks,
                              .block_size = w->p.block_size,
                              .states = w->p.states};
    int r = b->open(&open, &w->device, &fault);
    if (r == 0)
        r = b->load(w->device, &q, &m->files, NULL, NULL, &fault);
    if (r == 0)
        r = b->kv_open(w->device, &kv);
    return r == 0 ? 0 : wrong(w->o, "the device does not open: %d %s", r, fault.msg);
}

static inline int world_start(struct oracle_world *w)
{
    struct ek_fault fault = {0};

    w->p.vocab = w->o->model[w->dtype]->graph.vocab;
    w->p.max_model_len = w->tenants > 1 ? LONG_LEN : MODEL_LEN;
    if (w->o->model[w->dtype]->graph.state_floats > 0) { /* a snapshot now and then, few of them */
        w->p.states = 2 * w->p.max_seqs;
        w->p.states_every = 16;
        w->p.host_blocks = w->p.offload_blocks = 0;
    }
    w->p.deliver = on_news;
    w->p.dead = on_dead;
    w->p.ctx = w;
    int r = open_device(w);
    if (r != 0)
        return r;
    w->faulty.real = w->backend;
    w->faulty.device = w->device;
    w->faulty.vocab = w->p.vocab;
    w->faulty.blocks = w->p.blocks;
    r = engine_new(&w->p, &faulty_backend, (struct ek_device *)(void *)&w->faulty, &w->engine,
                   &fault);
    return r == 0 ? 0 : wrong(w->o, "the engine does not start: %d %s", r, fault.msg);
}

static inline void world_end(struct oracle_world *w)
{
    engine_free(w->engine);
    for (uint32_t i = 0; i < w->live_count; i++)
        request_unref(w->live[i].req);
    w->backend->close(w->device);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
}

/* Limits that bind nothing but the sizes. */
static inline void plain_limits(struct engine_params *p)
{
    p->limits.value[LIMIT_RUNNING_SEQS] = p->max_seqs;
    p->limits.value[LIMIT_BATCHED_TOKENS] = p->max_batched_tokens;
    p->limits.value[LIMIT_KV_BLOCKS] = p->blocks - 1;
    p->limits.ceiling[LIMIT_RUNNING_SEQS] = p->max_seqs;
    p->limits.ceiling[LIMIT_BATCHED_TOKENS] = p->max_batched_tokens;
    p->limits.ceiling[LIMIT_QUEUED_REQS] = LIVE_MOST;
    p->limits.ceiling[LIMIT_KV_BLOCKS] = p->blocks - 1;
    p->limits.ceiling[LIMIT_PREFIX_CACHING] = 1;
    p->limits.floor[LIMIT_RUNNING_SEQS] = 1;
    p->limits.floor[LIMIT_BATCHED_TOKENS] = 1;
    p->limits.floor[LIMIT_KV_BLOCKS] = 1;
}

static inline void world_init(struct oracle_world *w, struct oracle *o)
{
    *w = (struct oracle_world){.o = o};
    pthread_mutex_init(&w->lock, NULL); /* with the default attributes neither can fail */
    pthread_cond_init(&w->wake, NULL);
}
