/*
 * Layers whose cells of the KV cache differ, attentions that read what another one wrote, scales,
 * and factors of experts: on the CPU backend, against graphs that say the same otherwise, bit for
 * bit. And which of them are refused, by whom.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "common/memplan.h"
#include "kernels/cpu/tier.h"
#include "kernels/registry.h"
#include "kernels/shard.h"
#include "kernels/stage.h"
#include "tests/unit/kernels/alone.h"

enum { TOKENS = 45, LAYERS = 3, QUERIES = 8 /* a value that no other operation has */ };

static struct tiny_params params_of(enum ek_dtype dtype, bool kv_i8, uint32_t window)
{
    return (struct tiny_params){.dtype = dtype,
                                .layers = LAYERS,
                                .hidden = 32,
                                .q_heads = 6,
                                .kv_heads = 2,
                                .head_dim = 24,
                                .rotary = 24,
                                .ffn = 40,
                                .vocab = VOCAB,
                                .window = window,
                                .kv_i8 = kv_i8,
                                .act = EK_ACT_SILU};
}

static uint32_t find(const struct tiny *t, enum ek_op_kind kind, uint32_t nth)
{
    uint32_t i = 0;

    for (;; i++) {
        assert_true(i < t->g.op_count);
        if (t->op[i].kind == kind && nth-- == 0)
            return i;
    }
}

static struct ek_op *insert(struct tiny *t, uint32_t at, struct ek_op op)
{
    memmove(&t->op[at + 1], &t->op[at], (t->g.op_count - at) * sizeof(op));
    t->g.op_count++;
    t->op[at] = op;
    return &t->op[at];
}

/* The last layer attends twice: again with its queries alone, over the cells that it has written.
 */
static void attend_again(struct tiny *t)
{
    const uint32_t at = find(t, EK_OP_ATTENTION, LAYERS - 1);
    const uint32_t q = t->p.q_heads * t->p.head_dim;
    struct ek_op again = t->op[at];
    struct ek_op take = {.kind = EK_OP_TAKE,
                         .dst = QUERIES,
                         .src = again.src,
                         .weight = EK_NO_WEIGHT,
                         .bias = EK_NO_WEIGHT,
                         .u.take = {.group = q, .heads = 1}};

    t->width[QUERIES] = q;
    again.src = QUERIES;
    again.u.attention.reads = true;
    (void)insert(t, at + 1, take);
    (void)insert(t, at + 2, again);
    (void)insert(t, at + 3,
                 (struct ek_op){.kind = EK_OP_SCALE,
                                .dst = again.dst,
                                .src = again.dst,
                                .weight = EK_NO_WEIGHT,
                                .bias = EK_NO_WEIGHT,
                                .u.scale.scale = 1.0f});
}

static void logits_by(const struct tiny *t, const char *isa, uint32_t threads, uint32_t chunk,
                      float *logits)
{
    struct tiny_device x;
    int32_t tokens[TOKENS];
    uint32_t table[8];

    make_tokens(tokens, TOKENS, 9);
    spread_table(table, 8, 1, 2);
    assert_int_equal(tiny_open(t, isa, threads, 16, 20, &x), 0);
    run_alone(&x, tokens, TOKENS, chunk, table, logits);
    tiny_close(&x);
}

static uint64_t block_bytes(const struct tiny *t)
{
    const struct ek_open_params open = {.threads = 1};
    const struct ek_plan_request q = {
        .graph = &t->g, .ceiling = {64, 4, 64, 0, 4096, 0}, .logit_rows = 4, .block_size = 16};
    struct ek_plan plan = {0};

    assert_int_equal(ek_backend_find("cpu", NULL)->plan(&open, &q, &plan, NULL), 0);
    return plan.block_bytes;
}

/* Cells that are smaller than the largest, and read twice, give the bits of a cache of equal ones,
 * in each tier. */
static void same_bits(const struct tiny_params *p)
{
    const struct cpu_ops *tiers[CPU_TIERS];
    struct tiny *plain = tiny_new(p), *mixed = tiny_new(p);

    mixed->g.kv_mixed = true;
    mixed->g.head_dim = 64;
    mixed->g.kv_heads = 5;
    assert_true(block_bytes(mixed) == block_bytes(plain));
    attend_again(mixed);
    assert_true(block_bytes(mixed) == block_bytes(plain));
    cpu_tier_list(tiers);
    for (uint32_t i = 0; tiers[i]; i++) {
        float want[VOCAB], got[VOCAB];
        logits_by(plain, tiers[i]->name, 1, TOKENS, want);
        logits_by(mixed, tiers[i]->name, 1, TOKENS, got);
        assert_memory_equal(got, want, sizeof(got));
        logits_by(mixed, tiers[i]->name, 3, 7, got);
        assert_memory_equal(got, want, sizeof(got));
    }
    tiny_free(plain);
    tiny_free(mixed);
}

static void test_cells(void **state)
{
    (void)state;
    static const struct {
        enum ek_dtype dtype;
        bool kv_i8;
        uint32_t window;
    } cases[] = {{EK_F32, false, 0}, {EK_F16, false, 11}, {EK_BF16, false, 0}, {EK_BF16, true, 11}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct tiny_params p = params_of(cases[i].dtype, cases[i].kv_i8, cases[i].window);
        same_bits(&p);
    }
}

/* What a scale does to all of a value: here to the logits, with its weight's number. */
static void test_scale(void **state)
{
    (void)state;
    const struct tiny_params p = params_of(EK_F32, false, 0);
    struct tiny *t = tiny_new(&p);
    float want[VOCAB], got[VOCAB];

    logits_by(t, "ref", 2, TOKENS, want);
    const uint32_t weight = tiny_weight(t, 1, 1, 0.0f, 0.5f);
    t->file.size_bytes = t->floats * sizeof(float);
    (void)insert(t, find(t, EK_OP_LOGITS, 0),
                 (struct ek_op){.kind = EK_OP_SCALE,
                                .dst = 7,
                                .src = 7,
                                .weight = weight,
                                .bias = EK_NO_WEIGHT,
                                .u.scale.scale = -4.0f});
    logits_by(t, "ref", 2, TOKENS, got);
    for (uint32_t i = 0; i < VOCAB; i++)
        assert_true(got[i] == -2.0f * want[i]);
    tiny_free(t);
}

static void refused(struct tiny *t, const char *text)
{
    struct ek_fault fault = {0};

    assert_int_equal(ek_graph_check(&t->g, &fault), -EBADMSG);
    if (!strstr(fault.msg, text))
        fail_msg("'%s' instead of '%s'", fault.msg, text);
    tiny_free(t);
}

static struct tiny *made(void)
{
    const struct tiny_params p = params_of(EK_F32, false, 0);
    struct tiny *t = tiny_new(&p);
    struct ek_fault fault;

    t->g.kv_mixed = true;
    t->g.head_dim = 64;
    attend_again(t);
    assert_int_equal(ek_graph_check(&t->g, &fault), 0);
    return t;
}

static void test_refused(void **state)
{
    (void)state;
    uint32_t begin[3];
    struct ek_graph part;
    struct ek_fault fault;
    struct tiny *t = made();

    t->g.kv_mixed = false;
    refused(t, "do not fit the cache");
    t = made();
    t->g.head_dim = 23;
    refused(t, "do not fit the cache");
    t = made();
    t->op[find(t, EK_OP_ATTENTION, 0)].u.attention.reads = true;
    refused(t, "another one writes otherwise");
    t = made();
    t->op[find(t, EK_OP_ATTENTION, 1)].layer = 0;
    refused(t, "another one writes otherwise");
    t = made();
    t->op[find(t, EK_OP_ATTENTION, LAYERS)].u.attention.kv_heads = 1;
    refused(t, "another one writes otherwise");
    t = made();
    t->width[QUERIES]++;
    refused(t, "attention have other widths");
    t = made();
    t->op[find(t, EK_OP_SCALE, 0)].weight = 0;
    refused(t, "misshapen scale");
    t = made();
    t->op[find(t, EK_OP_SCALE, 0)].u.scale.scale = INFINITY;
    refused(t, "misshapen scale");

    t = made();
    assert_int_equal(ek_shard(&t->g, 0, 2, &part, &fault), -ENOTSUP);
    assert_non_null(strstr(fault.msg, "move of columns of divided columns"));
    assert_int_equal(ek_stage_divide(&t->g, 2, begin, &fault), -ENOTSUP);
    assert_non_null(strstr(fault.msg, "no rule where layer"));
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cells), cmocka_unit_test(test_scale),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
