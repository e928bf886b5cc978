/*
 * What Gemma 3n has beside others' operations: sums of streams that lie side by side, a value made
 * as large as another one, a gate cut off above its mean, a number for each column, and an
 * embedding of a part of the vocabulary. On the CPU backend, in each tier, by values that are
 * known: a product of zeros leaves its bias. And which of them are refused, by whom.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/cpu/tier.h"
#include "kernels/fingerprint.h"
#include "kernels/shard.h"
#include "tests/unit/kernels/alone.h"

enum { TOKENS = 19, HIDDEN = 32, KNOWN = 8, BY = 9, HALF = HIDDEN / 2 };

static struct tiny *streams_new(void)
{
    const struct tiny_params p = {.dtype = EK_F32,
                                  .layers = 1,
                                  .hidden = HIDDEN,
                                  .q_heads = 2,
                                  .kv_heads = 2,
                                  .head_dim = 16,
                                  .rotary = 16,
                                  .ffn = 24,
                                  .vocab = VOCAB,
                                  .act = EK_ACT_SILU};
    struct tiny *t = tiny_new(&p);

    t->g.value_count = 10;
    t->width[KNOWN] = HIDDEN;
    t->width[BY] = 4;
    return t;
}

/* Before the logits, which are the last operation. */
static struct ek_op *insert(struct tiny *t, struct ek_op op)
{
    const uint32_t last = t->g.op_count - 1;

    t->op[last + 1] = t->op[last];
    t->g.op_count++;
    t->op[last] = op;
    return &t->op[last];
}

static struct ek_op op_of(enum ek_op_kind kind, uint16_t dst, uint16_t src)
{
    return (struct ek_op){
        .kind = kind, .dst = dst, .src = src, .weight = EK_NO_WEIGHT, .bias = EK_NO_WEIGHT};
}

/* The value holds these numbers, whatever the tokens are. */
static const float *known(struct tiny *t, uint16_t value)
{
    struct ek_op op = op_of(EK_OP_LINEAR, value, 1);

    op.weight = tiny_weight(t, t->width[value], HIDDEN, 0.0f, 0.0f);
    op.bias = tiny_weight(t, t->width[value], 1, 1.0f, 0.3f);
    (void)insert(t, op);
    return tiny_data(t, op.bias);
}

static void logits_by(struct tiny *t, const char *isa, const int32_t *tokens, float *logits)
{
    struct tiny_device x;
    uint32_t table[8];

    t->file.size_bytes = t->floats * sizeof(float);
    spread_table(table, 8, 1, 2);
    assert_int_equal(tiny_open(t, isa, 2, 16, 20, &x), 0);
    run_alone(&x, tokens, TOKENS, 7, table, logits);
    tiny_close(&x);
}

/* The logits are those of the vector, in each tier. */
static void gives(struct tiny *t, const float *want)
{
    const struct cpu_ops *tiers[CPU_TIERS];
    const float *head = tiny_data(t, t->op[t->g.op_count - 1].weight);
    int32_t tokens[TOKENS];
    struct ek_op take = op_of(EK_OP_TAKE, 7, KNOWN);

    take.u.take.group = HIDDEN;
    take.u.take.heads = 1;
    (void)insert(t, take);
    make_tokens(tokens, TOKENS, 9);
    cpu_tier_list(tiers);
    for (uint32_t i = 0; tiers[i]; i++) {
        float got[VOCAB];
        logits_by(t, tiers[i]->name, tokens, got);
        for (uint32_t v = 0; v < VOCAB; v++) {
            double sum = 0;
            for (uint32_t k = 0; k < HIDDEN; k++)
                sum += (double)head[v * HIDDEN + k] * (double)want[k];
            assert_float_equal(got[v], (float)sum * 0.5f, 2e-5f * (1 + fabsf((float)sum)));
        }
    }
    tiny_free(t);
}

static struct ek_op mix_op(void)
{
    struct ek_op op = op_of(EK_OP_MIX, KNOWN, 7);

    op.u.mix.by = BY;
    op.u.mix.inputs = op.u.mix.outputs = 2;
    op.u.mix.group = HALF;
    op.u.mix.plus = 0.5f;
    return op;
}

static void test_mix(void **state)
{
    (void)state;
    for (int fixed = 0; fixed < 2; fixed++) {
        struct tiny *t = streams_new();
        float want[HIDDEN];
        const float *by = known(t, BY), *was = known(t, KNOWN), *src = known(t, 7);
        struct ek_op *op = insert(t, mix_op());
        op->u.mix.fixed = fixed;
        op->u.mix.outputs = fixed ? 1 : 2;
        op->u.mix.to = fixed ? HALF : 0;
        memcpy(want, was, sizeof(want));
        for (uint32_t o = 0; o < op->u.mix.outputs; o++)
            for (uint32_t j = 0; j < 2; j++)
                for (uint32_t i = 0; i < HALF; i++)
                    want[op->u.mix.to + o * HALF + i] +=
                        ((fixed ? 0.0f : by[o * 2 + j]) + 0.5f) * src[j * HALF + i];
        gives(t, want);
    }
}

static void test_match(void **state)
{
    (void)state;
    for (int small = 0; small < 2; small++) {
        struct tiny *t = streams_new();
        float want[HIDDEN], least = small ? 9.0f : 1e-5f;
        const float *like = known(t, 7), *was = known(t, KNOWN);
        double squares[2] = {0, 0};
        for (uint32_t i = 0; i < HIDDEN; i++) {
            squares[0] += (double)like[i] * (double)like[i] / HIDDEN;
            squares[1] += (double)was[i] * (double)was[i] / HIDDEN;
        }
        assert_true(squares[1] < 9.0);
        for (uint32_t i = 0; i < HIDDEN; i++)
            want[i] = was[i] * (float)sqrt(squares[0] / (small ? (double)least : squares[1]));
        insert(t, op_of(EK_OP_MATCH, KNOWN, 7))->u.match.least = least;
        gives(t, want);
    }
}

static void test_cut(void **state)
{
    (void)state;
    struct tiny *t = streams_new();
    float want[HIDDEN];
    const float *was = known(t, KNOWN);
    double mean = 0, square = 0;
    uint32_t left = 0;
    for (uint32_t i = 0; i < HALF; i++)
        mean += (double)was[i] / HALF;
    for (uint32_t i = 0; i < HALF; i++)
        square += ((double)was[i] - mean) * ((double)was[i] - mean) / HALF;
    for (uint32_t i = 0; i < HIDDEN; i++) {
        const double x = (double)was[i] - (mean + 0.4 * sqrt(square));
        want[i] = i >= HALF ? was[i] : x > 0 ? (float)x : 0.0f;
        left += i < HALF && x > 0;
    }
    assert_true(left > 0 && left < HALF);
    struct ek_op *op = insert(t, op_of(EK_OP_CUT, KNOWN, KNOWN));
    op->u.cut.group = HALF;
    op->u.cut.times = 0.4f;
    gives(t, want);
}

static void test_columns(void **state)
{
    (void)state;
    struct tiny *t = streams_new();
    float want[HIDDEN];
    const float *was = known(t, KNOWN);
    struct ek_op op = op_of(EK_OP_SCALE, KNOWN, KNOWN);
    op.weight = tiny_weight(t, 1, HIDDEN, 1.0f, 0.2f);
    op.u.scale.scale = -2.0f;
    (void)insert(t, op);
    for (uint32_t i = 0; i < HIDDEN; i++)
        want[i] = was[i] * tiny_data(t, op.weight)[i] * -2.0f;
    gives(t, want);
}

/* Tokens beyond an embedding's rows are as the first one. */
static void test_rows(void **state)
{
    (void)state;
    struct tiny *t = streams_new();
    struct ek_weight *w = &t->weight[t->op[0].weight];
    int32_t tokens[TOKENS], within[TOKENS];
    float want[VOCAB], got[VOCAB];
    uint32_t beyond = 0;
    make_tokens(tokens, TOKENS, 9);
    for (uint32_t i = 0; i < TOKENS; i++) {
        within[i] = tokens[i] < VOCAB - 7 ? tokens[i] : 0;
        beyond += within[i] != tokens[i];
    }
    assert_true(beyond > 0);
    logits_by(t, "ref", within, want);
    w->rows -= 7;
    w->part[1].rows -= 7;
    logits_by(t, "ref", tokens, got);
    assert_memory_equal(got, want, sizeof(got));
    tiny_free(t);
}

static struct tiny *made(struct ek_op op)
{
    struct tiny *t = streams_new();
    struct ek_fault fault = {0};

    (void)known(t, BY);
    (void)known(t, KNOWN);
    (void)insert(t, op);
    if (ek_graph_check(&t->g, &fault) != 0)
        fail_msg("%s", fault.msg);
    return t;
}

static struct ek_op *made_op(struct tiny *t)
{
    return &t->op[t->g.op_count - 2];
}

static void refused(struct tiny *t, const char *text)
{
    struct ek_fault fault = {0};

    assert_int_equal(ek_graph_check(&t->g, &fault), -EBADMSG);
    if (!strstr(fault.msg, text))
        fail_msg("'%s' instead of '%s'", fault.msg, text);
    tiny_free(t);
}

static void test_refused(void **state)
{
    (void)state;
    struct ek_op match = op_of(EK_OP_MATCH, KNOWN, 7), cut = op_of(EK_OP_CUT, KNOWN, KNOWN);
    match.u.match.least = 1e-5f;
    cut.u.cut.group = HALF;

    struct tiny *t = made(mix_op());
    made_op(t)->u.mix.group++;
    refused(t, "a mix exceeds its values");
    t = made(mix_op());
    made_op(t)->u.mix.to = 1;
    refused(t, "a mix exceeds its values");
    t = made(mix_op());
    made_op(t)->u.mix.inputs = 0;
    refused(t, "a mix exceeds its values");
    t = made(mix_op());
    made_op(t)->u.mix.plus = INFINITY;
    refused(t, "a mix exceeds its values");
    t = made(mix_op());
    made_op(t)->u.mix.first = 1;
    refused(t, "without its coefficients");
    t = made(mix_op());
    made_op(t)->u.mix.by = 10;
    refused(t, "without its coefficients");
    t = made(match);
    made_op(t)->src = BY;
    refused(t, "a misshapen match");
    t = made(match);
    made_op(t)->u.match.least = 0;
    refused(t, "a misshapen match");
    t = made(cut);
    made_op(t)->u.cut.group = HIDDEN + 1;
    refused(t, "a cut exceeds its value");
    t = made(cut);
    made_op(t)->u.cut.times = NAN;
    refused(t, "a cut exceeds its value");
    t = made(cut);
    t->weight[t->op[0].weight].rows = VOCAB + 1;
    refused(t, "misshapen embedding");
}

/* What differs is told apart, and ranks have no part of an embedding that lacks tokens. */
static void test_others(void **state)
{
    (void)state;
    struct tiny *t = made(mix_op());
    struct ek_graph part;
    struct ek_fault fault;
    const uint64_t name = ek_graph_sum(&t->g);
    made_op(t)->u.mix.plus = 0.25f;
    assert_true(ek_graph_sum(&t->g) != name);
    t->weight[t->op[0].weight].rows = VOCAB - 4;
    assert_int_equal(ek_shard(&t->g, 0, 2, &part, &fault), -ENOTSUP);
    assert_non_null(strstr(fault.msg, "of fewer tokens than the vocabulary has"));
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mix),   cmocka_unit_test(test_match),
                                       cmocka_unit_test(test_cut),   cmocka_unit_test(test_columns),
                                       cmocka_unit_test(test_rows),  cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
