/* Records reach where they go whole and in order; one who pushes is never held up by a sink that
 * hangs. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/spool.h"
#include "tests/unit/alloc.h"

#define RECORDS 20000u
#define LONG_MS 20000u /* until a test gives up */

/* A sink that can be shut: `entered` counts who came in, `open` lets them pass. */
struct sink {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    bool open, failing;
    uint32_t entered, good, idles;
    uint64_t missing, told;
    size_t last_len;
    uint32_t next; /* number that the next record carries, unless some are missing */
    bool wrong;
};

static void sink_init(struct sink *k, bool open)
{
    *k = (struct sink){.open = open};
    assert_int_equal(pthread_mutex_init(&k->lock, NULL), 0);
    assert_int_equal(pthread_cond_init(&k->moved, NULL), 0);
}

static void sink_done(struct sink *k)
{
    pthread_cond_destroy(&k->moved);
    pthread_mutex_destroy(&k->lock);
}

static void sink_open(struct sink *k, bool open)
{
    pthread_mutex_lock(&k->lock);
    k->open = open;
    pthread_cond_broadcast(&k->moved);
    pthread_mutex_unlock(&k->lock);
}

static void sink_entered(struct sink *k, uint32_t n)
{
    pthread_mutex_lock(&k->lock);
    while (k->entered < n)
        pthread_cond_wait(&k->moved, &k->lock);
    pthread_mutex_unlock(&k->lock);
}

static bool take(void *ctx, const char *record, size_t len, uint64_t missing)
{
    struct sink *k = ctx;
    uint32_t number = 0;
    pthread_mutex_lock(&k->lock);
    k->entered++;
    pthread_cond_broadcast(&k->moved);
    while (!k->open)
        pthread_cond_wait(&k->moved, &k->lock);
    bool good = !k->failing;
    if (good) {
        k->missing += missing;
        k->told += missing > 0;
    }
    if (good && record) {
        k->good++;
        k->last_len = len;
        if (len >= sizeof(number))
            memcpy(&number, record, sizeof(number));
        k->wrong = k->wrong || number < k->next;
        k->next = number + 1;
        for (size_t i = sizeof(number); i < len; i++) /* whole, and nobody else's bytes */
            k->wrong = k->wrong || (unsigned char)record[i] != (unsigned char)number;
    }
    pthread_mutex_unlock(&k->lock);
    return good;
}

static void idle(void *ctx)
{
    struct sink *k = ctx;
    pthread_mutex_lock(&k->lock);
    k->idles++;
    pthread_mutex_unlock(&k->lock);
}

static struct ek_spool *make(struct sink *k, size_t bytes, uint32_t patience_ms)
{
    struct ek_spool_setup setup = {.name = "test",
                                   .bytes = bytes,
                                   .patience_ms = patience_ms,
                                   .write = take,
                                   .idle = idle,
                                   .ctx = k};
    struct ek_spool *s = NULL;
    assert_int_equal(ek_spool_new(&setup, &s), 0);
    return s;
}

static bool push(struct ek_spool *s, uint32_t number, size_t len, bool urgent)
{
    char body[512];
    memset(body, (int)(number & 0xff), sizeof(body));
    struct iovec part[2] = {{&number, sizeof(number)}, {body, len}};
    return ek_spool_push(s, part, 2, urgent);
}

/* Every length at every place of the ring, and what does not fit is counted and told. */
static void test_whole_and_in_order(void **state)
{
    static const size_t rings[] = {600, 601, 602, 603, 1024, 4096};
    (void)state;
    for (size_t i = 0; i < sizeof(rings) / sizeof(rings[0]); i++) {
        struct sink k;
        sink_init(&k, true);
        struct ek_spool *s = make(&k, rings[i], 0);
        uint32_t taken = 0;
        for (uint32_t n = 0; n < RECORDS; n++)
            taken += push(s, n, n * 7 % 400, n % 3 == 0);
        assert_true(ek_spool_flush(s, LONG_MS));
        assert_false(k.wrong);
        assert_int_equal(k.good, taken);
        assert_int_equal(k.missing, RECORDS - taken);
        assert_int_equal(ek_spool_dropped(s), RECORDS - taken);
        ek_spool_free(s, LONG_MS);
        assert_true(k.idles > 0);
        sink_done(&k);
    }
}

/* While it keeps up, what was pushed is written. */
static void test_written_when_it_returns(void **state)
{
    struct sink k;
    (void)state;
    sink_init(&k, true);
    struct ek_spool *s = make(&k, 4096, LONG_MS);
    for (uint32_t n = 0; n < 100; n++) {
        assert_true(push(s, n, 10, false));
        pthread_mutex_lock(&k.lock);
        assert_int_equal(k.good, n + 1);
        pthread_mutex_unlock(&k.lock);
    }
    ek_spool_free(s, LONG_MS);
    sink_done(&k);
}

static void test_a_sink_that_hangs(void **state)
{
    struct sink k;
    (void)state;
    sink_init(&k, false);
    struct ek_spool *s = make(&k, 4096, 30);
    uint64_t begun = ek_now_us();
    uint32_t taken = 0;
    for (uint32_t n = 0; n < 10000; n++)
        taken += push(s, n, 100, false);
    assert_true(taken < 40); /* three quarters of the ring, and the one that is being written */
    assert_true(push(s, 10000, 100, true));
    assert_true(ek_now_us() - begun >= 30000); /* one waited, the others did not: 300 s else */
    assert_true(ek_now_us() - begun < 20 * EK_US_PER_S);
    assert_false(ek_spool_flush(s, 1));
    assert_int_equal(ek_spool_dropped(s), 10000 - taken);

    sink_open(&k, true); /* it reads again */
    assert_true(ek_spool_flush(s, LONG_MS));
    assert_int_equal(k.good, taken + 1);
    assert_int_equal(k.missing, 10000 - taken);
    assert_int_equal(k.told, 1);
    assert_false(k.wrong);
    ek_spool_free(s, LONG_MS);
    sink_done(&k);
}

/* What fails is counted, and told when it works again. */
static void test_a_sink_that_fails(void **state)
{
    struct sink k;
    (void)state;
    sink_init(&k, true);
    k.failing = true;
    struct ek_spool *s = make(&k, 4096, LONG_MS);
    for (uint32_t n = 0; n < 5; n++)
        assert_true(push(s, n, 10, true));
    assert_int_equal(ek_spool_dropped(s), 5);
    assert_true(ek_spool_flush(s, LONG_MS));
    assert_int_equal(k.told, 0);
    pthread_mutex_lock(&k.lock);
    k.failing = false;
    pthread_mutex_unlock(&k.lock);
    assert_true(push(s, 5, 10, true));
    assert_int_equal(k.missing, 5);
    assert_int_equal(k.good, 1);
    ek_spool_free(s, LONG_MS);
    sink_done(&k);
}

static void test_too_long_and_empty(void **state)
{
    struct sink k;
    (void)state;
    sink_init(&k, true);
    struct ek_spool *s = make(&k, 256, LONG_MS);
    assert_false(push(s, 0, 300, true));
    assert_false(push(s, 0, 249, true)); /* 4 of its length, 4 of the number: one too many */
    assert_true(push(s, 0, 248, true));
    assert_true(ek_spool_push(s, NULL, 0, true));
    assert_int_equal(k.last_len, 0);
    ek_spool_free(s, LONG_MS);
    sink_done(&k);
}

/* A thread that never comes back is left behind; its sink is let go here for the sanitizers. */
static void test_freed_while_it_hangs(void **state)
{
    static struct sink k; /* lives longer than the test */
    (void)state;
    sink_init(&k, false);
    struct ek_spool *s = make(&k, 4096, 0);
    assert_true(push(s, 0, 10, false));
    sink_entered(&k, 1);
    ek_spool_free(s, 1);
    sink_open(&k, true);
    ek_spool_free(NULL, 1);
}

static void test_out_of_memory(void **state)
{
    struct sink k;
    (void)state;
    sink_init(&k, true);
    struct ek_spool_setup setup = {.name = "test", .bytes = 4096, .write = take, .ctx = &k};
    for (long n = 1;; n++) {
        struct ek_spool *s = NULL;
        alloc_fail_at(n);
        int r = ek_spool_new(&setup, &s);
        if (!alloc_failed()) {
            alloc_fail_at(0);
            assert_int_equal(r, 0);
            ek_spool_free(s, LONG_MS);
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_null(s);
    }
    sink_done(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_and_in_order), cmocka_unit_test(test_written_when_it_returns),
        cmocka_unit_test(test_a_sink_that_hangs),  cmocka_unit_test(test_a_sink_that_fails),
        cmocka_unit_test(test_too_long_and_empty), cmocka_unit_test(test_freed_while_it_hangs),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
