/* Protects: a bound on thinking ends it with the model's own mark, never early, never in the
 * answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/engine/thinking.h"

#define MOST 64u

/* The model opens by 1, closes by 7 8 9, calls by 5; everything else is text. */
static struct thinking_limit limit(uint32_t most, bool inside)
{
    return (struct thinking_limit){.open = {.token = {1}, .count = 1},
                                   .close = {.token = {7, 8, 9}, .count = 3},
                                   .call = {.token = {5}, .count = 1},
                                   .most = most,
                                   .on = true,
                                   .inside = inside};
}

static int32_t forced_after(const struct thinking_limit *l, const int32_t *token, uint32_t count,
                            uint32_t piece)
{
    struct thinking t = {0};
    thinking_follow(&t, l, token, sizeof(*token), 0);
    for (uint32_t n = 0; n < count;) {
        n = n + piece < count ? n + piece : count;
        thinking_follow(&t, l, token, sizeof(*token), n);
    }
    return thinking_forced(&t, l);
}

static const struct {
    uint32_t most;
    bool inside;
    uint32_t count;
    int32_t token[12], forced;
} cases[] = {
    {0, true, 0, {0}, 7},
    {0, true, 1, {7}, 8},
    {0, true, 2, {7, 8}, 9},
    {0, true, 3, {7, 8, 9}, -1},
    {2, true, 1, {3}, -1},
    {2, true, 2, {3, 3}, 7},
    {2, true, 3, {3, 3, 7}, 8},
    {2, true, 3, {3, 7, 3}, 7},           /* what looked like its end was not */
    {2, true, 4, {3, 7, 8, 9}, -1},       /* its own end */
    {2, true, 6, {3, 7, 8, 9, 3, 3}, -1}, /* nothing of the answer counts */
    {1, true, 4, {3, 5, 3, 3}, -1},       /* a call ends it too */
    {2, false, 0, {0}, -1},
    {2, false, 4, {3, 3, 3, 3}, -1}, /* it does not think */
    {2, false, 4, {3, 1, 3, 3}, 7},
    {0, false, 1, {1}, 7},
    {2, true, 5, {3, 3, 7, 7, 8}, 9}, /* a mark that begins anew */
};

static void test_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct thinking_limit l = limit(cases[i].most, cases[i].inside);
        for (uint32_t piece = 1; piece <= 4; piece++)
            assert_int_equal(forced_after(&l, cases[i].token, cases[i].count, piece),
                             cases[i].forced);
    }
}

/* Where it may open again what it has thought before counts. */
static void test_again(void **state)
{
    (void)state;
    const int32_t token[] = {3, 7, 8, 9, 3, 1, 3};
    struct thinking_limit l = limit(4, true);
    assert_int_equal(forced_after(&l, token, 7, 1), -1);
    l.again = true;
    assert_int_equal(forced_after(&l, token, 7, 1), 7);
    assert_int_equal(forced_after(&l, token, 5, 1), -1);
}

static void test_off(void **state)
{
    (void)state;
    const int32_t token[] = {3, 3, 3};
    struct thinking_limit l = limit(0, true);
    struct thinking t = {0};
    l.on = false;
    assert_int_equal(forced_after(&l, token, 3, 1), -1);
    assert_false(thinking_binds(&t, &l, 1000, 1000));
}

/* Any model whatever: it never thinks for longer, and whenever it is told what to say, it could not
 * have been left alone. Steps in flight ask early, never late. */
static void test_any_model(void **state)
{
    (void)state;
    uint32_t x = 20261128;
    for (uint32_t round = 0; round < 20000; round++) {
        struct thinking_limit l = limit((x >> 8) % 12, (x >> 16) % 2);
        struct thinking t = {0};
        int32_t out[MOST];
        uint32_t thought = 0, told = 0;
        bool inside = l.inside;
        for (uint32_t n = 0; n < MOST; n++) {
            bool binds = thinking_binds(&t, &l, n > 1 ? n - 1 : 0, 2); /* a step ahead */
            thinking_follow(&t, &l, out, sizeof(out[0]), n);
            int32_t forced = thinking_forced(&t, &l);
            x = x * 1664525u + 1013904223u;
            out[n] = forced >= 0 ? forced : (int32_t)((x >> 20) % 10);
            if (forced >= 0)
                assert_true(binds && inside);
            told += forced >= 0;
            thought += inside && forced < 0;
            if (n >= 2 && out[n - 2] == 7 && out[n - 1] == 8 && out[n] == 9)
                inside = false;
            if (forced < 0 && inside && out[n] == 5)
                inside = false;
            if (!t.over && !t.inside && !inside && out[n] == 1 && n < THINKING_HEAD)
                inside = true;
            assert_true(thought <= l.most + 3 || !inside); /* and what looked like a mark */
        }
        assert_true(told <= 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_again),
        cmocka_unit_test(test_off),
        cmocka_unit_test(test_any_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
