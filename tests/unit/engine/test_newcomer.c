/* A step of its own for who has just come (newcomer.c), on the null backend. */
#include "tests/unit/engine/world.h"

static const struct tenant_ref one = {.place = 1, .stamp = 1}, two = {.place = 2, .stamp = 2},
                               triple = {.place = 2, .stamp = 2, .price = TENANT_PRICE / 3};

static const struct line line = {.known = true, .row_us = 1, .fixed_us = 2};

static struct engine_params roomy(void)
{
    struct engine_params p = params();

    p.max_seqs = 12;
    p.blocks = 400;
    p.limits.value[LIMIT_RUNNING_SEQS] = 12;
    p.limits.ceiling[LIMIT_QUEUED_REQS] = 100;
    p.limits.value[LIMIT_PREFIX_CACHING] = 0;
    return p;
}

/* Five answers of the first tenant run, and so many of the other one. */
static void open_full(struct world *w, const struct engine_params *p, uint32_t others)
{
    open_world(w, p);
    for (int32_t i = 0; i < 5; i++)
        request_unref(submit_of(w, one, 1, 60, 1 + i));
    for (uint32_t i = 0; i < others; i++)
        request_unref(submit_of(w, two, 1, 60, 100 + (int32_t)i));
    plan(w, 5 + others);
    land(w);
    w->s->rates.small = line;
}

static void close_full(struct world *w)
{
    sched_finish_all(w->s, REQ_FIN_ABORT, 0, w->now_us);
    close_world(w);
}

static bool is_own(const struct world *w)
{
    return w->s->flights.at[flights_newest(&w->s->flights)].own;
}

static void reads_it_alone(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    struct world w;

    open_full(&w, &p, 1);
    struct request *a = submit_of(&w, one, 7, 8, 200), *b = submit_of(&w, two, 7, 8, 300);
    plan(&w, 7 + 1); /* with its own answer; who came before is not due */
    assert_true(is_own(&w));
    land(&w);
    assert_int_equal(b->out_count, 1);
    assert_int_equal(a->out_count, 0);
    plan(&w, 7 + 7); /* all go on */
    assert_false(is_own(&w));
    land(&w);
    assert_int_equal(a->out_count, 1);
    assert_int_equal(b->out_count, 2);
    request_unref(a);
    request_unref(b);
    close_full(&w);
}

/* The next one is due when the fixed part is PACE_LOSS of what has passed. */
static void costs_little(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    struct world w;

    open_full(&w, &p, 0);
    for (uint64_t later_us = 98; later_us <= 100; later_us++) {
        const uint64_t from_us = w.s->share.own_us;
        w.now_us = from_us != 0 ? from_us + later_us : w.now_us;
        w.s->rates.small = line;
        request_unref(submit_of(&w, two, 7, 1, 300));
        plan(&w, later_us == 99 ? 5 + 7 : 7);
        land(&w);
    }
    close_full(&w);
}

/* It has to pay, the prompt is read whole, and its tenant has less than another one. */
static void is_not_for_all(void **state)
{
    (void)state;
    static const struct {
        double fixed_us;
        uint32_t tokens, cap, others;
        const struct tenant_ref *tenant;
        bool known, own;
    } cases[] = {
        {4.9, 7, 0, 0, &two, true, true}, {5, 7, 0, 0, &two, true, false},
        {2, 7, 0, 0, &two, false, false}, {2, 7, 7, 0, &two, true, true},
        {2, 7, 6, 0, &two, true, false},  {2, 16, 0, 0, &two, true, true},
        {2, 17, 0, 0, &two, true, false}, {2, 15, 0, 1, &two, true, true},
        {2, 16, 0, 1, &two, true, false}, {2, 7, 0, 3, &two, true, true},
        {2, 7, 0, 4, &two, true, false},  {2, 7, 0, 4, &triple, true, true},
        {2, 7, 0, 0, &one, true, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct engine_params p = roomy();
        struct world w;
        open_full(&w, &p, cases[i].others);
        request_unref(submit_of(&w, two, 1, 1, 99)); /* several were there */
        w.s->rates.small.known = false;
        step_once(&w, 0);
        w.s->rates.small = line;
        w.s->rates.small.known = cases[i].known;
        w.s->rates.small.fixed_us = cases[i].fixed_us;
        w.s->value[LIMIT_LONG_PREFILL] = cases[i].cap;
        request_unref(submit_of(&w, *cases[i].tenant, cases[i].tokens, 8, 300));
        struct ek_step *step = w.steps[w.s->flights.first];
        assert_true(sched_plan(w.s, w.now_us, step) > 0);
        if (is_own(&w) != cases[i].own)
            fail_msg("case %zu", i);
        assert_int_equal(null_backend.forward(w.d, step), 0);
        land(&w);
        close_full(&w);
    }
}

/* Where it cannot be admitted, for want of blocks, nobody is left out. */
static void leaves_nobody_out_in_vain(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    struct world w;

    p.blocks = 8; /* seven, of which five are taken */
    open_full(&w, &p, 0);
    struct request *b = submit_of(&w, two, 12, 4, 300);
    plan(&w, 5);
    assert_false(is_own(&w));
    assert_int_equal(w.s->admission.held, HELD_BLOCKS);
    assert_true(w.s->share.own_us == 0);
    land(&w);
    request_unref(b);
    close_full(&w);
}

/* What it takes is learned of small steps, copies apart. */
static void learns_of_small_steps(void **state)
{
    (void)state;
    struct rates r = {0};
    uint64_t now_us = 0;

    for (uint32_t i = 0; i < 96; i++) {
        const uint32_t rows = 8 + 10 * (i % 3 == 0);
        now_us += 300 + 200 * rows;
        rates_landed(&r, &(struct flight){.rows = rows}, 0, now_us);
        now_us += 1000000;
        rates_landed(&r, &(struct flight){.rows = 8, .copies = 1}, 0, now_us);
        now_us += 8000;
        rates_landed(&r, &(struct flight){.rows = 192}, 0, now_us);
    }
    assert_true(r.small.known);
    assert_true(r.small.row_us > 199 && r.small.row_us < 201);
    assert_true(r.small.fixed_us > 290 && r.small.fixed_us < 310);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_it_alone),        cmocka_unit_test(costs_little),
        cmocka_unit_test(is_not_for_all),        cmocka_unit_test(leaves_nobody_out_in_vain),
        cmocka_unit_test(learns_of_small_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
