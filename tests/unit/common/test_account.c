/* The account of memory: bills go up and down, refusals leave all as it was, threads lose nothing.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/account.h"

static void test_shares_and_pool(void **state)
{
    struct ek_account a;
    struct ek_bill one, two, other, none = {0};
    (void)state;
    ek_account_init(&a, 100, 60);
    ek_bill_open(&one, &a, 1);
    ek_bill_open(&two, &a, 1);
    ek_bill_open(&other, &a, 2);
    assert_int_equal(ek_bill_set(&one, 61), -E2BIG);
    assert_int_equal(ek_bill_set(&one, 40), 0);
    assert_int_equal(ek_bill_set(&two, 21), -EDQUOT);
    assert_int_equal(two.bytes, 0);
    assert_int_equal(ek_bill_set(&two, 20), 0);
    assert_int_equal(ek_bill_set(&other, 41), -EBUSY);
    assert_int_equal(ek_account_held(&a), 60);
    assert_int_equal(ek_bill_set(&other, 40), 0);
    assert_int_equal(ek_bill_set(&one, 0), 0);
    assert_int_equal(ek_bill_set(&two, 60), 0); /* its owner's other bill is paid */
    assert_int_equal(atomic_load(&a.high), 100);
    assert_int_equal(atomic_load(&a.refused), 3);
    ek_account_bound(&a, 100, 100);
    assert_int_equal(ek_bill_set(&two, 61), -EBUSY);
    ek_bill_force(&two, 500);
    assert_int_equal(ek_account_held(&a), 540);
    assert_int_equal(ek_bill_set(&other, 41), -EBUSY);
    ek_bill_force(&two, 0);
    assert_int_equal(ek_bill_set(&other, 0), 0);
    assert_int_equal(ek_account_held(&a), 0);
    assert_int_equal(ek_bill_set(&none, UINT64_MAX), 0); /* nothing is counted */
}

#define ROUNDS 20000u

static void *hammer(void *arg)
{
    struct ek_account *a = arg;
    struct ek_bill b;
    static atomic_uint next;
    unsigned seed = atomic_fetch_add(&next, 1);

    ek_bill_open(&b, a, seed % 3);
    for (unsigned i = 0; i < ROUNDS; i++) {
        seed = seed * 1103515245u + 12345u;
        (void)ek_bill_set(&b, seed >> 16 & 1023); /* refused or not */
    }
    (void)ek_bill_set(&b, 0);
    return NULL;
}

static void test_threads_lose_nothing(void **state)
{
    struct ek_account a;
    pthread_t t[4];
    (void)state;
    ek_account_init(&a, 2000, 900);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, hammer, &a), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(t[i], NULL), 0);
    assert_int_equal(ek_account_held(&a), 0);
    for (uint32_t i = 0; i < EK_ACCOUNT_OWNERS; i++)
        assert_int_equal(atomic_load(&a.of[i]), 0);
    assert_true(atomic_load(&a.high) <= 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares_and_pool),
        cmocka_unit_test(test_threads_lose_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
