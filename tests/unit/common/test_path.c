/* What a path or an address is without slashes at its end, and its last name. */
#include "common/path.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_ends(void **state)
{
    static const struct {
        const char *path;
        size_t length;
        const char *name;
    } cases[] = {
        {"", 0, ""},
        {"/", 0, ""},
        {"///", 0, ""},
        {"models", 6, "models"},
        {"models/", 6, "models"},
        {"/srv/models/big", 15, "big"},
        {"/srv/models/big///", 15, "big"},
        {"http://127.0.0.1:8000/", 21, "127.0.0.1:8000"},
    };
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t bytes = 99;
        const char *name = ek_path_name(cases[i].path, &bytes);
        assert_int_equal(ek_path_length(cases[i].path), cases[i].length);
        assert_int_equal(bytes, strlen(cases[i].name));
        assert_memory_equal(name, cases[i].name, bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
