/* The budget of a step from what steps cost: devices of several kinds, whose times are noisy, play
 * steps of random sizes; what is chosen must lose no more of the speed of prompts than promised. */
#include "server/engine/pace.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

struct pace_device {
    double least_us, fixed_us, row_us, context_us; /* the longer of least and rows, and the rest */
};

static uint64_t g_seed;

static double chance(void)
{
    g_seed = g_seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(g_seed >> 11) / 9007199254740992.0;
}

static double time_of(const struct pace_device *d, double rows, double context)
{
    return fmax(d->least_us, d->row_us * rows) + d->fixed_us + d->context_us * context;
}

/* Prompts of random lengths are read beside `decodes` answers; each step takes its time, a fifth
 * more or less by chance. Returns the budget at the end. */
static uint32_t play(struct pace *p, const struct pace_device *d, uint32_t most, uint32_t decodes,
                     uint32_t steps, double noise)
{
    double left = 0, context = 20000;

    for (uint32_t i = 0; i < steps; i++) {
        uint32_t rows = pace_rows(p, most, decodes);
        assert_in_range(rows, most < decodes ? most : 1, most);
        while (left < 1)
            left = floor(64 + 3000 * chance() * chance());
        double read = fmin(left, rows > decodes ? rows - decodes : 0);
        left -= read;
        context = fmax(1000, context + 4000 * (chance() - 0.5));
        double us = time_of(d, read + decodes, context) * (1 + noise * (2 * chance() - 1));
        if (chance() < 0.01)
            us *= 20; /* somebody else had the machine */
        pace_landed(p, (uint32_t)read + decodes, (uint64_t)context, (uint64_t)us);
    }
    return pace_budget(p, most, 0);
}

/* Of prompts, in steps full of them. */
static double speed(const struct pace_device *d, uint32_t rows)
{
    return rows / time_of(d, rows, 0);
}

static void test_no_more_is_lost_than_promised(void **state)
{
    (void)state;
    static const struct {
        struct pace_device d;
        uint32_t most, least, largest; /* what may be chosen */
    } cases[] = {
        {{8000, 0, 80, 0.07}, 2048, 512, 1024},      /* the cost model of schedsim.h */
        {{8000, 20000, 80, 0.07}, 8192, 4096, 8192}, /* a fixed cost a step */
        {{5000, 1000, 18, 0.01}, 8192, 1024, 4096},
        {{0, 0, 3000, 0}, 2048, 512, 1024}, /* a processor */
        {{0, 30000, 0.5, 0}, 4096, 4096, 4096},
    };
    for (uint64_t seed = 1; seed <= 20; seed++) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            struct pace p;
            g_seed = seed;
            pace_init(&p, 0);
            uint32_t rows = play(&p, &cases[i].d, cases[i].most, 40, 3000, 0.2);
            double lost = 1 - speed(&cases[i].d, rows) / speed(&cases[i].d, cases[i].most);
            if (rows < cases[i].least || rows > cases[i].largest || lost > 2.5 * PACE_LOSS)
                fail_msg("case %zu, seed %u: %u rows, %.3f lost", i, (unsigned)seed, rows, lost);
        }
    }
}

/* Steps full of prompts that several tenants share, beside 8 answers; each takes its time, a tenth
 * more or less by chance. Returns the rows of prompts of the last one; *ret_small: steps with less
 * than `small` rows of prompts. */
static uint32_t play_shared(struct pace *p, const struct pace_device *d, uint32_t most,
                            uint32_t steps, uint32_t small, uint32_t *ret_small)
{
    uint32_t rows = most;

    *ret_small = 0;
    for (uint32_t i = 1; i <= steps; i++) {
        uint32_t usual = pace_rows(p, most, 8), few = pace_shared(p, most, 8);
        bool shared = few != 0 && few < usual;
        rows = shared ? few : usual;
        uint32_t had = shared && i % 3 != 0 ? rows - rows / 6 : rows; /* prompts end in most */
        double us = time_of(d, had, 4000) * (1 + 0.1 * (2 * chance() - 1));
        const bool judged = shared && p->line.known;
        if (shared)
            pace_shared_landed(p, had, 4000, (uint64_t)us);
        if (!judged)
            pace_landed(p, had, 4000, (uint64_t)us);
        *ret_small += rows - 8 < small;
    }
    return rows - 8;
}

/* Smaller steps for several tenants, where prompts are read as fast in them, and nowhere else: how
 * much smaller depends on how well the times tell. */
static void test_several_tenants_have_smaller_steps(void **state)
{
    (void)state;
    static const struct {
        struct pace_device d;
        uint32_t most, least, largest;
    } cases[] = {
        {{0, 300, 200, 0.07}, 2048, 64, 384},        /* a processor and a small model */
        {{0, 300, 200, 0.07}, 512, 64, 384},         /* and a limit below PACE_LEAST */
        {{8000, 0, 80, 0.07}, 2048, 96, 384},        /* weights are read in the time of 100 rows */
        {{24000, 0, 80, 0.07}, 2048, 384, 2048},     /* of 300 rows */
        {{8000, 20000, 80, 0.07}, 8192, 4096, 8192}, /* a fixed cost a step */
    };
    for (uint64_t seed = 1; seed <= 20; seed++) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            struct pace p;
            uint32_t most = cases[i].most, small, rows;
            g_seed = seed;
            pace_init(&p, 0);
            (void)play(&p, &cases[i].d, most, 40, 3000, 0.02);
            (void)play_shared(&p, &cases[i].d, most, 2000, 0, &small);
            rows = play_shared(&p, &cases[i].d, most, 3001, cases[i].least, &small);
            double lost = 1 - speed(&cases[i].d, rows) / speed(&cases[i].d, most);
            if (rows > cases[i].largest || lost > 2.5 * PACE_LOSS || small > 3001 / 20)
                fail_msg("case %zu, seed %u: %u rows, %.3f lost, %u small", i, (unsigned)seed, rows,
                         lost, small);
        }
    }
}

/* Another model, another load: what was learned is forgotten. */
static void test_it_follows(void **state)
{
    (void)state;
    const struct pace_device cheap = {8000, 0, 80, 0.07}, dear = {8000, 60000, 80, 0.07};
    struct pace p;

    g_seed = 3;
    pace_init(&p, 0);
    assert_int_equal(play(&p, &cheap, 2048, 40, 2000, 0.02), 512);
    assert_int_equal(play(&p, &dear, 2048, 40, 4000, 0.02), 2048);
    assert_int_equal(play(&p, &cheap, 2048, 40, 4000, 0.02), 512);
}

static void test_nothing_is_chosen_of_too_little(void **state)
{
    (void)state;
    const struct pace_device d = {8000, 0, 80, 0};
    struct pace p;

    g_seed = 4;
    pace_init(&p, 0);
    assert_int_equal(pace_rows(&p, 2048, 0), 2048);
    assert_int_equal(play(&p, &d, 2048, 40, 30, 0), 2048); /* too few */
    pace_init(&p, 0);
    for (uint32_t i = 0; i < 1000; i++) { /* of one size; no time; few rows */
        (void)pace_rows(&p, 2048, 0);
        pace_landed(&p, 2048, 100000, 164000);
        pace_landed(&p, 1024, 100000, 0);
        pace_landed(&p, 64, 100000, 8000);
    }
    assert_int_equal(pace_budget(&p, 2048, 0), 2048);
    assert_false(p.line.known);
    uint32_t few = 0;
    for (uint32_t i = 0; i < 1000; i++) { /* it does not go on trying */
        uint32_t rows = pace_shared(&p, 2048, 0);
        few += rows != 0;
        pace_shared_landed(&p, rows, 100000, 164000);
    }
    assert_int_equal(few, 128);
    for (uint32_t most = 1; most <= PACE_LEAST; most++) { /* a small limit is the operator's */
        for (uint32_t i = 0; i < 100; i++)
            assert_int_equal(pace_rows(&p, most, 3), most);
    }
}

/* Where a step has few rows of prompts anyway, those for several tenants have half of that at
 * first. */
static void test_few_rows_of_prompts_are_shared_by_fewer(void **state)
{
    (void)state;
    struct pace p;

    pace_init(&p, 256); /* before anything is known two sizes in turn, one of them smaller */
    assert_int_equal(pace_shared(&p, 320, 10), 192 + 10);
    assert_int_equal(pace_shared(&p, 320, 10), 256 + 10);
    assert_int_equal(pace_shared(&p, 320, 10), 192 + 10);
    p.line = (struct line){.known = true, .row_us = 80};
    assert_int_equal(pace_shared(&p, 320, 10), 128 + 10);
    p.shared_least = 256; /* such steps were too slow: the others are no larger */
    p.shared_landed = -10;
    assert_int_equal(pace_shared(&p, 320, 10), 0);
    pace_init(&p, 128);
    assert_int_equal(pace_shared(&p, 192, 10), 0); /* of so few rows nothing is learned */
}

/* Answers come on top, and never beyond the limit. */
static void test_answers_have_their_rows(void **state)
{
    (void)state;
    const struct pace_device d = {8000, 0, 80, 0.07};
    struct pace p;

    g_seed = 5;
    pace_init(&p, 0);
    uint32_t rows = play(&p, &d, 2048, 40, 4000, 0.02);
    assert_true(rows < 2048);
    assert_int_equal(pace_budget(&p, 2048, 200), rows + 200);
    assert_int_equal(pace_budget(&p, 2048, 1900), 2048);
    assert_int_equal(pace_budget(&p, 600, 200), 600);
    assert_int_equal(pace_budget(&p, 600, 700), 600);
    uint32_t other = 0;
    for (uint32_t i = 0; i < 320; i++)
        other += pace_rows(&p, 2048, 200) != rows + 200;
    assert_int_equal(other, 10); /* to learn from */
}

/* Steps of answers, and of prompts as pace_spare() says; those with less than 192 rows take
 * `small_us` longer. Returns how many had what is free. */
static uint32_t play_mixed(struct pace *p, const struct pace_device *d, double small_us,
                           uint32_t decodes, uint32_t steps)
{
    double context = 20000, left = 0;
    uint32_t spread = 0;

    for (uint32_t i = 0; i < steps; i++) {
        uint32_t rows = pace_rows(p, 2048, decodes), spare = pace_spare(p, 2048, decodes);
        context = fmax(1000, context + 4000 * (chance() - 0.5));
        if (left < 1 && i % 3 != 0)
            left = floor(64 + 3000 * chance() * chance());
        uint32_t read = (uint32_t)fmin(left, (spare != 0 ? spare : rows) - decodes);
        left -= read;
        double us = time_of(d, decodes + read, context);
        us += read > 0 && decodes + read < 192 ? small_us : 0;
        us *= 1 + 0.2 * (2 * chance() - 1);
        us *= chance() < 0.01 ? 20 : 1;
        pace_landed(p, decodes + read, (uint64_t)context, (uint64_t)us);
        if (read == 0)
            pace_answered(p, decodes, (uint64_t)context, (uint64_t)us);
        else if (spare != 0)
            pace_spread(p, read, (uint64_t)context, (uint64_t)us);
        spread += read > 0 && spare != 0;
    }
    return spread;
}

/* Rows that fit into the time of answers alone are found where there are some, and only there. */
static void test_what_is_free_beside_answers(void **state)
{
    (void)state;
    static const struct {
        struct pace_device d;
        double small_us;
        uint32_t decodes;
        double knee; /* 0 = none is free */
    } cases[] = {
        {{8000, 0, 80, 0.07}, 0, 34, 100}, /* the cost model of schedsim.h */
        {{8000, 0, 80, 0.07}, 0, 90, 0},   /* too few are left */
        {{8000, 0, 80, 0.07}, 0, 150, 0},  /* answers fill the step */
        {{5000, 1000, 18, 0.01}, 0, 64, 278},
        {{0, 0, 3000, 0}, 0, 8, 0}, /* a processor: each row takes its time */
        {{0, 5000, 200, 0.01}, 0, 8, 0},
        {{8000, 0, 80, 0.07},
         12000,
         34,
         0}, /* small steps with prompts cost more than large ones */
    };
    for (uint64_t seed = 1; seed <= 20; seed++) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            struct pace p;
            g_seed = seed;
            pace_init(&p, 0);
            (void)play_mixed(&p, &cases[i].d, cases[i].small_us, cases[i].decodes, 3000);
            double knee = cases[i].knee; /* an error makes it smaller */
            if (knee > 0 && (p.knee < 0.6 * knee || p.knee > 1.25 * knee))
                fail_msg("case %zu, seed %u: %.0f rows", i, (unsigned)seed, p.knee);
            uint32_t spread =
                play_mixed(&p, &cases[i].d, cases[i].small_us, cases[i].decodes, 3000);
            if (knee > 0 ? spread < 800 : spread > 200)
                fail_msg("case %zu, seed %u: %u steps", i, (unsigned)seed, spread);
        }
    }
}

static void test_spare_rows_are_bounded(void **state)
{
    (void)state;
    struct pace p = {.line = {.known = true, .row_us = 80}, .knee = 100, .planned = 1};

    assert_int_equal(pace_spare(&p, 2048, 34), 100);
    assert_int_equal(pace_spare(&p, 64, 20), 64);
    assert_int_equal(pace_spare(&p, 2048, 68), 100);
    assert_int_equal(pace_spare(&p, 2048, 69), 0); /* less than PACE_SPARE */
    assert_int_equal(pace_spare(&p, 2048, 0), 0);  /* no answer waits */
    p.knee = 400;
    assert_int_equal(pace_spare(&p, 2048, 300), 400);
    assert_int_equal(pace_spare(&p, 2048, 301), 0); /* prompts would take four times as long */
    p.planned = 32;
    assert_int_equal(pace_spare(&p, 2048, 34), 0); /* it is time to learn */
    p.planned++;
    assert_int_equal(pace_spare(&p, 2048, 34), 400);
    p.line.fixed_us = 1000000; /* large steps read five times as fast */
    assert_int_equal(pace_spare(&p, 2048, 34), 0);
    p.line.fixed_us = 0;
    p.line.known = false;
    assert_int_equal(pace_spare(&p, 2048, 34), 0);
}

/* Of few rows noise would look like their price. */
static void test_few_rows_tell_nothing_of_their_price(void **state)
{
    (void)state;
    struct pace p = {.line = {.known = true, .row_us = 80}, .knee = 100, .planned = 1};

    for (uint32_t i = 0; i < 100; i++) {
        pace_spread(&p, 1, 0, 8800);
        pace_spread(&p, 1, 0, 7200);
    }
    assert_true(p.paid == 0);
    pace_spread(&p, PACE_SPARE, 0, 9600);
    assert_true(p.paid > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_more_is_lost_than_promised),
        cmocka_unit_test(test_several_tenants_have_smaller_steps),
        cmocka_unit_test(test_it_follows),
        cmocka_unit_test(test_nothing_is_chosen_of_too_little),
        cmocka_unit_test(test_few_rows_of_prompts_are_shared_by_fewer),
        cmocka_unit_test(test_answers_have_their_rows),
        cmocka_unit_test(test_what_is_free_beside_answers),
        cmocka_unit_test(test_spare_rows_are_bounded),
        cmocka_unit_test(test_few_rows_tell_nothing_of_their_price),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
