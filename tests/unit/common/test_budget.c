/* The token budget of a step to start with. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/budget.h"

#define GIB 1073741824.0

static void cards(void **state)
{
    static const struct {
        double gib;
        uint32_t tokens;
    } cases[] = {{14.6, 4096},  {23.6, 4096},   {39.4, 8192},   {47.5, 8192},   {79.15, 16384},
                 {93.6, 16384}, {139.8, 24576}, {178.4, 32768}, {268.6, 32768}, {0, 4096}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(ek_budget_card(cases[i].gib * GIB), cases[i].tokens);
}

static void cpus(void **state)
{
    static const struct {
        double flops, token_flops;
        uint32_t tokens;
    } cases[] = {
        {8e11, 7.2e8, 256},    /* 0.5 B, two cores with bf16 pairs */
        {1.2e11, 7.2e8, 128},  /* the same with AVX2 */
        {8e11, 1.4e10, 128},   /* 7 B: a step takes longer */
        {2.5e13, 1.4e10, 512}, /* 7 B on 64 cores */
        {2.5e13, 7.2e8, 2048}, /* never more */
        {8e11, 8e6, 2048},     /* the embedded model */
        {8e11, 0, 2048},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(ek_budget_cpu(cases[i].flops, cases[i].token_flops), cases[i].tokens);
}

/* Answers have their tokens beside the prompts where each costs as much. */
static void steps(void **state)
{
    (void)state;
    assert_int_equal(ek_budget_step(true, 256, 64), 320);
    assert_int_equal(ek_budget_step(false, 8192, 512), 8192);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cards), cmocka_unit_test(cpus),
                                       cmocka_unit_test(steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
