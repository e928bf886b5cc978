/* Where the threads of a team may run: pinned when it has every core, else free. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cpu/nodes.h"
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
    cpu_usable_set(1, &set); /* one of each core */
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
    cpu_set_t all;
    if (usable() < 2)
        skip();
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    each_member_may_use(1, CPU_COUNT(&all));
    if (usable() > 2)
        each_member_may_use(2, CPU_COUNT(&all));
}

/* As long as a wake takes, within its bounds; a clock too coarse for a pause is no division by 0.
 */
static void test_spins(void **state)
{
    static const struct {
        uint64_t wake_ns, pause_ns;
        uint32_t pauses;
    } cases[] = {{47000, 61, 770},    {47000, 18, 2611},   {3100, 50, 200}, {0, 43, 232},
                 {9000000, 60, 1666}, {100001, 100, 1000}, {0, 0, 2000}};
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(cpu_pool_spins(cases[i].wake_ns, cases[i].pause_ns), cases[i].pauses);
}

struct pool_turns {
    struct cpu_pool *pool;
    uint32_t turns[8];
};

static void turn(void *ctx, uint32_t member)
{
    struct pool_turns *t = ctx;
    t->turns[member]++;
    cpu_pool_barrier(t->pool);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(t->turns[i], t->turns[member]);
    cpu_pool_barrier(t->pool);
}

/* More members than cores sleep at once; others spin: all come to each barrier either way. */
static void test_turns(void **state)
{
    static const uint32_t threads[] = {3, 8};
    (void)state;

    for (size_t i = 0; i < 2; i++) {
        struct pool_turns t = {0};
        assert_int_equal(cpu_pool_new(threads[i], NULL, &t.pool), 0);
        for (uint32_t n = 0; n < 200; n++)
            cpu_pool_run(t.pool, turn, &t);
        for (uint32_t m = 0; m < threads[i]; m++)
            assert_int_equal(t.turns[m], 200);
        cpu_pool_free(t.pool);
    }
}

/* A thread beside a team whose members share cores does not spin; beside others it sees a change.
 */
static void test_beside(void **state)
{
    _Atomic uint32_t value = 1;
    struct cpu_pool *p = NULL;
    (void)state;

    assert_int_equal(cpu_pool_new(1, NULL, &p), 0);
    assert_true(cpu_pool_spin(p, &value, 0));
    assert_false(cpu_pool_spin(p, &value, 1)); /* and ends */
    cpu_pool_free(p);
    if (usable() >= (int)CPU_MOST_THREADS)
        skip();
    cpu_set_t all;
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    assert_int_equal(cpu_pool_new((uint32_t)CPU_COUNT(&all) + 1, NULL, &p), 0);
    assert_false(cpu_pool_spin(p, &value, 0));
    cpu_pool_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_cores), cmocka_unit_test(test_fewer_than_cores),
        cmocka_unit_test(test_spins), cmocka_unit_test(test_turns), cmocka_unit_test(test_beside)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
