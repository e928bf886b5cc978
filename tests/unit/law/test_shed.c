/* The queue deadline: a standing queue is cut, a burst is not; what somebody else set is let be. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "supervisor/law/policy.h"

#define SEC 1000000ull

struct shed_run {
    struct policy *p;
    struct policy_params par;
    uint64_t t_us;
    double deadline_s;
};

static void start(struct shed_run *r, double slo_s, double own_s)
{
    *r = (struct shed_run){.t_us = 100 * SEC, .deadline_s = own_s};
    policy_defaults(&r->par);
    r->par.ttft_slo_s = slo_s / 0.8; /* shed_share: slo_s is the deadline */
    r->par.queue_start_s = own_s;
    assert_int_equal(policy_new(&r->par, &r->p), 0);
    policy_restart(r->p, r->t_us);
    policy_limits(r->p, 64, 2048);
}

/* One second with this oldest request; applies what is decided, unless `refused`. */
static struct decision second(struct shed_run *r, double oldest_s, bool refused)
{
    struct sample s;
    r->t_us += SEC;
    sample_missing(r->t_us, &s);
    const double values[][2] = {{SIG_KV_USAGE, 0.5},
                                {SIG_RUNNING, 8},
                                {SIG_WAITING, 9},
                                {SIG_PREEMPTIONS, 0},
                                {SIG_QUEUE_OLDEST_S, oldest_s},
                                {SIG_LIMIT_SEQS, 64},
                                {SIG_LIMIT_DEADLINE_S, r->deadline_s}};
    s.good = true;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        s.value[(int)values[i][0]] = values[i][1];
        s.flags[(int)values[i][0]] = 0;
    }
    struct decision d = policy_step(r->p, &s, r->t_us);
    assert_true(d.kind == ACT_NONE || d.kind == ACT_SHED || d.kind == ACT_NOTE);
    if (d.act && !refused)
        r->deadline_s = d.to / 1000.0;
    if (d.act)
        policy_applied(r->p, &d, !refused);
    return d;
}

/* Runs for so long; returns when (s from here) the first change was proposed, 0 = none. */
static int changes_after(struct shed_run *r, int seconds, double oldest_s, enum reason *ret_reason)
{
    for (int i = 1; i <= seconds; i++) {
        struct decision d = second(r, oldest_s, false);
        if (d.kind == ACT_SHED) {
            *ret_reason = d.reason;
            return i;
        }
    }
    return 0;
}

static void test_standing_queue(void **state)
{
    (void)state;
    struct shed_run r;
    enum reason why = REASON_NONE;
    start(&r, 10, 0);
    assert_int_equal(changes_after(&r, 90, 1, &why), 0);
    assert_int_equal(changes_after(&r, 5, 9, &why), 0); /* a burst of 5 s */
    assert_int_equal(changes_after(&r, 60, 4.9, &why), 0);
    assert_int_equal(changes_after(&r, 20, 5.1, &why), 6); /* late for half of the promise */
    assert_int_equal(why, REASON_SHED_ON);
    assert_true(fabs(r.deadline_s - 10) < 1e-9);
    assert_int_equal(changes_after(&r, 100, 9, &why), 0); /* once is enough */
    assert_int_equal(changes_after(&r, 20, 2, &why), 0);
    assert_int_equal(changes_after(&r, 1, 6, &why), 0);
    assert_int_equal(changes_after(&r, 60, 2, &why), 31);
    assert_int_equal(why, REASON_SHED_OFF);
    assert_true(r.deadline_s <= 0);
    assert_int_equal(changes_after(&r, 100, 2, &why), 0);
    policy_free(r.p);
}

/* A page that is damaged elsewhere still shows that the queue was short for a moment. */
static void test_a_break_in_a_bad_sample(void **state)
{
    (void)state;
    for (int has_queue = 0; has_queue < 2; has_queue++) {
        struct shed_run r;
        struct sample s;
        enum reason why = REASON_NONE;
        start(&r, 10, 0);
        assert_int_equal(changes_after(&r, 90, 1, &why), 0);
        assert_int_equal(changes_after(&r, 4, 9, &why), 0);
        r.t_us += SEC;
        sample_missing(r.t_us, &s);
        if (has_queue) {
            s.good = true; /* a page came */
            s.value[SIG_QUEUE_OLDEST_S] = 1;
            s.flags[SIG_QUEUE_OLDEST_S] = 0;
        }
        assert_int_equal(policy_step(r.p, &s, r.t_us).kind, ACT_NONE);
        assert_int_equal(changes_after(&r, 20, 9, &why), has_queue ? 6 : 1);
        policy_free(r.p);
    }
}

static void test_whose_it_is(void **state)
{
    (void)state;
    struct shed_run r;
    enum reason why = REASON_NONE;
    start(&r, 10, 60); /* longer than the promise: cut to it, and back */
    assert_int_equal(changes_after(&r, 70, 50, &why), 6);
    assert_int_equal(changes_after(&r, 40, 0, &why), 31);
    assert_true(fabs(r.deadline_s - 60) < 1e-9);
    r.deadline_s = 33; /* an operator's */
    assert_int_equal(changes_after(&r, 100, 30, &why), 0);
    assert_int_equal(changes_after(&r, 100, 0, &why), 0);
    policy_free(r.p);
    start(&r, 10, 8); /* the server's own is shorter */
    assert_int_equal(changes_after(&r, 200, 8, &why), 0);
    policy_free(r.p);
    start(&r, 0, 0); /* nothing was promised */
    assert_int_equal(changes_after(&r, 200, 500, &why), 0);
    policy_free(r.p);
    start(&r, 10, 0);
    r.deadline_s = 10; /* adopted while it sheds */
    assert_int_equal(changes_after(&r, 100, 1, &why), 31);
    assert_int_equal(why, REASON_SHED_OFF);
    policy_free(r.p);
}

static void test_modes_and_failures(void **state)
{
    (void)state;
    struct shed_run r;
    int said = 0;
    start(&r, 10, 0);
    r.par.mode = MODE_ADVISE;
    assert_int_equal(policy_set(r.p, &r.par), 0);
    for (int i = 0; i < 200; i++) {
        struct decision d = second(&r, 20, false);
        assert_false(d.act);
        said += d.kind == ACT_SHED;
    }
    assert_int_equal(said, 1); /* once an episode */
    r.par.mode = MODE_OBSERVE;
    assert_int_equal(policy_set(r.p, &r.par), 0);
    for (int i = 0; i < 100; i++)
        assert_int_not_equal(second(&r, 20, false).kind, ACT_SHED);
    policy_free(r.p);
    start(&r, 10, 0);
    int tries = 0;
    for (int i = 0; i < 100; i++)
        tries += second(&r, 20, true).act;
    assert_int_equal(tries, 3); /* then it is left alone for lock_s */
    policy_free(r.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_standing_queue),
        cmocka_unit_test(test_a_break_in_a_bad_sample),
        cmocka_unit_test(test_whose_it_is),
        cmocka_unit_test(test_modes_and_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
