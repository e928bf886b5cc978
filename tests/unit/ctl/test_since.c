/* What people write after --since, in a zone with summer time. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/err.h"
#include "supervisor/ctl/since.h"

#define NOW 1795370587 /* 2026-11-22 18:03:07 UTC, 19:03:07 in Berlin */

static void test_good(void **state)
{
    static const struct {
        const char *text;
        uint64_t s;
    } cases[] = {
        {"0", 0},
        {"90", NOW - 90},
        {"30m", NOW - 1800},
        {"2h", NOW - 7200},
        {"1d12h", NOW - 129600},
        {"1w", NOW - 604800},
        {"@1795370000", 1795370000},
        {"today", 1795302000}, /* 2026-11-21T23:00:00Z */
        {"yesterday", 1795302000 - 86400},
        {"2026-11-22", 1795302000},
        {"2026-11-22T14:05", 1795352700}, /* 13:05Z */
        {"2026-11-22 14:05:30", 1795352730},
        {"2026-11-22T14:05:30Z", 1795356330},
        {"2026-11-22T14:05+01:00", 1795352700},
        {"2026-11-22T14:05-00:30", 1795358100},
        {"2026-07-01T12:00", 1782900000}, /* summer: 10:00Z */
        {"14:05", 1795352700},
        {"14:05:30", 1795352730},
        {"23:30", 1795386600 - 86400}, /* yesterday's: that of today is to come */
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t s = 1;
        int r = since_parse(cases[i].text, NOW, &s, NULL);
        if (r != 0 || s != cases[i].s)
            print_error("%s: %d, %llu\n", cases[i].text, r, (unsigned long long)s);
        assert_int_equal(r, 0);
        assert_int_equal(s, cases[i].s);
    }
}

static void test_bad(void **state)
{
    static const char *const bad[] = {
        "",
        "m",
        "-5m",
        "5x",
        "soon",
        "2026-13-01",
        "2026-11-22T25:00",
        "2026-11-22T14:05+1",
        "@",
        "@x",
        "99999999999",
        "9999999w",
        "2h ",
        "yesterday!",
        "2026-11-22T14:05Q",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct ek_fault f = {0};
        uint64_t s = 7;
        int r = since_parse(bad[i], NOW, &s, &f);
        if (r == 0)
            print_error("%s is no time\n", bad[i]);
        assert_int_equal(r, -EBADMSG);
        assert_int_equal(s, 7);
        assert_non_null(strstr(f.msg, "yesterday"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_good), cmocka_unit_test(test_bad)};
    if (setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", 1) != 0)
        return 1;
    tzset();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
