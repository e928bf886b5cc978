/* How long answers still grow: what is assumed, what is learned from those that ended and from
 * those that still run, and that it is forgotten. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/engine/growth.h"

static void make(struct growths *g, uint32_t kind, uint32_t count, uint32_t tokens, bool ends)
{
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < tokens; k++)
            growths_made(g, kind, k);
        if (ends)
            growths_ended(g, kind, tokens, true);
    }
}

static void assumes_a_mean(void **state)
{
    (void)state;
    struct growths g;
    growths_init(&g);
    assert_true(fabs(growths_share(&g, 0, 0, 512) - exp(-1)) < 1e-9);
    assert_true(fabs(growths_share(&g, 0, 100000, 512) - exp(-1)) < 1e-9);
    assert_true(growths_share(&g, 0, 7, 0) == 1);
}

static void is_a_share_that_falls(void **state)
{
    (void)state;
    struct growths g;
    growths_init(&g);
    for (uint32_t i = 1; i < 300; i++)
        make(&g, 0, 1, i * 37 % 211 + 1, i % 5 != 0);
    static const uint32_t at[] = {0, 1, 3, 4, 15, 16, 17, 63, 64, 500, 1u << 20, UINT32_MAX / 2};
    for (size_t i = 0; i < sizeof(at) / sizeof(*at); i++) {
        double before = 1;
        for (uint32_t more = 0; more < 4000; more += 7) {
            double share = growths_share(&g, 0, at[i], more);
            assert_true(share >= 0 && share <= before);
            /* in two parts it is the same */
            double parts = growths_share(&g, 0, at[i], more / 3) *
                           growths_share(&g, 0, at[i] + more / 3, more - more / 3);
            assert_true(fabs(share - parts) < 1e-9);
            before = share;
        }
    }
}

static void learns_a_length(void **state)
{
    (void)state;
    struct growths g;
    growths_init(&g);
    make(&g, 0, 300, 100, true);
    assert_true(growths_share(&g, 0, 0, 64) > 0.95);
    assert_true(growths_share(&g, 0, 0, 128) < 0.1);
    assert_true(growths_share(&g, 0, 90, 60) < 0.1);
}

/* Ten short answers have ended, thirty long ones have not: who is over the short ones' length goes
 * on for long. */
static void counts_those_that_run(void **state)
{
    (void)state;
    struct growths g, blind;
    growths_init(&g);
    growths_init(&blind);
    make(&g, 0, 30, 1000, false);
    make(&g, 0, 10, 20, true);
    make(&blind, 0, 10, 20, true);
    assert_true(growths_share(&g, 0, 30, 900) > 0.85);
    assert_true(growths_share(&g, 0, 0, 900) > 0.6 && growths_share(&g, 0, 0, 900) < 0.85);
    assert_true(growths_share(&blind, 0, 30, 900) < 0.3);
}

/* At a length that was known beforehand: that says nothing of how long others are. */
static void leaves_out_who_is_cut_off(void **state)
{
    (void)state;
    struct growths g;
    growths_init(&g);
    for (uint32_t i = 0; i < 300; i++) {
        for (uint32_t k = 0; k < 16; k++)
            growths_made(&g, 0, k);
        growths_ended(&g, 0, 16, false);
    }
    assert_true(growths_share(&g, 0, 0, 16) > 0.95);
    assert_true(fabs(growths_share(&g, 0, 16, 512) - exp(-1)) < 1e-9);
}

static void forgets(void **state)
{
    (void)state;
    struct growths g;
    growths_init(&g);
    make(&g, 0, 3000, 100, true);
    assert_true(growths_share(&g, 0, 0, 200) < 0.05);
    make(&g, 0, 2500, 400, true);
    assert_true(growths_share(&g, 0, 0, 200) > 0.9);
    growths_ended(&g, 0, 0, true); /* before its first token */
    growths_ended(&g, 0, UINT32_MAX, true);
    assert_true(growths_share(&g, 0, 0, 200) > 0.9);
}

/* One answer that ends at each token with a chance of one in `mean`; its length. */
static uint32_t draw(struct growths *g, uint64_t *random, uint32_t mean)
{
    uint32_t tokens = 0;

    do {
        growths_made(g, 0, tokens++);
        *random = *random * 6364136223846793005u + 1442695040888963407u;
    } while ((*random >> 33) % mean != 0);
    growths_ended(g, 0, tokens, true);
    return tokens;
}

/* Answers were short, and those that run now do not end: long before the first of them does, the
 * short ones say no more how long the next will be. */
static void notices_that_fewer_end(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct growths g;
        uint64_t random = seed;
        growths_init(&g);
        for (uint32_t i = 0; i < 500; i++)
            draw(&g, &random, 60);
        assert_true(growths_share(&g, 0, 20, 160) < 0.25);
        make(&g, 0, 20, 100, false);
        assert_true(growths_share(&g, 0, 20, 160) > 0.4);
        for (uint32_t i = 0; i < 60; i++)
            draw(&g, &random, 60);
        assert_true(growths_share(&g, 0, 20, 160) < 0.25);
    }
}

/* The curves themselves learn from tokens alone, too. */
static void learns_before_one_ends(void **state)
{
    (void)state;
    struct growths g;
    uint64_t random = 1;
    growths_init(&g);
    for (uint32_t i = 0; i < 500; i++)
        draw(&g, &random, 60);
    make(&g, 0, 20, 600, false);
    g.due = g.came = 0;
    assert_true(growths_share(&g, 0, 250, 250) > 0.5);
}

/* While nothing changes, chance alone makes answers look a little longer at most. */
static void takes_chance_for_nothing(void **state)
{
    (void)state;
    uint64_t random = 7;
    double sum = 0;
    uint32_t wrong = 0;
    struct growths g;
    growths_init(&g);
    for (uint32_t i = 0; i < 500; i++)
        draw(&g, &random, 60);
    for (uint32_t i = 0; i < 5000; i++) {
        draw(&g, &random, 60);
        double share = growths_share(&g, 0, 0, 60);
        sum += share;
        wrong += share > 0.5;
    }
    assert_true(fabs(sum / 5000 - exp(-1)) < 0.04);
    assert_true(wrong < 5000 / 20);
}

/* Chats of one tenant are long, the summaries of another and its own of long prompts are short. */
static void tells_kinds_apart(void **state)
{
    (void)state;
    uint32_t chat = growths_kind(1, 100), summary = growths_kind(1, 5000);
    uint32_t other = growths_kind(2, 5000), fresh = growths_kind(3, 100);
    struct growths g;
    growths_init(&g);
    for (uint32_t i = 0; i < 100; i++) {
        make(&g, chat, 1, 600, true);
        make(&g, summary, 1, 40, true);
        make(&g, other, 1, 30, true);
    }
    assert_true(growths_share(&g, chat, 0, 500) > 0.9);
    assert_true(growths_share(&g, summary, 0, 64) < 0.5);
    assert_true(growths_share(&g, other, 0, 64) < 0.5);
    /* of one that nothing is known of: as all are */
    double all = growths_share(&g, fresh, 0, 500);
    assert_true(all > 0.2 && all < 0.5);
    growths_ended(&g, fresh, 20, true);
    assert_true(fabs(growths_share(&g, fresh, 0, 500) - all) < 0.1);
}

static void kinds_are_in_bounds(void **state)
{
    (void)state;
    static const uint32_t prompts[] = {0, 1, 31, 32, 127, 128, 5000, 1u << 20, UINT32_MAX};
    uint32_t last = 0;
    for (size_t i = 0; i < sizeof(prompts) / sizeof(*prompts); i++) {
        assert_true(growths_kind(0, prompts[i]) >= last && growths_kind(0, prompts[i]) < 8);
        last = growths_kind(0, prompts[i]);
        assert_true(growths_kind(UINT32_MAX, prompts[i]) < GROWTH_KINDS);
    }
    assert_int_equal(growths_kind(0, 31), 0);
    assert_int_equal(growths_kind(0, 32), 1);
    assert_int_equal(growths_kind(0, 127), 1);
    assert_int_equal(growths_kind(0, 128), 2);
    assert_int_equal(last, 7);
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
        cmocka_unit_test(notices_that_fewer_end),
        cmocka_unit_test(learns_before_one_ends),
        cmocka_unit_test(takes_chance_for_nothing),
        cmocka_unit_test(tells_kinds_apart),
        cmocka_unit_test(kinds_are_in_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
