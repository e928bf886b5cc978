/*
 * The attention that evenkeel-bench measures is one: over a cache in which all values are alike it
 * comes to that value, in every tier of this machine, and it looks at no memory but the cache's.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/tier.h"
#include "server/bench/attend.h"
#include "tests/unit/alloc.h"

static const struct {
    struct attend_shape shape;
    size_t bytes; /* of the cache */
    float value;  /* of bytes 0x3c each */
} cases[] = {
    {{EK_BF16, 1, 512}, 512 * 512, 0.011474609f},            /* a single head */
    {{EK_BF16, 3, 8192}, 8192 * 512 * 3 + 64, 0.011474609f}, /* parts, and a rest of memory */
    {{EK_I8, 1, 512}, 512 * 264, 60 * 0.011488971f},
    {{EK_I8, 8, 4608}, 4608 * 264 * 2, 60 * 0.011488971f},
};

static void check_case(const struct cpu_ops *ops, size_t i)
{
    const struct attend_shape *s = &cases[i].shape;
    char *cache = malloc(cases[i].bytes);
    struct bench_attend *a = NULL;

    assert_non_null(cache);
    memset(cache, 0x3c, cases[i].bytes);
    assert_int_equal(bench_attend_new(ops, s, cache, cases[i].bytes, &a), 0);
    for (uint32_t turn = 0; turn < 4; turn++) {
        bench_attend_run(a, turn);
        for (uint32_t row = 0; row < s->rows; row++)
            for (uint32_t head = 0; head < ATTEND_GROUP; head++)
                for (uint32_t e = 0; e < ATTEND_DIM; e++) {
                    const float got = bench_attend_row(a, turn, row, head)[e];
                    assert_true(fabsf(got / cases[i].value - 1.0f) < 1e-3f);
                }
    }
    bench_attend_free(a);
    free(cache);
}

static void test_value(void **state)
{
    const struct cpu_ops *tiers[CPU_TIERS];

    (void)state;
    cpu_tier_list(tiers);
    for (size_t t = 0; t < CPU_TIERS && tiers[t]; t++)
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
            check_case(tiers[t], i);
}

static void test_alloc(void **state)
{
    static char cache[512 * 512];
    const struct attend_shape shape = {EK_BF16, 1, 512};
    struct bench_attend *a = NULL;

    (void)state;
    for (long n = 1;; n++) {
        alloc_fail_at(n);
        int r = bench_attend_new(&cpu_ops_ref, &shape, cache, sizeof(cache), &a);
        if (!alloc_failed()) {
            alloc_fail_at(0);
            assert_int_equal(r, 0);
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_null(a);
    }
    bench_attend_free(a);
}

/* What is read are numbers and scales; what is done are multiplications and exponentials. */
static void test_work(void **state)
{
    double bytes, flops;

    (void)state;
    bench_attend_work(&(struct attend_shape){EK_BF16, 1, 8192}, &bytes, &flops);
    assert_true(bytes == 8192.0 * 2 * 128 * 2);
    assert_true(flops == 8192.0 * 4 * (2 * 2 * 128 + 2 * 17));
    bench_attend_work(&(struct attend_shape){EK_I8, 8, 8192}, &bytes, &flops);
    assert_true(bytes == 8192.0 * 2 * (128 + 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_value),
        cmocka_unit_test(test_alloc),
        cmocka_unit_test(test_work),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
