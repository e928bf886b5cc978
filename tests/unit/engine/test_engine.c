/* The engine's thread on the null backend: sixteen streams, aborts, limits, drain, failures. Waits
 * are on events, with a bound that only a broken engine reaches. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/err.h"
#include "server/engine/engine.h"
#include "tests/sim/null_backend.h"
#include "tests/unit/alloc.h"

#define VOCAB  997u
#define WAIT_S 20

struct world {
    struct engine_params p;
    struct engine *e;
    struct ek_device *d;
    pthread_mutex_t lock;
    pthread_cond_t news;
    uint32_t delivered[ENGINE_WORKERS_MOST];
    int dead_code;
};

static void on_deliver(void *ctx, uint32_t worker)
{
    struct world *w = ctx;
    pthread_mutex_lock(&w->lock);
    w->delivered[worker]++;
    pthread_cond_broadcast(&w->news);
    pthread_mutex_unlock(&w->lock);
}

static void on_dead(void *ctx, int code, const char *why)
{
    struct world *w = ctx;
    assert_non_null(why);
    pthread_mutex_lock(&w->lock);
    w->dead_code = code;
    pthread_cond_broadcast(&w->news);
    pthread_mutex_unlock(&w->lock);
}

static void open_device(struct world *w)
{
    struct ek_step_ceiling c;
    engine_ceiling(&w->p, &c);
    const struct null_params np = {c, w->p.blocks, w->p.host_blocks, w->p.block_size, w->p.vocab};
    assert_int_equal(null_open(&np, &w->d), 0);
}

static void prepare(struct world *w, uint32_t depth)
{
    *w = (struct world){.lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER};
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

static void start(struct world *w)
{
    assert_int_equal(engine_new(&w->p, &null_backend, w->d, &w->e, NULL), 0);
}

static void close_world(struct world *w)
{
    engine_free(w->e);
    null_close(w->d);
}

static struct request *make(uint32_t n, uint32_t max_new)
{
    int32_t prompt[200];
    for (uint32_t i = 0; i < 20; i++)
        prompt[i] = (int32_t)(i < 8 ? i : n * 20 + i);
    struct req_ask ask = {.prompt = prompt,
                          .prompt_tokens = 20,
                          .max_new_tokens = max_new,
                          .top_p = 1,
                          .seed = n,
                          .arrival_us = ek_now_us(),
                          .worker = n % 2};
    struct request *r = request_new(&ask);
    assert_non_null(r);
    return r;
}

static struct request *submit(struct world *w, uint32_t n, uint32_t max_new)
{
    struct request *r = make(n, max_new);
    assert_int_equal(engine_submit(w->e, r, NULL, NULL), 0);
    return r;
}

static void wait_until(struct world *w, const atomic_int *state, int want, const atomic_uint *count,
                       uint32_t least)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += WAIT_S;
    pthread_mutex_lock(&w->lock);
    while ((state && atomic_load(state) != want) || (count && atomic_load(count) < least))
        assert_int_equal(pthread_cond_timedwait(&w->news, &w->lock, &t), 0);
    pthread_mutex_unlock(&w->lock);
}

static void wait_done(struct world *w, const struct request *r)
{
    wait_until(w, &r->state, REQ_DONE, NULL, 0);
}

static void wait_dead(struct world *w)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += WAIT_S;
    pthread_mutex_lock(&w->lock);
    while (w->dead_code == 0)
        assert_int_equal(pthread_cond_timedwait(&w->news, &w->lock, &t), 0);
    pthread_mutex_unlock(&w->lock);
}

static void check_output(const struct request *r, uint32_t least)
{
    uint64_t sum = 0;
    uint32_t n = atomic_load(&r->out_count);
    assert_true(n >= least);
    for (uint32_t i = 0; i < 20; i++)
        sum += null_mark(r->ask.prompt[i], i);
    for (uint32_t i = 0; i < n; i++) {
        int32_t token = null_next(sum, r->ask.seed, 20 + i, VOCAB);
        assert_int_equal(r->out[i].id, token);
        sum += null_mark(token, 20 + i);
    }
}

static void serves_sixteen(uint32_t depth)
{
    struct world w;
    struct request *r[16];
    struct engine_stats st;

    prepare(&w, depth);
    start(&w);
    for (uint32_t i = 0; i < 16; i++)
        r[i] = submit(&w, i, 30);
    for (uint32_t i = 0; i < 16; i++) {
        wait_done(&w, r[i]);
        assert_int_equal(r[i]->finish, REQ_FIN_LENGTH);
        check_output(r[i], 30);
        request_unref(r[i]);
    }
    engine_stats(w.e, &st);
    assert_null(w.d->violation);
    assert_int_equal(st.finished[REQ_FIN_LENGTH], 16);
    assert_int_equal(st.generation_tokens, 16 * 30);
    assert_int_equal(st.prompt_tokens, 16 * 20);
    assert_int_equal(ek_hist_total(&st.ttft), 16);
    assert_int_equal(ek_hist_total(&st.itl), 16 * 29);
    assert_int_equal(ek_hist_total(&st.e2e), 16);
    assert_true(st.prefix_hits > 0 && st.steps > 0);
    assert_int_equal(st.running + st.waiting, 0);
    assert_true(w.delivered[0] > 0 && w.delivered[1] > 0 && w.delivered[2] == 0);
    close_world(&w);
}

static void serves_sixteen_one_step(void **state)
{
    (void)state;
    serves_sixteen(1);
}

static void serves_sixteen_two_steps(void **state)
{
    (void)state;
    serves_sixteen(2);
}

static void aborts_one(void **state)
{
    (void)state;
    struct world w;
    struct engine_stats st;
    prepare(&w, 2);
    start(&w);
    struct request *a = submit(&w, 1, 200), *b = submit(&w, 2, 20);
    wait_until(&w, NULL, 0, &a->out_count, 2);
    engine_finish(w.e, a, REQ_FIN_ABORT);
    engine_finish(w.e, a, REQ_FIN_STOP); /* one wish is enough */
    wait_done(&w, a);
    wait_done(&w, b);
    assert_int_equal(a->finish, REQ_FIN_ABORT);
    check_output(a, 2);
    check_output(b, 20);
    engine_finish(w.e, b, REQ_FIN_ABORT); /* after its end: nothing */
    engine_stats(w.e, &st);
    assert_int_equal(st.finished[REQ_FIN_ABORT], 1);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

static void refuses_at_the_door(void **state)
{
    (void)state;
    struct world w;
    struct engine_stats st;
    struct ek_fault fault;
    struct request *r[32];
    uint32_t retry = 0, in = 0;
    prepare(&w, 1);
    w.p.limits.value[LIMIT_RUNNING_SEQS] = 1;
    w.p.limits.value[LIMIT_QUEUED_REQS] = 2;
    w.d->step_us = 5000;
    start(&w);
    for (uint32_t i = 0; i < 4; i++) {
        r[in] = make(i, 200);
        int code = engine_submit(w.e, r[in], &retry, &fault);
        if (code != 0) {
            assert_int_equal(code, -EBUSY);
            assert_int_equal(atomic_load(&r[in]->refs), 1);
            assert_true(retry >= 1 && retry <= 60);
            request_unref(r[in]);
        } else {
            in++;
        }
    }
    assert_int_equal(in, 3); /* one runs or will, two wait */
    struct request *big = make(1, 250);
    assert_int_equal(engine_submit(w.e, big, &retry, &fault), -EBADMSG);
    assert_non_null(strstr(fault.msg, "256"));
    request_unref(big);
    engine_stats(w.e, &st);
    assert_int_equal(st.refused_queue, 1);
    assert_int_equal(st.refused_fit, 1);
    for (uint32_t i = 0; i < in; i++) {
        engine_finish(w.e, r[i], REQ_FIN_ABORT);
        wait_done(&w, r[i]);
        request_unref(r[i]);
    }
    close_world(&w);
}

/* One runs for long, one waits: who may not wait as long as its prompt takes is told so now. */
static void refuses_by_predicted_wait(void **state)
{
    (void)state;
    struct world w;
    struct ek_fault fault = {0};
    struct engine_stats st;
    uint32_t retry_s = 0;
    prepare(&w, 1);
    w.p.limits.value[LIMIT_RUNNING_SEQS] = 1;
    start(&w);
    struct request *a = submit(&w, 1, 200);
    struct request *hasty = make(2, 1), *patient = make(3, 1), *none = make(4, 1);
    hasty->ask.deadline_us = 1;                                 /* long ago */
    assert_int_equal(engine_submit(w.e, hasty, NULL, NULL), 0); /* no rate is known, nobody waits */
    wait_until(&w, NULL, 0, &a->out_count, 1);
    request_unref(hasty);
    struct request *b = submit(&w, 5, 1); /* waits: 20 tokens at the measured rate */
    hasty = make(6, 1);
    hasty->ask.deadline_us = 1;
    assert_int_equal(engine_submit(w.e, hasty, &retry_s, &fault), -EBUSY);
    assert_int_equal(retry_s, 1);
    assert_non_null(strstr(fault.msg, "the wait would be"));
    patient->ask.deadline_us = ek_now_us() + 1000 * EK_US_PER_S;
    assert_int_equal(engine_submit(w.e, patient, NULL, NULL), 0);
    assert_int_equal(engine_submit(w.e, none, NULL, NULL), 0);
    wait_done(&w, none);
    wait_done(&w, patient);
    wait_done(&w, b);
    assert_int_equal(patient->finish, REQ_FIN_LENGTH);
    engine_stats(w.e, &st);
    assert_int_equal(st.refused_deadline,
                     2); /* the first hasty one left the queue without a step */
    request_unref(a);
    request_unref(b);
    request_unref(hasty);
    request_unref(patient);
    request_unref(none);
    close_world(&w);
}

static void resets_the_prefix_cache(void **state)
{
    (void)state;
    static const uint32_t cached[] = {0, 16, 0, 16};
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct world w;
        prepare(&w, depth);
        start(&w);
        for (uint32_t i = 0; i < 4; i++) {
            if (i == 2)
                engine_reset_prefix_cache(w.e);
            struct request *r = submit(&w, 1, 3);
            wait_done(&w, r);
            assert_int_equal(r->cached_tokens, cached[i]);
            check_output(r, 3);
            request_unref(r);
        }
        close_world(&w);
    }
}

static void changes_limits(void **state)
{
    (void)state;
    struct world w;
    struct limits l;
    struct ek_fault fault;
    prepare(&w, 2);
    start(&w);
    struct limits_change c = {.set = 1u << LIMIT_RUNNING_SEQS};
    c.value[LIMIT_RUNNING_SEQS] = 2;
    assert_int_equal(engine_limits_apply(w.e, &c, &l, &fault), 0);
    assert_int_equal(l.value[LIMIT_RUNNING_SEQS], 2);
    struct request *r[6];
    for (uint32_t i = 0; i < 6; i++)
        r[i] = submit(&w, i, 10);
    c.value[LIMIT_RUNNING_SEQS] = 9;
    assert_int_equal(engine_limits_apply(w.e, &c, &l, &fault), -EBADMSG);
    engine_limits(w.e, &l);
    assert_int_equal(l.value[LIMIT_RUNNING_SEQS], 2);
    for (uint32_t i = 0; i < 6; i++) {
        wait_done(&w, r[i]);
        check_output(r[i], 10);
        request_unref(r[i]);
    }
    close_world(&w);
}

static void drains_and_resumes(void **state)
{
    (void)state;
    struct world w;
    struct engine_stats st;
    uint32_t retry;
    prepare(&w, 2);
    start(&w);
    struct request *a = submit(&w, 1, 30), *b = make(2, 5);
    engine_drain(w.e, 0, true);
    assert_int_equal(engine_submit(w.e, b, &retry, NULL), -ESHUTDOWN);
    wait_done(&w, a);
    assert_int_equal(a->finish, REQ_FIN_LENGTH);
    for (int i = 0; i < 10000; i++) {
        engine_stats(w.e, &st);
        if (st.drain == ENGINE_DRAINED)
            break;
        (void)sched_yield();
    }
    assert_int_equal(st.drain, ENGINE_DRAINED);
    assert_int_equal(st.refused_drain, 1);
    engine_resume(w.e);
    assert_int_equal(engine_submit(w.e, b, &retry, NULL), 0);
    wait_done(&w, b);
    struct request *c = submit(&w, 3, 200);
    engine_drain(w.e, ek_now_us() + 10000, true);
    wait_done(&w, c);
    assert_true(c->finish == REQ_FIN_DEADLINE || c->finish == REQ_FIN_LENGTH);
    engine_resume(w.e);
    struct request *d = submit(&w, 4, 30), *late = make(5, 5);
    engine_drain(w.e, 0, false); /* not shut: who still can ask is answered */
    assert_int_equal(engine_submit(w.e, late, &retry, NULL), 0);
    wait_done(&w, late);
    assert_int_equal(late->finish, REQ_FIN_LENGTH);
    wait_done(&w, d);
    request_unref(late);
    request_unref(d);
    request_unref(a);
    request_unref(b);
    request_unref(c);
    close_world(&w);
}

static void dies_with_a_code(void **state)
{
    (void)state;
    static const struct {
        int code, exit, error;
    } cases[] = {{EK_EDEVICE, EK_EXIT_DEVICE, EK_EDEVICE},
                 {EK_EDEVMEM, EK_EXIT_DEVMEM_RUN, EK_EDEVMEM},
                 {EK_ECOMM, EK_EXIT_COMM, EK_ECOMM},
                 {0, EK_EXIT_HANG, -ETIMEDOUT}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct world w;
        prepare(&w, 1);
        w.d->wait_fails = cases[i].code;
        w.d->always_fails = true;
        w.p.step_deadline_us = 30000;
        atomic_store(&w.d->hangs, cases[i].code == 0);
        start(&w);
        struct request *a = submit(&w, 1, 50), *b = make(2, 5);
        bool one_each = cases[i].code == EK_EDEVMEM; /* three end before it is the device's fault */
        struct request *more[2] = {0};
        for (uint32_t k = 0; k < 2 && one_each; k++)
            more[k] = submit(&w, 3 + k, 50);
        wait_dead(&w);
        request_unref(more[0]);
        request_unref(more[1]);
        assert_int_equal(w.dead_code, cases[i].exit);
        assert_int_equal(atomic_load(&a->state), REQ_DONE);
        assert_int_equal(a->finish, REQ_FIN_ERROR);
        assert_int_equal(a->error, cases[i].error);
        assert_int_equal(engine_submit(w.e, b, NULL, NULL), -ESHUTDOWN);
        request_unref(a);
        request_unref(b);
        close_world(&w);
    }
}

static void lives_through_failed_allocations_of_a_step(void **state)
{
    (void)state;
    struct world w;
    prepare(&w, 2);
    w.d->forward_fails = -ENOMEM;
    w.d->wait_fails = -ENOMEM;
    start(&w);
    struct request *a = submit(&w, 1, 20);
    wait_done(&w, a);
    assert_int_equal(a->finish, REQ_FIN_LENGTH);
    check_output(a, 20);
    request_unref(a);
    close_world(&w);

    prepare(&w, 2); /* no device memory for a step that has not begun */
    w.d->forward_fails = EK_EDEVMEM;
    start(&w);
    a = submit(&w, 1, 20);
    wait_done(&w, a);
    assert_int_equal(a->finish, REQ_FIN_LENGTH);
    check_output(a, 20);
    assert_int_equal(w.dead_code, 0);
    request_unref(a);
    close_world(&w);
}

static int set_pool(struct world *w, uint32_t blocks, struct ek_fault *fault)
{
    const struct limits_change c = {.set = 1u << LIMIT_KV_BLOCKS,
                                    .value = {[LIMIT_KV_BLOCKS] = blocks}};
    return engine_limits_apply(w->e, &c, NULL, fault);
}

static void wait_pool(struct world *w, uint32_t blocks)
{
    struct engine_stats st = {0};
    for (int i = 0; i < WAIT_S * 1000 && st.device_blocks != blocks; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        engine_stats(w->e, &st);
    }
    assert_int_equal(st.device_blocks, blocks);
}

/* While requests run: what is in use moves, the device follows, and a larger pool that the device
 * has no memory for is refused with nothing changed. */
static void resizes_the_device(void **state)
{
    (void)state;
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct world w;
        struct request *r[6];
        struct ek_fault fault = {0};
        struct limits l;
        struct engine_stats st;
        prepare(&w, depth);
        w.p.limits.value[LIMIT_KV_BLOCKS] = w.p.limits.ceiling[LIMIT_KV_BLOCKS] = 64;
        w.p.limits.floor[LIMIT_KV_BLOCKS] = 4;
        w.p.block_bytes = 1 << 20;
        start(&w);
        for (uint32_t i = 0; i < 6; i++)
            r[i] = submit(&w, i, i == 5 ? 60 : 12); /* the last one lies high and stays longest */
        wait_until(&w, NULL, 0, &r[5]->out_count, 2);
        assert_int_equal(set_pool(&w, 12, NULL), 0);
        wait_pool(&w, 13);
        atomic_store(&w.d->resize_fails, EK_EDEVMEM);
        assert_int_equal(set_pool(&w, 40, &fault), EK_EDEVMEM);
        assert_non_null(strstr(fault.msg, "num_kv_blocks 40 needs 28.0 MiB more"));
        engine_limits(w.e, &l);
        assert_int_equal(l.value[LIMIT_KV_BLOCKS], 12);
        engine_stats(w.e, &st);
        assert_int_equal(st.device_blocks, 13);
        assert_int_equal(st.pool_resize_failures, 1);
        assert_int_equal(set_pool(&w, 40, &fault), 0);
        engine_stats(w.e, &st);
        assert_int_equal(st.device_blocks, 41);
        assert_int_equal(set_pool(&w, 65, &fault), -EBADMSG);
        for (uint32_t i = 0; i < 6; i++) {
            wait_done(&w, r[i]);
            assert_int_equal(r[i]->finish, REQ_FIN_LENGTH);
            request_unref(r[i]);
        }
        close_world(&w);
    }
}

/* A device that cannot be resized: the limit holds, the memory stays, everything fits again. */
static void lives_with_a_fixed_device(void **state)
{
    (void)state;
    struct world w;
    struct engine_stats st;
    prepare(&w, 2);
    w.p.limits.value[LIMIT_KV_BLOCKS] = w.p.limits.ceiling[LIMIT_KV_BLOCKS] = 64;
    start(&w);
    atomic_store(&w.d->resize_fails, -ENOTSUP);
    assert_int_equal(set_pool(&w, 12, NULL), 0);
    struct request *a = submit(&w, 1, 20);
    wait_done(&w, a);
    assert_int_equal(a->finish, REQ_FIN_LENGTH);
    engine_stats(w.e, &st);
    assert_int_equal(st.device_blocks, 65);
    assert_int_equal(st.blocks_total, 12);
    assert_int_equal(st.pool_resize_failures, 0);
    assert_int_equal(set_pool(&w, 64, NULL), 0);
    request_unref(a);
    a = submit(&w, 1, 200);
    wait_done(&w, a);
    assert_int_equal(a->finish, REQ_FIN_LENGTH);
    engine_stats(w.e, &st);
    assert_int_equal(st.blocks_total, 64);
    request_unref(a);
    close_world(&w);
}

static void stops_at_once(void **state)
{
    (void)state;
    struct world w;
    prepare(&w, 2);
    start(&w);
    struct request *a = submit(&w, 1, 200);
    engine_free(w.e);
    assert_int_equal(atomic_load(&a->state), REQ_DONE);
    assert_int_equal(a->finish, REQ_FIN_ABORT);
    request_unref(a);
    null_close(w.d);
    engine_free(NULL);
}

static void survives_failed_allocations_at_start(void **state)
{
    (void)state;
    struct world w;
    prepare(&w, 1);
    for (long n = 1;; n++) {
        w.e = NULL;
        alloc_fail_at(n);
        int r = engine_new(&w.p, &null_backend, w.d, &w.e, NULL);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_null(w.e);
    }
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(serves_sixteen_one_step),
        cmocka_unit_test(serves_sixteen_two_steps),
        cmocka_unit_test(aborts_one),
        cmocka_unit_test(refuses_at_the_door),
        cmocka_unit_test(refuses_by_predicted_wait),
        cmocka_unit_test(resets_the_prefix_cache),
        cmocka_unit_test(changes_limits),
        cmocka_unit_test(drains_and_resumes),
        cmocka_unit_test(dies_with_a_code),
        cmocka_unit_test(lives_through_failed_allocations_of_a_step),
        cmocka_unit_test(resizes_the_device),
        cmocka_unit_test(lives_with_a_fixed_device),
        cmocka_unit_test(stops_at_once),
        cmocka_unit_test(survives_failed_allocations_at_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
