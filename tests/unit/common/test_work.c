/* The meter: fuel, deadline and cancellation stop it for good; nobody's meter pays for all. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "common/work.h"

static void test_fuel(void **state)
{
    struct ek_work w = {.fuel = 10};
    struct ek_fault f = {0};
    (void)state;
    assert_true(ek_work_pay(&w, 4));
    assert_true(ek_work_pay(&w, 6));
    assert_false(ek_work_stopped(&w));
    assert_true(ek_work_pay(&w, 0));
    assert_false(ek_work_pay(&w, 1));
    assert_true(ek_work_stopped(&w));
    assert_false(ek_work_pay(&w, 0));
    assert_int_equal(w.used, 10);
    assert_int_equal(ek_work_refuse(&w, &f, "messages"), -EBADMSG);
    assert_string_equal(f.field, "messages");
    assert_true(ek_work_pay(NULL, UINT64_MAX));
    assert_false(ek_work_stopped(NULL));
}

/* A sum beyond all numbers is no way round. */
static void test_overflow(void **state)
{
    struct ek_work w = {.fuel = UINT64_MAX};
    (void)state;
    assert_true(ek_work_pay(&w, UINT64_MAX - 5));
    assert_false(ek_work_pay(&w, 6));
    assert_int_equal(ek_work_fuel(7, 10, 3), 37);
    assert_int_equal(ek_work_fuel(7, UINT64_MAX, 2), UINT64_MAX);
    assert_int_equal(ek_work_fuel(UINT64_MAX, 1, 1), UINT64_MAX);
}

static void test_others(void **state)
{
    atomic_bool gone = false;
    struct ek_work w = {.fuel = UINT64_MAX, .cancelled = &gone};
    (void)state;
    for (uint32_t i = 0; i < 3 * EK_WORK_LOOK; i++)
        assert_true(ek_work_pay(&w, 1));
    atomic_store(&gone, true);
    uint32_t n = 0;
    while (ek_work_pay(&w, 1))
        n++;
    assert_true(n < EK_WORK_LOOK);
    assert_int_equal(w.stopped, -ECANCELED);
    assert_int_equal(ek_work_refuse(&w, NULL, ""), -ECANCELED);
    w = (struct ek_work){.fuel = UINT64_MAX, .deadline_us = 1};
    assert_false(ek_work_pay(&w, 1));
    assert_int_equal(ek_work_refuse(&w, NULL, ""), -ETIMEDOUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fuel),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
