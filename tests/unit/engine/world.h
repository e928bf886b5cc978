/*
 * A scheduler on the null backend, step by step: what the tests of the scheduler share. Header
 * only, because a unit test is one source file.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "server/engine/sched.h"
#include "tests/sim/null_backend.h"

#define WORLD_VOCAB 1000u

struct world {
    struct engine_params p;
    struct sched *s;
    struct ek_device *d;
    struct ek_step *steps[SCHED_DEPTH];
    struct ek_result *result;
    size_t bytes;
    uint64_t now_us;
};

static inline struct engine_params params(void)
{
    struct engine_params p = {
        .max_seqs = 4,
        .max_batched_tokens = 16,
        .max_model_len = 128,
        .block_size = 4,
        .blocks = 33,
        .vocab = WORLD_VOCAB,
        .depth = 1,
        .hash_secret = {1, 2},
    };
    p.limits.value[LIMIT_RUNNING_SEQS] = 4;
    p.limits.value[LIMIT_PREFIX_CACHING] = 1;
    p.limits.value[LIMIT_BATCHED_TOKENS] = 16;
    p.limits.ceiling[LIMIT_QUEUED_REQS] = 8;
    return p;
}

static inline void open_world(struct world *w, const struct engine_params *p)
{
    struct ek_step_ceiling c;

    *w = (struct world){.p = *p, .now_us = 1000};
    sched_ceiling(p, &c);
    const struct null_params np = {c,        p->blocks, p->host_blocks, p->block_size,
                                   p->vocab, p->states};
    assert_int_equal(sched_new(p, &w->s), 0);
    assert_int_equal(null_open(&np, &w->d), 0);
    w->bytes = ek_result_bytes(c.seqs, c.scores, c.seqs, NULL_WIDTH);
    w->result = calloc(1, w->bytes);
    for (uint32_t i = 0; i < SCHED_DEPTH; i++)
        w->steps[i] = calloc(1, ek_step_size(&c));
}

static inline void close_world(struct world *w)
{
    assert_null(sched_check(w->s));
    sched_free(w->s);
    null_close(w->d);
    free(w->result);
    free(w->steps[0]);
    free(w->steps[1]);
}

static inline struct request *submit_of(struct world *w, struct tenant_ref tenant,
                                        uint32_t prompt_tokens, uint32_t max_new, int32_t first)
{
    int32_t prompt[128];
    for (uint32_t i = 0; i < prompt_tokens; i++)
        prompt[i] = first + (int32_t)i;
    struct req_ask ask = {.prompt = prompt,
                          .prompt_tokens = prompt_tokens,
                          .max_new_tokens = max_new,
                          .sampling.top_p = 1,
                          .priority = first == 900 ? -1 : 0,
                          .tenant = tenant,
                          .arrival_us = w->now_us};
    struct request *r = request_new(&ask);
    assert_non_null(r);
    request_ref(r);
    assert_int_equal(sched_submit(w->s, r, w->now_us), 0);
    return r;
}

static inline struct request *submit(struct world *w, uint32_t prompt_tokens, uint32_t max_new,
                                     int32_t first)
{
    return submit_of(w, (struct tenant_ref){0}, prompt_tokens, max_new, first);
}

static inline struct ek_step *plan(struct world *w, uint32_t rows)
{
    struct ek_step *step = w->steps[flights_place(&w->s->flights, w->s->flights.count)];
    assert_int_equal(sched_plan(w->s, w->now_us, step), rows);
    if (rows == 0)
        return NULL;
    assert_int_equal(null_backend.forward(w->d, step), 0);
    assert_int_equal(null_backend.sample(w->d, step, NULL), 0);
    return step;
}

static inline void land(struct world *w)
{
    w->now_us += 1000;
    assert_int_equal(
        null_backend.wait(w->d, w->s->flights.at[w->s->flights.first].id, w->result, w->bytes, 0),
        0);
    sched_apply(w->s, w->result, w->now_us);
    assert_null(sched_check(w->s));
}

static inline void run_out(struct world *w)
{
    for (int i = 0; i < 1000 && !sched_idle(w->s); i++) {
        struct ek_step *step = w->steps[w->s->flights.first];
        assert_true(sched_plan(w->s, w->now_us, step) > 0);
        assert_int_equal(null_backend.forward(w->d, step), 0);
        land(w);
    }
    assert_true(sched_idle(w->s));
}

/* One step; the copies in it take copy_us each. */
static inline void step_once(struct world *w, uint64_t copy_us)
{
    struct ek_step *step = w->steps[w->s->flights.first];
    const struct flight *f = &w->s->flights.at[w->s->flights.first];
    assert_true(sched_plan(w->s, w->now_us, step) > 0);
    assert_int_equal(null_backend.forward(w->d, step), 0);
    w->now_us += 1000;
    assert_int_equal(null_backend.wait(w->d, f->id, w->result, w->bytes, 0), 0);
    w->result->copy_us = f->copies * copy_us;
    sched_apply(w->s, w->result, w->now_us);
    assert_null(sched_check(w->s));
}
