/* What a row costs by where it stands: devices of several kinds, whose times are noisy, play steps
 * of prompts; the figures must be theirs, or nothing is told. */
#include "server/engine/price.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

struct price_device {
    double fixed_us, row_us, context_us, read_us, deep_us;
};

static uint64_t g_seed;

static double chance(void)
{
    g_seed = g_seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(g_seed >> 11) / 9007199254740992.0;
}

static double time_of(const struct price_device *d, const struct price_step *s)
{
    return d->fixed_us + d->row_us * s->rows + d->context_us * (double)s->context +
           d->read_us * (double)s->read + d->deep_us * s->deep;
}

/* How far a machine is from quiet. */
struct price_noise {
    double even;          /* every step, up and down, by at most this share of it */
    double stolen, times; /* so many of the steps take up to that many times as long */
};

#define LONGEST 16384u

/* A long prompt is read in steps of 512, now and then beside short ones; it begins again when it
 * has LONGEST tokens. */
static void play(struct prices *p, const struct price_device *d, uint32_t steps,
                 struct price_noise noise)
{
    double at = 0;

    p->longest = LONGEST;
    for (uint32_t i = 0; i < steps; i++) {
        double shorts = floor(3 * chance()) * 128, rows = 512 - shorts;
        struct price_step s = {.rows = 512,
                               .context = (uint64_t)(5000 * chance()),
                               .read = (uint64_t)(at + rows + shorts),
                               .deep = rows * (at + rows / 2) + shorts * 64};
        if (chance() < 0.3) { /* short ones alone */
            s.rows = (uint32_t)(256 + 256 * chance());
            s.read = s.rows;
            s.deep = s.rows * 64.0;
        } else {
            at = at > LONGEST ? 0 : at + rows;
        }
        double us = time_of(d, &s) * (1 + noise.even * (2 * chance() - 1));
        if (chance() < noise.stolen) /* somebody else had the machine */
            us *= 1 + (noise.times - 1) * chance();
        prices_landed(p, &s, (uint64_t)us);
    }
}

static const struct price_device g_devices[] = {{300, 70, 0.02, 0, 0.0384},
                                                {8000, 80, 0.07, 0.07, 0.003},
                                                {0, 80, 0.07, 0.02, 0.01},
                                                {20000, 20, 0.01, 0.5, 0.01}};

/* The figure is at most and at least that share of what it is, on each device with each seed. */
static void expect(uint32_t steps, struct price_noise noise, double least, double most)
{
    for (uint64_t seed = 1; seed <= 100; seed++) {
        for (size_t i = 0; i < sizeof(g_devices) / sizeof(g_devices[0]); i++) {
            const struct price_device *d = &g_devices[i];
            struct prices p = {0};
            g_seed = seed;
            play(&p, d, steps, noise);
            for (uint32_t k = 0; k + 1 < PRICE_SUMS; k++)
                assert_true(p.us[k] >= 0);
            double is = d->deep_us / d->row_us;
            if (!(p.now.deeper >= least * is && p.now.deeper <= most * is))
                fail_msg("device %zu, seed %u, %u steps: %g, not %g", i, (unsigned)seed, steps,
                         p.now.deeper, is);
        }
    }
}

static void test_it_finds_what_there_is(void **state)
{
    (void)state;
    const struct price_noise some = {0.05, 0.01, 40};

    expect(64, some, 0, 1.3);
    expect(150, some, 0.6, 1.15);
    expect(1500, some, 0.7, 1.12);
}

/* Every fifth step waits for other processes, for up to three times its own time. */
static void test_a_busy_machine(void **state)
{
    (void)state;
    const struct price_noise busy = {0.1, 0.2, 4};

    expect(300, busy, 0, 1.35);
    expect(600, busy, 0.3, 1.35);
    expect(1500, busy, 0.5, 1.25);
}

static struct price_noise even(double share)
{
    return (struct price_noise){share, 0.01, 40};
}

/* Where depth costs nothing by the row, none is dearer by more than the noise. */
static void test_nothing_is_made_up(void **state)
{
    (void)state;
    const struct price_device flat = {300, 80, 0.07, 0, 0}, reads = {300, 80, 0.07, 0.07, 0};

    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct prices p = {0}, q = {0};
        g_seed = seed;
        play(&p, &flat, 1500, even(0.1));
        play(&q, &reads, 1500, even(0.1));
        assert_true(price_of(&p.now, 16384, 256) < 256 * 1.1);
        assert_true(price_of(&q.now, 16384, 256) < 256 * 1.1);
    }
}

/* Depth costs next to nothing, and on machines without noise even that can be told: rows cost the
 * same all the same, and no step is made shorter to learn more. Where it costs more it is told. */
static void test_next_to_nothing_is_nothing(void **state)
{
    (void)state;
    const struct price_noise none = {0, 0, 1};

    for (uint64_t seed = 1; seed <= 100; seed++) {
        double last = 0.8 * PRICE_LEAST * seed / 100; /* of a row, the last one's in addition */
        struct price_device d = {300, 80, 0.07, 0.0655, 80 * last / LONGEST};
        struct prices p = {0}, q = {0};
        g_seed = seed;
        play(&p, &d, 1000, none);
        assert_true(p.us[1] > 0);       /* known, */
        assert_true(p.now.deeper == 0); /* and nothing */
        for (uint32_t i = 0; i < 2 * PRICE_EXPLORE; i++)
            assert_int_equal(prices_budget(&p, 512), 512);
        d.deep_us = 80 * 2 * PRICE_LEAST / LONGEST;
        play(&q, &d, 1000, none);
        assert_true(q.now.deeper * LONGEST > PRICE_LEAST);
    }
}

static void test_too_little_tells_nothing(void **state)
{
    (void)state;
    const struct price_device d = {300, 70, 0.02, 0, 0.0384};
    struct prices p = {0};

    g_seed = 1;
    play(&p, &d, 30, even(0));
    assert_true(p.now.deeper == 0);
    p = (struct prices){.longest = LONGEST};
    for (uint32_t i = 0; i < 1000; i++) { /* of one size: depth and rows times depth are one */
        struct price_step s = {512, 0, i % 32 * 512 + 512, 512.0 * (i % 32 * 512 + 256)};
        prices_landed(&p, &s, (uint64_t)time_of(&d, &s));
        prices_landed(&p, &s, 0);
    }
    assert_true(p.now.deeper == 0);
    for (uint32_t i = 0; i < 200; i++)
        assert_int_equal(prices_budget(&p, 512), 512); /* and nothing is tried out */
}

/* Another model is loaded on the machine: what was learned is forgotten. */
static void test_it_follows(void **state)
{
    (void)state;
    const struct price_device deep = {300, 70, 0.02, 0, 0.0384}, flat = {300, 70, 0.02, 0, 0};
    struct prices p = {0};

    g_seed = 2;
    play(&p, &deep, 1000, even(0.02));
    assert_true(price_of(&p.now, 16384, 100) > 600);
    play(&p, &flat, 5000, even(0.02));
    assert_true(price_of(&p.now, 16384, 100) < 115);
}

/* More rows cost more, deeper ones too, each one row at least and PRICE_DEAREST at most; and what
 * a cost holds is the most that costs no more. */
static void test_costs_are_in_order(void **state)
{
    (void)state;
    const struct price some = {.deeper = 0.01};
    assert_int_equal(price_of(&some, 100, 50), 113); /* the middle one has 125 before it */
    g_seed = 3;
    for (uint32_t i = 0; i < 20000; i++) {
        struct price p = {.deeper = i % 7 == 0 ? 0 : pow(10, -7 + 7 * chance()),
                          .fixed = 1000 * chance(),
                          .read = 0.01 * chance()};
        uint32_t at = (uint32_t)(1e6 * chance() * chance()), rows = (uint32_t)(8192 * chance());
        uint32_t cost = price_of(&p, at, rows), of = (uint32_t)(20000 * chance() * chance());
        assert_in_range(cost, rows, rows * PRICE_DEAREST);
        assert_true(price_of(&p, at, rows + 1) > cost);
        assert_true(price_of(&p, at + 1000, rows) >= cost);
        assert_int_equal(price_rows(&p, at, cost, rows), rows);
        uint32_t fit = price_rows(&p, at, of, rows);
        assert_true(fit <= rows && price_of(&p, at, fit) <= of);
        assert_true(fit == rows || price_of(&p, at, fit + 1) > of);
        uint32_t least = price_least(&p, at, rows);
        assert_true(least <= rows && (least > 0) == (p.deeper > 0 && rows > 0));
    }
}

/* As many rows as are needed lose no more of the speed than promised, and one less loses more. */
static void test_least_keeps_the_speed(void **state)
{
    (void)state;
    const struct price p = {.deeper = 0.0001, .fixed = 20, .read = 0.001};
    uint32_t n = price_least(&p, 65536, 4096);
    double lost = p.fixed + p.read * 65536, each = 1 + p.deeper * 65536;

    assert_in_range(n, PRICE_ROWS + 1, 4095);
    double full = 4096 / (lost + 4096 * each);
    assert_true(n / (lost + n * each) >= (1 - PRICE_LOSS) * full * 0.999999);
    assert_true((n - 1) / (lost + (n - 1) * each) < (1 - PRICE_LOSS) * full);
}

/* Once something is known, every PRICE_EXPLORE-th step has half. */
static void test_it_tries_out(void **state)
{
    (void)state;
    struct prices p = {.now.deeper = 0.001};
    uint32_t halves = 0;

    for (uint32_t i = 0; i < 10 * PRICE_EXPLORE; i++)
        halves += prices_budget(&p, 512) == 256;
    assert_int_equal(halves, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_finds_what_there_is),
        cmocka_unit_test(test_a_busy_machine),
        cmocka_unit_test(test_nothing_is_made_up),
        cmocka_unit_test(test_next_to_nothing_is_nothing),
        cmocka_unit_test(test_too_little_tells_nothing),
        cmocka_unit_test(test_it_follows),
        cmocka_unit_test(test_costs_are_in_order),
        cmocka_unit_test(test_least_keeps_the_speed),
        cmocka_unit_test(test_it_tries_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
