/* Exposition text: values, labels, histograms, both formats. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/metrics.h"

static const struct ek_metric table[] = {
    {"x:done_total", EK_COUNTER, "Done.", "reason"},
    {"x:wait_seconds", EK_HISTOGRAM, "Wait.", NULL},
    {0},
};

static void page(void **state)
{
    (void)state;
    static const double bounds[] = {0.001, 1, 2.5};
    struct ek_buf out = {0}, label = {0};
    struct ek_expo e = {.out = &out, .base_labels = "engine=\"0\""};
    struct ek_hist h;
    ek_hist_init(&h, bounds, 3);
    ek_hist_observe(&h, 0.001);
    ek_hist_observe(&h, 2);
    ek_hist_observe(&h, 9);
    assert_int_equal(ek_hist_total(&h), 3);
    ek_expo_label(&label, "reason", "a\"b\\c\nd");
    ek_expo_family(&e, &table[0]);
    ek_expo_value(&e, label.data, 1234567890123.0);
    ek_expo_family(&e, &table[1]);
    ek_expo_hist(&e, NULL, &h);
    assert_int_equal(ek_expo_end(&e), 0);
    assert_string_equal(out.data,
                        "# HELP x:done_total Done.\n# TYPE x:done_total counter\n"
                        "x:done_total{engine=\"0\",reason=\"a\\\"b\\\\c\\nd\"} 1234567890123\n"
                        "# HELP x:wait_seconds Wait.\n# TYPE x:wait_seconds histogram\n"
                        "x:wait_seconds_bucket{engine=\"0\",le=\"0.001\"} 1\n"
                        "x:wait_seconds_bucket{engine=\"0\",le=\"1.0\"} 1\n"
                        "x:wait_seconds_bucket{engine=\"0\",le=\"2.5\"} 2\n"
                        "x:wait_seconds_bucket{engine=\"0\",le=\"+Inf\"} 3\n"
                        "x:wait_seconds_sum{engine=\"0\"} 11.001\n"
                        "x:wait_seconds_count{engine=\"0\"} 3\n");
    ek_buf_clear(&out);
    e.format = EK_EXPO_OPENMETRICS;
    ek_expo_family(&e, &table[0]);
    ek_expo_value(&e, NULL, 2);
    assert_int_equal(ek_expo_end(&e), 0);
    assert_string_equal(out.data, "# HELP x:done Done.\n# TYPE x:done counter\n"
                                  "x:done_total{engine=\"0\"} 2\n# EOF\n");
    ek_buf_done(&out);
    ek_buf_done(&label);
}

static void same_as_printf(double v)
{
    static const struct ek_metric m = {"m", EK_GAUGE, "M.", NULL};
    char want[64];
    struct ek_buf out = {0};
    struct ek_expo e = {.out = &out, .family = &m};
    ek_expo_value(&e, NULL, v);
    (void)snprintf(want, sizeof(want), v == floor(v) && fabs(v) < 1e15 ? "m %.0f\n" : "m %.12g\n",
                   v);
    assert_string_equal(out.data, want);
    ek_buf_done(&out);
}

/* The quick ways write what printf does. */
static void numbers(void **state)
{
    (void)state;
    static const double some[] = {0,
                                  1,
                                  10,
                                  100,
                                  1e14,
                                  999999999999999.0,
                                  1e15,
                                  1e300,
                                  -1,
                                  -0.5,
                                  0.1,
                                  0.25,
                                  0.0001,
                                  0.00009,
                                  0.000099,
                                  1e-7,
                                  1.5e-6,
                                  0.000001,
                                  999999.999999,
                                  999999.9999995,
                                  1000000.5,
                                  123456.789012,
                                  0.3,
                                  0.1 + 0.2,
                                  1.0 / 3,
                                  2.0 / 3,
                                  0.999999,
                                  0.9999995,
                                  10.01,
                                  100.000001,
                                  5e-324};
    uint64_t seed = 1;
    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++)
        same_as_printf(some[i]);
    for (int i = 0; i < 200000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        double places[] = {1, 10, 1e3, 1e5, 1e6, 1e7, 3, 1e12};
        same_as_printf((double)(seed >> 34) / places[seed % 8]);
    }
}

static void exemplars(void **state)
{
    static const double bounds[] = {0.5, 1};
    struct ek_buf out = {0};
    struct ek_expo e = {.out = &out, .epoch_us = 1700000000000000ull};
    struct ek_exemplars x = {0};
    struct ek_hist h;
    char longest[EK_EXEMPLAR_ID + 1];
    (void)state;
    ek_hist_init(&h, bounds, 2);
    ek_hist_observe(&h, 0.25);
    ek_hist_observe(&h, 7);
    ek_exemplar_note(&x, &h, "abc", 0.25, 1500000);
    ek_exemplar_note(&x, &h, "", 0.7, 1);
    memset(longest, 'x', sizeof(longest));
    longest[EK_EXEMPLAR_ID] = '\0';
    ek_exemplar_note(&x, &h, longest, 0.7, 1);
    ek_exemplar_note(&x, &h, "old", 6, 2000000);
    ek_exemplar_note(&x, &h, "q\"d", 7, 2500000);
    ek_expo_family(&e, &table[1]);
    ek_expo_hist_named(&e, NULL, &h, &x);
    assert_null(strchr(strchr(out.data, '{'), '#')); /* text has none */
    ek_buf_clear(&out);
    e.format = EK_EXPO_OPENMETRICS;
    ek_expo_hist_named(&e, NULL, &h, &x);
    assert_string_equal(
        out.data, "x:wait_seconds_bucket{le=\"0.5\"} 1 # {request_id=\"abc\"} 0.25 1700000001.500\n"
                  "x:wait_seconds_bucket{le=\"1.0\"} 1\n"
                  "x:wait_seconds_bucket{le=\"+Inf\"} 2 # {request_id=\"q\\\"d\"} 7 "
                  "1700000002.500\n"
                  "x:wait_seconds_sum 7.25\nx:wait_seconds_count 2\n");
    ek_buf_done(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(page), cmocka_unit_test(numbers),
                                       cmocka_unit_test(exemplars)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
