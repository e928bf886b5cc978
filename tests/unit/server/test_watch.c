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
    char stack[1024], little[30];
    (void)state;
    watch_open();
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&t[i].thread, NULL, runs[i], NULL), 0);
    for (int i = 0; i < 100000 && !found; i++) {
        t[1].rounds = atomic_load(&rounds);
        found = watch_look(&w, t, 3);
        (void)usleep(1000);
    }
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_loop)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
