/* Numbers for people: what is not known is an en dash, wherever it came from. */
#include "common/buf.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        double v;
        const char *want;
    } cases[] = {{1.5, "1.50 GiB"},  {0, "0.00 GiB"},         {-2, "-2.00 GiB"},
                 {(double)NAN, "–"}, {(double)INFINITY, "–"}, {-(double)INFINITY, "–"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_buf b = {0};
        assert_int_equal(ek_buf_number(&b, cases[i].v, 2, " GiB"), 0);
        assert_string_equal(b.data, cases[i].want);
        ek_buf_done(&b);
    }
}

static void test_sentences(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", ""},
        {"nan", "–"},
        {"-nan", "–"},
        {"process nan GiB, host inf free", "process – GiB, host – free"},
        {"with -nan running and -inf waiting", "with – running and – waiting"},
        {"usage nan%, (nan)", "usage –%, (–)"},
        {"nano, finance, info, in, na", "nano, finance, info, in, na"},
        {"server nan-1 and my_nan", "server –-1 and my_nan"},
        {"a-nan", "a-–"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[80];
        (void)snprintf(text, sizeof(text), "%s", cases[i][0]);
        ek_text_unknown(text);
        assert_string_equal(text, cases[i][1]);
    }
    char text[80];
    (void)snprintf(text, sizeof(text), "%.0f run, %.2f %%", (double)NAN, -(double)INFINITY);
    ek_text_unknown(text);
    assert_string_equal(text, "– run, – %");
}

/* What a terminal obeys, and nothing else. */
static void test_control_characters(void **state)
{
    static const struct {
        const char *text, *clean;
    } cases[] = {
        {"", ""},
        {"a\x1b[2Jb\x7f\n", "a [2Jb  "},
        {"a\xc2\x9b"
         "31m",
         "a  31m"}, /* one byte in Latin 1: another escape */
        {"a\xc2\xa0"
         "b",
         "a\xc2\xa0"
         "b"}, /* a space that does not break */
        {"\xe2\x80\xae"
         "ab",
         "   ab"}, /* from right to left */
        {"\xe2\x81\xa6\xd8\x9c", "     "},
        {"\xe2\x80\x93\xe2\x81\xa5\xe2\x80", "\xe2\x80\x93\xe2\x81\xa5\xe2\x80"},
        {"\xc2", "\xc2"},
        {"gr\xc3\xb6\xc3\x9f"
         "er \xf0\x9f\x98\x80",
         "gr\xc3\xb6\xc3\x9f"
         "er \xf0\x9f\x98\x80"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[64];
        (void)snprintf(text, sizeof(text), "%s", cases[i].text);
        ek_text_clean(text);
        assert_string_equal(text, cases[i].clean);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers),
                                       cmocka_unit_test(test_sentences),
                                       cmocka_unit_test(test_control_characters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
