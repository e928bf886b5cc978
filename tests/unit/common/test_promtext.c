/* The page reader: what is a sample, what is junk, and that half a line never gives a number. */
#include "common/promtext.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct last {
    uint32_t calls;
    char name[256];
    double value;
    uint32_t labels;
    char le[64], text[64];
};

static void keep(void *ctx, const struct promtext_sample *s)
{
    struct last *l = ctx;
    l->calls++;
    (void)strncpy(l->name, s->name, sizeof(l->name) - 1); /* names are shorter */
    l->value = s->value;
    l->labels = s->label_count;
    const char *le = promtext_label(s, "le"), *text = promtext_label(s, "text");
    (void)strncpy(l->le, le ? le : "", sizeof(l->le) - 1);
    (void)strncpy(l->text, text ? text : "", sizeof(l->text) - 1);
}

static struct promtext_info parse(const char *page, struct last *l)
{
    struct promtext_info info;
    *l = (struct last){0};
    promtext_parse(page, strlen(page), keep, l, &info);
    return info;
}

static void test_samples(void **state)
{
    (void)state;
    static const struct {
        const char *line, *name;
        double value;
        uint32_t labels;
    } cases[] = {
        {"a 1\n", "a", 1, 0},
        {"vllm:x_total{engine=\"0\"} 2.5\n", "vllm:x_total", 2.5, 1},
        {"a{b=\"c\",} 3\n", "a", 3, 1},
        {"a{} 4\n", "a", 4, 0},
        {"a { b = \"c\" , d = \"e\" } 5 1700000000000\n", "a", 5, 2},
        {"a{b=\"}\"}6\n", "a", 6, 1},
        {"  a\t7\r\n", "a", 7, 0},
        {"a_bucket{le=\"0.1\"} 8 # {trace=\"x\"} 0.05 1.5e9\n", "a_bucket", 8, 1},
        {"a 9 1.5 # {} 1\n", "a", 9, 0},
        {"a +Inf\n", "a", HUGE_VAL, 0},
        {"a -inf\n", "a", -HUGE_VAL, 0},
        {"a 1.7952256655303762e+09\n", "a", 1795225665.5303762, 0},
        {"a -0.25e-2\n", "a", -0.0025, 0},
        {"a .5\n", "a", 0.5, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct last l;
        struct promtext_info info = parse(cases[i].line, &l);
        assert_int_equal(info.samples, 1);
        assert_int_equal(info.junk, 0);
        assert_false(info.truncated);
        assert_string_equal(l.name, cases[i].name);
        assert_true(l.value == cases[i].value);
        assert_int_equal(l.labels, cases[i].labels);
    }
}

static void test_junk(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "a\n",
        "a{b=\"c\"}\n",
        "a{b=\"c} 1\n",
        "a{b=c} 1\n",
        "a 1 2 3\n",
        "1a 1\n",
        "<html>\n",
        "a 1x\n",
        "a{b=\"c\"x} 1\n",
        "a 0x10\n",
        "a 1e\n",
        "a{b=\"\\q\"} 1\n",
        "a 1 # x\n",
        "a 1 # {} \n",
        "{\"a\": 1}\n",
        "a{b=\"c\" d=\"e\"} 1\n",
        "a 1,5\n",
        "a -\n",
        "a NaNa\n",
        "a1.5\n",
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct last l;
        struct promtext_info info = parse(cases[i], &l);
        assert_int_equal(l.calls, 0);
        assert_int_equal(info.samples, 0);
        assert_int_equal(info.junk, 1);
    }
}

static void test_whole_page(void **state)
{
    (void)state;
    struct last l;
    struct promtext_info info = parse("# HELP a x\n# TYPE a gauge\n\na 1\nb 2\njunk\nc 34", &l);
    assert_int_equal(info.samples, 2); /* 34 may be the head of 345 */
    assert_int_equal(info.junk, 1);
    assert_true(info.truncated);
    assert_string_equal(l.name, "b");

    info = parse("a 1\n# EOF", &l);
    assert_true(info.eof);
    assert_false(info.truncated);
    info = parse("a 1\n# EOF\nb 2\n", &l);
    assert_int_equal(info.samples, 1);
    assert_int_equal(info.junk, 1);
    info = parse("", &l);
    assert_int_equal(info.samples, 0);

    info = parse("a{text=\"x\\\\y\\\"z\\nw\",le=\"+Inf\"} NaN\n", &l);
    assert_int_equal(info.samples, 1);
    assert_string_equal(l.text, "x\\y\"z\nw");
    assert_string_equal(l.le, "+Inf");
    assert_true(isnan(l.value));
}

/* Every head of a page gives only samples of the whole page. */
static void test_every_cut(void **state)
{
    (void)state;
    static const char page[] = "a{b=\"c\"} 12345\nlonger_name 2.5e3\n";
    for (size_t n = 0; n < sizeof(page); n++) {
        struct last l = {0};
        struct promtext_info info;
        char *copy = malloc(n ? n : 1); /* so that the sanitizer sees a read past the end */
        assert_non_null(copy);
        memcpy(copy, page, n);
        promtext_parse(copy, n, keep, &l, &info);
        free(copy);
        if (l.calls == 1)
            assert_true(l.value == 12345);
        if (l.calls == 2)
            assert_true(l.value == 2500);
    }
}

static void test_limits(void **state)
{
    (void)state;
    size_t len = PROMTEXT_MOST + 100;
    char *page = malloc(len);
    assert_non_null(page);
    for (size_t i = 0; i < len; i++)
        page[i] = "a 1\n"[i % 4];
    struct last l = {0};
    struct promtext_info info;
    promtext_parse(page, len, keep, &l, &info);
    assert_true(info.truncated);
    assert_int_equal(info.samples, PROMTEXT_MOST / 4);

    memset(page, 'x', len); /* one line of 4 MiB; then a name that is too long */
    promtext_parse(page, len, keep, &l, &info);
    assert_int_equal(info.samples, 0);
    memcpy(page + 300, " 1\n", 3);
    promtext_parse(page, 303, keep, &l, &info);
    assert_int_equal(info.junk, 1);
    free(page);

    char many[4096] = "a{";
    for (int i = 0; i < PROMTEXT_LABELS + 1; i++)
        strcat(many, "b=\"\",");
    strcat(many, "} 1\n");
    info = parse(many, &l);
    assert_int_equal(info.junk, 1);
}

/* The same number as the C library's, for many shapes. */
static void test_numbers(void **state)
{
    (void)state;
    static const char *const cases[] = {"0",
                                        "1",
                                        "0.1",
                                        "0.30000000000000004",
                                        "1e22",
                                        "1e-22",
                                        "123456789012345678901234567890",
                                        "1e308",
                                        "1e309",
                                        "5e-324",
                                        "1e-400",
                                        "2.5e+03",
                                        "1e99999",
                                        "0.000001",
                                        "4.9e-3"};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        double v = -1, want = strtod(cases[i], NULL);
        assert_int_equal(promtext_number(cases[i], strlen(cases[i]), &v), strlen(cases[i]));
        if (isinf(want))
            assert_true(isinf(v));
        else
            assert_true(fabs(v - want) <= fabs(want) * 3e-16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples),    cmocka_unit_test(test_junk),
        cmocka_unit_test(test_whole_page), cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_limits),     cmocka_unit_test(test_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
