/*
 * Dividing a graph among ranks: what each rank gets, that the shares make up the whole, numbers of
 * ranks and graphs that are refused by a sentence, and an allocation loop. That the ranks compute
 * the model is shown by test_ranks.c and tests/unit/model/test_goldens.c.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/shard.h"
#include "tests/unit/alloc.h"
#include "tests/unit/kernels/tiny.h"

static const struct tiny_params base = {.dtype = EK_F32,
                                        .layers = 2,
                                        .hidden = 32,
                                        .q_heads = 4,
                                        .kv_heads = 2,
                                        .head_dim = 8,
                                        .rotary = 8,
                                        .ffn = 96,
                                        .vocab = 100,
                                        .bias = true,
                                        .tied = true,
                                        .act = EK_ACT_SILU};

static uint64_t elements(const struct ek_graph *g)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < g->weight_count; i++)
        if (g->weights[i].rows > 1 && g->weights[i].cols > 1)
            sum += (uint64_t)g->weights[i].rows * g->weights[i].cols;
    return sum;
}

static const struct ek_op *first(const struct ek_graph *g, enum ek_op_kind kind)
{
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].kind == kind)
            return &g->ops[i];
    fail_msg("no operation %d", (int)kind);
    return g->ops;
}

static uint32_t count(const struct ek_graph *g, enum ek_op_kind kind)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < g->op_count; i++)
        n += g->ops[i].kind == kind;
    return n;
}

static void test_shares(void **state)
{
    struct tiny *t = tiny_new(&base);
    uint64_t sum = 0;
    uint32_t vocab = 0;
    (void)state;

    for (uint32_t r = 0; r < 2; r++) {
        struct ek_graph g;
        assert_int_equal(ek_shard(&t->g, r, 2, &g, NULL), 0);
        assert_true(g.rank == r && g.ranks == 2 && g.kv_heads == 1 && g.vocab == 100);
        assert_int_equal(g.vocab_first, vocab);
        vocab += g.vocab_rows;
        sum += elements(&g);
        const struct ek_op *a = first(&g, EK_OP_ATTENTION);
        assert_true(a->u.attention.q_heads == 2 && a->u.attention.kv_heads == 1);
        assert_int_equal(g.value_width[a->src], (2 + 2) * 8);
        assert_int_equal(g.value_width[first(&g, EK_OP_GLU)->dst], r == 0 ? 32 : 64); /* by 32 */
        assert_int_equal(count(&g, EK_OP_REDUCE), 1 + 2 * base.layers);
        assert_int_equal(g.ops[g.op_count - 1].kind, EK_OP_GATHER);
        ek_graph_free(&g);
    }
    assert_int_equal(vocab, 100);
    assert_int_equal(sum, elements(&t->g));
    tiny_free(t);
}

static void test_few_kv_heads(void **state)
{
    struct tiny *t = tiny_new(&base);
    (void)state;

    for (uint32_t r = 0; r < 4; r++) {
        struct ek_graph g;
        assert_int_equal(ek_shard(&t->g, r, 4, &g, NULL), 0);
        const struct ek_weight *qkv = &g.weights[g.ops[3].weight];
        assert_int_equal(g.kv_heads, 1);
        assert_int_equal(qkv->rows, 3 * 8);
        assert_int_equal(g.ops[3].kind, EK_OP_LINEAR);
        /* K of rank r is head r / 2: rows 32 + 8 * (r / 2) of the whole, whose parts have 32 */
        assert_int_equal(qkv->part[1].skip, 8 * (r / 2));
        ek_graph_free(&g);
    }
    tiny_free(t);
}

static void test_bias_once(void **state)
{
    struct tiny *t = tiny_new(&base);
    (void)state;

    for (uint32_t r = 0; r < 2; r++) {
        struct ek_graph g;
        uint32_t with = 0;
        assert_int_equal(ek_shard(&t->g, r, 2, &g, NULL), 0);
        for (uint32_t i = 0; i + 1 < g.op_count; i++)
            if (g.ops[i].kind == EK_OP_LINEAR && g.ops[i + 1].kind == EK_OP_REDUCE)
                with += g.ops[i].bias != EK_NO_WEIGHT;
        assert_int_equal(with, r == 0 ? 2 * base.layers : 0);
        ek_graph_free(&g);
    }
    tiny_free(t);
}

static void test_units(void **state)
{
    static const struct {
        uint32_t n, group, ranks, unit;
    } cases[] = {{704, 1, 2, 32},   {704, 128, 4, 128}, {100, 1, 2, 32},     {48, 1, 2, 16},
                 {48, 1, 4, 8},     {20, 1, 4, 4},      {7, 1, 4, 1},        {3, 1, 4, 0},
                 {256, 128, 4, 64}, {96, 24, 2, 48},    {18944, 128, 8, 128}};
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t n = cases[i].n, unit = ek_shard_unit(n, cases[i].group, cases[i].ranks);
        assert_int_equal(unit, cases[i].unit);
        uint32_t at = 0;
        for (uint32_t r = 0; unit > 0 && r < cases[i].ranks; r++) {
            uint32_t end = ek_shard_begin(n, unit, r + 1, cases[i].ranks);
            assert_int_equal(ek_shard_begin(n, unit, r, cases[i].ranks), at);
            assert_true(end > at);
            at = end;
        }
        assert_true(unit == 0 || at == n);
    }
}

static void test_refused(void **state)
{
    static const struct {
        uint32_t q, kv, ffn, vocab, ranks;
        int code;
        const char *says;
    } cases[] = {
        {6, 3, 96, 100, 4, -EBADMSG, "choose one of 1, 3, 6"},
        {6, 2, 96, 100, 6, 0, NULL},
        {4, 2, 3, 100, 4, -EBADMSG, "only 3 columns"},
        {4, 2, 96, 3, 4, -EBADMSG, "only 3 columns"},
    };
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tiny_params p = base;
        struct ek_fault f = {.msg = ""};
        struct ek_graph g = {0};
        p.q_heads = cases[i].q;
        p.kv_heads = cases[i].kv;
        p.ffn = cases[i].ffn;
        p.vocab = cases[i].vocab;
        struct tiny *t = tiny_new(&p);
        assert_int_equal(ek_shard(&t->g, 0, cases[i].ranks, &g, &f), cases[i].code);
        if (cases[i].says && !strstr(f.msg, cases[i].says))
            fail_msg("%s lacks %s", f.msg, cases[i].says);
        assert_true(!cases[i].says || strcmp(f.field, "tensor-parallel-size") == 0);
        ek_graph_free(&g);
        tiny_free(t);
    }
}

/* What nobody has written a rule for is named and not computed wrongly. */
static void test_no_rule(void **state)
{
    struct tiny_params one = base;
    one.layers = 1;
    struct tiny *t = tiny_new(&one);
    struct ek_fault f = {.msg = ""};
    struct ek_graph g;
    (void)state;

    for (uint32_t i = 0; i < t->g.op_count; i++)
        if (t->g.ops[i].kind == EK_OP_GLU) {
            t->g.ops[i].kind = EK_OP_SOFTCAP; /* of what a product for an activation made */
            t->g.ops[i].dst = t->g.ops[i].src;
            t->g.ops[i].u.softcap.cap = 1.0f;
            break;
        }
    assert_int_equal(ek_shard(&t->g, 1, 2, &g, &f), 0); /* nothing is divided, nothing is wrong */
    ek_graph_free(&g);
    for (uint32_t i = 0; i < t->g.op_count; i++)
        if (t->g.ops[i].kind == EK_OP_ATTENTION)
            t->g.ops[i - 1] = (struct ek_op){.kind = EK_OP_ADD,
                                             .dst = t->g.ops[i].src,
                                             .src = t->g.ops[i].src,
                                             .weight = EK_NO_WEIGHT,
                                             .bias = EK_NO_WEIGHT};
    assert_int_equal(ek_shard(&t->g, 1, 2, &g, &f), -ENOTSUP);
    assert_non_null(strstr(f.msg, "no rule how ranks share"));
    tiny_free(t);
}

/* A published group that a cut would divide: the matrix is unpacked, the others are kept. */
static void test_groups(void **state)
{
    struct tiny *t = tiny_new(&base);
    struct ek_quant quant = {.kind = EK_QUANT_I8, .rows = 32, .cols = 96, .block_rows = 1};
    uint32_t down = 0;
    (void)state;

    for (uint32_t i = 0; i < t->g.op_count; i++)
        if (t->g.ops[i].kind == EK_OP_LINEAR && t->g.weights[t->g.ops[i].weight].cols == 96)
            down = t->g.ops[i].weight;
    struct ek_weight *w = &t->g.weights[down];
    t->g.quants = &quant;
    t->g.quant_count = 1;
    w->quantized = true;
    w->parts = 1;
    w->part[0].rows = 32;
    w->dtype = EK_I8;
    static const struct {
        uint32_t group, first; /* column of rank 1 */
        bool kept[2];
    } cases[] = {{48, 48, {true, true}},
                 {32, 32, {true, true}},
                 {96, 32, {true, true}},
                 {64, 32, {true, false}}};
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        w->group = cases[c].group;
        for (uint32_t r = 0; r < 2; r++) {
            struct ek_graph g;
            assert_int_equal(ek_shard(&t->g, r, 2, &g, NULL), 0);
            const struct ek_weight *mine = &g.weights[down];
            assert_int_equal(ek_weight_file_cols(mine), 96);
            assert_int_equal(mine->first_col, r * cases[c].first);
            assert_int_equal(mine->dtype, cases[c].kept[r] ? EK_I8 : EK_F32);
            ek_graph_free(&g);
        }
    }
    tiny_free(t);
}

static void test_alloc(void **state)
{
    struct tiny *t = tiny_new(&base);
    (void)state;

    for (long n = 1;; n++) {
        struct ek_graph g = {.vocab = 7};
        alloc_fail_at(n);
        int r = ek_shard(&t->g, 1, 2, &g, NULL);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),    cmocka_unit_test(test_few_kv_heads),
        cmocka_unit_test(test_bias_once), cmocka_unit_test(test_units),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_no_rule),
        cmocka_unit_test(test_groups),    cmocka_unit_test(test_alloc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
