/*
 * Ways of doing the same (kernels/cuda/choices.c): one run of sequences that come, go to the host
 * tier and come back, two steps in flight, gives the same bits whichever way is taken, or, where a
 * way adds in another order, the logits of the plain computation; and a way that is not known is
 * said.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/swap.h"
#include "tests/share.h"
#include "tests/unit/cuda/fake_card.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"
#include "tests/unit/kernels/tiny_plain.h"

enum { VOCAB = 20, SIZE = 8, STEPS = 9, SLOTS = 4 };
#define CARD ((size_t)4 << 30)

#define MODEL(type, n, width, q, kv, dim, inner, ...)                                              \
    {                                                                                              \
        .dtype = (type), .layers = (n), .hidden = (width), .q_heads = (q), .kv_heads = (kv),       \
        .head_dim = (dim), .rotary = (dim), .ffn = (inner), .vocab = VOCAB, __VA_ARGS__            \
    }

static const struct tiny_params g_models[] = {
    MODEL(EK_BF16, 2, 72, 4, 2, 32, 100, .act = EK_ACT_SILU),
    MODEL(EK_F16, 1, 136, 8, 1, 64, 40, .softcap = 5.0f, .qk_norm = true, .bias = true),
    MODEL(EK_BF16, 1, 40, 7, 1, 128, 36, .window = 17, .k_scale = 2.0f, .v_scale = 0.1f),
    MODEL(EK_BF16, 2, 40, 2, 1, 64, 36, .experts = 3, .top = 3, .expert_bias = true,
          .act = EK_ACT_SWIGLU_CLAMPED),
    MODEL(EK_F16, 1, 200, 2, 1, 64, 150, .kept = EK_I4, .group = 128, .act = EK_ACT_GELU_TANH),
    MODEL(EK_BF16, 1, 72, 2, 1, 64, 70, .experts = 2, .top = 2, .kept = EK_I8, .group = 32),
    MODEL(EK_F32, 1, 8, 1, 1, 8, 8, .act = EK_ACT_SILU),
};
enum { SMALL = 6 };
#define MODELS (sizeof(g_models) / sizeof(g_models[0]))

/* What was sampled, and all logits, of each slot in each step. */
struct told {
    struct {
        int32_t token;
        float logit[VOCAB];
    } at[STEPS][SLOTS];
};

static const struct ek_block_copy g_out[] = {{1, 0, EK_TIER_DEVICE, EK_TIER_HOST, {0}},
                                             {2, 1, EK_TIER_DEVICE, EK_TIER_HOST, {0}},
                                             {3, 2, EK_TIER_DEVICE, EK_TIER_HOST, {0}}},
                                  g_in[] = {{0, 10, EK_TIER_HOST, EK_TIER_DEVICE, {0}},
                                            {1, 11, EK_TIER_HOST, EK_TIER_DEVICE, {0}},
                                            {2, 12, EK_TIER_HOST, EK_TIER_DEVICE, {0}}},
                                  g_again[] = {{10, 3, EK_TIER_DEVICE, EK_TIER_HOST, {0}},
                                               {11, 0, EK_TIER_DEVICE, EK_TIER_HOST, {0}},
                                               {12, 1, EK_TIER_DEVICE, EK_TIER_HOST, {0}}},
                                  g_back[] = {{3, 2, EK_TIER_HOST, EK_TIER_HOST, {0}},
                                              {2, 20, EK_TIER_HOST, EK_TIER_DEVICE, {0}},
                                              {0, 21, EK_TIER_HOST, EK_TIER_DEVICE, {0}},
                                              {1, 22, EK_TIER_HOST, EK_TIER_DEVICE, {0}}};

static void copies(struct ek_step *s, const struct ek_block_copy *c, uint32_t count)
{
    memcpy(ek_step_copies(s), c, count * sizeof(*c));
    s->copies = count;
}
#define COPIES(s, list) copies(s, list, sizeof(list) / sizeof((list)[0]))

/* Slot 0 goes and comes back twice; its old blocks become those of others, in the step that copies
 * them away (slot 3) and in the next (slots 1 and 2). */
static void plan(struct tiny_device *x, uint32_t step, const int32_t *tokens)
{
    static const uint32_t a[] = {1, 2, 3}, b[] = {4, 5, 1, 6}, c[] = {2, 3, 7}, d[] = {10, 11},
                          a2[] = {10, 11, 12}, a3[] = {20, 21, 22};
    struct ek_slot_set set = {.sampling.top_p = 1.0f, .top = EK_TOP_MOST};

    for (set.slot = 0; step == 0 && set.slot < SLOTS; set.slot++)
        tiny_set(x, &set);
    if (step == 0)
        tiny_add(x, 0, tokens, 0, 20, a, true);
    else if (step < 3)
        tiny_add(x, 0, NULL, 19 + step, 1, a, true);
    tiny_add(x, 1, step > 0 ? NULL : tokens + 3, step > 0 ? 12 + step : 0, step > 0 ? 1 : 13, b,
             true);
    if (step == 3)
        COPIES(x->step, g_out);
    if (step >= 4)
        tiny_add(x, 2, step > 4 ? NULL : tokens + 7, step > 4 ? 5 + step : 0, step > 4 ? 1 : 10, c,
                 true);
    if (step == 5) {
        COPIES(x->step, g_in);
        tiny_add(x, 0, NULL, 22, 1, a2, true);
    }
    if (step == 6)
        COPIES(x->step, g_again);
    if (step >= 6)
        tiny_add(x, 3, step > 6 ? NULL : tokens + 1, step > 6 ? 4 + step : 0, step > 6 ? 1 : 11, d,
                 true);
    if (step == 7) {
        COPIES(x->step, g_back);
        tiny_add(x, 0, NULL, 23, 1, a3, true);
    }
}

static int take(struct tiny_device *x, uint64_t id, struct told *told)
{
    const size_t bytes = ek_result_bytes(x->ceiling.seqs, x->ceiling.scores, x->ceiling.seqs, 64);

    int r = x->b->wait(x->d, id, x->result, bytes, 60000000);
    if (r < 0 || x->result->error < 0)
        return r < 0 ? r : x->result->error;
    for (uint32_t i = 0; i < x->result->seqs; i++) {
        const struct ek_result_seq *s = &x->result->seq[i];
        told->at[id - 1][s->slot].token = s->token[0];
        for (uint32_t k = 0; k < s->top; k++)
            told->at[id - 1][s->slot].logit[s->top_id[k]] = s->top_logit[k];
    }
    return 0;
}

/* All steps, two in flight. */
static int play(struct tiny_device *x, struct told *ret_told)
{
    struct ek_step *step[2] = {x->step, calloc(1, ek_step_size(&x->ceiling))};
    int32_t tokens[40];
    uint64_t random = 5;
    int r = 0;

    memset(ret_told, 0, sizeof(*ret_told));
    for (int i = 0; i < 40; i++)
        tokens[i] = (int32_t)(tiny_next(&random) % VOCAB);
    for (uint32_t i = 0; r == 0 && i <= STEPS; i++) {
        x->step = step[i & 1];
        ek_step_layout(x->step, &x->ceiling);
        x->step->id = i + 1;
        if (i < STEPS) {
            plan(x, i, tokens);
            r = x->b->forward(x->d, x->step);
            if (r == 0)
                r = x->b->sample(x->d, x->step, NULL);
        }
        if (r == 0 && i > 0)
            r = take(x, i, ret_told);
    }
    x->step = step[0];
    free(step[1]);
    return r;
}

static int open_and_play(const struct tiny *t, struct told *ret_told, char *ret_note)
{
    const struct ek_open_params open = {.device = 0};
    struct ek_device_stats s;
    struct tiny_device x;

    g_fake.card(CARD, true);
    int r = tiny_open_on(cuda_backend(), t, &open, SIZE, 40, &x);
    if (r < 0)
        return r;
    x.b->stats(x.d, &s);
    if (ret_note)
        (void)snprintf(ret_note, 256, "%s", s.note ? s.note : "");
    r = play(&x, ret_told);
    tiny_close(&x);
    assert_true(g_fake.real || (g_fake.objects() == 0 && g_fake.used() == 0));
    return r;
}

/* Ways that add in the same order, and the models (a bit each) that they touch. */
static const struct {
    const char *name, *value;
    uint32_t models;
    bool streams; /* what is ordered among them matters */
} g_same[] = {
    {"EVENKEEL_CUDA_SWAP", "beside", 1u << 2, true},
    {"EVENKEEL_CUDA_EXPERTS", "32", 1u << 5, false},
    {"EVENKEEL_CUDA_EXPERTS", "64", 1u << 3, false},
    {"EVENKEEL_CUDA_GEMV", "ahead", 1u << 0 | 1u << 1, false},
    {"EVENKEEL_CUDA_GLU", "joined", 1u << 0 | 1u << 1, false},
    {"EVENKEEL_CUDA_CARVEOUT", "50", 1u << SMALL, false},
};

static void test_same_bits(void **state)
{
    (void)state;
    static struct told want, got;
    uint64_t number = 0;

    for (size_t m = 0; m < MODELS; m++) {
        struct tiny *t = tiny_new(&g_models[m]);
        assert_int_equal(open_and_play(t, &want, NULL), 0);
        assert_true(want.at[STEPS - 1][1].logit[0] != 0.0f && want.at[7][0].logit[0] != 0.0f);
        for (size_t i = 0; i < sizeof(g_same) / sizeof(g_same[0]); i++)
            for (int eager = 0; eager <= g_same[i].streams; eager++) {
                if (!(g_same[i].models >> m & 1u) || !share_takes(number++))
                    continue;
                if (!g_fake.real)
                    g_fake.eager(eager);
                setenv(g_same[i].name, g_same[i].value, 1);
                assert_int_equal(open_and_play(t, &got, NULL), 0);
                unsetenv(g_same[i].name);
                if (memcmp(&got, &want, sizeof(got)) != 0)
                    fail_msg("model %zu, %s=%s, eager %d: other bits", m, g_same[i].name,
                             g_same[i].value, eager);
            }
        if (!g_fake.real)
            g_fake.eager(false);
        tiny_free(t);
    }
}

/* The logits of slot 0, whose prompt of `rows` is in a step with another of `others` rows. */
static void prompt_of(const struct tiny *t, uint32_t rows, uint32_t others, float *ret_logits)
{
    static const uint32_t a[] = {1, 2, 3, 4, 5, 6, 7, 8}, b[] = {9, 10, 11, 12, 13, 14, 15, 16};
    const struct ek_open_params open = {.device = 0};
    struct ek_slot_set set = {.sampling.top_p = 1.0f, .top = EK_TOP_MOST};
    int32_t tokens[64];
    struct tiny_device x;

    for (int i = 0; i < 64; i++)
        tokens[i] = (i * 7 + 3) % VOCAB;
    g_fake.card(CARD, true);
    assert_int_equal(tiny_open_on(cuda_backend(), t, &open, SIZE, 40, &x), 0);
    assert_non_null(x.d->kernel[K_FUSED64 + CU_PLAIN]);
    tiny_set(&x, &set);
    tiny_add(&x, 0, tokens, 0, rows, a, true);
    set.slot = 1;
    if (others > 0) {
        tiny_set(&x, &set);
        tiny_add(&x, 1, tokens + 5, 0, others, b, true);
    }
    assert_int_equal(tiny_run(&x, NULL), 0);
    assert_int_equal(x.result->seq[0].top, VOCAB);
    for (uint32_t i = 0; i < VOCAB; i++)
        ret_logits[x.result->seq[0].top_id[i]] = x.result->seq[0].top_logit[i];
    tiny_close(&x);
}

/* Own products of 17 to 64 rows are right, whole tiles of columns or not, k cut or not; and a row's
 * answer does not depend on the others. */
static void test_skinny(void **state)
{
    (void)state;
    static const struct tiny_params models[] = {
        MODEL(EK_BF16, 1, 600, 2, 1, 64, 36, .act = EK_ACT_SILU, .bias = true),
        MODEL(EK_F16, 1, 72, 4, 2, 32, 90, .act = EK_ACT_SILU),
    };
    float alone[VOCAB], among[VOCAB];
    double want[VOCAB];
    int32_t tokens[64];

    for (int i = 0; i < 64; i++)
        tokens[i] = (i * 7 + 3) % VOCAB;
    setenv("EVENKEEL_CUDA_SKINNY", "on", 1);
    for (size_t m = 0; m < 2; m++) {
        struct tiny *t = tiny_new(&models[m]);
        tiny_reference(t, tokens, 19, want);
        prompt_of(t, 19, 0, alone);
        prompt_of(t, 19, 45, among); /* 64 in all */
        for (uint32_t i = 0; i < VOCAB; i++)
            if (!(fabs((double)alone[i] - want[i]) < 0.12))
                fail_msg("model %zu: logit %u is %g instead of %g", m, i, (double)alone[i],
                         want[i]);
        assert_memory_equal(alone, among, sizeof(alone));
        tiny_free(t);
    }
    unsetenv("EVENKEEL_CUDA_SKINNY");
}

/* Copies have a stream of their own, and what is not asked for has not. */
static void test_swap_has_a_stream(void **state)
{
    (void)state;
    struct tiny *t = tiny_new(&g_models[SMALL]);
    static struct told told;
    unsigned streams[2], waits[2];

    if (g_fake.real)
        skip();
    for (int way = 0; way < 2; way++) {
        setenv("EVENKEEL_CUDA_SWAP", way == 0 ? "inline" : "beside", 1);
        assert_int_equal(open_and_play(t, &told, NULL), 0);
        streams[way] = g_fake.calls("cuStreamCreate");
        waits[way] = g_fake.calls("cuStreamWaitEvent");
    }
    unsetenv("EVENKEEL_CUDA_SWAP");
    assert_int_equal(streams[1], streams[0] + 1);
    assert_int_equal(waits[0], 0);
    /* steps 3, 5, 6 and 7 copy; 3 and 6 what the step in flight uses; each is waited for once */
    assert_int_equal(waits[1], 2 + 4);
    tiny_free(t);
}

/* A call that fails gives up the step and leaves nothing behind. */
static void test_swap_fails(void **state)
{
    (void)state;
    static const char *const calls[] = {"cuStreamWaitEvent", "cuStreamCreate"};
    struct tiny *t = tiny_new(&g_models[SMALL]);
    static struct told told;
    const struct ek_open_params open = {.device = 0};
    int r = 0;

    if (g_fake.real)
        skip();
    setenv("EVENKEEL_CUDA_SWAP", "beside", 1);
    for (size_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++)
        for (unsigned nth = 1; nth < 40; nth++) {
            struct tiny_device x;
            g_fake.card(CARD, true);
            g_fake.plant(calls[c], nth, CU_OUT_OF_MEMORY);
            r = tiny_open_on(cuda_backend(), t, &open, SIZE, 40, &x);
            if (r == 0) {
                r = play(&x, &told);
                tiny_close(&x);
            }
            assert_true(g_fake.objects() == 0 && g_fake.used() == 0);
            if (r == 0)
                break;
            assert_int_equal(r, EK_EDEVMEM);
        }
    assert_int_equal(r, 0); /* all of the last call were made to fail */
    unsetenv("EVENKEEL_CUDA_SWAP");
    tiny_free(t);
}

/* Blocks of 8 positions that a step's copies and another's forward both touch. */
static void test_meets(void **state)
{
    (void)state;
    static const struct {
        struct ek_block_copy copy[2];
        uint32_t count, table[2], slot;
        bool meets;
    } cases[] = {
        {{{5, 0, EK_TIER_DEVICE, EK_TIER_HOST, {0}}}, 1, {4, 6}, 50, false},
        {{{5, 0, EK_TIER_DEVICE, EK_TIER_HOST, {0}}}, 1, {4, 5}, 39, true},
        {{{0, 6, EK_TIER_HOST, EK_TIER_DEVICE, {0}}}, 1, {4, 3}, 48, true}, /* is written */
        {{{0, 6, EK_TIER_HOST, EK_TIER_DEVICE, {0}}}, 1, {4, 3}, 47, false},
        {{{4, 3, EK_TIER_HOST, EK_TIER_HOST, {0}}}, 1, {4, 3}, 32, false}, /* not of the card */
        {{{9, 2, EK_TIER_DEVICE, EK_TIER_DEVICE, {0}}, {1, 3, EK_TIER_DEVICE, EK_TIER_DEVICE, {0}}},
         2,
         {2, 7},
         60,
         true},
        {{{0}}, 0, {2, 7}, 60, false},
    };
    const struct ek_step_ceiling ceiling = {8, 2, 8, 4, 0, 0};
    struct ek_step *a = calloc(1, ek_step_size(&ceiling)), *b = calloc(1, ek_step_size(&ceiling));
    uint32_t work[8];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ek_step_layout(a, &ceiling);
        ek_step_layout(b, &ceiling);
        copies(a, cases[i].copy, cases[i].count);
        memcpy(ek_step_tables(b), cases[i].table, sizeof(cases[i].table));
        b->entries = 2;
        ek_step_kv_slots(b)[0] = cases[i].slot;
        b->rows = 1;
        if (cuda_swap_meets(a, b, 3, work) != cases[i].meets)
            fail_msg("case %zu", i);
    }
    free(a);
    free(b);
}

static void test_unknown_is_said(void **state)
{
    (void)state;
    struct tiny *t = tiny_new(&g_models[SMALL]);
    static struct told told;
    char note[256];

    setenv("EVENKEEL_CUDA_SWAP", "besides", 1);
    assert_int_equal(open_and_play(t, &told, note), 0);
    unsetenv("EVENKEEL_CUDA_SWAP");
    assert_string_equal(note, "EVENKEEL_CUDA_SWAP is \"besides\", which is none of inline, beside: "
                              "\"inline\" is used.");
    assert_int_equal(open_and_play(t, &told, note), 0);
    assert_string_equal(note, "");
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),       cmocka_unit_test(test_swap_has_a_stream),
        cmocka_unit_test(test_swap_fails),      cmocka_unit_test(test_meets),
        cmocka_unit_test(test_unknown_is_said), cmocka_unit_test(test_skinny),
    };
    return cmocka_run_group_tests_name("choices", tests, fake_setup, NULL);
}
