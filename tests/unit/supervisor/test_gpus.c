/* Which devices a server has, and whether their memory is free. */
#include "supervisor/io/gpus.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_parse(void **state)
{
    (void)state;
    static const struct {
        const char *list;
        int r;
        uint32_t set;
    } cases[] = {{"0", 0, 1},          {"0,3", 0, 9},        {"15,2", 0, 0x8004},
                 {"", -EBADMSG, 0},    {"16", -EBADMSG, 0},  {"1,", -EBADMSG, 0},
                 {",1", -EBADMSG, 0},  {"1,1", -EBADMSG, 0}, {"-1", -EBADMSG, 0},
                 {"1 2", -EBADMSG, 0}, {"007", -EBADMSG, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t set = 77;
        assert_int_equal(gpus_parse(cases[i].list, &set), cases[i].r);
        assert_int_equal(set, cases[i].r == 0 ? cases[i].set : 77);
    }
}

static void test_are_free(void **state)
{
    (void)state;
    char why[200];
    struct gpus g = {.count = 2};
    g.at[0] = (struct gpu){.total = 100ull << 30, .used = 10ull << 30};
    g.at[1] = (struct gpu){.total = 100ull << 30, .used = 30ull << 30, .processes = 1};
    g.at[1].pid[0] = 9;
    g.at[1].bytes[0] = 20ull << 30;
    assert_true(gpus_are_free(&g, 1, 0.9, why, sizeof(why)));
    assert_false(gpus_are_free(&g, 1, 0.91, why, sizeof(why)));
    assert_null(strstr(why, "process"));
    assert_false(gpus_are_free(&g, 3, 0.9, why, sizeof(why)));
    assert_non_null(strstr(why, "device 1 has 70.0 of 100.0 GiB free"));
    assert_non_null(strstr(why, "process 9 has 20.0 GiB"));
    assert_true(gpus_are_free(&g, 3, 0.7, why, sizeof(why)));
    assert_false(gpus_are_free(&g, 4, 0.1, why, sizeof(why)));
    assert_non_null(strstr(why, "no device 2"));
    g.at[0].used = 200ull << 30; /* nonsense of a driver */
    assert_false(gpus_are_free(&g, 1, 0.1, why, sizeof(why)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parse),
                                       cmocka_unit_test(test_are_free)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
