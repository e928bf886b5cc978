/* The engine's thread on the null backend: sixteen streams, aborts, limits, drain. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/err.h"
#include "common/recorder_read.h"
#include "tests/unit/alloc.h"
#include "tests/unit/engine/engine_world.h"

static void serves_sixteen(uint32_t depth)
{
    struct engine_world w;
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
    struct engine_world w;
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

static void refuses_what_is_submitted(void **state)
{
    (void)state;
    struct engine_world w;
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
    assert_int_equal(in, 3);              /* one runs or will, two wait */
    struct request *again = make(9, 200); /* what will be tried again is not counted */
    again->ask.again = true;
    assert_int_equal(engine_submit(w.e, again, &retry, &fault), -EBUSY);
    assert_non_null(strstr(fault.msg, "the queue is full"));
    request_unref(again);
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

/* An engine that does not come back says nothing itself: what waits for it is counted when it
 * comes.
 */
static void counts_what_nobody_took(void **state)
{
    (void)state;
    struct engine_world w;
    struct engine_stats st;
    prepare(&w, 1);
    start(&w);
    pthread_mutex_lock(&w.lock); /* it stops when it delivers */
    struct request *first = submit(&w, 1, 1);
    do {
        sched_yield();
        engine_stats(w.e, &st);
    } while (st.finished[REQ_FIN_LENGTH] == 0);
    assert_int_equal(engine_stuck_us(&st, ek_now_us()), 0);
    struct request *a = submit(&w, 2, 1), *b = submit(&w, 3, 1);
    do
        engine_stats(w.e, &st);
    while (st.untaken_us < 1000);
    assert_int_equal(st.waiting, 2);
    assert_int_equal(st.queued_tokens, 40);
    assert_true(st.oldest_wait_us >= 1000);
    assert_true(engine_stuck_us(&st, ek_now_us()) >= 1000);
    pthread_mutex_unlock(&w.lock);
    wait_done(&w, a);
    wait_done(&w, b);
    engine_stats(w.e, &st);
    assert_int_equal(st.waiting, 0);
    assert_int_equal(st.untaken_us, 0);
    request_unref(first);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

/* One runs for long, one waits: who may not wait as long as its prompt takes is told so now. */
static void refuses_by_predicted_wait(void **state)
{
    (void)state;
    struct engine_world w;
    struct ek_fault fault = {0};
    struct engine_stats st;
    uint32_t retry_s = 0;
    prepare(&w, 1);
    w.p.limits.value[LIMIT_RUNNING_SEQS] = 1;
    w.p.limits.value[LIMIT_BATCHED_TOKENS] = 10; /* half a prompt: the rate is measured */
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
        struct engine_world w;
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
    struct engine_world w;
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
    struct engine_world w;
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

/* What was asked is what the flight recorder has of it. */
static void records_its_steps(void **state)
{
    (void)state;
    char dir[] = "/tmp/ek-engine-XXXXXX", sock[48], path[64];
    struct engine_world w;
    struct request *r[3];
    struct ek_recorded got;
    struct ek_recorder *recorder = NULL;
    uint32_t reads = 0, ended = 0;

    assert_non_null(mkdtemp(dir));
    (void)snprintf(sock, sizeof(sock), "%s/s", dir);
    (void)snprintf(path, sizeof(path), "%s" EK_RECORDER_FILE, sock);
    assert_int_equal(ek_recorder_open(sock, &(struct ek_recorder_about){0}, &recorder), 0);
    prepare(&w, 2);
    w.p.limits.value[LIMIT_PREFIX_CACHING] = 0;
    w.p.recorder = recorder;
    start(&w);
    for (uint32_t i = 0; i < 3; i++)
        r[i] = submit(&w, i, 10 + i);
    for (uint32_t i = 0; i < 3; i++) {
        wait_done(&w, r[i]);
        request_unref(r[i]);
    }
    close_world(&w);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(ek_recorded_read(fd, &got, NULL), 0);
    close(fd);
    for (uint32_t i = 0; i < got.step_count; i++) {
        reads += got.steps[i].prefill_rows;
        assert_int_equal(got.steps[i].limit_seqs, 8);
        assert_int_equal(got.steps[i].blocks_total, 64);
        assert_int_equal(got.steps[i].error, 0);
        assert_true(got.steps[i].step_us >= 200 && got.steps[i].rows > 0);
    }
    assert_int_equal(reads, 3 * 20);
    assert_true(got.step_count >= 12 && got.begun_count == EK_RECORDER_BEGUN);
    assert_int_equal(got.request_count, 6);
    for (uint32_t i = 0; i < got.request_count; i++) {
        const struct ek_recorder_request *q = &got.requests[i];
        assert_true(q->id >= 1 && q->id <= 3 && q->prompt_tokens == 20);
        if (q->kind == EK_RECORDER_ENDED) {
            ended++;
            assert_int_equal(q->output_tokens, 9 + q->id);
            assert_int_equal(q->finish, REQ_FIN_LENGTH);
        }
    }
    assert_int_equal(ended, 3);
    ek_recorded_done(&got);
    ek_recorder_close(recorder);
    assert_int_equal(unlink(path) + rmdir(dir), 0);
}

static void survives_failed_allocations_at_start(void **state)
{
    (void)state;
    struct engine_world w;
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
        cmocka_unit_test(refuses_what_is_submitted),
        cmocka_unit_test(counts_what_nobody_took),
        cmocka_unit_test(refuses_by_predicted_wait),
        cmocka_unit_test(resets_the_prefix_cache),
        cmocka_unit_test(changes_limits),
        cmocka_unit_test(drains_and_resumes),
        cmocka_unit_test(records_its_steps),
        cmocka_unit_test(survives_failed_allocations_at_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
