/* The sum is the published FNV-1a: files of older versions have it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/fnv.h"

/* From the test suite of the authors of FNV. */
static void test_published(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t sum;
    } cases[] = {{"", 0xcbf29ce484222325},
                 {"a", 0xaf63dc4c8601ec8c},
                 {"foobar", 0x85944171f73967e8},
                 {"chongo was here!\n", 0x46810940eff5f915}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_true(ek_fnv(EK_FNV_BEGIN, cases[i].text, strlen(cases[i].text)) == cases[i].sum);
    assert_true(ek_fnv(ek_fnv(EK_FNV_BEGIN, "foo", 3), "bar", 3) == cases[2].sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_published)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
