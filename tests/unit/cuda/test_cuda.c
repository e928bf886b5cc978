/*
 * The CUDA backend without a card: its kernels on the host, its host side on a driver for tests.
 * Right against a plain computation over dtypes, head sizes, groups, windows and caps; steps of all
 * mixes; the contract of backend.h as the CPU backend has it; recorded decode steps; moved blocks.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/err.h"
#include "common/memplan.h"
#include "kernels/cuda/cuda.h"
#include "tests/share.h"
#include "tests/unit/cuda/fake_card.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"
#include "tests/unit/kernels/tiny_plain.h"

enum { VOCAB = 20, LONG = 150 };
#define CARD ((size_t)4 << 30)

#define MODEL(type, n, width, q, kv, dim, turned, inner, ...)                                      \
    {                                                                                              \
        .dtype = (type), .layers = (n), .hidden = (width), .q_heads = (q), .kv_heads = (kv),       \
        .head_dim = (dim), .rotary = (turned), .ffn = (inner), .vocab = VOCAB, __VA_ARGS__         \
    }

static const struct tiny_params g_models[] = {
    MODEL(EK_F32, 1, 24, 3, 3, 8, 8, 20, .act = EK_ACT_SILU),
    MODEL(EK_F32, 2, 40, 4, 2, 16, 16, 33, .bias = true, .tied = true),
    MODEL(EK_F32, 1, 33, 14, 2, 12, 4, 64, .window = 37, .qk_norm = true, .act = EK_ACT_GELU_TANH),
    MODEL(EK_F32, 2, 48, 9, 1, 20, 20, 40, .softcap = 3.0f, .tied = true, .act = EK_ACT_GELU,
          .sinks = true),
    MODEL(EK_BF16, 2, 33, 2, 1, 20, 20, 36, .act = EK_ACT_SILU), /* the plain kernel, 16 bits */
    MODEL(EK_BF16, 2, 40, 4, 2, 32, 32, 36, .tied = true),       /* less than a tile of dims */
    MODEL(EK_BF16, 2, 40, 3, 3, 64, 64, 36, .window = 33, .bias = true, .sinks = true),
    MODEL(EK_F16, 2, 64, 8, 1, 64, 64, 40, .softcap = 5.0f, .qk_norm = true, .sinks = true),
    MODEL(EK_BF16, 1, 40, 7, 1, 128, 128, 36, .window = 100),
    MODEL(EK_F16, 1, 40, 12, 1, 80, 80, 36, .act = EK_ACT_SILU,
          .sinks = true), /* more heads than a block takes */
    MODEL(EK_BF16, 1, 64, 4, 2, 256, 128, 36, .softcap = 4.0f, .window = 64),
    MODEL(EK_F16, 1, 40, 16, 1, 136, 100, 36, .act = EK_ACT_SILU),
    MODEL(EK_F32, 1, 24, 3, 3, 8, 8, 20, .experts = 5, .top = 2, .normalise = true),
    MODEL(EK_BF16, 2, 40, 2, 1, 64, 64, 36, .experts = 4, .top = 3),
    MODEL(EK_F16, 1, 72, 2, 1, 64, 64, 70, .experts = 9, .top = 1, .act = EK_ACT_GELU_TANH),
    MODEL(EK_F32, 2, 40, 4, 2, 16, 16, 33, .above = 20, .prompt = 33),
    MODEL(EK_F32, 1, 40, 4, 2, 16, 16, 33, .act = EK_ACT_SWIGLU_CLAMPED),
    MODEL(EK_F32, 1, 24, 3, 3, 8, 8, 20, .experts = 5, .top = 2, .normalise = true,
          .expert_bias = true, .act = EK_ACT_SWIGLU_CLAMPED),
    MODEL(EK_BF16, 2, 40, 2, 1, 64, 64, 36, .experts = 3, .top = 3, .expert_bias = true,
          .act = EK_ACT_SWIGLU_CLAMPED),
    MODEL(EK_F32, 2, 24, 3, 3, 8, 8, 20, .experts = 12, .top = 3, .normalise = true,
          .corrected = true,
          .routing = {.score = EK_SCORE_SIGMOID,
                      .groups = 4,
                      .groups_top = 2,
                      .group_best = 2,
                      .scale = 2.5f}),
    MODEL(EK_F32, 1, 24, 3, 3, 8, 8, 20, .experts = 9, .top = 2, .corrected = true,
          .routing = {.share_in = true, .groups = 3, .groups_top = 1, .group_best = 1}),
    MODEL(EK_F32, 2, 40, 4, 2, 16, 8, 33, .neighbours = true, .warm_every = 9),
    MODEL(EK_BF16, 1, 40, 4, 2, 64, 64, 36, .neighbours = true, .window = 21, .chunks = true),
    MODEL(EK_F16, 1, 40, 4, 1, 128, 64, 36, .window = 32, .chunks = true, .warm_every = 5),
    MODEL(EK_F32, 1, 24, 3, 3, 8, 8, 20, .experts = 6, .top = 1,
          .routing = {.score = EK_SCORE_SIGMOID, .share_in = true, .scale = 0.5f}),
    /* a cache of 8 bits: the plain kernel, then the others */
    MODEL(EK_F32, 2, 40, 4, 2, 16, 16, 33, .k_scale = 0.01f, .v_scale = 0.5f),
    MODEL(EK_F16, 1, 40, 4, 2, 24, 24, 36, .k_scale = 1.0f, .v_scale = 1.0f),
    MODEL(EK_BF16, 2, 40, 4, 2, 32, 32, 36, .k_scale = 0.02f, .v_scale = 0.25f),
    MODEL(EK_F16, 1, 64, 8, 1, 64, 64, 40, .softcap = 5.0f, .k_scale = 1.0f, .v_scale = 1.0f),
    MODEL(EK_BF16, 1, 40, 7, 1, 128, 128, 36, .window = 100, .k_scale = 2.0f, .v_scale = 0.1f),
    MODEL(EK_F16, 1, 40, 12, 1, 80, 80, 36, .window = 37, .k_scale = 1.0f, .v_scale = 1.0f),
    MODEL(EK_BF16, 1, 64, 4, 2, 256, 128, 36, .softcap = 4.0f, .k_scale = 1.0f, .v_scale = 1.0f),
    /* one of int8: the same */
    MODEL(EK_F32, 2, 40, 4, 2, 16, 16, 33, .kv_i8 = true),
    MODEL(EK_BF16, 1, 40, 4, 2, 24, 24, 36, .kv_i8 = true),
    MODEL(EK_BF16, 2, 40, 4, 2, 32, 32, 36, .kv_i8 = true),
    MODEL(EK_F16, 1, 64, 8, 1, 64, 64, 40, .softcap = 5.0f, .kv_i8 = true),
    MODEL(EK_BF16, 1, 40, 7, 1, 128, 128, 36, .window = 100, .kv_i8 = true, .sinks = true),
    MODEL(EK_F16, 1, 64, 4, 2, 256, 128, 36, .window = 37, .kv_i8 = true),
    /* heads of more than 256 elements, over each cache */
    MODEL(EK_F32, 1, 40, 3, 1, 260, 128, 36, .act = EK_ACT_SILU),
    MODEL(EK_BF16, 1, 64, 8, 1, 512, 128, 36, .window = 64, .sinks = true),
    MODEL(EK_F16, 1, 64, 4, 2, 328, 128, 36, .softcap = 4.0f),
    MODEL(EK_F16, 1, 40, 40, 1, 264, 64, 36, .act = EK_ACT_SILU), /* more than a block takes */
    MODEL(EK_BF16, 1, 64, 4, 2, 512, 128, 36, .k_scale = 0.02f, .v_scale = 0.25f),
    MODEL(EK_F16, 1, 64, 4, 2, 512, 128, 36, .kv_i8 = true),
    MODEL(EK_BF16, 1, 64, 3, 1, 272, 128, 36, .window = 50, .kv_i8 = true),
    /* packed weights: rows, groups within a lane's slices and over several; tied: embedding too */
    MODEL(EK_BF16, 2, 40, 4, 2, 32, 32, 100, .kept = EK_I8, .tied = true),
    MODEL(EK_F16, 1, 72, 2, 1, 64, 64, 130, .kept = EK_I8, .group = 32, .bias = true),
    MODEL(EK_BF16, 1, 200, 2, 1, 64, 64, 150, .kept = EK_I4, .group = 128, .tied = true),
    MODEL(EK_F16, 1, 100, 2, 1, 64, 64, 130, .kept = EK_I4, .group = 32),
    MODEL(EK_BF16, 1, 136, 2, 1, 64, 64, 70, .kept = EK_F8_E4M3, .group = 64),
    MODEL(EK_F16, 2, 40, 4, 2, 32, 32, 66, .kept = EK_F8_E4M3, .tied = true),
    MODEL(EK_F32, 1, 70, 3, 3, 8, 8, 40, .kept = EK_I4, .group = 32, .tied = true),
    MODEL(EK_F32, 1, 40, 3, 3, 8, 8, 20, .experts = 5, .top = 2, .kept = EK_I8),
    MODEL(EK_BF16, 1, 72, 2, 1, 64, 64, 70, .experts = 4, .top = 3, .kept = EK_I4, .group = 32),
    MODEL(EK_F16, 1, 72, 2, 1, 64, 64, 70, .experts = 5, .top = 2, .kept = EK_F8_E4M3),
    MODEL(EK_BF16, 1, 72, 2, 1, 64, 64, 130, .experts = 3, .top = 2, .kept = EK_I8, .group = 64),
};
#define MODELS (sizeof(g_models) / sizeof(g_models[0]))

static const struct ek_slot_set g_greedy = {.sampling.top_p = 1.0f, .top = EK_TOP_MOST};

static int open_model(const struct tiny *t, uint32_t block_size, uint32_t blocks,
                      struct tiny_device *x)
{
    const struct ek_open_params open = {.device = 0};

    g_fake.card(CARD, true);
    return tiny_open_on(cuda_backend(), t, &open, block_size, blocks, x);
}

static void make_tokens(int32_t *tokens, uint32_t n, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(tiny_next(&seed) % VOCAB);
}

/* With a vocabulary of 20 the alternatives are all logits; by token here. */
static void logits_of(const struct ek_result_seq *s, float *logits)
{
    assert_int_equal(s->tokens, 1);
    assert_int_equal(s->top, VOCAB);
    for (uint32_t i = 0; i < VOCAB; i++)
        logits[s->top_id[i]] = s->top_logit[i];
}

static void spread_table(uint32_t *table, uint32_t count, uint32_t first, uint32_t step)
{
    for (uint32_t i = 0; i < count; i++)
        table[i] = first + i * step;
}

/* The prompt in chunks, then the last token as a decode if `decode`; the logits after it. */
static void run_alone(struct tiny_device *x, const int32_t *tokens, uint32_t n, uint32_t chunk,
                      bool decode, const uint32_t *table, float *logits)
{
    struct ek_slot_set set = g_greedy;

    set.slot = 3;
    tiny_set(x, &set);
    for (uint32_t at = 0; at < n;) {
        uint32_t rows = n - at < chunk ? n - at : chunk;
        if (decode && at + rows == n && rows > 1)
            rows--;
        tiny_add(x, 3, tokens, at, rows, table, at + rows == n);
        assert_int_equal(tiny_run(x, NULL), 0);
        at += rows;
    }
    logits_of(&x->result->seq[0], logits);
}

static void check_close(const char *what, size_t model, const float *got, const double *want,
                        double tolerance)
{
    for (uint32_t v = 0; v < VOCAB; v++)
        if (!(fabs((double)got[v] - want[v]) < tolerance))
            fail_msg("model %zu, %s: logit %u is %g instead of %g", model, what, v, (double)got[v],
                     want[v]);
}

static double tolerance_of(const struct tiny *t)
{
    double slack = t->p.dtype == EK_F32 ? 2e-4 : t->p.dtype == EK_F16 ? 2e-2 : 1.2e-1;

    /* a value that lies between two numbers of 8 bits may become either */
    return t->g.kv_f8 || t->g.kv_i8 ? slack + 5e-2 : slack;
}

static void test_reference(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 17, 75, 150}, sizes[] = {16, 8, 32};
    int32_t tokens[LONG];
    uint32_t table[LONG];

    uint64_t number = 0;

    make_tokens(tokens, LONG, 5);
    for (size_t m = 0; m < MODELS; m++) {
        struct tiny *t = tiny_new(&g_models[m]);
        for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
            uint32_t size = sizes[(m + l) % 3], n = lengths[l];
            if (t->p.kept != EK_F32 && l != 1 + m % 2) /* products do not see the length */
                continue;
            if (!share_takes(number++))
                continue;
            struct tiny_device x;
            double want[VOCAB];
            float got[VOCAB];
            tiny_reference(t, tokens, n, want);
            assert_int_equal(open_model(t, size, 90, &x), 0);
            spread_table(table, LONG / size + 1, 1, 2);
            run_alone(&x, tokens, n, n > 100 ? 70 : n, false, table, got);
            check_close("prompt", m, got, want, tolerance_of(t));
            run_alone(&x, tokens, n, 100, true, table, got);
            check_close("decode", m, got, want, tolerance_of(t));
            tiny_close(&x);
            assert_true(g_fake.real || (g_fake.objects() == 0 && g_fake.used() == 0));
        }
        tiny_free(t);
    }
}

/* Ten sequences of all lengths, their chunks mixed with decodes; each must answer as if alone. */
static void test_company(void **state)
{
    (void)state;
    enum { SEQS = 10, EACH = 40 };
    static const size_t models[] = {1, 5, 7, 13, 18};
    int32_t tokens[LONG];
    uint32_t table[SEQS][8];

    make_tokens(tokens, LONG, 11);
    for (size_t m = share_next(0); m < sizeof(models) / sizeof(models[0]); m = share_next(m + 1)) {
        struct tiny *t = tiny_new(&g_models[models[m]]);
        uint32_t done[SEQS] = {0}, left = SEQS;
        uint64_t random = 7 + m;
        struct tiny_device x;

        assert_int_equal(open_model(t, 8, 90, &x), 0);
        for (uint32_t s = 0; s < SEQS; s++) {
            struct ek_slot_set set = g_greedy;
            set.slot = s;
            tiny_set(&x, &set);
            spread_table(table[s], 8, 1 + s, SEQS);
        }
        while (left > 0) {
            for (uint32_t s = 0; s < SEQS; s++) {
                uint32_t n = EACH - s * 3, rows = 1 + (uint32_t)tiny_next(&random) % 9;
                rows = tiny_next(&random) % 2 ? 1 : rows;
                rows = n - done[s] < rows ? n - done[s] : rows;
                if (rows > 0)
                    tiny_add(&x, s, tokens + s, done[s], rows, table[s], done[s] + rows == n);
                done[s] += rows;
            }
            assert_int_equal(tiny_run(&x, NULL), 0);
            for (uint32_t i = 0; i < x.result->seqs; i++) {
                const struct ek_result_seq *r = &x.result->seq[i];
                double want[VOCAB];
                float got[VOCAB];
                if (r->tokens == 0)
                    continue;
                left--;
                tiny_reference(t, tokens + r->slot, EACH - r->slot * 3, want);
                logits_of(r, got);
                check_close("among others", models[m], got, want, tolerance_of(t));
            }
        }
        tiny_close(&x);
        tiny_free(t);
    }
}

/* Decoding with the token on the device, two steps in flight, the later ones recorded, gives what
 * spelled-out tokens give. */
static void test_from_previous(void **state)
{
    (void)state;
    enum { PROMPT = 11, MORE = 8 };
    struct tiny *t = tiny_new(&g_models[5]);
    int32_t tokens[PROMPT + MORE];
    uint32_t table[8], told[8];
    struct tiny_device x;

    make_tokens(tokens, PROMPT, 3);
    spread_table(table, 8, 1, 1);
    spread_table(told, 8, 20, 1);
    assert_int_equal(open_model(t, 8, 64, &x), 0);
    const size_t bytes = ek_result_size(x.ceiling.seqs);
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
            assert_int_equal(x.b->wait(x.d, i, x.result, bytes, 10000000), 0);
            assert_int_equal(x.result->error, 0);
            tokens[PROMPT + i - 1] = x.result->seq[0].token[0];
        }
        ek_step_layout(step[~i & 1], &x.ceiling);
    }
    if (!g_fake.real) {
        assert_int_equal(g_fake.calls("cuGraphInstantiateWithFlags"), 1);
        assert_true(g_fake.calls("cuGraphLaunch") >= MORE - 3);
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

    assert_int_equal(open_model(t, 8, 8, &x), 0);
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
    struct ek_device_stats s;
    x.b->stats(x.d, &s);
    assert_int_equal(s.steps, 5);
    free(next);
    tiny_close(&x);
    tiny_free(t);
}

/* A context moved through the host tier and to other blocks, and a resize, change no bit. */
static void test_moves(void **state)
{
    enum { N = 20 };
    struct tiny *t = tiny_new(&g_models[*(const size_t *)*state]);
    struct tiny_device x;
    int32_t tokens[N + 1];
    uint32_t table[3] = {1, 2, 3}, moved[3] = {200, 5, 3};
    float want[VOCAB], got[VOCAB];

    make_tokens(tokens, N + 1, 9);
    assert_int_equal(open_model(t, 8, 8, &x), 0);
    run_alone(&x, tokens, N + 1, 20, false, table, want);
    assert_int_equal(x.b->kv_resize(x.d, 201), 0);
    struct ek_block_copy *c = ek_step_copies(x.step);
    c[0] = (struct ek_block_copy){1, 3, EK_TIER_DEVICE, EK_TIER_HOST, {0}};
    c[1] = (struct ek_block_copy){3, 0, EK_TIER_HOST, EK_TIER_HOST, {0}};
    c[2] = (struct ek_block_copy){0, 200, EK_TIER_HOST, EK_TIER_DEVICE, {0}};
    c[3] = (struct ek_block_copy){2, 5, EK_TIER_DEVICE, EK_TIER_DEVICE, {0}};
    c[4] = (struct ek_block_copy){2, 6, EK_TIER_DEVICE, EK_TIER_DEVICE, {0}};
    x.step->copies = 5;
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

/* Memory of the caller's, in which the host tier of one device after the other lies. */
static char *g_given;

static int open_given(struct ek_device *d, const struct ek_kv_params *p)
{
    const struct ek_backend *b = cuda_backend();
    int r = b->kv_host(d, g_given);

    return r < 0 ? r : b->kv_open(d, p);
}

/* What one device left in it another one finds, and it is there when both are gone. */
static void test_given_host(void **state)
{
    enum { BYTES = 1 << 20, N = 8 };
    struct tiny *t = tiny_new(&g_models[0]);
    struct ek_backend given = *cuda_backend();
    const struct ek_open_params open = {.device = 0};
    int32_t tokens[N];
    const uint32_t table[1] = {1};
    struct tiny_device x;
    (void)state;

    g_fake.card(CARD, true);
    given.kv_open = open_given;
    make_tokens(tokens, N, 9);
    int fd = memfd_create("a host tier", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, BYTES), 0);
    g_given = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(g_given != MAP_FAILED);
    assert_int_equal(tiny_open_on(&given, t, &open, 8, 9, &x), 0);
    assert_int_equal(x.b->kv_host(x.d, g_given), -EINVAL); /* it has one */
    const size_t bytes = x.b->kv_bytes(x.d, EK_TIER_HOST);
    assert_true(4 * bytes < BYTES);
    char *want = calloc(2, bytes), *got = want + bytes;
    tiny_add(&x, 3, tokens, 0, N, table, true);
    assert_int_equal(tiny_run(&x, NULL), 0);
    assert_int_equal(x.b->kv_read(x.d, EK_TIER_DEVICE, 1, want), 0);
    assert_memory_not_equal(want, got, bytes); /* not all 0 */
    ek_step_copies(x.step)[0] = (struct ek_block_copy){1, 3, EK_TIER_DEVICE, EK_TIER_HOST, {0}};
    x.step->copies = 1;
    assert_int_equal(tiny_run(&x, NULL), 0);
    tiny_close(&x);
    assert_memory_equal(g_given + 3 * bytes, want, bytes);

    assert_int_equal(tiny_open_on(&given, t, &open, 8, 9, &x), 0);
    assert_int_equal(x.b->kv_read(x.d, EK_TIER_HOST, 3, got), 0);
    assert_memory_equal(got, want, bytes);
    ek_step_copies(x.step)[0] = (struct ek_block_copy){3, 7, EK_TIER_HOST, EK_TIER_DEVICE, {0}};
    x.step->copies = 1;
    assert_int_equal(tiny_run(&x, NULL), 0);
    assert_int_equal(x.b->kv_read(x.d, EK_TIER_DEVICE, 7, got), 0);
    assert_memory_equal(got, want, bytes);
    tiny_close(&x);
    memset(g_given, 1, BYTES);
    assert_int_equal(munmap(g_given, BYTES), 0);
    (void)close(fd);
    free(want);
    tiny_free(t);
}

static void test_plan_is_what_is_taken(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODELS; m++) {
        struct tiny *t = tiny_new(&g_models[m]);
        const struct ek_open_params open = {.device = 0};
        struct ek_plan_request q = {.graph = &t->g,
                                    .ceiling = {512, 16, 1024, 8, 4096, 8},
                                    .logit_rows = 24,
                                    .block_size = 16};
        struct ek_device_stats s;
        struct tiny_device x;
        struct ek_plan plan;

        assert_int_equal(open_model(t, 16, 9, &x), 0);
        assert_int_equal(x.b->plan(&open, &q, &plan, NULL), 0);
        x.b->stats(x.d, &s);
        assert_int_equal(s.weight_bytes, plan.weight_bytes);
        assert_int_equal(s.activation_bytes, plan.activation_bytes + plan.slot_bytes);
        assert_int_equal(s.kv_bytes, 9 * plan.block_bytes);
        if (t->g.kv_f8 && t->g.head_dim * t->g.kv_heads % 16 == 0) /* no rounding of planes */
            assert_int_equal(plan.block_bytes,
                             2 * t->g.layers * 16 * t->g.kv_heads * t->g.head_dim);
        if (t->g.kv_i8 && t->g.head_dim * t->g.kv_heads % 16 == 0 && t->g.kv_heads % 4 == 0)
            assert_int_equal(plan.block_bytes,
                             2 * t->g.layers * 16 * t->g.kv_heads * (t->g.head_dim + 4));
        assert_int_equal(s.host_kv_bytes, 4 * plan.block_bytes);
        uint64_t all = s.weight_bytes + s.activation_bytes + s.kv_bytes;
        assert_true(g_fake.real ||
                    (g_fake.used() >= all && g_fake.used() <= all + plan.overhead_bytes));
        tiny_close(&x);
        tiny_free(t);
    }
}

int main(void)
{
    static size_t wide = 5, narrow = 18;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_from_previous),
        cmocka_unit_test(test_contract),
        cmocka_unit_test_prestate(test_moves, &wide),
        cmocka_unit_test_prestate(test_moves, &narrow),
        cmocka_unit_test(test_given_host),
        cmocka_unit_test(test_plan_is_what_is_taken),
    };
    return cmocka_run_group_tests_name("cuda", tests, fake_setup, NULL);
}
