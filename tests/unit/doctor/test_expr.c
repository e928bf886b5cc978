/* Arithmetic of the catalog: values, what is not known, and spellings that are refused. */
#include "supervisor/doctor/expr.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool lookup(const void *ctx, const char *name, double *ret_value)
{
    (void)ctx;
    if (strcmp(name, "tokens") == 0)
        *ret_value = 8192;
    else if (strcmp(name, "seqs") == 0)
        *ret_value = 256;
    else if (strcmp(name, "zero") == 0)
        *ret_value = 0;
    else
        return false;
    return true;
}

static void test_values(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int code;
        double want;
    } cases[] = {
        {"1", 0, 1},
        {"1 + 2 * 3 - 4 / 8", 0, 6.5},
        {"(1 + 2) * -3", 0, -9},
        {"down(tokens * 0.75, 16)", 0, 6144},
        {"down(0.85 - 0.05, 0.01)", 0, 0.8},
        {"up(33, 16)", 0, 48},
        {"max(min(seqs * 0.8, 64), 1)", 0, 64},
        {"floor(2.9) + ceil(2.1)", 0, 5},
        {"seqs > 64", 0, 1},
        {"seqs <= 64 or tokens == 8192", 0, 1},
        {"seqs > 64 and missing > 1", 0, 0},
        {"missing ?? seqs", 0, 256},
        {"(missing ?? 4096) * 2", 0, 8192},
        {"missing * 2", -ENODATA, 0},
        {"min(missing, 2)", -ENODATA, 0},
        {"1 / zero", -EBADMSG, 0},
        {"", -EBADMSG, 0},
        {"1 +", -EBADMSG, 0},
        {"(1", -EBADMSG, 0},
        {"1 2", -EBADMSG, 0},
        {"nothing(1)", -EBADMSG, 0},
        {"min(1)", -EBADMSG, 0},
        {"1e308 * 1e308", -EBADMSG, 0},
        {"((((((((((((((((((((((((((((((((((1))))))))))))))))))))))))))))))))))", -EBADMSG, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        double v = -1;
        int r = doctor_eval(cases[i].text, lookup, NULL, &v);
        if (r != cases[i].code ||
            (r == 0 && (v < cases[i].want - 1e-9 || v > cases[i].want + 1e-9)))
            fail_msg("%s: code %d, value %g", cases[i].text, r, v);
        if (r < 0)
            assert_true(v < -0.5); /* written only on success */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
