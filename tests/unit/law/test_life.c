/* How another evenkeeld goes on: each state of a server's life x (it was killed or replaced and the
 * process runs; the process is gone; the machine booted; much time passed). No wall clock is an
 * input, so one that jumps changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"
#include "supervisor/law/backoff.h"
#include "supervisor/law/life.h"

#define S        EK_US_PER_S
#define NOW_S    1000
#define START_S  100.0
#define DRAIN_S  317.0
#define HANG_S   10.0
#define BOOT     7u
#define UNTIL_S  1040 /* of what drains: 40 s are left */
#define NO_LIMIT (-1.0)

enum found { RUNS, GONE, BOOTED, OTHER };

static struct life_next next(struct life was, enum found what, uint64_t now_s, double age_s)
{
    struct life_found f = {
        .boot = what == BOOTED ? BOOT + 1 : BOOT,
        .now_us = now_s * S,
        .pid = what == RUNS    ? 42
               : what == OTHER ? 43
                               : 0,
        .age_s = age_s,
        .start_deadline_s = START_S,
        .drain_most_s = DRAIN_S,
        .hang_s = HANG_S,
    };
    return life_go_on(&was, &f);
}

/* What was written, and what follows when the process runs and when it does not. */
static const struct {
    enum server_state state;
    enum server_want want;
    struct {
        enum life_step step;
        enum server_state state;
        enum server_want want;
        double left_s;
    } runs;
    enum life_step gone;
} table[] = {
    {SRV_STOPPED, WANT_RUN, {LIFE_ASK, SRV_STARTING, WANT_RUN, 90}, LIFE_START},
    {SRV_STOPPED, WANT_STOP, {LIFE_ASK, SRV_STARTING, WANT_RUN, 90}, LIFE_START},
    {SRV_STOPPED, WANT_DRAINED, {LIFE_ASK, SRV_STARTING, WANT_RUN, 90}, LIFE_REST},
    {SRV_ADOPTING, WANT_RUN, {LIFE_ASK, SRV_STARTING, WANT_RUN, 90}, LIFE_START},
    {SRV_STARTING, WANT_RUN, {LIFE_ASK, SRV_STARTING, WANT_RUN, 90}, LIFE_START},
    {SRV_READY, WANT_RUN, {LIFE_ASK_LONG, SRV_STARTING, WANT_RUN, HANG_S}, LIFE_START},
    {SRV_DRAINING, WANT_DRAINED, {LIFE_DRAIN, SRV_DRAINING, WANT_DRAINED, NO_LIMIT}, LIFE_REST},
    {SRV_DRAINED, WANT_DRAINED, {LIFE_DRAIN, SRV_DRAINED, WANT_DRAINED, NO_LIMIT}, LIFE_REST},
    {SRV_DRAINING, WANT_RESTART, {LIFE_DRAIN, SRV_DRAINING, WANT_RESTART, 40}, LIFE_START},
    {SRV_DRAINED, WANT_RESTART, {LIFE_DRAIN, SRV_DRAINED, WANT_RESTART, 40}, LIFE_START},
    {SRV_DRAINING, WANT_STOP, {LIFE_DRAIN, SRV_DRAINING, WANT_RESTART, 40}, LIFE_START},
    {SRV_STOPPING, WANT_RUN, {LIFE_END, SRV_STOPPING, WANT_RUN, 40}, LIFE_START},
    {SRV_STOPPING, WANT_RESTART, {LIFE_END, SRV_STOPPING, WANT_RESTART, 40}, LIFE_START},
    {SRV_STOPPING, WANT_STOP, {LIFE_END, SRV_STOPPING, WANT_RESTART, 40}, LIFE_START},
    {SRV_BACKOFF, WANT_RUN, {LIFE_ASK, SRV_STARTING, WANT_RUN, 90}, LIFE_START},
    {SRV_BREAKER, WANT_RUN, {LIFE_ASK, SRV_STARTING, WANT_RUN, 90}, LIFE_START},
};
#define ROWS (sizeof(table) / sizeof(table[0]))

static struct life life_in(size_t i)
{
    return (struct life){.boot = BOOT,
                         .state = table[i].state,
                         .want = table[i].want,
                         .pid = 42,
                         .until_us = UNTIL_S * S};
}

static void test_killed_or_replaced(void **state)
{
    (void)state;
    bool seen[SERVER_STATES] = {false};
    for (size_t i = 0; i < ROWS; i++) {
        struct life_next n = next(life_in(i), RUNS, NOW_S, 10);
        seen[table[i].state] = true;
        assert_int_equal(n.step, table[i].runs.step);
        assert_int_equal(n.state, table[i].runs.state);
        assert_int_equal(n.want, table[i].runs.want);
        assert_true(n.left_s > table[i].runs.left_s - 0.01 &&
                    n.left_s < table[i].runs.left_s + 0.01);
    }
    for (int st = 0; st < SERVER_STATES; st++)
        assert_true(seen[st]);
}

static void test_its_process_is_gone(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        struct life_next n = next(life_in(i), GONE, NOW_S, 0);
        assert_int_equal(n.step, table[i].gone);
        assert_true(n.known);
    }
}

/* A boot ends processes and orders: everything is started. */
static void test_booted(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        struct life_next n = next(life_in(i), BOOTED, 5, 0);
        assert_int_equal(n.step, LIFE_START);
        assert_int_equal(n.want, WANT_RUN);
        assert_false(n.known);
    }
}

/* Nobody is ended for what was written of another process, or of none. */
static void test_another_process(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        struct life_next young = next(life_in(i), OTHER, NOW_S, 10);
        struct life_next old = next(life_in(i), OTHER, NOW_S, 5000);
        assert_int_equal(young.step, LIFE_ASK);
        assert_int_equal(old.step, LIFE_ASK_LONG);
        assert_int_equal(young.want, WANT_RUN);
        assert_false(young.known);
    }
    struct life none = {0};
    assert_int_equal(next(none, RUNS, NOW_S, 5000).step, LIFE_ASK_LONG);
    assert_int_equal(next(none, RUNS, NOW_S, 1).step, LIFE_ASK);
    assert_int_equal(next(none, GONE, NOW_S, 0).step, LIFE_START);
}

/* Found draining, nobody had written why: only resume ends that, under each evenkeeld to come. */
static void test_found_draining(void **state)
{
    (void)state;
    struct life was = {.boot = BOOT,
                       .state = SRV_DRAINED,
                       .want = WANT_RESTART,
                       .pid = 42,
                       .until_us = UNTIL_S * S,
                       .found = true};
    struct life_next n = next(was, RUNS, NOW_S, 5000);
    assert_int_equal(n.step, LIFE_DRAIN);
    assert_int_equal(n.state, SRV_DRAINED);
    assert_true(n.left_s < 0);
    assert_int_equal(next(was, GONE, NOW_S, 0).step, LIFE_START);
}

/* Nobody watched for a day, or the file says what no drain may take: no time is negative, none is
 * longer than allowed, and who starts has time to answer. */
static void test_much_time_passed(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        struct life was = life_in(i);
        struct life_next late = next(was, RUNS, NOW_S + 86400, 86400);
        assert_int_equal(late.step, table[i].runs.step == LIFE_ASK && table[i].state != SRV_STARTING
                                        ? LIFE_ASK_LONG
                                        : table[i].runs.step);
        assert_true(late.left_s <= START_S);
        if (late.step == LIFE_ASK || late.step == LIFE_ASK_LONG)
            assert_true(late.left_s >= LIFE_ANSWER_S);
        was.until_us = UINT64_MAX / 2;
        assert_true(next(was, RUNS, NOW_S, 10).left_s <= DRAIN_S);
        was.until_us = 0;
        assert_true(next(was, RUNS, NOW_S, 10).left_s <= DRAIN_S);
    }
}

static void test_names(void **state)
{
    (void)state;
    for (int i = 0; i < SERVER_STATES; i++)
        assert_int_equal(life_state_parse(life_state_name((enum server_state)i)), i);
    for (int i = 0; i < SERVER_WANTS; i++)
        assert_int_equal(life_want_parse(life_want_name((enum server_want)i)), i);
    assert_int_equal(life_state_parse("?"), SERVER_STATES);
    assert_int_equal(life_want_parse(NULL), SERVER_WANTS);
    assert_string_equal(life_state_name(SERVER_STATES), "");
}

/* What may vanish by itself is tried again within 5 minutes, and a server that is ready disproves
 * it; what has to be mended waits for that. */
static void test_a_breaker_whose_cause_may_vanish(void **state)
{
    (void)state;
    struct backoff b = {0};
    struct crash_verdict files = {.cls = CRASH_CONFIG, .vanishes = true};
    struct crash_verdict disk = {.cls = CRASH_DISK, .vanishes = true, .retry = true};
    struct crash_verdict sig = {.cls = CRASH_SIGNAL, .retry = true};
    static const double want[] = {5, 10, 20, 40, 80, 160, 300, 300};
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        struct backoff_plan p = backoff_exit(&b, &files, true, (i + 1) * S);
        assert_true(p.open && p.opened == (i == 0));
        assert_true(p.wait_s > want[i] - 0.01 && p.wait_s < want[i] + 0.01);
    }
    backoff_ready(&b, 100 * S);
    assert_false(b.open);
    struct backoff_plan p = backoff_exit(&b, &sig, false, 101 * S);
    assert_true(!p.open && p.wait_s < 0.51); /* starts that never began are no ends of it */

    struct backoff d = {0};
    static const double tries[] = {0.5, 1, 5, 10};
    for (size_t i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
        p = backoff_exit(&d, &disk, true, (i + 1) * S);
        assert_true(p.open == (i >= 2) && p.wait_s > tries[i] - 0.01 && p.wait_s < tries[i] + 0.01);
    }

    struct backoff storm = {0}; /* of a server that becomes ready each time */
    for (uint64_t i = 1; i <= BREAKER_EXITS; i++) {
        p = backoff_exit(&storm, &sig, false, i * S);
        backoff_ready(&storm, i * S);
    }
    assert_true(p.open && storm.open);
    backoff_tick(&storm, (uint64_t)(BACKOFF_RESET_S + 10) * S);
    assert_false(storm.open);
    assert_true(crash_vanishes(CRASH_CONFIG, 78, NULL) && !crash_vanishes(CRASH_CONFIG, 2, NULL));
    assert_true(crash_vanishes(CRASH_PORT, 1, NULL) && !crash_vanishes(CRASH_SIGNAL, 9, NULL));
    /* Memory that was lacking at a start is somebody's, unless no device of this kind has so much.
     */
    struct oom_numbers taken = {.found = true, .requested = 2, .free = 1, .capacity = 80};
    struct oom_numbers never = {.found = true, .requested = 81, .free = 79, .capacity = 80};
    assert_true(crash_vanishes(CRASH_STARTUP_OOM, 1, &taken));
    assert_true(crash_vanishes(CRASH_STARTUP_OOM, 71, NULL));
    assert_false(crash_vanishes(CRASH_STARTUP_OOM, 1, &never));
    assert_false(crash_vanishes(CRASH_STARTUP_OOM, 75, &taken));
    assert_false(crash_vanishes(CRASH_BURST_OOM, 71, &taken));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_or_replaced),
        cmocka_unit_test(test_its_process_is_gone),
        cmocka_unit_test(test_booted),
        cmocka_unit_test(test_another_process),
        cmocka_unit_test(test_found_draining),
        cmocka_unit_test(test_much_time_passed),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_a_breaker_whose_cause_may_vanish),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
