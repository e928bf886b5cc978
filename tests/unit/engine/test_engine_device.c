/* The engine and its device: one that fails, one that is resized, one that is to be left. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/err.h"
#include "common/recorder_read.h"
#include "server/engine/engine_inside.h"
#include "tests/unit/engine/engine_world.h"

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
        struct engine_world w;
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

static char record_dir[] = "/tmp/ek-device-XXXXXX", record_path[64];

static struct ek_recorder *open_record(void)
{
    struct ek_recorder *recorder = NULL;
    memcpy(strchr(record_dir, '\0') - 6, "XXXXXX", 6);
    assert_non_null(mkdtemp(record_dir));
    char sock[48];
    (void)snprintf(sock, sizeof(sock), "%s/s", record_dir);
    (void)snprintf(record_path, sizeof(record_path), "%s" EK_RECORDER_FILE, sock);
    assert_int_equal(ek_recorder_open(sock, &(struct ek_recorder_about){0}, &recorder), 0);
    return recorder;
}

static struct ek_recorded read_record(struct ek_recorder *recorder)
{
    struct ek_recorded got;
    int fd = open(record_path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ek_recorded_read(fd, &got, NULL), 0);
    close(fd);
    ek_recorder_close(recorder);
    assert_int_equal(unlink(record_path) + rmdir(record_dir), 0);
    return got;
}

/* The recording of an engine that dies has what it died with: requests that had not ended, a step
 * that failed with its error, one that hangs without a record of its end. */
static void dies_with_a_recording(void **state)
{
    (void)state;
    static const int codes[] = {EK_EDEVICE, EK_EDEVMEM, 0};
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        struct engine_world w;
        struct request *r[3];
        uint32_t count = codes[i] == EK_EDEVMEM ? 3 : 1; /* it lives until all are there */
        prepare(&w, 2);
        struct ek_recorder *recorder = w.p.recorder = open_record();
        w.d->wait_fails = codes[i];
        w.d->always_fails = true;
        w.p.step_deadline_us = 30000;
        atomic_store(&w.d->hangs, codes[i] == 0);
        start(&w);
        for (uint32_t k = 0; k < count; k++)
            r[k] = submit(&w, k, 50);
        wait_dead(&w);
        for (uint32_t k = 0; k < count; k++)
            request_unref(r[k]);
        close_world(&w);
        struct ek_recorded got = read_record(recorder);
        uint32_t failed = 0, alive = 0, last = got.begun_count - 1;
        for (uint32_t k = 0; k < got.request_count; k++)
            alive += got.requests[k].kind == EK_RECORDER_ARRIVED ? 1u : -1u;
        for (uint32_t k = 0; k < got.step_count; k++) {
            failed += got.steps[k].error == codes[i];
            assert_true(got.steps[k].error == codes[i] || got.steps[k].error == -ECANCELED);
        }
        /* two are blamed before the third failure of the device's memory ends all */
        assert_int_equal(alive, 1);
        assert_true(codes[i] == 0 ? got.step_count == 0 : failed > 0);
        if (codes[i] != 0)
            assert_int_equal(got.steps[got.step_count - 1].id, got.begun[last].id);
        ek_recorded_done(&got);
    }
}

/* A step that could not be begun is in it, with its error, and then the one that was. */
static void records_what_was_not_begun(void **state)
{
    (void)state;
    struct engine_world w;
    prepare(&w, 2);
    struct ek_recorder *recorder = w.p.recorder = open_record();
    w.d->forward_fails = EK_EDEVMEM;
    start(&w);
    struct request *a = submit(&w, 1, 20);
    wait_done(&w, a);
    request_unref(a);
    close_world(&w);
    struct ek_recorded got = read_record(recorder);
    assert_int_equal(got.steps[0].id, 1);
    assert_int_equal(got.steps[0].error, EK_EDEVMEM);
    assert_int_equal(got.steps[0].rows, 20);
    assert_int_equal(got.steps[1].error, 0);
    ek_recorded_done(&got);
}

static void lives_through_failed_allocations_of_a_step(void **state)
{
    (void)state;
    struct engine_world w;
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

static int set_pool(struct engine_world *w, uint32_t blocks, struct ek_fault *fault)
{
    const struct limits_change c = {.set = 1u << LIMIT_KV_BLOCKS,
                                    .value = {[LIMIT_KV_BLOCKS] = blocks}};
    return engine_limits_apply(w->e, &c, NULL, fault);
}

static void wait_pool(struct engine_world *w, uint32_t blocks)
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
        struct engine_world w;
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
    struct engine_world w;
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
    struct engine_world w;
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

static _Atomic(struct engine *) closing; /* of the test below: a backend is told of no context */

static bool is_stopping(struct engine *e)
{
    bool stop = false;
    if (e) {
        pthread_mutex_lock(&e->lock);
        stop = e->stop;
        pthread_mutex_unlock(&e->lock);
    }
    return stop;
}

static bool failed_behind; /* written by the engine's thread, read when it has ended */

/* The second step ends when the engine is to stop, the one behind it fails then. */
static int wait_until_closing(struct ek_device *d, uint64_t id, struct ek_result *ret_result,
                              size_t bytes, uint64_t timeout_us)
{
    if (timeout_us ==
        0) /* a result that lay there would tell of no time, and none be planned ahead */
        return -ETIMEDOUT;
    while (id == 2 && !is_stopping(atomic_load(&closing)))
        sched_yield();
    if (id == 3)
        failed_behind = true;
    d->wait_fails = id == 3 ? -ENOMEM : 0;
    return null_backend.wait(d, id, ret_result, bytes, timeout_us);
}

static void stops_though_a_step_fails(void **state)
{
    (void)state;
    struct engine_world w;
    struct ek_backend backend = null_backend;
    const struct timespec soon = {.tv_nsec = 10 * 1000 * 1000};
    backend.wait = wait_until_closing;
    prepare(&w, 2);
    assert_int_equal(engine_new(&w.p, &backend, w.d, &w.e, NULL), 0);
    atomic_store(&closing, w.e);
    struct request *a = submit(&w, 1, 200);
    (void)nanosleep(&soon, NULL); /* until two steps are in flight */
    engine_free(w.e);
    assert_int_equal(a->finish, REQ_FIN_ABORT);
    assert_true(failed_behind);
    request_unref(a);
    null_close(w.d);
}

/* Results that lie there when they are asked for tell nothing of how long steps take. */
static void learns_nothing_of_results_that_lie_there(void **state)
{
    (void)state;
    for (int lies = 0; lies < 2; lies++) {
        struct engine_world w;
        prepare(&w, 2);
        w.d->step_us = lies ? 0 : 200;
        start(&w);
        struct request *a = submit(&w, 1, 20);
        wait_done(&w, a);
        engine_stop(w.e);
        assert_int_equal(w.e->sched->rates.landed_rows > 0, !lies);
        request_unref(a);
        close_world(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dies_with_a_code),
        cmocka_unit_test(dies_with_a_recording),
        cmocka_unit_test(records_what_was_not_begun),
        cmocka_unit_test(lives_through_failed_allocations_of_a_step),
        cmocka_unit_test(resizes_the_device),
        cmocka_unit_test(lives_with_a_fixed_device),
        cmocka_unit_test(stops_at_once),
        cmocka_unit_test(stops_though_a_step_fails),
        cmocka_unit_test(learns_nothing_of_results_that_lie_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
