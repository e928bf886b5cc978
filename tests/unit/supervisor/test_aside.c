/* Work in threads: done is called from the loop, no more than some run, and an end with work under
 * way gives back what belongs to it. */
#include <errno.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "supervisor/io/aside.h"

struct aside_piece {
    sem_t go;
    int worked, done, dropped;
};

static void work(void *ctx)
{
    struct aside_piece *p = ctx;
    while (sem_wait(&p->go) != 0)
        ;
    p->worked++;
}

static void done(void *ctx)
{
    struct aside_piece *p = ctx;
    p->done++;
}

static void drop(void *ctx)
{
    struct aside_piece *p = ctx;
    p->dropped++;
}

static void test_aside(void **state)
{
    (void)state;
    struct aside_piece p[ASIDE_MOST + 1] = {0};
    struct aside *a = NULL;
    sd_event *event = NULL;
    assert_int_equal(sd_event_new(&event), 0);
    assert_int_equal(aside_new(event, &a), 0);
    for (unsigned i = 0; i <= ASIDE_MOST; i++)
        assert_int_equal(sem_init(&p[i].go, 0, 0), 0);
    for (unsigned i = 0; i < ASIDE_MOST; i++)
        assert_int_equal(aside_run(a, work, done, drop, &p[i]), 0);
    assert_int_equal(aside_run(a, work, done, drop, &p[ASIDE_MOST]), -EBUSY);
    assert_int_equal(sem_post(&p[1].go), 0); /* any of them */
    for (int i = 0; i < 200 && !p[1].done; i++)
        assert_true(sd_event_run(event, 100000) >= 0);
    assert_true(p[1].worked == 1 && p[1].done == 1 && p[0].done == 0);
    assert_int_equal(aside_run(a, work, done, drop, &p[ASIDE_MOST]), 0);
    for (unsigned i = 0; i <= ASIDE_MOST; i++)
        assert_int_equal(sem_post(&p[i].go), 0);
    aside_free(a);
    for (unsigned i = 0; i <= ASIDE_MOST; i++) {
        assert_true(p[i].worked == 1 && p[i].done + p[i].dropped == 1);
        assert_int_equal(sem_destroy(&p[i].go), 0);
    }
    aside_free(NULL);
    sd_event_unref(event);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_aside)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
