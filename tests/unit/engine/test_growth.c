/* How long answers still grow: what is assumed, what is learned from those that ended and from
 * those that still run, and that it is forgotten. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/engine/growth.h"

static void make(struct growth *g, uint32_t count, uint32_t tokens, bool ends)
{
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < tokens; k++)
            growth_made(g, k);
        if (ends)
            growth_ended(g, tokens, true);
    }
}

static void assumes_a_mean(void **state)
{
    (void)state;
    struct growth g;
    growth_init(&g);
    assert_true(fabs(growth_share(&g, 0, 512) - exp(-1)) < 1e-9);
    assert_true(fabs(growth_share(&g, 100000, 512) - exp(-1)) < 1e-9);
    assert_true(growth_share(&g, 7, 0) == 1);
}

static void is_a_share_that_falls(void **state)
{
    (void)state;
    struct growth g;
    growth_init(&g);
    for (uint32_t i = 1; i < 300; i++)
        make(&g, 1, i * 37 % 211 + 1, i % 5 != 0);
    static const uint32_t at[] = {0, 1, 3, 4, 15, 16, 17, 63, 64, 500, 1u << 20, UINT32_MAX / 2};
    for (size_t i = 0; i < sizeof(at) / sizeof(*at); i++) {
        double before = 1;
        for (uint32_t more = 0; more < 4000; more += 7) {
            double share = growth_share(&g, at[i], more);
            assert_true(share >= 0 && share <= before);
            /* in two parts it is the same */
            double parts = growth_share(&g, at[i], more / 3) *
                           growth_share(&g, at[i] + more / 3, more - more / 3);
            assert_true(fabs(share - parts) < 1e-9);
            before = share;
        }
    }
}

static void learns_a_length(void **state)
{
    (void)state;
    struct growth g;
    growth_init(&g);
    make(&g, 300, 100, true);
    assert_true(growth_share(&g, 0, 64) > 0.95);
    assert_true(growth_share(&g, 0, 128) < 0.1);
    assert_true(growth_share(&g, 90, 60) < 0.1);
}

/* Ten short answers have ended, thirty long ones have not: who is over the short ones' length goes
 * on for long. */
static void counts_those_that_run(void **state)
{
    (void)state;
    struct growth g, blind;
    growth_init(&g);
    growth_init(&blind);
    make(&g, 30, 1000, false);
    make(&g, 10, 20, true);
    make(&blind, 10, 20, true);
    assert_true(growth_share(&g, 30, 900) > 0.85);
    assert_true(growth_share(&g, 0, 900) > 0.6 && growth_share(&g, 0, 900) < 0.85);
    assert_true(growth_share(&blind, 30, 900) < 0.3);
}

/* At a length that was known beforehand: that says nothing of how long others are. */
static void leaves_out_who_is_cut_off(void **state)
{
    (void)state;
    struct growth g;
    growth_init(&g);
    for (uint32_t i = 0; i < 300; i++) {
        for (uint32_t k = 0; k < 16; k++)
            growth_made(&g, k);
        growth_ended(&g, 16, false);
    }
    assert_true(growth_share(&g, 0, 16) > 0.95);
    assert_true(fabs(growth_share(&g, 16, 512) - exp(-1)) < 1e-9);
}

static void forgets(void **state)
{
    (void)state;
    struct growth g;
    growth_init(&g);
    make(&g, 3000, 100, true);
    assert_true(growth_share(&g, 0, 200) < 0.05);
    make(&g, 2500, 400, true);
    assert_true(growth_share(&g, 0, 200) > 0.9);
    growth_ended(&g, 0, true); /* before its first token */
    growth_ended(&g, UINT32_MAX, true);
    assert_true(growth_share(&g, 0, 200) > 0.9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(assumes_a_mean),
        cmocka_unit_test(is_a_share_that_falls),
        cmocka_unit_test(learns_a_length),
        cmocka_unit_test(counts_those_that_run),
        cmocka_unit_test(leaves_out_who_is_cut_off),
        cmocka_unit_test(forgets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
