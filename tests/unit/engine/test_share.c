/* How prompts share steps: the law of share.c, on the null backend. */
#include "tests/unit/engine/world.h"

static struct engine_params roomy(void)
{
    struct engine_params p = params();
    p.max_seqs = 12;
    p.blocks = 400;
    p.limits.value[LIMIT_RUNNING_SEQS] = 12;
    p.limits.ceiling[LIMIT_QUEUED_REQS] = 100;
    return p;
}

/* Rows that the request has in the newest step. */
static uint32_t rows_of(const struct world *w, const struct request *r)
{
    const struct sched *s = w->s;
    const struct flight *f = &s->flights.at[flights_newest(&s->flights)];

    for (uint32_t i = 0; i < f->seqs; i++)
        if (s->entries.at[f->seq[i].entry].req == r)
            return f->seq[i].rows;
    return 0;
}

static void reads_a_short_one_beside_a_long_one(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    struct world w;
    open_world(&w, &p);
    struct request *l = submit(&w, 120, 2, 0);
    plan(&w, 16);
    assert_int_equal(rows_of(&w, l), 16); /* alone it has the whole step */
    land(&w);
    struct request *a = submit(&w, 5, 2, 200), *b = submit(&w, 14, 2, 300);
    plan(&w, 16);
    assert_int_equal(rows_of(&w, l), 8); /* half is its own */
    assert_int_equal(rows_of(&w, a), 5);
    assert_int_equal(rows_of(&w, b), 3);
    land(&w);
    assert_int_equal(atomic_load(&a->out_count), 1);
    plan(&w, 16); /* a decodes; of 15 rows 8 are the long one's, of which it lends some */
    assert_int_equal(rows_of(&w, l), 4);
    assert_int_equal(rows_of(&w, b), 11);
    land(&w);
    assert_int_equal(atomic_load(&b->out_count), 1);
    run_out(&w);
    request_unref(l);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

/* Short ones come without an end: each prompt is read within twice the steps that it and those
 * before it take alone. */
static void starves_nobody(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    struct world w;
    open_world(&w, &p);
    struct request *l = submit(&w, 120, 1, 0), *m = submit(&w, 100, 1, 200);
    for (int32_t i = 0, step = 1; atomic_load(&m->state) != REQ_DONE; step++) {
        for (; w.s->entries.waiting_count < 4; i++) {
            struct request *r = submit(&w, 8, 1, 400 + i % 500);
            request_unref(r);
        }
        plan(&w, 16);
        land(&w);
        assert_true(atomic_load(&l->state) == REQ_DONE || step <= 2 * 120 / 16 + 1);
        assert_true(step <= 2 * (120 + 100) / 16 + 2);
    }
    sched_finish_all(w.s, REQ_FIN_ABORT, 0, w.now_us);
    request_unref(l);
    request_unref(m);
    close_world(&w);
}

/* A short one behind several long ones is reached; of more long ones not all are let in at once. */
static void reads_few_at_a_time(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    struct world w;
    open_world(&w, &p);
    struct request *l[8], *a;
    for (int32_t i = 0; i < 3; i++)
        l[i] = submit(&w, 100, 2, 100 * i);
    a = submit(&w, 5, 2, 900);
    plan(&w, 16);
    assert_int_equal(rows_of(&w, a), 5);
    land(&w);
    for (int32_t i = 3; i < 8; i++)
        l[i] = submit(&w, 100, 2, 100 * i);
    plan(&w, 16);
    assert_int_equal(w.s->entries.running_count, 5);
    assert_int_equal(w.s->admission.held, HELD_TOKENS);
    assert_int_equal(rows_of(&w, l[3]), 1);
    land(&w);
    run_out(&w);
    for (int i = 0; i < 8; i++)
        request_unref(l[i]);
    request_unref(a);
    close_world(&w);
}

/* A step in which a prompt ends is no longer than that takes and the long one's part; those after
 * it are a sixth shorter for a second. */
static void keeps_steps_short(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    p.max_batched_tokens = 32;
    p.limits.value[LIMIT_BATCHED_TOKENS] = 32;
    p.share_least = 4;
    p.max_model_len = 256;
    struct world w;
    open_world(&w, &p);
    struct request *l = submit(&w, 127, 2, 0);
    plan(&w, 32); /* nobody else is there */
    land(&w);
    struct request *a = submit(&w, 3, 1, 300);
    plan(&w, 8 + 3); /* a quarter of the budget beside it */
    assert_int_equal(rows_of(&w, l), 8);
    land(&w);
    assert_int_equal(atomic_load(&a->out_count), 1);
    plan(&w, 27);
    land(&w);
    struct request *b = submit(&w, 10, 1, 400);
    plan(&w, 10 + 10); /* more end, and as many go on */
    assert_int_equal(rows_of(&w, l), 10);
    land(&w);
    w.now_us += 1000000;
    plan(&w, 32);
    land(&w);
    run_out(&w);
    request_unref(l);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

/* The first in line has as many as pay, in a step that is a sixth shorter, too. */
static void keeps_what_pays(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    p.max_batched_tokens = 32;
    p.limits.value[LIMIT_BATCHED_TOKENS] = 32;
    p.share_least = 15;
    p.max_model_len = 256;
    struct world w;
    open_world(&w, &p);
    struct request *l = submit(&w, 127, 2, 0);
    plan(&w, 32);
    land(&w);
    struct request *a = submit(&w, 3, 1, 300);
    plan(&w, 3 + 15);
    assert_int_equal(rows_of(&w, l), 15);
    land(&w);
    struct request *b = submit(&w, 70, 1, 400);
    plan(&w, 27);
    assert_int_equal(rows_of(&w, l), 15);
    assert_int_equal(rows_of(&w, b), 12);
    land(&w);
    run_out(&w);
    request_unref(l);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

/* What a short one lacks to end in the step is lent to it, up to half a step in all. */
static void lends_what_ends_a_prompt(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    p.max_batched_tokens = 32;
    p.limits.value[LIMIT_BATCHED_TOKENS] = 32;
    p.share_least = 4;
    p.max_model_len = 256;
    struct world w;
    open_world(&w, &p);
    struct request *l = submit(&w, 127, 2, 0);
    plan(&w, 32);
    land(&w);
    struct request *a = submit(&w, 20, 1, 300);
    plan(&w, 32);
    assert_int_equal(rows_of(&w, a), 20);
    assert_int_equal(rows_of(&w, l), 12);
    land(&w);
    assert_int_equal(atomic_load(&a->state), REQ_DONE);
    struct request *b = submit(&w, 26, 1, 400);
    plan(&w, 32); /* 4 are lent, 10 more are within half a step */
    assert_int_equal(rows_of(&w, b), 26);
    land(&w);
    struct request *c = submit(&w, 19, 1, 500);
    plan(&w, 27); /* 3 more are not; no prompt ends: a sixth shorter */
    assert_int_equal(rows_of(&w, c), 13);
    land(&w);
    plan(&w, 6 + 8); /* it ends, and a quarter of the budget beside it */
    land(&w);
    plan(&w, 27); /* alone the long one has 13 back */
    land(&w);
    assert_int_equal(w.s->share.lent, 0);
    struct request *d = submit(&w, 6, 1, 600);
    plan(&w, 14);
    land(&w);
    run_out(&w);
    request_unref(l);
    request_unref(a);
    request_unref(b);
    request_unref(c);
    request_unref(d);
    close_world(&w);
}

/* Prompts that fill a step together end in it, whoever answers or is opened beside them. */
static void ends_prompts_that_fill_a_step(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    struct request *r[8];
    struct world w;
    uint32_t ended = 0;

    p.max_batched_tokens = 16 + p.max_seqs;
    p.prompt_rows = 16;
    p.limits.value[LIMIT_BATCHED_TOKENS] = p.limits.ceiling[LIMIT_BATCHED_TOKENS] =
        p.max_batched_tokens;
    open_world(&w, &p);
    for (int i = 0; i < 8; i++)
        r[i] = submit(&w, 8, 5, 100 * i);
    for (uint32_t step = 1; step <= 4; step++) {
        step_once(&w, 0);
        assert_true(w.s->rates.landed_rows <= ended + 16 + SHARE_OPEN);
        ended = 0;
        for (int i = 0; i < 8; i++)
            ended += atomic_load(&r[i]->out_count) > 0;
        assert_true(ended >= 2 * step);
    }
    run_out(&w);
    for (int i = 0; i < 8; i++)
        request_unref(r[i]);
    close_world(&w);
}

/* A step of answers alone takes at least its part of the time of the step before. */
static void guesses_low(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    p.depth = 2;
    struct world w;
    struct request *r[4];
    open_world(&w, &p);
    for (int i = 0; i < 4; i++)
        r[i] = submit(&w, 4, 3, 100 * i);
    plan(&w, 16);
    w.now_us += 159000;
    land(&w); /* 160 ms */
    uint64_t begun_us = w.now_us;
    plan(&w, 4);
    assert_true(sched_plan_after(w.s) == begun_us + 40000 - 2500);
    land(&w);
    run_out(&w);
    for (int i = 0; i < 4; i++)
        request_unref(r[i]);
    close_world(&w);
}

/* The next step is planned shortly before the end of a long one that is in flight. */
static void plans_late(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    p.depth = 2;
    struct world w;
    open_world(&w, &p);
    struct request *l = submit(&w, 120, 2, 0);
    assert_true(sched_plan_after(w.s) == 0);
    plan(&w, 16);
    assert_true(sched_plan_after(w.s) == UINT64_MAX); /* nobody knows how long it takes */
    w.now_us += 39000;
    land(&w); /* 40 ms */
    assert_true(sched_plan_after(w.s) == 0);
    uint64_t begun_us = w.now_us;
    plan(&w, 16);
    assert_true(sched_plan_after(w.s) == begun_us + 37500);
    w.now_us += 37500;
    struct request *a = submit(&w, 5, 2, 200);
    plan(&w, 16); /* it is in the step after the one that it found */
    assert_int_equal(rows_of(&w, a), 5);
    assert_true(sched_plan_after(w.s) == 0);
    w.now_us += 1500;
    land(&w);
    assert_true(sched_plan_after(w.s) == w.now_us + 37500);
    land(&w); /* in a millisecond: short steps are not waited for, once that is known */
    plan(&w, 16);
    sched_finish(w.s, l, REQ_FIN_ABORT, 0, w.now_us);
    assert_true(sched_plan_after(w.s) == 0);
    land(&w);
    run_out(&w);
    request_unref(l);
    request_unref(a);
    close_world(&w);
}

/* And beside a very long one when it is done. */
static void plans_after_very_long_steps(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    p.depth = 2;
    p.gap_us = ENGINE_GAP_CARD_US;
    struct world w;
    open_world(&w, &p);
    struct request *l = submit(&w, 120, 2, 0);
    plan(&w, 16);
    w.now_us += 159000;
    land(&w); /* 160 ms */
    assert_true(sched_plan_after(w.s) == 0);
    plan(&w, 16);
    assert_true(sched_plan_after(w.s) == UINT64_MAX);
    w.now_us += 159000;
    land(&w);
    struct request *a = submit(&w, 5, 2, 200);
    plan(&w, 16);
    assert_int_equal(rows_of(&w, a), 5);
    land(&w);
    run_out(&w);
    request_unref(l);
    request_unref(a);
    close_world(&w);
}

/* A step that was made small for other tenants reads prompts: one of theirs waits for no other. */
static void plans_late_for_other_tenants(void **state)
{
    (void)state;
    struct rates r = {
        .landed_rows = 64, .landed_took_us = 2000, .applied_us = 5000, .gap_us = ENGINE_GAP_CPU_US};
    struct flight f = {.rows = 64, .planned_us = 4000, .prefill_rows = 64};

    assert_true(rates_plan_after(&r, &f) == 0);
    f.shared = true;
    assert_true(rates_plan_after(&r, &f) == UINT64_MAX);
    f.prefill_rows = 0;
    assert_true(rates_plan_after(&r, &f) == 0);
    f.prefill_rows = 64;
    r.gap_us = 0;
    assert_true(rates_plan_after(&r, &f) == 0);
    r.gap_us = ENGINE_GAP_CPU_US;
    r.landed_took_us = 500;
    assert_true(rates_plan_after(&r, &f) == 0);
}

/* A result that lay there says nothing of how long its step took: not that many rows take no time,
 * after which no other step would be believed. Nor does the next one, which began before it was
 * looked at. */
static void learns_nothing_of_late_results(void **state)
{
    (void)state;
    struct rates r = {0};
    struct flight f = {.rows = 512, .prefill_rows = 512, .full = true};

    rates_landed(&r, &f, 0, 100000);
    struct rates before = r;
    struct flight late = f, behind = f;
    late.untimed = true;
    rates_landed(&r, &late, 0, 120000);
    behind.planned_us = 100100;
    rates_landed(&r, &behind, 0, 190000);
    before.applied_us = r.applied_us;
    assert_memory_equal(&r, &before, sizeof(r));
    behind.planned_us = 150000;
    rates_landed(&r, &behind, 0, 290000);
    assert_int_equal(r.landed_took_us, 100000);
}

/* Deep rows of the long prompt are dear, short ones come without an end: it has its half by cost,
 * or a tile, as a step is short in which one ends, a quarter of one at least; no step has more
 * tokens than the limit; and a short one of half a step's tokens is read in the step that finds it.
 */
static void shares_by_cost(void **state)
{
    (void)state;
    static const double deeper[] = {0, 0.001, 0.02, 0.1, 0.5, 4};
    for (size_t k = 0; k < sizeof(deeper) / sizeof(deeper[0]); k++) {
        const struct price price = {.deeper = deeper[k], .fixed = (double)k, .read = deeper[k] / 9};
        struct engine_params p = roomy();
        struct world w;
        p.share_least = 1;
        open_world(&w, &p);
        struct request *l = submit(&w, 120, 1, 0);
        uint32_t most = price_of(&price, 0, 120) / 4 + 2, step = 0;
        for (uint32_t at = 0; atomic_load(&l->state) != REQ_DONE; step++) {
            struct request *r = step == 0 ? NULL : submit(&w, 4, 1, 400 + (int32_t)step % 500);
            w.s->rates.prices.now = price;
            w.s->rates.prices.planned = 0;
            uint32_t rows = sched_plan(w.s, w.now_us, w.steps[0]), of = rows_of(&w, l);
            assert_in_range(rows, 1, 16);
            assert_in_range(of, 1, 120);
            assert_true(price_of(&price, at, of) <= 16 || of <= 16 / 4 || at + of == 120);
            at += of;
            assert_int_equal(null_backend.forward(w.d, w.steps[0]), 0);
            land(&w);
            assert_true(!r || atomic_load(&r->state) == REQ_DONE);
            struct engine_stats st;
            sched_stats(w.s, w.now_us, &st);
            assert_true(st.price.deeper == deeper[k]);
            request_unref(r);
        }
        assert_in_range(step, 1, most);
        assert_true(step > 1 + (uint32_t)(k > 3) * 20);
        run_out(&w);
        request_unref(l);
        close_world(&w);
    }
}

/* A chunk that reads the long one well costs more than half a step: the step may cost more, and
 * then it is tokens that a short one lacks to end in it. It is lent those. */
static void lends_tokens(void **state)
{
    (void)state;
    const struct price dear = {.deeper = 0.5, .fixed = 1000};
    struct engine_params p = roomy();
    struct world w;
    p.share_least = 16;
    open_world(&w, &p);
    struct request *l = submit(&w, 120, 1, 0);
    for (uint32_t i = 0; i < 4; i++) {
        plan(&w, 16);
        land(&w);
    }
    struct request *a = submit(&w, 13, 1, 400);
    w.s->rates.prices.now = dear;
    w.s->rates.prices.planned = 0;
    assert_int_equal(sched_plan(w.s, w.now_us, w.steps[0]), 16);
    assert_int_equal(rows_of(&w, l), 3); /* of the four that are its half */
    assert_int_equal(rows_of(&w, a), 13);
    assert_int_equal(null_backend.forward(w.d, w.steps[0]), 0);
    land(&w);
    assert_int_equal(atomic_load(&a->state), REQ_DONE);
    run_out(&w);
    request_unref(l);
    request_unref(a);
    close_world(&w);
}

static void caps_what_a_step_reads_of_one(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    p.limits.value[LIMIT_LONG_PREFILL] = 6;
    struct world w;
    open_world(&w, &p);
    struct request *l = submit(&w, 50, 2, 0);
    plan(&w, 6);
    land(&w);
    struct request *a = submit(&w, 7, 2, 200);
    plan(&w, 12);
    assert_int_equal(rows_of(&w, l), 6);
    assert_int_equal(rows_of(&w, a), 6);
    land(&w);
    p.limits.value[LIMIT_LONG_PREFILL] = 0;
    sched_limits(w.s, &p.limits, w.now_us);
    plan(&w, 16);
    assert_int_equal(rows_of(&w, a), 1);
    assert_int_equal(rows_of(&w, l), 15);
    land(&w);
    run_out(&w);
    request_unref(l);
    request_unref(a);
    close_world(&w);
}

static struct request *scored(struct world *w, uint32_t tokens)
{
    int32_t prompt[128];
    for (uint32_t i = 0; i < tokens; i++)
        prompt[i] = (int32_t)(i * 7 % WORLD_VOCAB);
    struct req_ask ask = {.prompt = prompt,
                          .prompt_tokens = tokens,
                          .max_new_tokens = 1,
                          .sampling.top_p = 1,
                          .score = true};
    struct request *r = request_new(&ask);
    assert_non_null(r);
    request_ref(r);
    assert_int_equal(sched_submit(w->s, r, w->now_us), 0);
    return r;
}

/* A step scores 64 rows: the first one may have half of them, and keeps nobody else out. */
static void shares_scores(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    p.max_batched_tokens = 200;
    p.limits.value[LIMIT_BATCHED_TOKENS] = 200;
    struct world w;
    open_world(&w, &p);
    struct request *l = scored(&w, 127);
    plan(&w, EK_STEP_SCORES);
    land(&w);
    struct request *a = scored(&w, 20), *b = submit(&w, 30, 1, 400);
    plan(&w, EK_STEP_SCORES + 1 + 30); /* the last row of a prompt has no score */
    assert_int_equal(rows_of(&w, a), 20);
    assert_int_equal(rows_of(&w, b), 30);
    assert_int_equal(rows_of(&w, l), EK_STEP_SCORES - 19);
    land(&w);
    run_out(&w);
    assert_int_equal(l->finish, REQ_FIN_LENGTH);
    request_unref(l);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

/* The more important one is read first, however long it is. */
static void keeps_priorities(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    p.priority_policy = true;
    struct world w;
    open_world(&w, &p);
    struct request *l = submit(&w, 60, 1, 900); /* 900: important */
    struct request *a = submit(&w, 6, 1, 200);
    plan(&w, 16);
    assert_int_equal(rows_of(&w, l), 15);
    assert_int_equal(rows_of(&w, a), 1);
    land(&w);
    run_out(&w);
    request_unref(l);
    request_unref(a);
    close_world(&w);
}

/* What is free beside answers is learned of steps without prompts, what it costs all the same of
 * those with as many; how fast prompts are read, of neither. */
static void learns_what_is_free(void **state)
{
    (void)state;
    struct rates r = {.pace.line = {.known = true, .row_us = 80}};

    rates_landed(&r, &(struct flight){.rows = 34}, 0, 8000);
    assert_true(r.pace.knee > 99.9 && r.pace.knee < 100.1);
    struct flight f = {.rows = 100, .prefill_rows = 66, .spread = true};
    rates_landed(&r, &f, 0, 16000);
    assert_true(r.pace.knee < 100.1 && r.pace.paid == 0);
    double before = r.prefill;
    rates_landed(&r, &f, 0, 32000);
    assert_true(r.pace.paid > 0 && r.prefill == before && !r.prefill_known);
    f = (struct flight){.rows = 100, .prefill_rows = 66, .copies = 1, .spread = true};
    double paid = r.pace.paid;
    rates_landed(&r, &f, 0, 64000);
    f = (struct flight){.rows = 100, .prefill_rows = 66};
    rates_landed(&r, &f, 0, 96000);
    assert_true(r.pace.paid == paid);
}

/* Where one waits for blocks, or all of one tenant for slots, prompts get what is free beside the
 * answers, until one waits for prompts to be read. */
static void reads_slowly_where_blocks_lack(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    p.max_batched_tokens = 64;
    p.limits.value[LIMIT_BATCHED_TOKENS] = 64;
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 4, 20, 0);
    plan(&w, 4);
    land(&w);
    static const struct {
        enum engine_held held;
        uint32_t tenants, rows;
    } cases[] = {{HELD_TOKENS, 1, 64},
                 {HELD_BLOCKS, 1, 40},
                 {HELD_BLOCKS, 2, 40},
                 {HELD_LIMIT, 1, 40},
                 {HELD_LIMIT, 2, 64}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct request *l = submit(&w, 120, 1, 200);
        w.s->rates.pace =
            (struct pace){.line = {.known = true, .row_us = 1}, .knee = 40, .planned = 1};
        w.s->admission.held = cases[i].held;
        w.s->tenants.count = cases[i].tenants;
        plan(&w, cases[i].rows);
        assert_int_equal(rows_of(&w, l), cases[i].rows - 1);
        assert_int_equal(rows_of(&w, a), 1);
        assert_int_equal(w.s->flights.at[flights_newest(&w.s->flights)].full, cases[i].rows == 64);
        land(&w);
        sched_finish(w.s, l, REQ_FIN_ABORT, 0, w.now_us);
        request_unref(l);
        sched_reset_prefix(w.s);
    }
    run_out(&w);
    request_unref(a);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_short_one_beside_a_long_one),
        cmocka_unit_test(starves_nobody),
        cmocka_unit_test(reads_few_at_a_time),
        cmocka_unit_test(keeps_steps_short),
        cmocka_unit_test(keeps_what_pays),
        cmocka_unit_test(lends_what_ends_a_prompt),
        cmocka_unit_test(guesses_low),
        cmocka_unit_test(ends_prompts_that_fill_a_step),
        cmocka_unit_test(plans_late),
        cmocka_unit_test(plans_after_very_long_steps),
        cmocka_unit_test(plans_late_for_other_tenants),
        cmocka_unit_test(learns_nothing_of_late_results),
        cmocka_unit_test(shares_by_cost),
        cmocka_unit_test(lends_tokens),
        cmocka_unit_test(caps_what_a_step_reads_of_one),
        cmocka_unit_test(shares_scores),
        cmocka_unit_test(keeps_priorities),
        cmocka_unit_test(learns_what_is_free),
        cmocka_unit_test(reads_slowly_where_blocks_lack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
