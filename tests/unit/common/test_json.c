/* Numbers that a json_t cannot hold: of them only those become text, and no line number changes. */
#include "common/json.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"

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

/* The piece n times between brackets. */
static char *repeat(const char *open, const char *piece, const char *close, size_t n)
{
    size_t one = strlen(piece), size = strlen(open) + n * (one + 1) + strlen(close) + 1;
    char *s = malloc(size), *p = s;
    assert_non_null(s);
    p = stpcpy(p, open);
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            *p++ = ',';
        p = stpcpy(p, piece);
    }
    (void)stpcpy(p, close);
    return s;
}

static size_t in_use(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

/* What the parser really takes, by the allocator's own count, for what makes the most of a byte. */
static void test_measure(void **state)
{
    static const struct {
        const char *open, *piece, *close;
        uint64_t values; /* of each piece */
    } shapes[] = {
        {"[", "1", "]", 1},           {"[", "[]", "]", 1},
        {"[", "{}", "]", 1},          {"[", "\"\"", "]", 1},
        {"[", "1.5", "]", 1},         {"[", "{\"a\":1}", "]", 2},
        {"[", "[[[[1]]]]", "]", 5},   {"[", "\"a few characters of text\"", "]", 1},
        {"[", "[1,2,3,4,5]", "]", 6}, {"[", "{\"role\":\"user\",\"content\":\"x\"}", "]", 3},
        {"[", "true", "]", 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const size_t n = 100000;
        char *text = repeat(shapes[i].open, shapes[i].piece, shapes[i].close, n);
        struct ek_json_size size = ek_json_measure(text, strlen(text), UINT64_MAX);
        assert_int_equal(size.values, 1 + n * shapes[i].values);
        size_t before = in_use();
        json_t *j = json_loadb(text, strlen(text), 0, NULL);
        size_t took = in_use() - before;
        assert_non_null(j);
        if (in_use() > 0 &&
            took > n * 8) { /* sanitizers do not count; true takes next to nothing */
            assert_in_range(took, 1, size.bytes);
            assert_in_range(size.bytes, took, 3 * took);
        }
        json_decref(j);
        const uint64_t most = size.bytes / 10;
        size = ek_json_measure(text, strlen(text), most); /* no look at the rest */
        assert_in_range(size.bytes, most + 1, most + 1000);
        assert_in_range(size.values, 1, n * shapes[i].values / 5);
        free(text);
    }
}

/* Keys are alike in no body: as many as fit, and each makes its table larger. */
static void test_measure_keys(void **state)
{
    struct ek_buf b = {0};
    (void)state;
    for (int i = 0; i < 200000; i++)
        assert_int_equal(ek_buf_printf(&b, "%c\"%d\":%d", i ? ',' : '{', i, i), 0);
    assert_int_equal(ek_buf_puts(&b, "}"), 0);
    struct ek_json_size size = ek_json_measure(b.data, b.len, UINT64_MAX);
    assert_int_equal(size.values, 200001);
    size_t before = in_use();
    json_t *j = json_loadb(b.data, b.len, JSON_REJECT_DUPLICATES, NULL);
    size_t took = in_use() - before;
    assert_non_null(j);
    if (in_use() > 0)
        assert_in_range(took, size.bytes / 3, size.bytes);
    json_decref(j);
    ek_buf_done(&b);
}

/* Broken texts are measured too; nothing is read beyond their end. */
static void test_measure_junk(void **state)
{
    static const char *const junk[] = {"", "\"", "\"\\", "{{{{", ":::", "1e", "\"a\":", ",,"};
    (void)state;
    for (size_t i = 0; i < sizeof(junk) / sizeof(junk[0]); i++) {
        size_t len = strlen(junk[i]);
        char *exact = malloc(len ? len : 1);
        assert_non_null(exact);
        memcpy(exact, junk[i], len);
        (void)ek_json_measure(exact, len, UINT64_MAX);
        free(exact);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_odd),          cmocka_unit_test(test_invalid),
        cmocka_unit_test(test_flags),        cmocka_unit_test(test_measure),
        cmocka_unit_test(test_measure_keys), cmocka_unit_test(test_measure_junk)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
