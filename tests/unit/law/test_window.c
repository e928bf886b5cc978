/* The window: what leaves it, what flagged values do, and each question at its edges. */
#include "supervisor/law/window.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/alloc.h"

#define S 1000000ull

static struct sample at(double t, enum signal_id i, double value)
{
    struct sample s;
    sample_missing((uint64_t)(t * 1e6), &s);
    s.good = true;
    s.value[i] = value;
    s.flags[i] = 0;
    return s;
}

static void push(struct window *w, double t, enum signal_id i, double value)
{
    struct sample s = at(t, i, value);
    window_push(w, &s);
}

static bool near(double a, double b)
{
    return fabs(a - b) < 1e-9;
}

static void test_span(void **state)
{
    (void)state;
    struct window *w = NULL;
    assert_int_equal(window_new(30, 8, &w), 0);
    for (int t = 1; t <= 40; t += 5)
        push(w, t, SIG_KV_USAGE, 0.5);
    assert_int_equal(window_count(w), 7); /* 6 .. 36, exactly 30 s */
    assert_true(window_at(w, 0)->at_us == 6 * S);
    push(w, 36, SIG_KV_USAGE, 0.9); /* not newer */
    push(w, 20, SIG_KV_USAGE, 0.9);
    assert_int_equal(window_count(w), 7);
    assert_null(window_at(w, 7));
    push(w, 500, SIG_KV_USAGE, 0.9);
    assert_int_equal(window_count(w), 1);
    for (int t = 0; t < 100; t++)
        push(w, 501 + t * 0.1, SIG_KV_USAGE, 0.5);
    assert_int_equal(window_count(w), 8); /* slots */
    window_clear(w);
    assert_int_equal(window_count(w), 0);
    double v;
    assert_false(window_gauge(w, SIG_KV_USAGE, 0.5, 0, &v));
    assert_false(window_binding(w, 4, 10, &v));
    window_free(w);
    assert_int_equal(window_new(0, 8, &w), -EINVAL);
    assert_int_equal(window_new(30, 1, &w), -EINVAL);
    assert_int_equal(window_new(NAN, 8, &w), -EINVAL);
}

static void test_gauges(void **state)
{
    (void)state;
    struct window *w = NULL;
    assert_int_equal(window_new(30, 64, &w), 0);
    double v = -1;
    static const double values[] = {0.94, 0.90, 0.90, 0.85, 0.94};
    for (int i = 0; i < 3; i++)
        push(w, 5 * i, SIG_KV_USAGE, values[i]);
    push(w, 12, SIG_RUNNING, 3); /* lacks the share */
    assert_false(window_gauge(w, SIG_KV_USAGE, 0.5, 0, &v));
    assert_true(near(v, -1));
    for (int i = 3; i < 5; i++)
        push(w, 5 * i, SIG_KV_USAGE, values[i]);
    assert_int_equal(window_good(w, SIG_KV_USAGE), 5);
    assert_true(near(window_covered_s(w, SIG_KV_USAGE), 20));
    assert_true(near(window_covered_s(w, SIG_WAITING), 0));
    assert_true(window_gauge(w, SIG_KV_USAGE, 0.5, 0, &v) && near(v, 0.90));
    assert_true(window_gauge(w, SIG_KV_USAGE, 0.75, 0, &v) && near(v, 0.94));
    assert_true(window_gauge(w, SIG_KV_USAGE, 0, 0, &v) && near(v, 0.85));
    assert_true(window_gauge(w, SIG_KV_USAGE, 1, 0, &v) && near(v, 0.94));
    assert_true(window_above(w, SIG_KV_USAGE, 0.92, 0, &v) && near(v, 0.4));
    assert_true(window_above(w, SIG_KV_USAGE, 0.94, 15, &v) && near(v, 0.25));
    assert_false(window_above(w, SIG_KV_USAGE, 0.94, 10, &v));
    window_free(w);
}

static void test_counters(void **state)
{
    (void)state;
    struct window *w = NULL;
    double v = -1;
    assert_int_equal(window_new(100, 64, &w), 0);
    push(w, 10, SIG_PREEMPTIONS, 100);
    assert_false(window_rate(w, SIG_PREEMPTIONS, 0, &v));
    push(w, 15, SIG_PREEMPTIONS, 110);
    assert_true(window_rate(w, SIG_PREEMPTIONS, 0, &v) && near(v, 2));
    struct sample bad = at(20, SIG_PREEMPTIONS, 1e9);
    bad.flags[SIG_PREEMPTIONS] = SAMPLE_RANGE;
    window_push(w, &bad);
    push(w, 25, SIG_PREEMPTIONS, 120); /* over the flagged one */
    assert_true(window_rate(w, SIG_PREEMPTIONS, 0, &v) && near(v, 20.0 / 15));
    push(w, 30, SIG_PREEMPTIONS, 3); /* started over */
    assert_true(window_delta(w, SIG_PREEMPTIONS, 0, &v) && near(v, 20));
    push(w, 40, SIG_PREEMPTIONS, 13);
    assert_true(window_delta(w, SIG_PREEMPTIONS, 0, &v) && near(v, 30));
    assert_true(window_rate(w, SIG_PREEMPTIONS, 0, &v) && near(v, 30.0 / 25));
    assert_true(window_delta(w, SIG_PREEMPTIONS, 10, &v) && near(v, 10));
    bad = at(50, SIG_PREEMPTIONS, 500);
    bad.flags[SIG_PREEMPTIONS] = SAMPLE_RESET; /* another process, by chance with a higher count */
    window_push(w, &bad);
    push(w, 55, SIG_PREEMPTIONS, 501);
    assert_true(window_delta(w, SIG_PREEMPTIONS, 0, &v) && near(v, 30));
    window_free(w);
}

static struct sample load(double t, double running, double waiting, double finished)
{
    struct sample s = at(t, SIG_RUNNING, running);
    s.value[SIG_WAITING] = s.value[SIG_WAITING_CAPACITY] = waiting;
    s.value[SIG_FINISHED] = finished;
    s.flags[SIG_WAITING] = s.flags[SIG_WAITING_CAPACITY] = s.flags[SIG_FINISHED] = 0;
    return s;
}

/* The run of reference/vllm-observed.md: 8 requests growing in a pool that holds 3. */
static void test_lost(void **state)
{
    (void)state;
    static const struct {
        double row[6][3]; /* running, waiting, finished */
        double lost;
    } cases[] = {
        {{{8, 0, 0}, {7, 1, 0}, {5, 3, 0}, {4, 4, 0}, {3, 5, 0}, {3, 5, 0}}, 5},
        {{{8, 0, 0}, {7, 0, 1}, {5, 0, 3}, {4, 0, 4}, {3, 0, 5}, {3, 0, 5}}, 0},     /* finished */
        {{{8, 2, 0}, {8, 9, 0}, {8, 12, 0}, {8, 20, 0}, {8, 30, 0}, {8, 40, 0}}, 0}, /* arrivals */
        {{{8, 5, 0}, {7, 4, 1}, {7, 6, 2}, {7, 9, 4}, {8, 8, 4}, {8, 8, 5}}, 0}, /* busy, healthy */
        {{{8, 0, 0}, {6, 0, 0}, {6, 0, 0}, {5, 0, 0}, {5, 0, 0}, {5, 0, 0}}, 0}, /* aborted */
    };
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct window *w = NULL;
        assert_int_equal(window_new(30, 64, &w), 0);
        for (int i = 0; i < 6; i++) {
            const double *row = cases[c].row[i];
            struct sample s = load(i, row[0], row[1], row[2]);
            window_push(w, &s);
        }
        double v = -1;
        assert_true(window_lost(w, 0, &v));
        assert_true(near(v, cases[c].lost / 5));
        window_free(w);
    }
}

static void test_binding(void **state)
{
    (void)state;
    struct window *w = NULL;
    double v = -1;
    assert_int_equal(window_new(30, 64, &w), 0);
    static const double rows[][2] = {{16, 3}, {15, 1}, {14, 9}, {16, 0}};
    for (int i = 0; i < 4; i++) {
        struct sample s = load(i, rows[i][0], rows[i][1], 0);
        window_push(w, &s);
    }
    assert_true(window_binding(w, 16, 0, &v) && near(v, 0.5));
    assert_true(window_binding(w, 16, 1, &v) && near(v, 0));
    window_free(w);
}

static void test_latency(void **state)
{
    (void)state;
    struct window *w = NULL;
    double v = -1;
    assert_int_equal(window_new(30, 64, &w), 0);
    struct sample s = at(1, SIG_RUNNING, 1);
    s.itl = (struct sample_hist){3, {0.1, 0.2, HUGE_VAL}, {5, 5, 5}};
    window_push(w, &s);
    s.at_us += S;
    s.itl.hits[0] = 15, s.itl.hits[1] = s.itl.hits[2] = 24;
    window_push(w, &s);
    assert_false(window_latency(w, HIST_ITL, 0.5, &v)); /* 19 observations */
    s.at_us += S;
    s.itl.hits[0] = 15, s.itl.hits[1] = 25, s.itl.hits[2] = 25;
    window_push(w, &s);
    assert_true(window_latency(w, HIST_ITL, 0.5, &v) && near(v, 0.1));
    assert_true(window_latency(w, HIST_ITL, 0.75, &v) && near(v, 0.15));
    assert_true(window_latency(w, HIST_ITL, 0.25, &v) && near(v, 0.05));
    s.at_us += S;
    s.itl.hits[2] = 125; /* most beyond the last bound */
    window_push(w, &s);
    assert_true(window_latency(w, HIST_ITL, 0.99, &v) && near(v, 0.2));
    s.at_us += S;
    s.itl.hits[0] = s.itl.hits[1] = s.itl.hits[2] = 0; /* started over */
    window_push(w, &s);
    assert_true(window_latency(w, HIST_ITL, 0.99, &v) && near(v, 0.2));
    assert_false(window_latency(w, HIST_TTFT, 0.5, &v));
    s.itl.hits[0] = s.itl.hits[1] = s.itl.hits[2] = HUGE_VAL; /* sums beyond numbers tell nothing */
    for (int i = 0; i < 2; i++) {
        s.at_us += S;
        window_push(w, &s);
        assert_false(window_latency(w, HIST_ITL, 0.99, &v));
    }
    window_free(w);
}

static void test_allocation(void **state)
{
    (void)state;
    for (long n = 1;; n++) {
        struct window *w = NULL;
        alloc_fail_at(n);
        int r = window_new(30, 16, &w);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            window_free(w);
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_null(w);
    }
    window_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_span),       cmocka_unit_test(test_gauges),
        cmocka_unit_test(test_counters),   cmocka_unit_test(test_lost),
        cmocka_unit_test(test_binding),    cmocka_unit_test(test_latency),
        cmocka_unit_test(test_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
