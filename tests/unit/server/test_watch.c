/* A thread that loops is told from one that works and one that waits, and says where it is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/net/http.h"
#include "server/watch.h"

static atomic_bool over;
static atomic_ullong rounds;

static void *run_loop(void *arg)
{
    (void)arg;
    while (!atomic_load(&over))
        continue;
    return NULL;
}

static void *run_rounds(void *arg)
{
    (void)arg;
    while (!atomic_load(&over))
        atomic_fetch_add(&rounds, 1);
    return NULL;
}

static void *run_idle(void *arg)
{
    (void)arg;
    while (!atomic_load(&over))
        (void)usleep(1000);
    return NULL;
}

static void test_loop(void **state)
{
    struct http_thread t[3] = {{.what = "idle", .cpu_most_us = 100000},
                               {.what = "rounds", .cpu_most_us = 100000},
                               {.what = "loop", .cpu_most_us = 100000}};
    void *(*const runs[3])(void *) = {run_idle, run_rounds, run_loop};
    const struct http_thread *found = NULL;
    static struct watch w;
    enum watch_verdict v = WATCH_WELL;
    char stack[1024], little[30];
    (void)state;
    watch_open();
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&t[i].thread, NULL, runs[i], NULL), 0);
    for (int i = 0; i < 100000 && !found; i++) {
        t[1].rounds = atomic_load(&rounds);
        v = watch_look(&w, t, 3, &found);
        (void)usleep(1000);
    }
    assert_int_equal(v, WATCH_LOOPS);
    assert_non_null(found);
    assert_string_equal(found->what, "loop");
    assert_true(watch_stack(found->thread, stack, sizeof(stack)));
    assert_non_null(strstr(stack, "test_watch+0x"));
    (void)watch_stack(found->thread, little, sizeof(little)); /* cut, at a whole place */
    assert_true(strlen(little) < sizeof(little));
    atomic_store(&over, true);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_join(t[i].thread, NULL), 0);
}

static void *run_lost(void *arg)
{
    (void)arg;
    for (volatile int i = 0; i < 1000000; i++)
        continue;
    atomic_store(&rounds, UINT64_MAX);
    while (!atomic_load(&over))
        (void)usleep(100000);
    return NULL;
}

/* Looks are counted, so none of this takes its time. */
static void test_lost(void **state)
{
    struct http_thread t = {.what = "encoder", .cpu_most_us = 1u << 30, .rounds = 1};
    const struct http_thread *found = NULL;
    static struct watch w;
    (void)state;
    atomic_store(&over, false);
    assert_int_equal(pthread_create(&t.thread, NULL, run_lost, NULL), 0);
    while (atomic_load(&rounds) != UINT64_MAX)
        (void)usleep(1000);
    for (int i = 0; i < 200; i++) /* it has nothing to do */
        assert_int_equal(watch_look(&w, &t, 1, &found), WATCH_WELL);
    t.still_most_us = 5 * WATCH_EVERY_US;
    t.rounds++;
    for (int i = 0; i < 6; i++)
        assert_int_equal(watch_look(&w, &t, 1, &found), WATCH_WELL);
    t.rounds++; /* it has come round */
    for (int i = 0; i < 6; i++)
        assert_int_equal(watch_look(&w, &t, 1, &found), WATCH_WELL);
    assert_null(found);
    assert_int_equal(watch_look(&w, &t, 1, &found), WATCH_LOST);
    assert_ptr_equal(found, &t);
    atomic_store(&over, true);
    assert_int_equal(pthread_join(t.thread, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_loop), cmocka_unit_test(test_lost)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
