/* Lists of what a client accepts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/net/accept.h"

static void test_lists(void **state)
{
    static const struct {
        const char *list;
        bool has;
    } cases[] = {{NULL, false},
                 {"", false},
                 {"gzip", true},
                 {"GZIP", true},
                 {"deflate, gzip", true},
                 {"gzip;q=0", false},
                 {"gzip; q=0.0", false},
                 {"gzip;q=0.5, br", true},
                 {"gzip;x=1;q=0", false},
                 {"gzip;q=nan", false},
                 {"xgzip", false},
                 {"gzipx", false},
                 {"*", false},
                 {"br;q=0, gzip", true},
                 {", ,gzip ;q=1", true},
                 {"gzip;", true}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(accept_has(cases[i].list, "gzip"), cases[i].has);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lists)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
