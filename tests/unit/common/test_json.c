/* Numbers that a json_t cannot hold: of them only those become text, and no line number changes. */
#include "common/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *text, *becomes; /* compact, in the order of the text */
} cases[] = {
    {"{\"a\": 1, \"b\": [1e30, -2.5]}", "{\"a\":1,\"b\":[1e30,-2.5]}"},
    {"{\"model_max_length\": 1000000000000000019884624838656, \"n\": 3}",
     "{\"model_max_length\":\"1000000000000000019884624838656\",\"n\":3}"},
    {"[9223372036854775807, 9223372036854775808, -9223372036854775808, -9223372036854775809]",
     "[9223372036854775807,\"9223372036854775808\",-9223372036854775808,\"-9223372036854775809\"]"},
    {"[NaN, Infinity,-Infinity ,0]", "[\"NaN\",\"Infinity\",\"-Infinity\",0]"},
    {"[1e999, -1E+999, 1e-999, 1.5e999]", "[\"1e999\",\"-1E+999\",0.0,\"1.5e999\"]"},
    {"[NaN, \"NaN, Infinity \\\" 1e999\", \"\\\\\", NaN]",
     "[\"NaN\",\"NaN, Infinity \\\" 1e999\",\"\\\\\",\"NaN\"]"},
    {"{\"NaN\": NaN}", "{\"NaN\":\"NaN\"}"},
    {"{\"time_step_limit\": [0.0, Infinity], \"long\": 123456789012345678}",
     "{\"time_step_limit\":[0.0,\"Infinity\"],\"long\":123456789012345678}"},
};

static void test_odd(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_error_t e;
        json_t *j = ek_json_parse(cases[i].text, strlen(cases[i].text), 0, &e);
        if (!j)
            fail_msg("%s: %s", cases[i].text, e.text);
        char *is = json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(3));
        if (strcmp(is, cases[i].becomes) != 0 && strcmp(cases[i].text + 1, "\"a\": 1") != 0)
            fail_msg("%s became %s", cases[i].text, is);
        free(is);
        json_decref(j);
    }
}

static void test_invalid(void **state)
{
    static const struct {
        const char *text;
        int line;
    } bad[] = {
        {"", -1},
        {"[NaN", 1},
        {"{\"a\": NaNs}", 1},
        {"{\"a\": Infinit}", 1},
        {"[1e999, 01]", 1},
        {"[1e999\n,\n}", 3},
        {"[-]", 1},
        {"[1e, NaN]", 1},
        {"[.5, NaN]", 1},
        {"[NaN, \"a", 1},
        {"[NaN, \"a\\", 1},
        {"{\"a\": -NaN}", 1},
        {"[1e999, 2.]", 1},
        {"NaN x", 1},
        {"[1e999]\n[NaN]", 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        json_error_t e;
        /* exactly as long as the text is, so that sanitizers see a step beyond it */
        size_t len = strlen(bad[i].text);
        char *text = malloc(len + !len);
        assert_non_null(text);
        memcpy(text, bad[i].text, len);
        if (ek_json_parse(text, len, JSON_REJECT_DUPLICATES, &e))
            fail_msg("%s was accepted", bad[i].text);
        if (bad[i].line >= 0 && e.line != bad[i].line)
            fail_msg("%s: line %d, %s", bad[i].text, e.line, e.text);
        assert_true(e.text[0] != '\0');
        free(text);
    }
}

static void test_flags(void **state)
{
    static const char twice[] = "{\"a\": NaN, \"a\": 1}";
    json_error_t e;
    (void)state;
    assert_null(ek_json_parse(twice, strlen(twice), JSON_REJECT_DUPLICATES, &e));
    assert_non_null(strstr(e.text, "duplicate"));
    json_t *j = ek_json_parse("1e999", 5, JSON_DECODE_ANY, &e);
    assert_string_equal(json_string_value(j), "1e999");
    json_decref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_odd), cmocka_unit_test(test_invalid),
                                       cmocka_unit_test(test_flags)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
