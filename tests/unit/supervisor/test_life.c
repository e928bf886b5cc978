/* The pure parts of a server's life: backoff and breaker, hang or slow, history, decisions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/clock.h"
#include "supervisor/io/journal.h"
#include "supervisor/law/backoff.h"
#include "supervisor/law/decisions.h"
#include "supervisor/law/hang.h"
#include "supervisor/law/history.h"

#define S EK_US_PER_S

static struct crash_verdict verdict(enum crash_class cls, bool retry)
{
    return (struct crash_verdict){.cls = cls, .retry = retry};
}

static void test_backoff_doubles_and_resets(void **state)
{
    (void)state;
    struct backoff b = {0};
    struct crash_verdict v = verdict(CRASH_SIGNAL, true);
    uint64_t now = 100 * S;
    double want = 0.5;
    for (int i = 0; i < 4; i++, want *= 2) {
        struct backoff_plan p = backoff_exit(&b, &v, false, now);
        assert_false(p.open);
        assert_true(fabs(p.wait_s - want) < 1e-9);
        now += 10 * S;
        backoff_ready(&b, now);
    }
    now += 601 * S;
    backoff_tick(&b, now);
    now += 1800 * S;
    assert_true(backoff_exit(&b, &v, false, now).wait_s < 0.51);
}

static void test_breaker(void **state)
{
    (void)state;
    struct backoff b = {0};
    struct crash_verdict oom = verdict(CRASH_STARTUP_OOM, true), sig = verdict(CRASH_SIGNAL, true);
    assert_false(backoff_exit(&b, &oom, true, 1 * S).open);
    assert_false(backoff_exit(&b, &sig, true, 2 * S).open); /* another class counts anew */
    assert_false(backoff_exit(&b, &oom, true, 3 * S).open);
    assert_false(backoff_exit(&b, &oom, true, 4 * S).open);
    struct backoff_plan p = backoff_exit(&b, &oom, true, 5 * S);
    assert_true(p.open && p.opened);
    assert_true(p.wait_s > 1799);
    assert_false(backoff_exit(&b, &oom, true, 6 * S).opened); /* it was open */
    backoff_reset(&b);
    assert_false(backoff_exit(&b, &oom, true, 7 * S).open);

    struct backoff c = {0};
    struct crash_verdict config = verdict(CRASH_CONFIG, false);
    assert_true(backoff_exit(&c, &config, true, 1 * S).open); /* no retry can cure it */

    struct backoff d = {0};
    for (uint64_t i = 1; i < BREAKER_EXITS; i++)
        assert_false(backoff_exit(&d, &sig, false, i * S).open);
    assert_true(backoff_exit(&d, &sig, false, BREAKER_EXITS * S).open);
}

/* Node 0's backoff and breaker are those of its group: the others are there when it comes. */
static void test_group(void **state)
{
    (void)state;
    struct backoff b = {0};
    struct crash_verdict group = verdict(CRASH_COMM, true), own = verdict(CRASH_DEVICE, true);
    group.group = true;
    for (uint64_t i = 1; i < 50; i++) {
        struct backoff_plan p = backoff_exit(&b, &group, i % 2, i * S);
        assert_true(!p.open && p.wait_s < 0.51);
    }
    for (uint64_t i = 50; i < 49 + BREAKER_EXITS; i++)
        assert_false(backoff_exit(&b, &own, false, i * S).open);
    assert_true(backoff_exit(&b, &own, false, 60 * S).open);
}

static void test_five_exits_over_a_day_are_no_storm(void **state)
{
    (void)state;
    struct backoff b = {0};
    struct crash_verdict sig = verdict(CRASH_SIGNAL, true);
    for (uint64_t i = 1; i < 20; i++) {
        assert_false(backoff_exit(&b, &sig, false, i * 1000 * S).open);
        backoff_ready(&b, i * 1000 * S + S);
    }
}

static struct sample reading(double running, double steps)
{
    struct sample s = {.good = true};
    s.value[SIG_RUNNING] = running;
    s.value[SIG_STEPS] = steps;
    return s;
}

/* Each stop is waited for as long: an earlier one that ended takes nothing from the next. */
static void test_halt(void **state)
{
    (void)state;
    uint64_t since = 0;
    static const struct {
        uint64_t at_s;
        char is;
        enum halt want;
    } seen[] = {{1, 'S', HALT_NO},          {10, 'T', HALT_BEGINS},  {20, 'T', HALT_WAITS},
                {600, 'R', HALT_NO},        {700, 't', HALT_BEGINS}, {1299, 't', HALT_WAITS},
                {1300, 't', HALT_TOO_LONG}, {1301, 'S', HALT_NO},    {1302, 'T', HALT_BEGINS}};
    for (size_t i = 0; i < sizeof(seen) / sizeof(seen[0]); i++)
        assert_int_equal(halt_step(&since, seen[i].is, seen[i].at_s * S, 600), seen[i].want);
}

static void test_hang(void **state)
{
    (void)state;
    struct hang h;
    double for_s;
    hang_start(&h, 0);
    struct sample s = reading(4, 100);
    assert_int_equal(hang_step(&h, &s, 1 * S, 10, &for_s), HANG_NO);
    s = reading(4, 101); /* slow is not hung */
    assert_int_equal(hang_step(&h, &s, 9 * S, 10, &for_s), HANG_NO);
    assert_int_equal(hang_step(&h, &s, 18 * S, 10, &for_s), HANG_NO);
    assert_int_equal(hang_step(&h, &s, 19 * S, 10, &for_s), HANG_NO_PROGRESS);
    assert_true(for_s > 9.9 && for_s < 10.1);
    s = reading(0, 101); /* nothing to do */
    assert_int_equal(hang_step(&h, &s, 20 * S, 10, &for_s), HANG_NO);
    assert_int_equal(hang_step(&h, &s, 60 * S, 10, &for_s), HANG_NO);
    s.value[SIG_ANSWERING] = 3; /* its engine took nothing of what its API has */
    s.flags[SIG_ANSWERING] = 0;
    assert_int_equal(hang_step(&h, &s, 69 * S, 10, &for_s), HANG_NO);
    assert_int_equal(hang_step(&h, &s, 70 * S, 10, &for_s), HANG_NO_PROGRESS);
    s = reading(0, 101);
    assert_int_equal(hang_step(&h, &s, 60 * S, 10, &for_s), HANG_NO);
    sample_missing(61 * S, &s);
    assert_int_equal(hang_step(&h, &s, 61 * S, 10, &for_s), HANG_NO);
    assert_int_equal(hang_step(&h, &s, 71 * S, 10, &for_s), HANG_NO_ANSWER);
    s = reading(0, 101); /* a thread that reads a body does not come back, the engine goes on */
    hang_start(&h, 100 * S);
    s.value[SIG_READING_AGE_S] = 10;
    s.flags[SIG_READING_AGE_S] = 0;
    assert_int_equal(hang_step(&h, &s, 109 * S, 10, &for_s), HANG_NO); /* asked lately */
    assert_int_equal(hang_step(&h, &s, 110 * S, 10, &for_s), HANG_READING);
    assert_false(hang_lost(&s));
    s.value[SIG_READING_AGE_S] = HANG_LOST_S;
    assert_true(hang_lost(&s));
    s.flags[SIG_READING_AGE_S] = SAMPLE_RANGE;
    assert_false(hang_lost(&s));
    s.flags[SIG_READING_AGE_S] = 0;
    s.value[SIG_READING_AGE_S] = 9;
    assert_int_equal(hang_step(&h, &s, 120 * S, 10, &for_s), HANG_NO);
    hang_start(&h, 60 * S);
    s = reading(3, 2); /* another process: its counters are lower */
    assert_int_equal(hang_step(&h, &s, 72 * S, 10, &for_s), HANG_NO);
    for (int i = 0; i < 2; i++) { /* its engine's process is away, and requests wait for it */
        s = reading(3, 2);
        s.value[i ? SIG_ENGINE_RELEASED : SIG_ENGINE_STARTING] = 1;
        s.flags[i ? SIG_ENGINE_RELEASED : SIG_ENGINE_STARTING] = 0;
        assert_int_equal(hang_step(&h, &s, (uint64_t)(200 + 100 * i) * S, 10, &for_s), HANG_NO);
    }
}

static void test_history_ring(void **state)
{
    (void)state;
    struct history *h = calloc(1, sizeof(*h));
    struct ek_buf out = {0};
    float row[HISTORY_COLUMNS];
    assert_non_null(h);
    for (int c = 0; c < HISTORY_COLUMNS; c++)
        row[c] = NAN;
    for (uint64_t t = 1; t <= HISTORY_ROWS + 5; t++) {
        row[0] = (float)t;
        history_push(h, t * S, row);
        history_push(h, t * S + 500000, row); /* the same second */
    }
    assert_int_equal(h->count, HISTORY_ROWS);
    assert_int_equal(history_json(h, HISTORY_ROWS + 3, 1, &out), 0);
    assert_non_null(strstr(out.data, "\"rows\":[[7204,7204,null,"));
    assert_non_null(strstr(out.data, ",[7205,7205,null,"));
    ek_buf_clear(&out);
    assert_int_equal(history_json(h, 0, HISTORY_ROWS, &out), 0);
    assert_non_null(strstr(out.data, "\"rows\":[[7200,7200,"));
    ek_buf_done(&out);
    free(h);
}

static void test_decisions_ring(void **state)
{
    (void)state;
    struct decisions *d = calloc(1, sizeof(*d));
    assert_non_null(d);
    assert_null(decisions_at(d, 0));
    struct decision one = {.kind = ACT_LOWER, .reason = REASON_LOWER_KV_HARM, .applied = true};
    for (uint32_t i = 0; i < DECISIONS_KEPT + 3; i++) {
        one.to = i;
        decisions_push(d, &one);
    }
    assert_int_equal(decisions_at(d, 0)->to, DECISIONS_KEPT + 2);
    assert_int_equal(decisions_at(d, DECISIONS_KEPT - 1)->to, 3);
    assert_null(decisions_at(d, DECISIONS_KEPT));
    assert_int_equal(d->total[ACT_LOWER][REASON_LOWER_KV_HARM][1], DECISIONS_KEPT + 3);
    free(d);
}

static void test_message_ids(void **state)
{
    (void)state;
    const char *ids[REASON_COUNT + CRASH_COUNT];
    int n = 0;
    assert_null(reason_info(REASON_NONE)->id);
    for (int r = 1; r < REASON_COUNT; r++)
        ids[n++] = reason_info((enum reason)r)->id;
    for (int c = 0; c < CRASH_COUNT; c++)
        ids[n++] = journal_crash_id((enum crash_class)c);
    for (int i = 0; i < n; i++) {
        assert_non_null(ids[i]);
        assert_int_equal(strspn(ids[i], "0123456789abcdef"), 32);
        assert_int_equal(strlen(ids[i]), 32);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(ids[i], ids[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backoff_doubles_and_resets),
        cmocka_unit_test(test_breaker),
        cmocka_unit_test(test_group),
        cmocka_unit_test(test_five_exits_over_a_day_are_no_storm),
        cmocka_unit_test(test_hang),
        cmocka_unit_test(test_halt),
        cmocka_unit_test(test_history_ring),
        cmocka_unit_test(test_decisions_ring),
        cmocka_unit_test(test_message_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
