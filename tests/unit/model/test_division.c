/*
 * What tensor ranks have of models of each kind of layer: less of every state, cache and matrix
 * than the whole model, and all of a layer that cannot be divided. That they compute the same is
 * shown by test_goldens.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/shard.h"
#include "server/model/model.h"

static uint64_t elements(const struct ek_graph *g)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < g->weight_count; i++)
        sum += (uint64_t)g->weights[i].rows * g->weights[i].cols;
    return sum;
}

struct share {
    const char *model;
    uint32_t ranks, kv_heads;
    double state, weights; /* at most so much of the whole; a state of 1: it is not divided */
};

/* Routers, norms, B and C of one group, and keys that several ranks need are on each of them. */
static void check_share(const struct share *s, const struct model *m)
{
    for (uint32_t rank = 0; rank < s->ranks; rank++) {
        struct ek_graph g;
        struct ek_fault fault = {.msg = ""};
        if (ek_shard(&m->graph, rank, s->ranks, &g, &fault) < 0)
            fail_msg("%s: %s", s->model, fault.msg);
        const double state = m->graph.state_floats ? (double)g.state_floats : 0;
        const double part = state / (m->graph.state_floats ? m->graph.state_floats : 1);
        const double weights = (double)elements(&g) / (double)elements(&m->graph);
        if (part > s->state || weights > s->weights || g.kv_heads != s->kv_heads ||
            (s->state == 1 && g.state_floats != m->graph.state_floats))
            fail_msg("%s: rank %u of %u has %.2f of the state, %.2f of the weights and %u heads",
                     s->model, rank, s->ranks, part, weights, g.kv_heads);
        ek_graph_free(&g);
    }
}

static void test_shares(void **state)
{
    static const struct share cases[] = {
        {"qwen3.5", 2, 1, 0.55, 0.6},        {"qwen3-next", 2, 1, 0.55, 0.6},
        {"granite-hybrid", 2, 1, 0.6, 0.65}, {"granite-hybrid-dense", 2, 1, 0.6, 0.6},
        {"nemotron-h", 2, 1, 0.55, 0.6},     {"falcon-h1", 4, 1, 0.4, 0.4},
        {"lfm2", 2, 1, 0.55, 0.6},           {"gemma4", 2, 1, 0, 0.65},
        {"gemma4-input", 4, 1, 0, 0.5},      {"starcoder2", 2, 1, 0, 0.6},
        {"olmo-hybrid", 2, 2, 1, 0.9},       {"granite-hybrid-dense", 4, 1, 1, 0.65},
    };
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char dir[96];
        struct ek_fault fault = {.msg = ""};
        struct model *m = NULL;
        (void)snprintf(dir, sizeof(dir), "tests/fixtures/models/%s", cases[i].model);
        if (model_open(dir, MODEL_DTYPE_F32, &m, &fault) < 0)
            fail_msg("%s: %s", dir, fault.msg);
        check_share(&cases[i], m);
        model_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shares)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
