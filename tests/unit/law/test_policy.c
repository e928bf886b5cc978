/*
 * The control law, scenario by scenario: a load in phases goes in, the decisions that come out are
 * compared with a list. Running follows the limit, as on a real server. Each scenario runs with
 * polls of 1 s and of 5 s: the decisions may not depend on it. Invariants I1-I7 hold at each step.
 */
#include "supervisor/law/policy.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "supervisor/law/window.h"
#include "tests/unit/alloc.h"

#define SEC 1000000ull

struct phase {
    double seconds;
    double usage, demand, preempt, recomputed, gen, prompt, gap, itl;
    int bad;       /* every n-th sample is missing; 1 = all */
    double queued; /* waiting although the limit has room */
    double dip;    /* usage of every third sample, 0 = none */
};

struct policy_run {
    struct policy *p;
    struct policy_params par;
    struct phase now;
    double poll_s;
    uint64_t t_us;
    uint32_t seqs, tokens, polls;
    double preemptions, recomputed, gen, prompt, finished, itl_hits[3];
    bool no_recompute, no_count, refuse, late;
    uint64_t cut_us, change_us;
    char log[8192];
    struct decision last;
};

static void setup(struct policy_run *r, double poll_s)
{
    *r = (struct policy_run){.poll_s = poll_s, .seqs = 64, .tokens = 2048, .t_us = 100 * SEC};
    policy_defaults(&r->par);
    r->par.seqs_max = 64;
    r->par.seqs_min = 2;
    r->par.tokens_max = 2048;
}

static void start(struct policy_run *r)
{
    assert_int_equal(policy_new(&r->par, &r->p), 0);
    policy_restart(r->p, r->t_us);
}

static struct sample make_sample(struct policy_run *r)
{
    const struct phase *f = &r->now;
    struct sample s;
    sample_missing(r->t_us, &s);
    if (f->bad && r->polls % (uint32_t)f->bad == 0)
        return s;
    double running = f->demand < r->seqs ? f->demand : r->seqs;
    const double values[][2] = {
        {SIG_KV_USAGE, f->dip > 0 && r->polls % 3 == 0 ? f->dip : f->usage},
        {SIG_RUNNING, running},
        {SIG_WAITING, f->demand - running + f->queued},
        {SIG_WAITING_CAPACITY, f->demand - running},
        {SIG_PREEMPTIONS, floor(r->preemptions)},
        {SIG_RECOMPUTED, r->recomputed},
        {SIG_GEN_TOKENS, r->gen},
        {SIG_PROMPT_TOKENS, r->prompt},
        {SIG_MAX_GAP_S, f->gap},
        {SIG_LIMIT_SEQS, r->seqs},
        {SIG_LIMIT_TOKENS, r->tokens},
        {SIG_FINISHED, r->finished},
    };
    s.good = true;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        int k = (int)values[i][0];
        if ((k == SIG_RECOMPUTED && r->no_recompute) || (k == SIG_PREEMPTIONS && r->no_count))
            continue;
        s.value[k] = values[i][1];
        s.flags[k] = 0;
    }
    s.itl = (struct sample_hist){
        3, {0.1, 1, HUGE_VAL}, {r->itl_hits[0], r->itl_hits[1], r->itl_hits[2]}};
    return s;
}

static void check_step(struct policy_run *r, const struct decision *d, const struct sample *s)
{
    bool change = d->kind == ACT_LOWER || d->kind == ACT_RAISE || d->kind == ACT_REVERT;
    assert_true(d->act == (change && r->par.mode == MODE_ACT)); /* I7 */
    assert_true(d->why[0] != '\0');
    if (!change)
        return;
    assert_true(s->good && sample_has(s, SIG_KV_USAGE)); /* I6 */
    if (d->knob == KNOB_SEQS) {
        assert_in_range(d->to, r->par.seqs_min, r->par.seqs_max); /* I1 */
        assert_true(d->to <= r->tokens);                          /* I2 */
        assert_int_equal(d->from, r->seqs);
    } else {
        assert_in_range(d->to, r->par.tokens_min, r->par.tokens_max);
        assert_true(d->to >= r->seqs);
    }
    if (d->kind == ACT_RAISE) {
        if (d->knob == KNOB_SEQS)
            assert_true(d->to - d->from <= r->par.raise_step); /* I3 */
        assert_true(r->cut_us == 0 ||
                    r->t_us - r->cut_us >= r->par.raise_after_cut_s * SEC); /* I4 */
        if (d->reason != REASON_DRIFT_BACK && d->knob == KNOB_SEQS)
            assert_true(s->value[SIG_WAITING] > 0 &&
                        s->value[SIG_RUNNING] >= 0.9 * r->seqs); /* I5 */
    }
    if (d->kind == ACT_LOWER)
        assert_true(r->cut_us == 0 || r->t_us - r->cut_us >= r->par.settle_s * SEC);
}

static void write_log(struct policy_run *r, const struct decision *d)
{
    size_t at = strlen(r->log);
    if (d->kind == ACT_NONE)
        return;
    if (d->kind == ACT_NOTE)
        (void)snprintf(r->log + at, sizeof(r->log) - at, "%s; ", reason_name(d->reason));
    else
        (void)snprintf(r->log + at, sizeof(r->log) - at, "%s %u>%u; ", reason_name(d->reason),
                       d->from, d->to);
}

static void step(struct policy_run *r)
{
    const struct phase *f = &r->now;
    r->t_us += (uint64_t)(r->poll_s * 1e6);
    r->polls++;
    r->preemptions += f->preempt * r->poll_s;
    r->recomputed += f->recomputed * r->poll_s;
    r->gen += f->gen * r->poll_s;
    r->prompt += f->prompt * r->poll_s;
    r->finished += r->poll_s;
    for (int i = 0; i < 3; i++)
        r->itl_hits[i] += (i > 0 || f->itl <= 0.1) ? 20 * r->poll_s : 0;
    struct sample s = make_sample(r);
    struct decision d = policy_step(r->p, &s, r->t_us);
    check_step(r, &d, &s);
    write_log(r, &d);
    r->last = d;
    if (!d.act)
        return;
    if (d.kind == ACT_LOWER && !r->refuse)
        r->cut_us = r->t_us;
    if (!r->refuse)
        *(d.knob == KNOB_SEQS ? &r->seqs : &r->tokens) = d.to;
    policy_applied(r->p, &d, !r->refuse);
}

static void run_phase(struct policy_run *r, struct phase f)
{
    r->now = f;
    for (double t = 0; t < f.seconds - 1e-9; t += r->poll_s)
        step(r);
}

static const struct phase calm = {100, .usage = 0.5, .demand = 20, .gen = 500, .prompt = 100};

struct scenario {
    const char *name;
    void (*prepare)(struct policy_run *r);
    struct phase phases[8];
    const char *want;
};

static void no_counter(struct policy_run *r)
{
    r->no_recompute = true;
}
static void slo(struct policy_run *r)
{
    r->par.itl_slo_s = 0.1;
}
static void observe(struct policy_run *r)
{
    r->par.mode = MODE_OBSERVE;
}
static void advise(struct policy_run *r)
{
    r->par.mode = MODE_ADVISE;
}
static void refuse(struct policy_run *r)
{
    r->refuse = true;
}
static void small(struct policy_run *r)
{
    r->seqs = 16;
}
static void tight(struct policy_run *r)
{
    r->par.seqs_min = 60;
}
static void near_seqs(struct policy_run *r)
{
    r->par.itl_slo_s = 0.1;
    r->par.tokens_min = 16;
    r->tokens = 80;
}
static void few_tokens(struct policy_run *r)
{
    r->tokens = 512;
}

#define HARM .preempt = 2, .recomputed = 400, .gen = 500, .prompt = 100

static const struct scenario scenarios[] = {
    {"calm", NULL, {calm, calm, calm}, ""},
    {"full without harm is healthy",
     NULL,
     {calm, {400, .usage = 0.97, .demand = 64, .gen = 500}},
     "KV_FULL_HEALTHY; "},
    {"usage and harm: one cut from what runs, which helps",
     NULL,
     {calm, {30, .usage = 0.96, .demand = 40, HARM}, {60, .usage = 0.7, .demand = 25, .gen = 500}},
     "LOWER_KV_HARM 64>32; "},
    {"usage dips after each preemption: still pressure",
     NULL,
     {calm,
      {30, .usage = 0.95, .demand = 40, HARM, .dip = 0.86},
      {20, .usage = 0.7, .demand = 25, .gen = 500}},
     "LOWER_KV_HARM 64>32; "},
    {"harm with a half empty cache is no KV pressure",
     NULL,
     {calm, {90, .usage = 0.6, .demand = 40, HARM}},
     ""},
    {"preemptions that cost nothing",
     NULL,
     {calm, {90, .usage = 0.96, .demand = 40, .preempt = 2, .recomputed = 10, .gen = 500}},
     ""},
    {"the same without a counter of recomputed tokens",
     no_counter,
     {calm, {30, .usage = 0.96, .demand = 40, .preempt = 2, .gen = 500}},
     "LOWER_KV_HARM 64>32; "},
    {"a cut waits until it took effect; goes on while it still hurts",
     NULL,
     {calm, {105, .usage = 0.97, .demand = 64, HARM}},
     "LOWER_KV_HARM 64>51; LOWER_KV_HARM 51>40; LOWER_KV_HARM 40>32; "},
    {"panic",
     NULL,
     {calm, {20, .usage = 1.0, .demand = 40, HARM}, {40, .usage = 0.7, .demand = 25, .gen = 500}},
     "LOWER_PANIC 64>32; "},
    {"a cut that costs throughput and does not help is taken back",
     NULL,
     {calm,
      {25, .usage = 0.95, .demand = 40, HARM},
      {200, .usage = 0.6, .demand = 40, .preempt = 2, .recomputed = 300, .gen = 300}},
     "LOWER_KV_HARM 64>32; REVERT_INEFFECTIVE 32>64; "},
    {"and is not tried again for ten minutes",
     NULL,
     {calm,
      {25, .usage = 0.95, .demand = 40, HARM},
      {100, .usage = 0.6, .demand = 40, .preempt = 2, .recomputed = 300, .gen = 300},
      {400, .usage = 0.95, .demand = 40, HARM}},
     "LOWER_KV_HARM 64>32; REVERT_INEFFECTIVE 32>64; "},
    {"what was taken back rises once there is room, and may be cut again then",
     small,
     {{100, .usage = 0.5, .demand = 15, .gen = 500, .prompt = 100},
      {25, .usage = 0.95, .demand = 40, HARM},
      {80, .usage = 0.6, .demand = 40, .preempt = 2, .recomputed = 300, .gen = 300},
      {120, .usage = 0.3, .demand = 40, .gen = 500},
      {60, .usage = 0.95, .demand = 40, HARM}},
     "LOWER_KV_HARM 16>12; REVERT_INEFFECTIVE 12>16; RAISE_PROBE1 16>17; RAISE_PROBE1 17>18; "
     "RAISE_PROBE1 18>19; RAISE_PROBE1 19>20; RAISE_HEADROOM 20>24; RAISE_HEADROOM 24>28; "
     "RAISE_HEADROOM 28>32; LOWER_KV_HARM 32>25; LOWER_KV_HARM 25>20; "},
    {"raise by 4 while the limit binds",
     small,
     {{70, .usage = 0.3, .demand = 15, .gen = 500}, {50, .usage = 0.3, .demand = 40, .gen = 500}},
     "RAISE_HEADROOM 16>20; RAISE_HEADROOM 20>24; RAISE_HEADROOM 24>28; "},
    {"not binding: never", small, {{400, .usage = 0.3, .demand = 12, .gen = 500}}, ""},
    {"no raise into a cache that would be too full",
     small,
     {{400, .usage = 0.80, .demand = 40, .gen = 500}},
     ""},
    {"drift back after 30 quiet minutes",
     small,
     {{2000, .usage = 0.3, .demand = 5, .gen = 500}},
     "DRIFT_BACK 16>20; DRIFT_BACK 20>24; DRIFT_BACK 24>28; "},
    {"long prompts hurt latency: fewer tokens per step",
     slo,
     {calm, {50, .usage = 0.5, .demand = 20, .gen = 100, .prompt = 900, .itl = 0.5}},
     "LOWER_ITL_PREFILL 2048>1536; LOWER_ITL_PREFILL 1536>1152; "},
    {"never fewer tokens than sequences",
     near_seqs,
     {{70, .usage = 0.5, .demand = 20, .gen = 500},
      {50, .usage = 0.5, .demand = 20, .gen = 100, .prompt = 900, .itl = 0.5}},
     "LOWER_ITL_PREFILL 80>64; "},
    {"tokens come back when prompts wait",
     few_tokens,
     {{70, .usage = 0.3, .demand = 20, .gen = 500},
      {35, .usage = 0.3, .demand = 20, .gen = 100, .prompt = 2000, .queued = 9}},
     "RAISE_HEADROOM 512>768; RAISE_HEADROOM 768>1024; "},
    {"observe says nothing", observe, {calm, {200, .usage = 0.96, .demand = 40, HARM}}, ""},
    {"advise says it once",
     advise,
     {calm, {300, .usage = 0.96, .demand = 40, HARM}},
     "LOWER_KV_HARM 64>32; "},
    {"three writes refused: frozen",
     refuse,
     {calm, {200, .usage = 0.96, .demand = 40, HARM}},
     "LOWER_KV_HARM 64>32; LOWER_KV_HARM 64>32; LOWER_KV_HARM 64>32; LIMIT_APPLY_FAILED; "},
    {"at the least and still pressed",
     tight,
     {calm, {500, .usage = 0.97, .demand = 70, HARM}},
     "LOWER_KV_HARM 64>60; SAT_LOW; "},
    {"at the ceiling with room",
     NULL,
     {calm, {500, .usage = 0.4, .demand = 90, .gen = 500}},
     "SAT_HIGH; "},
    {"half of the samples bad: hold",
     NULL,
     {calm, {200, .usage = 0.97, .demand = 64, HARM, .bad = 2}},
     "SIGNAL_DEGRADED; "},
    {"no answers: hold, once said; then on",
     NULL,
     {calm,
      {100, .bad = 1},
      {20, .usage = 0.5, .demand = 20, .gen = 500},
      {60, .bad = 1},
      {20, .usage = 0.5, .demand = 20, .gen = 500}},
     NULL},
};

static void test_scenarios(void **state)
{
    (void)state;
    int failed = 0;
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        static const double polls[] = {1, 5};
        for (size_t k = 0; k < 2; k++) {
            struct policy_run r;
            setup(&r, polls[k]);
            if (scenarios[i].prepare)
                scenarios[i].prepare(&r);
            start(&r);
            for (int f = 0; f < 8 && scenarios[i].phases[f].seconds > 0; f++)
                run_phase(&r, scenarios[i].phases[f]);
            const char *want =
                scenarios[i].want ? scenarios[i].want : "SIGNAL_DEGRADED; SIGNAL_DEGRADED; ";
            if (strcmp(r.log, want) != 0)
                print_error("%s, polls of %.0f s:\n  %s\nwanted\n  %s\nlast: %s\n",
                            scenarios[i].name, polls[k], r.log, want, r.last.why);
            failed += strcmp(r.log, want) != 0;
            policy_free(r.p);
        }
    }
    assert_int_equal(failed, 0);
}

/* The page of a vLLM: its preemption counter stands still, running falls and the queue grows. */
static void test_late_counter(void **state)
{
    (void)state;
    static const double run[][3] = {{8, 0, 0.94}, {7, 1, 0.94}, {5, 3, 0.90}, {4, 4, 0.90},
                                    {3, 5, 0.93}, {3, 5, 0.94}, {3, 5, 0.95}, {3, 5, 0.95}};
    struct policy_params par;
    struct policy *p = NULL;
    policy_defaults(&par);
    par.seqs_max = 8;
    assert_int_equal(policy_new(&par, &p), 0);
    policy_limits(p, 8, 2048);
    struct decision cut = {0};
    for (uint64_t t = 0; t < 30 && cut.kind == ACT_NONE; t++) {
        const double *row = run[t < 18 ? 0 : t - 18 < 8 ? t - 18 : 7];
        struct sample s;
        sample_missing((t + 1) * 5 * SEC, &s);
        s.good = true;
        const enum signal_id ids[] = {SIG_RUNNING, SIG_WAITING_CAPACITY, SIG_KV_USAGE,
                                      SIG_WAITING, SIG_PREEMPTIONS,      SIG_GEN_TOKENS,
                                      SIG_FINISHED};
        const double values[] = {row[0], row[1], row[2], row[1], 0, (double)t * 100, 0};
        for (int k = 0; k < 7; k++) {
            s.value[ids[k]] = values[k];
            s.flags[ids[k]] = 0;
        }
        cut = policy_step(p, &s, s.at_us);
    }
    assert_int_equal(cut.kind, ACT_LOWER);
    assert_int_equal(cut.from, 8);
    assert_true(cut.to < 8);
    policy_free(p);
}

/* An engine without a counter of preemptions is not degraded: the law says so once, cuts on tokens
 * that were computed again, and raises only when there are none. */
static void test_without_counter(void **state)
{
    (void)state;
    struct policy_run r;
    setup(&r, 1);
    r.no_count = true;
    start(&r);
    run_phase(&r, calm);
    assert_string_equal(r.log, "SIGNAL_ABSENT; ");
    assert_false(policy_counts(r.p));
    run_phase(&r, (struct phase){30, .usage = 0.96, .demand = 60, HARM});
    assert_string_equal(r.log, "SIGNAL_ABSENT; LOWER_KV_HARM 64>48; ");
    r.log[0] = '\0';
    run_phase(&r, (struct phase){90, .usage = 0.6, .demand = 60, .gen = 500});
    assert_memory_equal(r.log, "RAISE_PROBE1 48>49; RAISE_PROBE1 49>50; ", 40);
    r.log[0] = '\0';
    /* some work is done twice, though little: no raise */
    run_phase(&r, (struct phase){60, .usage = 0.6, .demand = 60, .gen = 500, .recomputed = 1});
    run_phase(&r, (struct phase){30, .usage = 0.6, .demand = 60, .gen = 500, .recomputed = 1});
    assert_null(strstr(r.log, "LOWER"));
    assert_null(strstr(r.log, "SIGNAL_ABSENT"));
    policy_free(r.p);
}

/* A counter that this process has shown and that goes away is missed. */
static void test_counter_lost(void **state)
{
    (void)state;
    struct policy_run r;
    setup(&r, 1);
    start(&r);
    run_phase(&r, calm);
    assert_true(policy_counts(r.p));
    r.no_count = true;
    run_phase(&r, (struct phase){10, .usage = 0.5, .demand = 10, .gen = 500});
    assert_string_equal(r.log, "SIGNAL_DEGRADED; ");
    assert_int_equal(policy_state(r.p), POL_DEGRADED);
    policy_restart(r.p, r.t_us); /* another process: what it has is not known */
    run_phase(&r, calm);
    assert_string_equal(r.log, "SIGNAL_DEGRADED; SIGNAL_ABSENT; ");
    policy_free(r.p);
}

static void test_raise_after_cut(void **state)
{
    (void)state;
    struct policy_run r;
    setup(&r, 1);
    start(&r);
    run_phase(&r, calm);
    run_phase(&r, (struct phase){30, .usage = 0.96, .demand = 60, HARM});
    assert_string_equal(r.log, "LOWER_KV_HARM 64>48; ");
    assert_int_equal(policy_state(r.p), POL_HOLD);
    r.log[0] = '\0';
    /* 48 is 0.8 of the 60 that hurt: one by one from here on, after the cut's wait */
    run_phase(&r, (struct phase){90, .usage = 0.6, .demand = 60, .gen = 500});
    assert_memory_equal(r.log, "RAISE_PROBE1 48>49; RAISE_PROBE1 49>50; ", 40);
    assert_int_equal(policy_state(r.p), POL_RECOVER);
    policy_free(r.p);
}

/* I22: under a load that always hurts above and always has room below, changes of direction end. */
static void test_oscillation(void **state)
{
    (void)state;
    struct policy_run r;
    setup(&r, 1);
    r.par.settle_s = r.par.raise_after_cut_s = r.par.raise_every_s = 2;
    r.par.window_s = 4;
    r.par.hold_most_s = 2;
    start(&r);
    run_phase(&r, calm);
    r.log[0] = '\0';
    int direction = 0;
    uint64_t flips[256] = {0};
    size_t n = 0;
    for (int i = 0; i < 1800; i++) {
        bool over = r.seqs > 40;
        run_phase(&r, over ? (struct phase){1, .usage = 0.97, .demand = 64, HARM}
                           : (struct phase){1, .usage = 0.4, .demand = 64, .gen = 500});
        int now = !r.last.act ? 0 : r.last.kind == ACT_LOWER ? -1 : 1;
        if (now && direction && now != direction && n < 256)
            flips[n++] = r.t_us;
        direction = now ? now : direction;
    }
    for (size_t i = 0; i < n; i++) {
        size_t in = 0;
        for (size_t k = i; k < n; k++)
            in += flips[k] - flips[i] < 900 * SEC;
        assert_true(in <= 12);
    }
    assert_non_null(strstr(r.log, "OSC_DAMP; "));
    const char *frozen = strstr(r.log, "OSC_FREEZE; ");
    assert_non_null(frozen); /* for 30 minutes: said once, then nothing moves */
    assert_string_equal(frozen, "OSC_FREEZE; ");
    policy_free(r.p);
}

static void test_pins_and_operators(void **state)
{
    (void)state;
    struct policy_run r;
    setup(&r, 1);
    start(&r);
    policy_pin(r.p, KNOB_SEQS, true);
    assert_true(policy_pinned(r.p, KNOB_SEQS));
    run_phase(&r, calm);
    run_phase(&r, (struct phase){100, .usage = 0.97, .demand = 64, HARM});
    assert_string_equal(r.log, "OPERATOR_PIN; ");
    policy_pin(r.p, KNOB_SEQS, false);
    run_phase(&r, (struct phase){5, .usage = 0.97, .demand = 64, HARM});
    assert_string_equal(r.log, "OPERATOR_PIN; LOWER_KV_HARM 64>51; ");

    /* Somebody sets another limit behind our back: taken over after some seconds. */
    r.seqs = 20;
    run_phase(&r, (struct phase){5, .usage = 0.5, .demand = 10, .gen = 500});
    assert_int_equal(policy_limit(r.p, KNOB_SEQS), 51);
    run_phase(&r, (struct phase){10, .usage = 0.5, .demand = 10, .gen = 500});
    assert_int_equal(policy_limit(r.p, KNOB_SEQS), 20);
    policy_limits(r.p, 30, 1024);
    assert_int_equal(policy_limit(r.p, KNOB_SEQS), 30);
    policy_free(r.p);
}

static void test_pending(void **state)
{
    (void)state;
    struct policy_run r;
    setup(&r, 1);
    start(&r);
    run_phase(&r, calm);
    r.now = (struct phase){1, .usage = 0.97, .demand = 64, HARM};
    struct decision d = {0};
    for (int i = 0; i < 60 && !d.act; i++) {
        r.t_us += SEC;
        r.preemptions += 2;
        r.recomputed += 400;
        r.gen += 500;
        struct sample s = make_sample(&r);
        d = policy_step(r.p, &s, r.t_us);
    }
    assert_true(d.act);
    for (int i = 0; i < 60; i++) { /* no answer yet: nothing else is decided */
        r.t_us += SEC;
        r.preemptions += 2;
        struct sample s = make_sample(&r);
        assert_int_equal(policy_step(r.p, &s, r.t_us).kind, ACT_NONE);
    }
    policy_restart(r.p, r.t_us);
    policy_applied(r.p, &d, true); /* of an earlier life: ignored */
    assert_int_equal(policy_limit(r.p, KNOB_SEQS), 64);
    assert_int_equal(policy_state(r.p), POL_INIT);
    policy_free(r.p);
}

static void test_reset_and_clock(void **state)
{
    (void)state;
    struct policy_run r;
    setup(&r, 1);
    start(&r);
    run_phase(&r, calm);
    struct sample s = make_sample(&r);
    s.at_us = r.t_us + SEC;
    s.flags[SIG_PREEMPTIONS] = SAMPLE_RESET;
    struct decision d = policy_step(r.p, &s, s.at_us);
    assert_int_equal(d.reason, REASON_SIGNAL_RESET);
    assert_int_equal(policy_state(r.p), POL_INIT);
    assert_int_equal(window_count(policy_window(r.p)), 0);
    run_phase(&r, calm);
    assert_int_equal(policy_state(r.p), POL_HEALTHY);
    s = make_sample(&r);
    d = policy_step(r.p, &s, 5); /* the clock went back */
    assert_true(d.at_us >= r.t_us);
    policy_free(r.p);
}

static void test_params(void **state)
{
    (void)state;
    struct policy *p = NULL;
    struct policy_params par;
    policy_defaults(&par);
    par.seqs_min = 300;
    assert_int_equal(policy_new(&par, &p), -EINVAL);
    policy_defaults(&par);
    par.usage_high = NAN;
    assert_int_equal(policy_new(&par, &p), -EINVAL);
    policy_defaults(&par);
    par.window_s = 0;
    assert_int_equal(policy_new(&par, &p), -EINVAL);
    policy_defaults(&par);
    assert_int_equal(policy_new(&par, &p), 0);
    par.cut_factor = 1;
    assert_int_equal(policy_set(p, &par), -EINVAL);
    par.cut_factor = 0.7;
    assert_int_equal(policy_set(p, &par), 0);
    policy_free(p);
    for (long n = 1;; n++) {
        p = NULL;
        alloc_fail_at(n);
        int rc = policy_new(&par, &p);
        if (!alloc_failed()) {
            assert_int_equal(rc, 0);
            policy_free(p);
            break;
        }
        assert_int_equal(rc, -ENOMEM);
        assert_null(p);
    }
}

static void test_json(void **state)
{
    (void)state;
    struct ek_buf out = {0};
    struct decision d = {.kind = ACT_LOWER,
                         .reason = REASON_LOWER_KV_HARM,
                         .knob = KNOB_SEQS,
                         .from = 16,
                         .to = 12,
                         .measured = 0.97,
                         .limit = 0.92,
                         .harm = NAN,
                         .held_s = 30,
                         .applied = true,
                         .at_us = 1500000,
                         .why = "a \"why\""};
    assert_int_equal(decision_json(&d, "s\"1", &out), 0);
    assert_string_equal(out.data,
                        "{\"server\":\"s\\\"1\",\"at_s\":1.500000,\"action\":\"lower\","
                        "\"reason\":\"LOWER_KV_HARM\",\"knob\":\"max_num_running_seqs\","
                        "\"from\":16,\"to\":12,\"measured\":0.97,\"limit\":0.92,\"harm\":null,"
                        "\"held_s\":30,\"applied\":true,\"why\":\"a \\\"why\\\"\"}");
    ek_buf_clear(&out);
    const struct decision crash = {.reason = REASON_CRASH, .why = "x", .signature = "nccl-a"};
    assert_int_equal(decision_json(&crash, "s", &out), 0);
    assert_non_null(strstr(out.data, ",\"why\":\"x\",\"signature\":\"nccl-a\"}"));
    ek_buf_done(&out);
    for (int i = 0; i < REASON_COUNT; i++)
        assert_non_null(reason_name((enum reason)i));
    alloc_fail_at(1);
    assert_int_equal(decision_json(&d, "s", &out), -ENOMEM);
    assert_true(alloc_failed());
    ek_buf_done(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scenarios),
        cmocka_unit_test(test_late_counter),
        cmocka_unit_test(test_without_counter),
        cmocka_unit_test(test_counter_lost),
        cmocka_unit_test(test_raise_after_cut),
        cmocka_unit_test(test_oscillation),
        cmocka_unit_test(test_pins_and_operators),
        cmocka_unit_test(test_pending),
        cmocka_unit_test(test_reset_and_clock),
        cmocka_unit_test(test_params),
        cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
