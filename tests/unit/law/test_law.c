/* The rules one by one, where a scenario would hardly meet them: each condition alone decides. */
#include "supervisor/law/policy_law.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEC 1000000ull

/* A policy at 1000 s with a full window of samples in which the limit of 32 binds. */
static struct policy *make(void)
{
    struct policy *p = NULL;
    struct policy_params par;
    policy_defaults(&par);
    par.seqs_min = 2;
    par.seqs_max = 64;
    par.tokens_max = 2048;
    par.tokens_min = 64;
    assert_int_equal(policy_new(&par, &p), 0);
    for (uint64_t t = 960; t <= 1000; t++) {
        struct sample s;
        sample_missing(t * SEC, &s);
        s.good = true;
        const double values[][2] = {
            {SIG_KV_USAGE, 0.5}, {SIG_RUNNING, 32}, {SIG_WAITING, 5}, {SIG_PREEMPTIONS, 0}};
        for (size_t i = 0; i < 4; i++) {
            s.value[(int)values[i][0]] = values[i][1];
            s.flags[(int)values[i][0]] = 0;
        }
        window_push(p->window, &s);
    }
    p->now_us = 1000 * SEC;
    p->limit[KNOB_SEQS] = 32;
    p->limit[KNOB_TOKENS] = 2048;
    return p;
}

static const struct facts roomy = {.window_s = 30,
                                   .usage = 0.5,
                                   .usage_mid = 0.5,
                                   .usage_upper = 0.5,
                                   .running = 32,
                                   .running_most = 32,
                                   .waiting = 5};

static bool raises(struct policy *p, const struct facts *f)
{
    struct decision d = {0};
    bool done = law_raise_seqs(p, f, &d);
    if (done)
        assert_true(d.to > 32 && d.to <= 36);
    return done;
}

static void test_raise(void **state)
{
    (void)state;
    struct policy *p = make();
    struct facts f = roomy;
    assert_true(raises(p, &f));
    p->pinned[KNOB_SEQS] = true;
    assert_false(raises(p, &f));
    p->pinned[KNOB_SEQS] = false;
    p->locked_us[KNOB_SEQS] = 1001 * SEC; /* against cuts alone */
    assert_true(raises(p, &f));
    p->locked_us[KNOB_SEQS] = 0;
    p->limit[KNOB_TOKENS] = 32; /* each sequence needs a token */
    assert_false(raises(p, &f));
    p->limit[KNOB_TOKENS] = 34;
    struct decision d = {0};
    assert_true(law_raise_seqs(p, &f, &d));
    assert_int_equal(d.to, 34);
    p->limit[KNOB_TOKENS] = 2048;
    f.usage_mid = 0.86; /* what it would lead to is below feedforward, but it is not calm */
    f.running = 1000;
    assert_false(raises(p, &f));
    f = roomy;
    f.waiting = 0;
    assert_false(raises(p, &f));
    policy_free(p);
}

/* Near what hurt last, each cut that followed a raise makes the wait half as long again. */
static void test_wait_grows(void **state)
{
    (void)state;
    struct policy *p = make();
    const struct facts f = roomy;
    p->ssthresh = 32;
    p->cut_us = 960 * SEC; /* 40 s ago */
    p->episodes = 1;
    assert_true(raises(p, &f));
    p->episodes = 2; /* 45 s */
    assert_false(raises(p, &f));
    p->cut_us = 954 * SEC;
    assert_true(raises(p, &f));
    p->episodes = 100;
    p->cut_us = 519 * SEC; /* never longer than hold_most_s */
    assert_true(raises(p, &f));
    p->cut_us = 521 * SEC;
    assert_false(raises(p, &f));
    policy_free(p);
}

/* One by one near what hurt last; well above it the load is another one. */
static void test_beyond_what_hurt(void **state)
{
    (void)state;
    static const struct {
        uint32_t hurt, to;
    } cases[] = {{0, 36}, {26, 33}, {25, 36}, {32, 33}, {40, 33}, {41, 36}};
    struct policy *p = make();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct decision d = {0};
        p->ssthresh = cases[i].hurt;
        assert_true(law_raise_seqs(p, &roomy, &d));
        assert_int_equal(d.to, cases[i].to);
    }
    p->ssthresh = 25; /* nor is the wait longer for what it did */
    p->cut_us = 960 * SEC;
    p->episodes = 100;
    assert_true(raises(p, &roomy));
    policy_free(p);
}

static void test_lower(void **state)
{
    (void)state;
    struct policy *p = make();
    struct facts f = roomy;
    struct decision d = {0};
    f.pressure = true;
    assert_true(law_lower_seqs(p, &f, &d));
    assert_int_equal(d.to, 25);
    f.running_most = 20; /* from what runs, not from the limit */
    assert_true(law_lower_seqs(p, &f, &d));
    assert_int_equal(d.to, 16);
    p->cut_us = 965 * SEC; /* settle_s is over, but it has not taken effect */
    p->cut_to = 20;
    f.running = 25;
    assert_false(law_lower_seqs(p, &f, &d));
    f.running = 20;
    assert_true(law_lower_seqs(p, &f, &d));
    f.running = 25;
    p->cut_us = 939 * SEC; /* effect_s is over: it will not come any more */
    assert_true(law_lower_seqs(p, &f, &d));
    p->cut_us = 0;
    p->limit[KNOB_SEQS] = 2;
    assert_false(law_lower_seqs(p, &f, &d));
    assert_int_equal(d.reason, REASON_SAT_LOW);
    policy_free(p);
}

/* A row each: what differs from a cache in which preemptions stall answers. */
static void test_reserve_more(void **state)
{
    (void)state;
    struct policy *p = make();
    p->par.reserve_start = 0.01;
    const struct facts base = {.window_s = 30,
                               .harm_rate = 0.5,
                               .harm_count = 15,
                               .gap_share = 0.1,
                               .has_reserve = true,
                               .reserve = 0.05,
                               .stalls = true};
    static const struct {
        double reserve;
        bool known, stalls;
        uint64_t cut_s;
        uint32_t to; /* 0 = nothing is proposed */
    } rows[] = {
        {0.05, true, true, 0, 80},   {0.01, true, true, 0, 40}, {0.13, true, true, 0, 150},
        {0.15, true, true, 0, 0},    {0.4, true, true, 0, 0},   {0.005, true, true, 0, 0},
        {0.05, false, true, 0, 0},   {0.05, true, false, 0, 0}, {0.05, true, true, 971, 0},
        {0.05, true, true, 970, 80},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct facts f = base;
        struct decision d = {0};
        f.reserve = rows[i].reserve;
        f.has_reserve = rows[i].known;
        f.stalls = rows[i].stalls;
        p->cut_us = rows[i].cut_s * SEC;
        assert_int_equal(law_reserve_more(p, &f, &d), rows[i].to != 0);
        assert_int_equal(d.to, rows[i].to);
        if (rows[i].to == 0)
            continue;
        assert_int_equal(d.kind, ACT_RESERVE);
        assert_int_equal(d.reason, REASON_RESERVE_MORE);
        assert_int_equal(d.knob, KNOB_RESERVE);
    }
    policy_free(p);
}

static void test_reserve_less(void **state)
{
    (void)state;
    struct policy *p = make();
    p->par.reserve_start = 0.02;
    static const struct {
        double reserve, harm;
        uint64_t cut_s, moved_s;
        uint32_t to;
    } rows[] = {
        {0.08, 0, 0, 0, 70},   {0.025, 0, 0, 0, 20}, {0.02, 0, 0, 0, 0},
        {0.3, 0, 0, 0, 0},     {0.08, 1, 0, 0, 0},   {0.08, 0, 971, 0, 0},
        {0.08, 0, 970, 0, 70}, {0.08, 0, 0, 971, 0}, {0.08, 0, 0, 970, 70},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct facts f = {
            .has_reserve = true, .reserve = rows[i].reserve, .harm_count = rows[i].harm};
        struct decision d = {0};
        p->cut_us = rows[i].cut_s * SEC;
        p->reserve_us = rows[i].moved_s * SEC;
        assert_int_equal(law_reserve_less(p, &f, &d), rows[i].to != 0);
        assert_int_equal(d.to, rows[i].to);
    }
    policy_free(p);
}

/* What stalls is measured: more preemptions than preempt_rate that make gaps or cost work. */
static void test_stalls(void **state)
{
    (void)state;
    static const struct {
        double preemptions, gap_s, recomputed;
        uint64_t polls; /* of 31 show the gap */
        bool stalls;
    } rows[] = {{20, 3, 0, 4, true},
                {20, 3, 0, 3, false},
                {20, 1, 0, 31, false},
                {20, 1, 900, 1, true},
                {4, 3, 900, 31, false}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct policy *p = make();
        struct facts f;
        struct sample s;
        for (uint64_t t = 1001; t <= 1031; t++) {
            sample_missing(t * SEC, &s);
            s.good = true;
            double part = (double)(t - 1001) / 30;
            const double values[][2] = {
                {SIG_KV_USAGE, 0.9},
                {SIG_RUNNING, 32},
                {SIG_WAITING, 5},
                {SIG_PREEMPTIONS, part * rows[i].preemptions},
                {SIG_GEN_TOKENS, part * 1000},
                {SIG_RECOMPUTED, part * rows[i].recomputed},
                {SIG_MAX_GAP_S, t - 1001 < rows[i].polls ? rows[i].gap_s : 0.1},
                {SIG_LIMIT_RESERVE, 0.03}};
            for (size_t k = 0; k < sizeof(values) / sizeof(values[0]); k++) {
                s.value[(int)values[k][0]] = values[k][1];
                s.flags[(int)values[k][0]] = 0;
            }
            window_push(p->window, &s);
        }
        assert_true(law_measure(p, &s, &f));
        assert_int_equal(f.stalls, rows[i].stalls);
        assert_true(f.has_reserve && f.reserve == 0.03);
        p->par.reserve_most = 0; /* left alone */
        assert_true(law_measure(p, &s, &f));
        assert_false(f.has_reserve);
        policy_free(p);
    }
}

static void test_revert(void **state)
{
    (void)state;
    struct policy *p = make();
    struct facts f = roomy;
    struct decision d = {0};
    p->effect.due = true;
    p->effect.at_us = 1000 * SEC;
    p->effect.from = 48;
    p->effect.harm_rate = 2;
    p->effect.gen_rate = 1000;
    f.harm_rate = 1.5;
    f.gen_rate = 900;
    assert_true(law_revert(p, &f, &d));
    assert_int_equal(d.to, 48);
    f.harm_rate = 0.9; /* it helped, if at a price */
    assert_false(law_revert(p, &f, &d));
    f.harm_rate = 1.5;
    f.gen_rate = 960; /* it did not help, but cost nothing */
    assert_false(law_revert(p, &f, &d));
    f.gen_rate = 900;
    p->effect.from = 32; /* somebody has raised it since */
    assert_false(law_revert(p, &f, &d));
    p->effect.from = 48;
    p->effect.at_us = 1001 * SEC;
    assert_false(law_revert(p, &f, &d));
    p->effect.at_us = 1000 * SEC;
    p->pinned[KNOB_SEQS] = true;
    assert_false(law_revert(p, &f, &d));
    policy_free(p);
}

static void test_tokens(void **state)
{
    (void)state;
    struct policy *p = make();
    struct facts f = roomy;
    struct decision d = {0};
    f.gap_share = 1;
    f.prefill_share = 0.8;
    assert_true(law_lower_tokens(p, &f, &d));
    assert_int_equal(d.to, 1536);
    f.prefill_share = 0.4; /* it is not prompts that hurt */
    assert_false(law_lower_tokens(p, &f, &d));
    f.prefill_share = 0.8;
    f.usage_mid = 0.9; /* the pool is the reason */
    assert_false(law_lower_tokens(p, &f, &d));
    f.usage_mid = 0.5;
    f.window_s = 5;
    assert_false(law_lower_tokens(p, &f, &d));
    f.window_s = 30;
    p->limit[KNOB_TOKENS] = 80;
    p->limit[KNOB_SEQS] = 70;
    assert_true(law_lower_tokens(p, &f, &d));
    assert_int_equal(d.to, 70);
    policy_free(p);
}

static void test_drift(void **state)
{
    (void)state;
    struct policy *p = make();
    struct facts f = roomy;
    struct decision d = {0};
    p->quiet_us = 1;
    p->par.drift_quiet_s = 900;
    f.waiting = 0;
    assert_true(law_drift(p, &f, &d));
    assert_int_equal(d.to, 36);
    f.waiting = 3; /* it binds: that is for law_raise_seqs() */
    assert_false(law_drift(p, &f, &d));
    f.waiting = 0;
    p->quiet_us = 200 * SEC;
    assert_false(law_drift(p, &f, &d));
    policy_free(p);
}

/* Full and harmful for 10 s of a window of 30 is not sustained; for 30 s it is. */
static void test_sustained(void **state)
{
    (void)state;
    struct policy *p = NULL;
    struct policy_params par;
    struct facts f;
    struct sample s;
    policy_defaults(&par);
    par.seqs_min = 2;
    par.seqs_max = 64;
    assert_int_equal(policy_new(&par, &p), 0);
    for (uint64_t t = 0; t <= 30; t++) {
        sample_missing((1000 + t) * SEC, &s);
        s.good = true;
        const double values[][2] = {{SIG_KV_USAGE, 0.97},
                                    {SIG_RUNNING, 32},
                                    {SIG_WAITING, 5},
                                    {SIG_PREEMPTIONS, 2 * (double)t},
                                    {SIG_RECOMPUTED, 400 * (double)t},
                                    {SIG_GEN_TOKENS, 500 * (double)t}};
        for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
            s.value[(int)values[i][0]] = values[i][1];
            s.flags[(int)values[i][0]] = 0;
        }
        window_push(p->window, &s);
        p->now_us = s.at_us;
        if (t == 10 || t == 30) {
            assert_true(law_measure(p, &s, &f));
            assert_true(f.harm);
            assert_int_equal(f.full, t == 30);
            assert_int_equal(f.pressure, t == 30);
        }
    }
    policy_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_raise),
        cmocka_unit_test(test_wait_grows),
        cmocka_unit_test(test_beyond_what_hurt),
        cmocka_unit_test(test_lower),
        cmocka_unit_test(test_revert),
        cmocka_unit_test(test_reserve_more),
        cmocka_unit_test(test_reserve_less),
        cmocka_unit_test(test_stalls),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_drift),
        cmocka_unit_test(test_sustained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
