/*
 * Stages of a pipeline: where a graph is cut and how layers are shared out, graphs and numbers that
 * are refused by a sentence, an allocation loop; and on the CPU, that models in stages give bit for
 * bit what they give whole: steps two at a time, tokens that are still in the making, scores,
 * hidden states, alternatives, copies to and from the host, a pool that is resized, blocks that two
 * sequences share. Then what goes wrong: a stage that stays away, a token that was never sampled.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/memplan.h"
#include "kernels/registry.h"
#include "kernels/shard.h"
#include "kernels/stage.h"
#include "tests/unit/alloc.h"
#include "tests/unit/kernels/flow.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"

#define MODEL(type, n, ...)                                                                        \
    {                                                                                              \
        .dtype = (type), .layers = (n), .hidden = 32, .q_heads = 4, .kv_heads = 2, .head_dim = 16, \
        .rotary = 16, .ffn = 96, .vocab = 100, __VA_ARGS__                                         \
    }

static const struct tiny_params base = MODEL(EK_F32, 4, .bias = true, .tied = true);

static uint32_t count(const struct ek_graph *g, enum ek_op_kind kind)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < g->op_count; i++)
        n += g->ops[i].kind == kind;
    return n;
}

/* ---- cuts ---- */

/* Behind one another the stages are the whole list, with every weight where it is used. */
static void check_stages(const struct tiny *t, uint32_t stages)
{
    uint32_t begin[EK_MOST_RANKS + 1], at = 0, layers = 0, weights = 0;

    assert_int_equal(ek_stage_divide(&t->g, stages, begin, NULL), 0);
    assert_true(begin[0] == 0 && begin[stages] == t->g.layers);
    for (uint32_t s = 0; s < stages; s++) {
        struct ek_graph g;
        assert_int_equal(ek_stage(&t->g, begin, s, stages, &g, NULL), 0);
        assert_true(g.stage == s && g.stages == stages && g.layers == begin[s + 1] - begin[s]);
        assert_int_equal(count(&g, EK_OP_ATTENTION), g.layers);
        assert_int_equal(count(&g, EK_OP_EMBED), s == 0);
        assert_int_equal(count(&g, EK_OP_LOGITS), s + 1 == stages);
        assert_int_equal(g.ops[0].kind == EK_OP_RECV, s > 0);
        assert_int_equal(g.ops[g.op_count - 1].kind == EK_OP_SEND, s + 1 < stages);
        for (uint32_t i = 0, layer = 0; i < g.op_count; i++) {
            const struct ek_op *op = &g.ops[i], *whole = &t->g.ops[at];
            if (op->kind == EK_OP_RECV || op->kind == EK_OP_SEND)
                continue;
            assert_int_equal(op->kind, whole->kind);
            if (op->kind == EK_OP_ATTENTION)
                assert_int_equal(op->layer, layer++);
            if (op->weight != EK_NO_WEIGHT)
                assert_memory_equal(&g.weights[op->weight], &t->g.weights[whole->weight],
                                    sizeof(struct ek_weight));
            if (op->kind == EK_OP_LINEAR && op->bias != EK_NO_WEIGHT)
                assert_memory_equal(&g.weights[op->bias], &t->g.weights[whole->bias],
                                    sizeof(struct ek_weight));
            at++;
        }
        layers += g.layers;
        weights += g.weight_count;
        ek_graph_free(&g);
    }
    assert_int_equal(at, t->g.op_count);
    assert_int_equal(layers, t->g.layers);
    assert_int_equal(weights, t->g.weight_count + (stages > 1 && t->p.tied));
}

static void test_cuts(void **state)
{
    static const struct tiny_params models[] = {
        MODEL(EK_F32, 4, .bias = true, .tied = true, .qk_norm = true),
        MODEL(EK_F32, 3, .window = 9, .softcap = 5.0f),
        MODEL(EK_F32, 3, .experts = 5, .top = 2, .normalise = true),
    };
    (void)state;

    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
        struct tiny *t = tiny_new(&models[m]);
        for (uint32_t stages = 1; stages <= t->g.layers; stages++)
            check_stages(t, stages);
        tiny_free(t);
    }
}

/* Shares of bytes: a layer of these has (64 + 32) * 32 + 64 * 32 + 3 * 96 * 32 elements and some,
 * 14 thousand; the embedding 32 for each token. */
static void test_balance(void **state)
{
    static const struct {
        uint32_t layers, vocab, stages, begin[5];
    } cases[] = {
        {4, 100, 2, {0, 2, 4}},  {4, 100, 4, {0, 1, 2, 3, 4}}, {4, 100, 3, {0, 1, 3, 4}},
        {4, 1500, 2, {0, 2, 4}}, {5, 1000, 3, {0, 1, 4, 5}},   {5, 4000, 3, {0, 1, 4, 5}},
        {4, 100, 1, {0, 4}},
    };
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tiny_params p = base;
        uint32_t begin[EK_MOST_RANKS + 1];
        p.layers = cases[i].layers;
        p.vocab = cases[i].vocab;
        struct tiny *t = tiny_new(&p);
        assert_int_equal(ek_stage_divide(&t->g, cases[i].stages, begin, NULL), 0);
        for (uint32_t s = 0; s <= cases[i].stages; s++)
            if (begin[s] != cases[i].begin[s])
                fail_msg("case %zu: stage %u begins at layer %u", i, s, begin[s]);
        tiny_free(t);
    }
}

static void test_refused(void **state)
{
    struct tiny *t = tiny_new(&base);
    struct ek_fault f = {.msg = ""};
    struct ek_graph g = {.vocab = 7};
    uint32_t begin[EK_MOST_RANKS + 1], last = 0;
    (void)state;

    assert_int_equal(ek_rank_graph(&t->g, 0, 5, 5, &g, &f), -EBADMSG);
    assert_string_equal(f.field, "pipeline-parallel-size");
    assert_non_null(strstr(f.msg, "the model has 4; choose 1 to 4"));
    assert_int_equal(ek_rank_graph(&t->g, 0, 3, 2, &g, &f), -EINVAL);
    assert_int_equal(ek_rank_graph(&t->g, 4, 4, 2, &g, &f), -EINVAL);
    /* 6 ranks cannot share 4 heads, whatever the stages */
    assert_int_equal(ek_rank_graph(&t->g, 0, 6, 2, &g, &f), -EBADMSG);
    assert_string_equal(f.field, "tensor-parallel-size");
    assert_int_equal(g.vocab, 7);

    /* the last addition takes what the embedding made, too: two values live through all layers */
    for (uint32_t i = 0; i < t->g.op_count; i++)
        if (t->g.ops[i].kind == EK_OP_ADD)
            last = i;
    const struct ek_op add = t->g.ops[last], embed = t->g.ops[0];
    t->g.ops[last].src = 7;
    t->g.ops[0].dst = 7;
    assert_int_equal(ek_stage_divide(&t->g, 2, begin, &f), -ENOTSUP);
    t->g.ops[last] = add;
    t->g.ops[0] = embed;
    assert_int_equal(ek_stage_divide(&t->g, 2, begin, &f), 0);
    for (uint32_t i = 0; i < t->g.op_count; i++)
        if (t->g.ops[i].kind == EK_OP_ATTENTION)
            t->g.ops[i].layer = 3 - t->g.ops[i].layer; /* layers in another order */
    assert_int_equal(ek_stage_divide(&t->g, 2, begin, &f), -ENOTSUP);
    assert_non_null(strstr(f.msg, "no rule where layer"));
    tiny_free(t);
}

/* What a backend may rely on is checked of the graphs of stages, too. */
static void test_checked(void **state)
{
    struct tiny *t = tiny_new(&base);
    struct ek_graph g;
    (void)state;

    assert_int_equal(ek_rank_graph(&t->g, 1, 3, 3, &g, NULL), 0);
    assert_int_equal(ek_graph_check(&g, NULL), 0);
    g.stage = 0; /* it would be given rows by nobody */
    assert_int_equal(ek_graph_check(&g, NULL), -EBADMSG);
    g.stage = 2;
    assert_int_equal(ek_graph_check(&g, NULL), -EBADMSG);
    g.stage = 3;
    assert_int_equal(ek_graph_check(&g, NULL), -EBADMSG);
    g.stage = 1;
    const struct ek_op recv = g.ops[0];
    g.ops[0] = g.ops[1];
    g.ops[1] = recv;
    assert_int_equal(ek_graph_check(&g, NULL), -EBADMSG);
    g.ops[1] = g.ops[0];
    g.ops[0] = recv;
    assert_int_equal(ek_graph_check(&g, NULL), 0);
    g.ops[0].dst = (uint16_t)g.value_count;
    assert_int_equal(ek_graph_check(&g, NULL), -EBADMSG);
    g.ops[0].dst = recv.dst;
    g.op_count--; /* it hands on nothing */
    assert_int_equal(ek_graph_check(&g, NULL), -EBADMSG);
    g.op_count++;
    ek_graph_free(&g);
    tiny_free(t);
}

static void test_alloc(void **state)
{
    struct tiny *t = tiny_new(&base);
    (void)state;

    for (long n = 1;; n++) {
        struct ek_graph g = {.vocab = 7};
        alloc_fail_at(n);
        int r = ek_rank_graph(&t->g, 3, 4, 2, &g, NULL);
        bool failed = alloc_failed();
        alloc_fail_at(0);
        if (!failed) {
            assert_int_equal(r, 0);
            ek_graph_free(&g);
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_int_equal(g.vocab, 7);
    }
    tiny_free(t);
}

/* ---- the same bits ---- */

static const struct tiny_params g_same[] = {
    MODEL(EK_F32, 4, .bias = true, .tied = true, .act = EK_ACT_SILU),
    MODEL(EK_BF16, 3, .tied = true, .window = 9, .softcap = 5.0f, .act = EK_ACT_GELU),
    MODEL(EK_F16, 2, .qk_norm = true, .act = EK_ACT_SILU),
    MODEL(EK_BF16, 2, .experts = 5, .top = 2, .normalise = true, .act = EK_ACT_SILU),
    MODEL(EK_F32, 2, .experts = 3, .top = 2, .sinks = true, .expert_bias = true,
          .act = EK_ACT_SWIGLU_CLAMPED),
    MODEL(EK_BF16, 3, .kept = EK_I8, .tied = true, .kv_i8 = true, .act = EK_ACT_SILU),
    MODEL(EK_BF16, 2, .kept = EK_I4, .group = 32, .above = 6, .prompt = 17, .act = EK_ACT_SILU),
};

static void test_same(void **state)
{
    const struct ek_backend *cpu = ek_backend_find("cpu", NULL);
    (void)state;

    for (size_t m = 0; m < sizeof(g_same) / sizeof(g_same[0]); m++)
        for (uint32_t shares = 1; shares <= 2; shares++) {
            struct tiny *t = tiny_new(&g_same[m]);
            struct flow_log whole = {0}, parts;
            /* a thread for each rank: attention adds up alike */
            struct ek_open_params open = {.threads = shares, .ranks = shares, .each = cpu};
            flow_run(shares > 1 ? ek_ranks_backend(cpu) : cpu, t, &open, &whole);
            assert_true(whole.bytes > 0);
            for (uint32_t stages = 2; stages <= t->p.layers && shares * stages <= 4; stages++) {
                parts = (struct flow_log){0};
                open.threads = open.ranks = shares * stages;
                open.stages = stages;
                flow_run(ek_ranks_backend(cpu), t, &open, &parts);
                assert_int_equal(parts.bytes, whole.bytes);
                for (size_t i = 0; i < whole.bytes; i++)
                    if (parts.at[i] != whole.at[i])
                        fail_msg("model %zu, %u stages of %u: byte %zu of the results differs", m,
                                 stages, shares, i);
                flow_free(&parts);
            }
            flow_free(&whole);
            tiny_free(t);
        }
}

/* Each stage has the cache and the weights of its layers only; together they are the whole. */
static void test_plan(void **state)
{
    const struct ek_backend *cpu = ek_backend_find("cpu", NULL);
    struct tiny *t = tiny_new(&base);
    const struct ek_open_params one = {.threads = 1};
    const struct ek_open_params two = {.threads = 2, .ranks = 2, .stages = 2, .each = cpu};
    const struct ek_plan_request q = {.graph = &t->g,
                                      .ceiling = {64, 4, 64, 8, 64, 0},
                                      .logit_rows = 8,
                                      .block_size = FLOW_BLOCK};
    struct ek_plan whole, parts;
    struct ek_device_stats stats, of[2];
    struct tiny_device x;
    (void)state;

    assert_int_equal(cpu->plan(&one, &q, &whole, NULL), 0);
    assert_int_equal(ek_ranks_backend(cpu)->plan(&two, &q, &parts, NULL), 0);
    assert_int_equal(parts.block_bytes, whole.block_bytes);
    assert_true(parts.weight_bytes > whole.weight_bytes); /* the embedding, tied, is in both */
    assert_true(parts.weight_bytes < whole.weight_bytes + 110 * 32 * sizeof(float));
    assert_int_equal(tiny_open_on(ek_ranks_backend(cpu), t, &two, FLOW_BLOCK, FLOW_BLOCKS, &x), 0);
    x.b->stats(x.d, &stats);
    for (uint32_t i = 0; i < 2; i++)
        x.b->rank_stats(x.d, i, &of[i]);
    assert_int_equal(stats.weight_bytes, parts.weight_bytes);
    assert_int_equal(of[0].weight_bytes + of[1].weight_bytes, parts.weight_bytes);
    assert_int_equal(of[0].kv_bytes, whole.block_bytes / 2 * FLOW_BLOCKS);
    assert_int_equal(of[1].kv_bytes, whole.block_bytes / 2 * FLOW_BLOCKS);
    assert_true(of[0].activation_bytes < of[1].activation_bytes); /* logits are with the last */
    tiny_close(&x);
    tiny_free(t);
}

/* ---- what goes wrong ---- */

/* Of two stages one is there: its step ends with the code for it, in time. */
static void test_lost_stage(void **state)
{
    static const int32_t token[] = {1, 2, 3};
    static const uint32_t table[] = {1};
    const struct ek_backend *cpu = ek_backend_find("cpu", NULL);
    struct tiny *t = tiny_new(&base);
    (void)state;

    for (uint32_t rank = 0; rank < 2; rank++) {
        struct ek_open_params open = {
            .ranks = 2, .stages = 2, .rank = rank, .threads = 2, .stall_us = 50000};
        struct tiny part = *t;
        struct tiny_device x;
        assert_int_equal(cpu->group_new(&open, &open.group, NULL), 0);
        assert_int_equal(ek_rank_graph(&t->g, rank, 2, 2, &part.g, NULL), 0);
        assert_int_equal(tiny_open_on(cpu, &part, &open, FLOW_BLOCK, 10, &x), 0);
        const uint64_t begin = ek_now_us();
        tiny_add(&x, 0, token, 0, 3, table, true);
        assert_int_equal(tiny_run(&x, NULL), EK_ECOMM);
        assert_true(ek_now_us() - begin >= 50000);
        tiny_add(&x, 0, token, 0, 3, table, true);
        assert_int_equal(tiny_run(&x, NULL), EK_ECOMM);
        tiny_close(&x);
        cpu->group_free(open.group);
        ek_graph_free(&part.g);
    }
    tiny_free(t);
}

/* Nobody is left waiting for a step that asks for a token which was never sampled. */
static void test_bad_token(void **state)
{
    static const int32_t token[] = {1, 2, 3};
    static const uint32_t table[] = {1};
    const struct ek_backend *cpu = ek_backend_find("cpu", NULL);
    const struct ek_open_params open = {
        .ranks = 4, .stages = 2, .threads = 4, .each = cpu, .stall_us = 60000000};
    struct tiny *t = tiny_new(&base);
    struct tiny_device x;
    (void)state;

    assert_int_equal(tiny_open_on(ek_ranks_backend(cpu), t, &open, FLOW_BLOCK, 10, &x), 0);
    const struct ek_slot_set set = {.sampling.top_p = 1.0f};
    tiny_set(&x, &set);
    tiny_add(&x, 0, NULL, 0, 1, table, true);
    assert_int_equal(tiny_run(&x, NULL), -EBADMSG);
    tiny_set(&x, &set);
    tiny_add(&x, 0, token, 0, 3, table, true);
    assert_int_equal(tiny_run(&x, NULL), 0);
    assert_int_equal(x.result->seqs, 1);
    tiny_close(&x);
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts),      cmocka_unit_test(test_balance),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_checked),
        cmocka_unit_test(test_alloc),     cmocka_unit_test(test_same),
        cmocka_unit_test(test_plan),      cmocka_unit_test(test_lost_stage),
        cmocka_unit_test(test_bad_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
