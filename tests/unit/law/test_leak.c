/* Protects: memory that grows is told before nothing is left, and what rises and falls is not. The
 * figures are drawn at random, from a seed that is printed. */
#include "supervisor/law/leak.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/share.h"

#define GIB    1073741824.0
#define TOTAL  (64 * GIB)
#define MINUTE 60000000u
#define RUNS   1000
#define SEED   20261123u
#define NOISE  0.002 /* of what is used */
#define PI     3.14159265358979

static uint64_t seed = SEED;

static double uniform(double from, double to)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return from + (to - from) * (double)(seed >> 11) / 9007199254740992.0;
}

static double log_uniform(double from, double to)
{
    return exp(uniform(log(from), log(to)));
}

/* Whether this course runs today; then its figures are drawn from its number. */
static bool takes_course(uint32_t number)
{
    seed = (SEED + number) * 0x9e3779b97f4a7c15u;
    seed ^= seed >> 29;
    return share_takes(number);
}

/* A life of so many hours; used() says the bytes at an hour. */
struct course {
    double base, rate;              /* of TOTAL; of the base an hour */
    double height, period_h, phase; /* of a sawtooth; of TOTAL */
    double tooth;                   /* how many have been */
    double daily;                   /* height of a day's cycle, of TOTAL */
    double fills, fills_h;          /* a cache that fills, of TOTAL, with this time constant */
    double step, step_h;            /* rises once */
};

/* Each minute; teeth are not of one length, or a clock would have made them. */
static double used(struct course *c, double h)
{
    if (c->period_h > 0)
        c->tooth += uniform(0.9, 1.1) / 60 / c->period_h;
    double saw = fmod(c->tooth + c->phase, 1) * c->height;
    double day = c->daily * (0.5 - 0.5 * cos(2 * PI * (h / 24 + c->phase)));
    double cache = c->fills * (1 - exp(-h / (c->fills_h > 0 ? c->fills_h : 1)));
    double once = h >= c->step_h ? c->step : 0;
    double clean = c->base * (1 + c->rate * h) + saw + day + cache + once;
    return TOTAL * clean * (1 + uniform(-NOISE, NOISE));
}

struct leak_found {
    double told_h, due_h, urgent_h; /* NAN: never */
    double at;                      /* the level when a restart was due */
    char why[200];
};

static struct leak_found live(struct course *c, double hours)
{
    struct leak_found f = {NAN, NAN, NAN, NAN, ""};
    struct leak l;
    leak_start(&l, LEAK_SURE_S, MINUTE);
    for (double m = 1; m < hours * 60; m++) {
        double u = used(c, m / 60);
        if (u >= TOTAL)
            break;
        struct leak_verdict v =
            leak_step(&l, u, TOTAL - u, "host memory", (uint64_t)(m + 1) * MINUTE);
        if (v.first) {
            f.told_h = m / 60;
            memcpy(f.why, v.why, sizeof(f.why));
        }
        if (v.due && isnan(f.due_h)) {
            f.due_h = m / 60;
            f.at = u / TOTAL;
        }
        if (v.urgent && isnan(f.urgent_h))
            f.urgent_h = m / 60;
    }
    return f;
}

/* 0.1 to 10 % of the base an hour, beside a small sawtooth: told; a restart is due, and at last at
 * any hour, before nothing is left. */
static void test_leaks_are_found(void **state)
{
    (void)state;
    double most = 0;
    int urgent = 0, tried = 0;
    for (int i = 0; i < RUNS; i++) {
        if (!takes_course((uint32_t)i))
            continue;
        tried++;
        struct course c = {.base = uniform(0.2, 0.6),
                           .rate = log_uniform(0.001, 0.1),
                           .height = uniform(0, 0.05),
                           .period_h = log_uniform(0.1, 4),
                           .phase = uniform(0, 1)};
        double full_h = ((1 - c.height) / c.base - 1) / c.rate;
        struct leak_found f = live(&c, fmin(full_h, 300));
        bool ends = full_h < 300;
        urgent += !ends || !isnan(f.urgent_h);
        if (isnan(f.told_h) || (ends && isnan(f.due_h)))
            fail_msg("run %d: %.2f %% an hour from %.0f %% (full after %.0f h): told %.1f h, due "
                     "%.1f h",
                     i, c.rate * 100, c.base * 100, full_h, f.told_h, f.due_h);
        if (ends)
            most = fmax(most, f.at);
    }
    print_message("the latest restart was due at %.1f %%, urgent %d of %d\n", most * 100, urgent,
                  tried);
    assert_true(tried > 0 &&
                urgent >= tried - tried / 50); /* a sawtooth's last tooth may take all at once */
}

static int falsely(struct course *c)
{
    struct leak_found f = live(c, 240);
    if (!isnan(f.told_h))
        print_message("base %.2f, height %.2f, period %.2f h, phase %.2f, day %.2f: told after "
                      "%.1f h: %s\n",
                      c->base, c->height, c->period_h, c->phase, c->daily, f.told_h, f.why);
    return !isnan(f.told_h);
}

static void test_sawtooths_are_none(void **state)
{
    (void)state;
    int wrong = 0;
    for (int i = 0; i < RUNS; i++) {
        if (!takes_course((uint32_t)(RUNS + i)))
            continue;
        struct course c = {.base = uniform(0.2, 0.5),
                           .height = uniform(0.02, 0.3),
                           .period_h = log_uniform(0.05, 8),
                           .phase = uniform(0, 1)};
        wrong += falsely(&c);
    }
    assert_int_equal(wrong, 0);
}

/* Days, caches that fill and a model that is loaded, together at most 85 %. */
static void test_days_and_caches_are_none(void **state)
{
    (void)state;
    int wrong = 0;
    for (int i = 0; i < RUNS / 2; i++) {
        if (!takes_course((uint32_t)(2 * RUNS + i)))
            continue;
        struct course c = {.base = uniform(0.2, 0.45),
                           .daily = uniform(0.05, 0.2),
                           .phase = uniform(0, 1),
                           .fills = uniform(0, 0.1),
                           .fills_h = log_uniform(0.1, 8),
                           .step = uniform(0, 0.1),
                           .step_h = uniform(0, 240)};
        wrong += falsely(&c);
    }
    assert_int_equal(wrong, 0);
}

/* Told once a process; another process begins anew; what is no number is no reading. */
static void test_told_once(void **state)
{
    (void)state;
    struct leak l = {0};
    int told = 0, due = 0;
    assert_false(leak_step(&l, GIB, GIB, "x", MINUTE).grows); /* never ready */
    for (int life = 0; life < 2; life++) {
        uint64_t begin = (uint64_t)(1 + life * 10000) * MINUTE;
        leak_start(&l, LEAK_SURE_S, begin);
        for (uint64_t m = 1; m < 1150; m++) {
            double u = TOTAL * (0.4 + 0.0005 * (double)m);
            struct leak_verdict v = leak_step(&l, u, TOTAL - u, "x", begin + m * MINUTE);
            told += v.first;
            due += v.due;
            assert_false(leak_step(&l, NAN, GIB, "x", begin + m * MINUTE).grows);
            assert_false(leak_step(&l, GIB, NAN, "x", begin + m * MINUTE).grows);
        }
    }
    assert_int_equal(told, 2);
    assert_true(due > 100); /* as long as it is */
}

/* A pool that was taken at once leaves little of a device: that is no reason for anything. */
static void test_little_left_is_no_leak(void **state)
{
    (void)state;
    struct leak l;
    leak_start(&l, LEAK_SURE_S, MINUTE);
    for (uint64_t m = 2; m < 240 * 60; m++)
        assert_false(leak_step(&l, 0.97 * TOTAL * (1 + uniform(-NOISE, NOISE)), 0.02 * TOTAL, "x",
                               m * MINUTE)
                         .grows);
}

/* A leak of one of two processes, or of both, while the other has a day's cycle: whose it is. */
static void test_whose_it_is(void **state)
{
    (void)state;
    static const struct {
        double engine, server; /* of the leak, their parts */
        bool of_engine;
    } cases[] = {{1, 0, true}, {0.95, 0.05, true}, {0.6, 0.4, false}, {0, 1, false}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct leak all, part;
        int due = 0, said = 0;
        leak_start(&all, LEAK_SURE_S, MINUTE);
        leak_start(&part, LEAK_SURE_S, MINUTE);
        for (uint64_t m = 2; m < 400 * 60; m++) {
            double leaked = TOTAL * 0.002 * (double)m / 60;
            double day = TOTAL * 0.005 * (0.5 - 0.5 * cos(2 * PI * (double)m / 1440));
            double engine = (0.3 * TOTAL + leaked * cases[i].engine) * (1 + uniform(-NOISE, NOISE));
            double own = engine + 0.02 * TOTAL + day + leaked * cases[i].server, left = TOTAL - own;
            struct leak_verdict v = leak_step(&all, own, left, "host memory", m * MINUTE);
            struct leak_verdict p = leak_step(&part, engine, left, "", m * MINUTE);
            due += v.due;
            said += v.due && leak_is_of(&v, &p);
            if (left < 0.02 * TOTAL)
                break;
        }
        print_message("%zu: due %d times, of the engine %d times\n", i, due, said);
        assert_true(due > 0);
        if (cases[i].of_engine)
            assert_true(said > 0.9 * due);
        else
            assert_int_equal(said, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leaks_are_found),          cmocka_unit_test(test_sawtooths_are_none),
        cmocka_unit_test(test_days_and_caches_are_none), cmocka_unit_test(test_told_once),
        cmocka_unit_test(test_little_left_is_no_leak),   cmocka_unit_test(test_whose_it_is),
    };
    print_message("seed %u\n", SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
