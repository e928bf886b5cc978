/* Where the threads of a team may run: pinned when it has every core, else free. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cpu/pool.h"

struct pool_seen {
    struct cpu_pool *pool;
    int cores[CPU_MOST_THREADS];
};

static void look(void *ctx, uint32_t member)
{
    struct pool_seen *s = ctx;
    cpu_set_t set;
    if (member == 0)
        cpu_pool_pin(s->pool);
    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    s->cores[member] = CPU_COUNT(&set);
}

static void each_member_may_use(uint32_t threads, int cores)
{
    struct pool_seen s = {0};
    cpu_set_t before;
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    assert_int_equal(cpu_pool_new(threads, NULL, &s.pool), 0);
    cpu_pool_run(s.pool, look, &s);
    for (uint32_t i = 0; i < threads; i++)
        assert_int_equal(s.cores[i], cores);
    cpu_pool_free(s.pool);
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
}

static int usable(void)
{
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    return CPU_COUNT(&set);
}

static void test_all_cores(void **state)
{
    (void)state;
    if (usable() > (int)CPU_MOST_THREADS)
        skip();
    each_member_may_use((uint32_t)usable(), 1);
}

/* Several servers with a thread or two each share a machine: none may sit on the first cores. */
static void test_fewer_than_cores(void **state)
{
    (void)state;
    if (usable() < 2)
        skip();
    each_member_may_use(1, usable());
    if (usable() > 2)
        each_member_may_use(2, usable());
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_cores),
                                       cmocka_unit_test(test_fewer_than_cores)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
