/* Admission with an eye to growth: who is put off, who is not, and how caution is learned. */
#include <string.h>

#include "tests/unit/engine/world.h"

static struct engine_params small(uint64_t share)
{
    struct engine_params p = params();
    p.blocks = 11; /* 10 blocks of 4 tokens */
    p.limits.value[LIMIT_STALLED_SHARE] = share;
    return p;
}

/* Two requests of 8 prompt tokens; how many run after the first step, and what it costs. */
static void puts_off_whom_others_outgrow(void **state)
{
    (void)state;
    static const struct {
        uint64_t share;
        uint32_t first, second; /* most new tokens */
        uint32_t run;
        bool preempts;
    } cases[] = {
        {0, 20, 20, 2, true},       {10000, 20, 20, 1, false}, {10000, 8, 8, 2, false},
        {10000, 20, 4, 2, false},   {10000, 4, 20, 2, false}, /* one ends before the other grows */
        {500000, 20, 20, 1, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct engine_params p = small(cases[i].share);
        struct world w;
        open_world(&w, &p);
        struct request *a = submit(&w, 8, cases[i].first, 100);
        struct request *b = submit(&w, 8, cases[i].second, 300);
        step_once(&w, 0);
        assert_int_equal(w.s->entries.running_count, cases[i].run);
        assert_int_equal(w.s->stats.admissions_put_off, cases[i].run == 1);
        step_once(&w, 0);
        assert_int_equal(w.s->stats.admissions_put_off, cases[i].run == 1); /* once each */
        run_out(&w);
        assert_int_equal(w.s->stats.preemptions > 0, cases[i].preempts);
        assert_int_equal(a->finish, REQ_FIN_LENGTH);
        assert_int_equal(b->finish, REQ_FIN_LENGTH);
        request_unref(a);
        request_unref(b);
        close_world(&w);
    }
}

/* What the stats say of a queue. */
static void says_what_holds(void **state)
{
    (void)state;
    struct engine_params p = small(10000);
    struct engine_stats st;
    struct world w;
    open_world(&w, &p);
    sched_stats(w.s, w.now_us, &st);
    assert_int_equal(st.held, HELD_NONE);
    struct request *a = submit(&w, 8, 20, 100), *b = submit(&w, 8, 20, 300);
    sched_stats(w.s, w.now_us, &st);
    assert_int_equal(st.held, HELD_NONE); /* nobody has looked at them yet */
    for (int i = 0; i < 2; i++) {         /* and the second look, which finds it as it was */
        step_once(&w, 0);
        sched_stats(w.s, w.now_us, &st);
        assert_int_equal(st.held, HELD_GROWTH);
        assert_int_equal(st.waiting, 1);
        assert_int_equal(st.held_needed, 2);
        assert_int_equal(st.expected_blocks, 7); /* 8 and nearly 20 tokens in blocks of 4 */
        assert_int_equal(st.expected_fit, 1);
    }
    w.s->value[LIMIT_RUNNING_SEQS] = 1;
    step_once(&w, 0);
    sched_stats(w.s, w.now_us, &st);
    assert_int_equal(st.held, HELD_LIMIT);
    w.s->value[LIMIT_RUNNING_SEQS] = 4;
    struct request *big = submit(&w, 38, 2, 500);
    sched_finish(w.s, b, REQ_FIN_ABORT, 0, w.now_us);
    step_once(&w, 0);
    sched_stats(w.s, w.now_us, &st);
    assert_int_equal(st.held, HELD_BLOCKS);
    assert_int_equal(st.held_needed, 10);
    assert_true(st.held_available < 10);
    run_out(&w);
    sched_stats(w.s, w.now_us, &st);
    assert_int_equal(st.held, HELD_NONE);
    request_unref(a);
    request_unref(b);
    request_unref(big);
    close_world(&w);
}

/* With 28 new tokens each the second could not stay; but answers have turned out to be short. */
static void learns_that_answers_are_short(void **state)
{
    (void)state;
    struct engine_params p = small(10000);
    struct world w;
    open_world(&w, &p);
    w.s->stats.caution = 0;
    struct request *a = submit(&w, 4, 28, 100), *b = submit(&w, 4, 28, 300);
    step_once(&w, 0);
    assert_int_equal(w.s->entries.running_count, 1);
    for (uint32_t i = 0; i < 400; i++) {
        for (uint32_t k = 0; k < 7; k++)
            growths_made(&w.s->growth, 0, k);
        growths_ended(&w.s->growth, 0, 7, true);
    }
    step_once(&w, 0);
    assert_int_equal(w.s->entries.running_count, 1); /* not looked at before somebody has ended */
    w.s->admission.blocked_number = 0;
    step_once(&w, 0);
    assert_int_equal(w.s->entries.running_count, 2);
    run_out(&w);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

static void looks_again_when_one_ends(void **state)
{
    (void)state;
    struct engine_params p = small(10000);
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 8, 4, 100), *b = submit(&w, 8, 16, 200);
    struct request *c = submit(&w, 8, 16, 300);
    step_once(&w, 0);
    assert_int_equal(atomic_load(&c->state), REQ_WAITING);
    while (atomic_load(&a->state) != REQ_DONE)
        step_once(&w, 0);
    sched_finish(w.s, b, REQ_FIN_ABORT, 0, w.now_us);
    step_once(&w, 0);
    assert_int_equal(atomic_load(&c->state), REQ_RUNNING);
    run_out(&w);
    assert_int_equal(w.s->stats.preemptions, 0);
    request_unref(a);
    request_unref(b);
    request_unref(c);
    close_world(&w);
}

static void caution_follows_stalls(void **state)
{
    (void)state;
    struct engine_params p = small(0);
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 8, 20, 100), *b = submit(&w, 8, 20, 300);
    while (w.s->stats.preemptions == 0)
        step_once(&w, 0);
    double before = w.s->stats.caution;
    w.now_us += 3000000; /* b waits for so long, and so does a, but that was no preemption */
    run_out(&w);
    assert_int_equal(w.s->stats.stalls, 1);
    assert_true(w.s->stats.caution > before);
    request_unref(a);
    request_unref(b);

    p.limits.value[LIMIT_STALLED_SHARE] = 500000;
    sched_limits(w.s, &p.limits, w.now_us);
    for (int i = 0; i < 200; i++) {
        before = w.s->stats.caution;
        a = submit(&w, 8, 2, 100);
        run_out(&w);
        assert_true(w.s->stats.caution < before || before == 0);
        request_unref(a);
    }
    assert_true(w.s->stats.caution == 0);
    close_world(&w);
}

/* It counts while its reader waits, and once, even if it is preempted again before its next token.
 */
static void counts_a_stall_while_it_lasts(void **state)
{
    (void)state;
    struct engine_params p = small(0);
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 8, 20, 100), *b = submit(&w, 8, 20, 300);
    while (w.s->stats.preemptions == 0)
        step_once(&w, 0);
    double before = w.s->stats.caution;
    uint32_t got = atomic_load(&b->out_count);
    assert_true(got > 0);
    w.now_us += 1900000;
    step_once(&w, 0);
    assert_int_equal(w.s->stats.stalls, 0);
    w.now_us += 200000;
    for (int i = 0; i < 3; i++) {
        step_once(&w, 0);
        assert_int_equal(atomic_load(&b->out_count), got);
        assert_int_equal(w.s->stats.stalls, 1);
        assert_true(w.s->stats.caution > before);
    }
    before = w.s->stats.caution;
    run_out(&w);
    assert_int_equal(w.s->stats.stalls, 1);
    assert_true(w.s->stats.caution == before); /* nobody may stall: it never falls */
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

/* With two steps in flight the token that was under way at the preemption is not the one that the
 * reader waited for. */
static void stalls_are_counted_two_steps_deep(void **state)
{
    (void)state;
    struct engine_params p = small(0);
    p.depth = 2;
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 8, 20, 100), *b = submit(&w, 8, 20, 300);
    double before = w.s->stats.caution;
    for (int i = 0; i < 1000 && !sched_idle(w.s); i++) {
        while (w.s->flights.count < p.depth) {
            struct ek_step *step = w.steps[flights_place(&w.s->flights, w.s->flights.count)];
            if (sched_plan(w.s, w.now_us, step) == 0)
                break;
            assert_int_equal(null_backend.forward(w.d, step), 0);
        }
        if (w.s->flights.count > 0)
            land(&w);
        w.now_us += w.s->stats.preemptions > 0 ? 600000 : 0;
    }
    assert_true(sched_idle(w.s));
    assert_int_equal(w.s->stats.preemptions, 1);
    assert_int_equal(w.s->stats.stalls, 1);
    assert_true(w.s->stats.caution > before);
    assert_true(w.s->stats.preemption_lost_us > 2000000);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(puts_off_whom_others_outgrow),
        cmocka_unit_test(says_what_holds),
        cmocka_unit_test(learns_that_answers_are_short),
        cmocka_unit_test(looks_again_when_one_ends),
        cmocka_unit_test(caution_follows_stalls),
        cmocka_unit_test(counts_a_stall_while_it_lasts),
        cmocka_unit_test(stalls_are_counted_two_steps_deep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
