/* The simulated scheduler on loads of which the answer is known: forms whose tokens are forced. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/bench/schedsim.h"
#include "tests/sim/sim_form.h"

#define ANSWERS 8u
#define RUN     11u /* forced behind each sampled one */
#define CYCLES  10u

/* Eight that come a step and a half apart, so that they would take turns in steps for ever. */
static struct schedsim_result run_forms(double base_us, struct grammar *form)
{
    struct trace_request request[ANSWERS];
    const struct trace t = {.request = request, .count = ANSWERS, .timed = true};
    const struct schedsim_cost cost = {.base_us = base_us, .row_us = base_us / 300};
    const struct schedsim_params p = {.block_size = 16,
                                      .pool_tokens = 4096,
                                      .max_seqs = ANSWERS,
                                      .budget = 512,
                                      .max_model_len = 512,
                                      .depth = 2,
                                      .scale = 1,
                                      .cost = &cost,
                                      .form = form,
                                      .vocab = SIM_FORM_VOCAB,
                                      .seed = 1};
    struct schedsim_result o = {0};

    for (uint32_t i = 0; i < ANSWERS; i++)
        request[i] = (struct trace_request){
            .at_s = i * 1.5 * base_us / 1e6, .prompt = 20, .output = CYCLES * (RUN + 1)};
    assert_int_equal(schedsim_run(&t, &p, &o), 0);
    assert_int_equal(o.output_tokens, ANSWERS * CYCLES * (RUN + 1));
    return o;
}

static void forced(void **state)
{
    struct sim_form f = {0};
    (void)state;
    assert_int_equal(sim_form_open_all(&f, SIM_FORM_VOCAB, RUN), 0);

    struct schedsim_result slow = run_forms(30000, f.grammar), quick = run_forms(200, f.grammar);
    assert_int_equal(slow.forced, ANSWERS * CYCLES * RUN);
    /* one step for each sampled token: all are in each */
    assert_true(slow.steps <= CYCLES + ANSWERS * 3 / 2 + 2);
    assert_true(slow.itl_ms.p50 < 1.5 * 30 && slow.itl_ms.p90 < 2 * 30);
    /* where a step takes no longer than the host needs to plan one, they go on ahead */
    assert_true(quick.steps > slow.steps * 3 / 2);

    struct schedsim_result free_text = run_forms(30000, NULL);
    assert_true(free_text.forced == 0 && free_text.steps >= CYCLES * (RUN + 1));
    sim_form_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(forced)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
