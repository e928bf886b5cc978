/* The simulated scheduler on loads of which the answer is known: forms with jump-forward tokens;
 * and the plant of sim_control beside it, which has to show the same where there is room for all.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/bench/schedsim.h"
#include "tests/sim/control_plant.h"
#include "tests/sim/sim_form.h"

#define ANSWERS 8u
#define RUN     11u /* jump-forward tokens behind each sampled one */
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
    assert_int_equal(slow.jump_forward, ANSWERS * CYCLES * RUN);
    /* one step for each sampled token: all are in each */
    assert_true(slow.steps <= CYCLES + ANSWERS * 3 / 2 + 2);
    assert_true(slow.itl_ms.p50 < 1.5 * 30 && slow.itl_ms.p90 < 2 * 30);
    /* where a step takes no longer than the host needs to plan one, they go on ahead */
    assert_true(quick.steps > slow.steps * 3 / 2);

    struct schedsim_result free_text = run_forms(30000, NULL);
    assert_true(free_text.jump_forward == 0 && free_text.steps >= CYCLES * (RUN + 1));
    sim_form_close(&f);
}

#define LOAD 40u

struct watch {
    uint32_t fresh, first; /* first tokens of this step, and before it */
    double sum_s, at_s[LOAD];
};

static void note_token(void *ctx, const struct sim_request *r)
{
    struct watch *w = ctx;

    w->fresh += r->made == 1;
    w->sum_s -= r->made == 1 ? w->at_s[r->id] : 0;
}

/* The mean time to a first token by the plant. */
static double plant_first_s(const struct trace *t, double base_us, double row_us)
{
    static struct sim_plant p;
    struct watch w = {0};

    p = (struct sim_plant){.blocks = 4000,
                           .free = 4000,
                           .seqs = LOAD,
                           .tokens = 2048,
                           .base_s = base_us / 1e6,
                           .row_s = row_us / 1e6,
                           .whole = true,
                           .ahead = true,
                           .told = note_token,
                           .ctx = &w};
    for (uint32_t next_one = 0; next_one < t->count || p.queued > 0 || p.running > 0;) {
        if (p.queued == 0 && p.running == 0 && t->request[next_one].at_s > p.now_s)
            p.now_s = p.begun_s = t->request[next_one].at_s;
        for (; next_one < t->count && t->request[next_one].at_s <= p.now_s; next_one++) {
            const struct trace_request *q = &t->request[next_one];
            w.at_s[next_one] = q->at_s;
            p.queue[(p.head + p.queued++) % QUEUE] = (struct sim_request){
                .prompt = q->prompt, .want = q->output, .since_s = q->at_s, .id = next_one};
        }
        p.now_s += engine_step(&p);
        w.sum_s += w.fresh * p.now_s;
        w.first += w.fresh;
        w.fresh = 0;
    }
    assert_int_equal(w.first, t->count);
    return w.sum_s / t->count;
}

/* The mean time to a first token by the scheduler. */
static double sched_first_s(const struct trace *t, double base_us, double row_us)
{
    const struct schedsim_cost cost = {.base_us = base_us, .row_us = row_us};
    struct schedsim_params p = {.block_size = 16,
                                .pool_tokens = 64000,
                                .max_seqs = LOAD,
                                .budget = 2048,
                                .max_model_len = 1024,
                                .depth = 2,
                                .scale = 1,
                                .cost = &cost,
                                .seed = 1};
    struct schedsim_result o;
    char *text = NULL;
    size_t bytes = 0;
    double sum_ms = 0;

    p.answers = open_memstream(&text, &bytes);
    assert_non_null(p.answers);
    assert_int_equal(schedsim_run(t, &p, &o), 0);
    assert_int_equal(fclose(p.answers), 0);
    for (char *at = text; *at; at = strchr(at, '\n') + 1)
        sum_ms += strtod(at, NULL);
    free(text);
    return sum_ms / 1e3 / t->count;
}

/* Long steps are planned late, short ones ahead: who comes waits as long in both. */
static void plant_agrees(void **state)
{
    struct trace_request request[LOAD];
    const struct trace t = {.request = request, .count = LOAD, .timed = true};
    (void)state;

    for (uint32_t long_one = 0; long_one < 2; long_one++) {
        double base_us = long_one ? 40000 : 10000, row_us = 100, at_s = 0;
        for (uint32_t i = 0; i < LOAD; i++) {
            request[i] = (struct trace_request){
                .at_s = at_s, .prompt = 40 + i * 37 % 200, .output = 20 + i * 11 % 60};
            at_s += (0.3 + i * 7 % 10 * 0.2) * base_us * 10 / 1e6;
        }
        double plant_s = plant_first_s(&t, base_us, row_us);
        double sched_s = sched_first_s(&t, base_us, row_us);
        assert_true(plant_s > 0.99 * sched_s && plant_s < 1.01 * sched_s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(forced), cmocka_unit_test(plant_agrees)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
