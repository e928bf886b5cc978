/*
 * The CPU backend on small random models: right against a plain computation over every tier, dtype
 * and shape of attention; and bitwise the same alone, among others, in chunks, with other threads
 * and other blocks. Then the contract of backend.h: order of calls, errors, copies, resizing.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/err.h"
#include "common/memplan.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/tier.h"
#include "kernels/registry.h"
#include "tests/share.h"
#include "tests/unit/kernels/alone.h"
#include "tests/unit/kernels/tiles.h"
#include "tests/unit/kernels/tiny_plain.h"

enum { LONG = 300 };

static const struct tiny_params g_models[] = {
    {.dtype = EK_F32,
     .layers = 2,
     .hidden = 24,
     .q_heads = 3,
     .kv_heads = 3,
     .head_dim = 8,
     .rotary = 8,
     .ffn = 20,
     .vocab = VOCAB,
     .act = EK_ACT_SILU},
    {.dtype = EK_F32,
     .layers = 2,
     .hidden = 40,
     .q_heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .rotary = 16,
     .ffn = 33,
     .vocab = VOCAB,
     .bias = true,
     .tied = true,
     .act = EK_ACT_SILU},
    {.dtype = EK_F32,
     .layers = 1,
     .hidden = 33,
     .q_heads = 14,
     .kv_heads = 2,
     .head_dim = 12,
     .rotary = 4,
     .ffn = 64,
     .vocab = VOCAB,
     .window = 37,
     .qk_norm = true,
     .act = EK_ACT_GELU_TANH},
    {.dtype = EK_F32,
     .layers = 2,
     .hidden = 48,
     .q_heads = 9,
     .kv_heads = 1,
     .head_dim = 20,
     .rotary = 20,
     .ffn = 40,
     .vocab = VOCAB,
     .softcap = 3.0f,
     .tied = true,
     .act = EK_ACT_GELU},
    {.dtype = EK_BF16,
     .layers = 2,
     .hidden = 64,
     .q_heads = 4,
     .kv_heads = 2,
     .head_dim = 32,
     .rotary = 32,
     .ffn = 1568, /* a piece of gate and up is more than they are done by */
     .vocab = VOCAB,
     .tied = true,
     .act = EK_ACT_SILU},
    {.dtype = EK_F16,
     .layers = 2,
     .hidden = 48,
     .q_heads = 4,
     .kv_heads = 1,
     .head_dim = 24,
     .rotary = 24,
     .ffn = 50,
     .vocab = VOCAB,
     .window = 300,
     .act = EK_ACT_SILU},
    {.dtype = EK_F32,
     .layers = 2,
     .hidden = 40,
     .q_heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .rotary = 16,
     .ffn = 33,
     .vocab = VOCAB,
     .act = EK_ACT_SILU,
     .experts = 7,
     .top = 2,
     .normalise = true},
    {.dtype = EK_BF16, /* all are chosen: rounding must not choose others */
     .layers = 1,
     .hidden = 64,
     .q_heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .rotary = 16,
     .ffn = 48,
     .vocab = VOCAB,
     .act = EK_ACT_GELU_TANH,
     .experts = 3,
     .top = 3},
    {.dtype = EK_F32,
     .layers = 2,
     .hidden = 40,
     .q_heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .rotary = 16,
     .ffn = 33,
     .vocab = VOCAB,
     .act = EK_ACT_SILU,
     .experts = 12,
     .top = 3,
     .normalise = true,
     .corrected = true,
     .routing =
         {.score = EK_SCORE_SIGMOID, .groups = 4, .groups_top = 2, .group_best = 2, .scale = 2.5f}},
    {.dtype = EK_F32,
     .layers = 1,
     .hidden = 40,
     .q_heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .rotary = 16,
     .ffn = 33,
     .vocab = VOCAB,
     .act = EK_ACT_SILU,
     .experts = 9,
     .top = 2,
     .neighbours = true,
     .window = 21,
     .chunks = true,
     .warm_every = 9,
     .corrected = true,
     .routing = {.share_in = true, .groups = 3, .groups_top = 1, .group_best = 1}},
    {.dtype = EK_F32,
     .layers = 2,
     .hidden = 40,
     .q_heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .rotary = 16,
     .ffn = 33,
     .vocab = VOCAB,
     .bias = true,
     .act = EK_ACT_SILU,
     .tied = true,
     .kept = EK_I8},
    {.dtype = EK_BF16,
     .layers = 1,
     .hidden = 72,
     .q_heads = 4,
     .kv_heads = 2,
     .head_dim = 32,
     .rotary = 32,
     .ffn = 81,
     .vocab = VOCAB,
     .act = EK_ACT_SILU,
     .tied = true,
     .kept = EK_I4,
     .group = 32},
    {.dtype = EK_F16,
     .layers = 1,
     .hidden = 33,
     .q_heads = 4,
     .kv_heads = 1,
     .head_dim = 24,
     .rotary = 24,
     .ffn = 65,
     .vocab = VOCAB,
     .act = EK_ACT_SILU,
     .tied = true,
     .kept = EK_F8_E4M3},
    {.dtype = EK_F32,
     .layers = 1,
     .hidden = 140,
     .q_heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .rotary = 16,
     .ffn = 35,
     .vocab = VOCAB,
     .act = EK_ACT_SILU,
     .experts = 2,
     .top = 2,
     .kept = EK_I4,
     .group = 128},
    {.dtype = EK_F32,
     .layers = 2,
     .hidden = 40,
     .q_heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .rotary = 16,
     .ffn = 33,
     .vocab = VOCAB,
     .above = 20,
     .prompt = 33},
    {.dtype = EK_F32,
     .layers = 1,
     .hidden = 33,
     .q_heads = 14,
     .kv_heads = 2,
     .head_dim = 12,
     .rotary = 4,
     .ffn = 64,
     .vocab = VOCAB,
     .window = 37,
     .act = EK_ACT_SILU,
     .kv_i8 = true},
    {.dtype = EK_BF16,
     .layers = 2,
     .hidden = 48,
     .q_heads = 9,
     .kv_heads = 1,
     .head_dim = 20,
     .rotary = 20,
     .ffn = 40,
     .vocab = VOCAB,
     .softcap = 3.0f,
     .act = EK_ACT_SILU,
     .kv_i8 = true},
    {.dtype = EK_F32, /* sinks, biases of experts, an activation of gate and up */
     .layers = 2,
     .hidden = 40,
     .q_heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .rotary = 16,
     .ffn = 37,
     .vocab = VOCAB,
     .window = 19,
     .bias = true,
     .sinks = true,
     .expert_bias = true,
     .act = EK_ACT_SWIGLU_CLAMPED,
     .experts = 7,
     .top = 3,
     .normalise = true},
    {.dtype = EK_BF16,
     .layers = 1,
     .hidden = 64,
     .q_heads = 8,
     .kv_heads = 1,
     .head_dim = 24,
     .rotary = 24,
     .ffn = 48,
     .vocab = VOCAB,
     .sinks = true,
     .softcap = 4.0f,
     .act = EK_ACT_SWIGLU_CLAMPED,
     .kept = EK_I8,
     .group = 32,
     .kv_i8 = true},
    {.dtype = EK_F16, /* heads that are no whole quads */
     .layers = 1,
     .hidden = 40,
     .q_heads = 4,
     .kv_heads = 4,
     .head_dim = 10,
     .rotary = 10,
     .ffn = 33,
     .vocab = VOCAB,
     .act = EK_ACT_SILU,
     .kv_i8 = true},
};
#define MODELS (sizeof(g_models) / sizeof(g_models[0]))

static const struct ek_slot_set g_greedy = {.sampling.top_p = 1.0f, .top = EK_TOP_MOST};

static void test_reference(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 17, 70, LONG};
    const struct cpu_ops *tiers[CPU_TIERS];
    int32_t tokens[LONG];
    uint32_t table[LONG];

    cpu_tier_list(tiers);
    uint64_t number = 0;

    make_tokens(tokens, LONG, 5);
    for (size_t m = 0; m < MODELS; m++) {
        struct tiny *t = tiny_new(&g_models[m]);
        double tolerance = t->p.dtype == EK_F32 ? 2e-4 : t->p.dtype == EK_F16 ? 1e-2 : 6e-2;
        if (t->p.kv_i8 && tolerance < 2e-2) /* a number that is half way goes either way */
            tolerance = 2e-2;
        for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
            double want[VOCAB];
            if (!share_takes(number++))
                continue;
            tiny_reference(t, tokens, lengths[l], want);
            for (uint32_t i = 0; tiers[i]; i++) {
                static const uint32_t sizes[] = {16, 8, 32};
                struct tiny_device x;
                float got[VOCAB];
                if (tiles_idle(tiers[i], t->p.dtype))
                    continue;
                assert_int_equal(tiny_open(t, tiers[i]->name, 2, sizes[i % 3], 80, &x), 0);
                spread_table(table, LONG / sizes[i % 3] + 1, 1, 2);
                run_alone(&x, tokens, lengths[l], 41 + 7 * i, table, got);
                for (uint32_t v = 0; v < VOCAB; v++)
                    if (!(fabs((double)got[v] - want[v]) < tolerance))
                        fail_msg("model %zu, %u tokens, %s: logit %u is %g instead of %g", m,
                                 lengths[l], tiers[i]->name, v, (double)got[v], want[v]);
                tiny_close(&x);
            }
        }
        tiny_free(t);
    }
}

/* A sequence of 150 tokens among 15 others of all lengths; its chunks and the others' are mixed. */
static void run_among(struct tiny_device *x, const int32_t *tokens, uint32_t n, float *logits)
{
    uint32_t table[16][40], done[16] = {0}, total = 0;
    uint64_t random = 77;

    for (uint32_t s = 0; s < 16; s++) {
        struct ek_slot_set set = g_greedy;
        set.slot = s;
        tiny_set(x, &set);
        spread_table(table[s], 40, 1 + s, 16);
    }
    while (done[9] < n) {
        total = 0;
        for (uint32_t s = 0; s < 16; s++) {
            uint32_t rows = 1 + (uint32_t)tiny_next(&random) % (s == 9 ? 23 : 40);
            if (s == 9 && n - done[9] < rows)
                rows = n - done[9];
            if (done[s] + rows > LONG || total + rows > x->ceiling.rows)
                continue;
            total += rows;
            const int32_t *text = s == 9 ? tokens : tokens + s; /* the others say something else */
            tiny_add(x, s, text, done[s], rows, table[s], s % 2 || done[s] + rows == n);
            done[s] += rows;
        }
        assert_int_equal(tiny_run(x, NULL), 0);
    }
    for (uint32_t i = 0; i < x->result->seqs; i++)
        if (x->result->seq[i].slot == 9)
            logits_of(&x->result->seq[i], logits);
}

static void test_company(void **state)
{
    (void)state;
    enum { N = 150 };
    const struct cpu_ops *tiers[CPU_TIERS];
    int32_t tokens[LONG + 16];
    uint32_t near[40], far[40];

    cpu_tier_list(tiers);
    make_tokens(tokens, LONG + 16, 11);
    spread_table(near, 40, 1, 1);
    for (uint32_t i = 0; i < 40; i++)
        far[i] = 600 - i * 7;
    for (size_t m = 0; m < MODELS; m++)
        for (uint32_t i = 0; tiers[i]; i++) {
            if (!share_takes(m * CPU_TIERS + i) || tiles_idle(tiers[i], g_models[m].dtype))
                continue;
            struct tiny *t = tiny_new(&g_models[m]);
            struct tiny_device one, three;
            float alone[VOCAB], other[VOCAB];
            assert_int_equal(tiny_open(t, tiers[i]->name, 1, 8, 700, &one), 0);
            assert_int_equal(tiny_open(t, tiers[i]->name, 3, 8, 700, &three), 0);
            run_alone(&one, tokens, N, N, near, alone);
            static const uint32_t chunks[] = {1, 64, 3, 16, 149};
            for (size_t c = 0; c < (tiers[i + 1] ? 5u : 2u); c++) { /* ref is slow */
                run_alone(c % 2 ? &one : &three, tokens, N, chunks[c], far, other);
                assert_memory_equal(alone, other, sizeof(alone));
            }
            run_among(&three, tokens, N, other);
            assert_memory_equal(alone, other, sizeof(alone));
            tiny_close(&one);
            tiny_close(&three);
            tiny_free(t);
        }
}

/* Decoding with the token on the device, two steps in flight, gives what spelled-out tokens give.
 */
static void test_from_previous(void **state)
{
    (void)state;
    enum { PROMPT = 11, MORE = 12 };
    struct tiny *t = tiny_new(&g_models[1]);
    int32_t tokens[PROMPT + MORE];
    uint32_t table[8], told[8];
    struct tiny_device x;

    make_tokens(tokens, PROMPT, 3);
    spread_table(table, 8, 1, 1);
    spread_table(told, 8, 20, 1);
    assert_int_equal(tiny_open(t, NULL, 2, 8, 64, &x), 0);
    tiny_set(&x, &g_greedy);
    tiny_add(&x, 0, tokens, 0, PROMPT, table, true);
    struct ek_step *step[2] = {x.step, calloc(1, ek_step_size(&x.ceiling))};
    for (uint32_t i = 0; i <= MORE; i++) {
        x.step = step[i & 1];
        if (i > 0 && i < MORE)
            tiny_add(&x, 0, NULL, PROMPT + i - 1, 1, table, true);
        x.step->id = i + 1;
        if (i < MORE) {
            assert_int_equal(x.b->forward(x.d, x.step), 0);
            assert_int_equal(x.b->sample(x.d, x.step, NULL), 0);
        }
        if (i > 0) { /* the step before, while this one is in flight */
            assert_int_equal(x.b->wait(x.d, i, x.result, ek_result_size(x.ceiling.seqs), 10000000),
                             0);
            assert_int_equal(x.result->error, 0);
            tokens[PROMPT + i - 1] = x.result->seq[0].token[0];
        }
        ek_step_layout(step[~i & 1], &x.ceiling);
    }
    ek_step_layout(x.step, &x.ceiling);
    x.id = 100;
    for (uint32_t n = PROMPT; n < PROMPT + MORE; n++) {
        tiny_add(&x, 1, tokens, n == PROMPT ? 0 : n - 1, n == PROMPT ? n : 1, told, true);
        assert_int_equal(tiny_run(&x, NULL), 0);
        assert_int_equal(x.result->seq[0].token[0], tokens[n]);
    }
    x.step = step[0];
    free(step[1]);
    tiny_close(&x);
    tiny_free(t);
}

static void test_contract(void **state)
{
    (void)state;
    struct tiny *t = tiny_new(&g_models[0]);
    struct tiny_device x;
    uint32_t table[2] = {1, 2};
    int32_t tokens[4] = {1, 2, 3, 4};

    assert_int_equal(tiny_open(t, NULL, 1, 8, 8, &x), 0);
    const size_t bytes = ek_result_size(x.ceiling.seqs);
    assert_int_equal(x.b->wait(x.d, 1, x.result, bytes, 0), -EINVAL); /* nothing was asked */
    assert_int_equal(x.b->sample(x.d, x.step, NULL), -EINVAL);
    tiny_add(&x, 0, NULL, 0, 1, table, true); /* nothing was sampled before */
    assert_int_equal(tiny_run(&x, NULL), -EBADMSG);
    tiny_add(&x, 0, tokens, 0, 3, table, true);
    ek_step_tables(x.step)[0] = 99;
    assert_int_equal(tiny_run(&x, NULL), -EBADMSG);
    tiny_add(&x, 0, tokens, 0, 3, table, true); /* and the device goes on */
    assert_int_equal(tiny_run(&x, NULL), 0);
    assert_int_equal(x.result->seqs, 1);

    tiny_add(&x, 0, tokens, 3, 1, table, true);
    x.step->id = 10;
    assert_int_equal(x.b->forward(x.d, x.step), 0);
    assert_int_equal(x.b->forward(x.d, x.step), -EBUSY);
    assert_int_equal(x.b->kv_resize(x.d, 16), -EBUSY);
    struct ek_step *next = calloc(1, ek_step_size(&x.ceiling));
    ek_step_layout(next, &x.ceiling);
    next->id = 11;
    assert_int_equal(x.b->forward(x.d, next), -EINVAL); /* the step before was not sampled */
    assert_int_equal(x.b->sample(x.d, x.step, NULL), 0);
    assert_int_equal(x.b->forward(x.d, next), 0); /* an empty step is one */
    assert_int_equal(x.b->sample(x.d, next, NULL), 0);
    assert_int_equal(x.b->wait(x.d, 10, x.result, 8, 10000000), -EINVAL); /* too small */
    assert_int_equal(x.b->wait(x.d, 10, x.result, bytes, 10000000), 0);
    assert_int_equal(x.b->wait(x.d, 11, x.result, bytes, 10000000), 0);
    assert_int_equal(x.result->seqs, 0);
    free(next);
    tiny_close(&x);
    tiny_free(t);
}

/* A context moved through the host tier and to other blocks, and a resize, change no bit. */
static void test_moves(void **state)
{
    (void)state;
    enum { N = 20 };
    struct tiny *t = tiny_new(&g_models[4]);
    struct tiny_device x;
    int32_t tokens[N + 1];
    uint32_t table[3] = {1, 2, 3}, moved[3] = {200, 5, 3};
    float want[VOCAB], got[VOCAB];

    make_tokens(tokens, N + 1, 9);
    assert_int_equal(tiny_open(t, NULL, 2, 8, 8, &x), 0);
    run_alone(&x, tokens, N + 1, 16, table, want);
    assert_int_equal(x.b->kv_resize(x.d, 201), 0);
    struct ek_block_copy *c = ek_step_copies(x.step);
    c[0] = (struct ek_block_copy){1, 3, EK_TIER_DEVICE, EK_TIER_HOST, {0}};
    c[1] = (struct ek_block_copy){3, 200, EK_TIER_HOST, EK_TIER_DEVICE, {0}};
    c[2] = (struct ek_block_copy){2, 5, EK_TIER_DEVICE, EK_TIER_DEVICE, {0}};
    x.step->copies = 3;
    tiny_add(&x, 3, tokens, N, 1, moved, true);
    assert_int_equal(tiny_run(&x, NULL), 0);
    logits_of(&x.result->seq[0], got);
    assert_memory_equal(want, got, sizeof(want));
    assert_int_equal(x.b->kv_resize(x.d, 6), 0);
    tiny_add(&x, 3, tokens, N, 1, moved, true);
    assert_int_equal(tiny_run(&x, NULL), -EBADMSG); /* block 200 is gone */
    ek_step_copies(x.step)[0] = (struct ek_block_copy){1, 4, EK_TIER_DEVICE, EK_TIER_HOST, {0}};
    x.step->copies = 1;
    assert_int_equal(tiny_run(&x, NULL), -EBADMSG); /* the host tier has 4 blocks */
    tiny_close(&x);
    tiny_free(t);
}

static uint64_t resident_bytes(void)
{
    unsigned long size, resident;
    FILE *f = fopen("/proc/self/statm", "re");

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu %lu", &size, &resident), 2);
    (void)fclose(f);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* A smaller pool is memory for others; a larger one that is not there is refused, and then the
 * pool is as it was. */
static void test_resize_gives_memory_back(void **state)
{
    (void)state;
    enum { BLOCKS = 4096 };
    struct tiny *t = tiny_new(&g_models[0]);
    struct tiny_device x;
    struct ek_device_stats full, small, again;

    assert_int_equal(tiny_open(t, NULL, 1, 16, BLOCKS, &x), 0);
    for (uint32_t id = 2; id < BLOCKS;) { /* touches all, eight a step */
        struct ek_block_copy *c = ek_step_copies(x.step);
        for (; id < BLOCKS && x.step->copies < x.ceiling.copies; id++)
            c[x.step->copies++] =
                (struct ek_block_copy){1, id, EK_TIER_DEVICE, EK_TIER_DEVICE, {0}};
        assert_int_equal(tiny_run(&x, NULL), 0);
    }
    x.b->stats(x.d, &full);
    uint64_t before = resident_bytes();
    assert_int_equal(x.b->kv_resize(x.d, BLOCKS / 8), 0);
    uint64_t after = resident_bytes();
    x.b->stats(x.d, &small);
    assert_int_equal(small.kv_bytes, full.kv_bytes / 8);
    assert_true(full.kv_bytes > 8 << 20);
    assert_true(before > after && before - after > (full.kv_bytes - small.kv_bytes) / 10 * 9);

    assert_int_equal(x.b->kv_resize(x.d, UINT32_MAX), EK_EDEVMEM);
    x.b->stats(x.d, &again);
    assert_int_equal(again.kv_bytes, small.kv_bytes);
    assert_int_equal(x.b->kv_resize(x.d, BLOCKS), 0);
    x.b->stats(x.d, &again);
    assert_int_equal(again.kv_bytes, full.kv_bytes);
    tiny_close(&x);
    tiny_free(t);
}

static void test_plan_is_what_is_taken(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODELS; m++) {
        struct tiny *t = tiny_new(&g_models[m]);
        const struct ek_open_params open = {.threads = 2};
        struct ek_plan_request q = {.graph = &t->g,
                                    .ceiling = {512, 16, 1024, 8, 4096, 8},
                                    .logit_rows = 24,
                                    .block_size = 16};
        struct ek_device_stats s;
        struct tiny_device x;
        struct ek_plan plan;

        assert_int_equal(tiny_open(t, NULL, 2, 16, 9, &x), 0);
        assert_int_equal(x.b->plan(&open, &q, &plan, NULL), 0);
        x.b->stats(x.d, &s);
        assert_int_equal(s.weight_bytes, plan.weight_bytes);
        assert_int_equal(s.activation_bytes, plan.activation_bytes + plan.slot_bytes);
        assert_int_equal(s.kv_bytes, 9 * plan.block_bytes);
        assert_int_equal(s.host_kv_bytes, 4 * plan.block_bytes);
        assert_true(s.pool_used_bytes <= s.pool_reserved_bytes);
        assert_true(s.pool_reserved_high_bytes >= s.pool_reserved_bytes);
        q.ceiling.rows = UINT32_MAX;
        q.logit_rows = UINT32_MAX;
        t->g.vocab = INT32_MAX; /* does not fit the weights */
        assert_int_equal(x.b->plan(&open, &q, &plan, NULL), -EBADMSG);
        tiny_close(&x);
        tiny_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_from_previous),
        cmocka_unit_test(test_contract),
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_resize_gives_memory_back),
        cmocka_unit_test(test_plan_is_what_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
