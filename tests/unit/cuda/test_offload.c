/*
 * Weights that stay in host memory: which, as a table of cases; and that nothing else changes by
 * it. On the driver for tests copies are late or, the other way round, as early as they may be: one
 * that is not waited for, or overwrites what is still read, gives other logits. Bit for bit the
 * same with and without, plain and packed weights, mixtures of experts, recorded steps, ranks; what
 * is planned is taken; each call fails once.
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
#include "kernels/cuda/cuda.h"
#include "tests/share.h"
#include "tests/unit/alloc.h"
#include "tests/unit/cuda/fake_card.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"

enum { NOT_PERMITTED = 800 };
enum { VOCAB = 20, PROMPT = 17, MORE = 6, BLOCKS = 20 };
#define CARD ((size_t)1 << 30)
#define ALL  ((uint64_t)1 << 40)

#define MODEL(type, n, width, q, kv, dim, inner, ...)                                              \
    {                                                                                              \
        .dtype = (type), .layers = (n), .hidden = (width), .q_heads = (q), .kv_heads = (kv),       \
        .head_dim = (dim), .rotary = (dim), .ffn = (inner), .vocab = VOCAB, __VA_ARGS__            \
    }

static const struct tiny_params g_models[] = {
    MODEL(EK_F32, 3, 40, 4, 2, 16, 33, .bias = true),
    MODEL(EK_BF16, 4, 64, 4, 2, 32, 72, .tied = true, .act = EK_ACT_SILU),
    MODEL(EK_BF16, 3, 40, 4, 2, 32, 100, .kept = EK_I8, .act = EK_ACT_SILU),
    MODEL(EK_F16, 3, 100, 2, 1, 64, 130, .kept = EK_I4, .group = 32, .tied = true),
    MODEL(EK_BF16, 3, 136, 2, 1, 64, 70, .kept = EK_F8_E4M3, .group = 64),
    MODEL(EK_BF16, 3, 40, 2, 1, 64, 36, .experts = 4, .top = 3, .expert_bias = true,
          .act = EK_ACT_SWIGLU_CLAMPED),
    MODEL(EK_F16, 3, 72, 2, 1, 64, 70, .experts = 5, .top = 2, .kept = EK_I8, .tied = true),
    MODEL(EK_F32, 2, 24, 2, 1, 16, 50, .experts = 8, .top = 2, .normalise = true),
};
#define MODELS (sizeof(g_models) / sizeof(g_models[0]))

/* ---- which ---- */

static void test_chosen(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        uint64_t bytes[16], budget;
        const char *chosen; /* x */
        uint64_t largest;
    } cases[] = {
        {"nothing", {0}, 100, "", 0},
        {"half of equal ones", {8, 8, 8, 8, 8, 8, 8, 8, 8, 8}, 40, ".x.x.x.x.x", 8},
        {"a third", {6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6}, 24, ".x..x..x..x.", 6},
        {"all", {5, 5, 5, 5}, 20, "xxxx", 5},
        {"more than there is", {5, 5, 5, 5}, 1000, "xxxx", 5},
        {"as much as the buffers", {5, 5, 5, 5}, 14, "....", 0},
        {"two fill their buffers", {5, 5}, 1000, "..", 0},
        {"less than one", {5, 5, 5, 5}, 4, "....", 0},
        {"small ones are enough", {2, 9, 2, 9, 2, 9, 2, 9}, 8, "x.x.x.x.", 2},
        {"large ones are not", {2, 9, 2, 9, 2, 9, 2, 9}, 36, ".x.x.x.x", 9},
        {"both", {2, 9, 2, 9, 2, 9, 2, 9}, 40, ".xxx.xxx", 9},
        {"too small for a copy", {1, 300, 1, 300, 1, 300, 1, 300}, 2000, ".x.x.x.x", 300},
        {"too small to count", {1, 300, 1, 300, 1, 300}, 8, "......", 0},
        {"what fits", {7, 7, 7, 7, 7}, 22, ".xx.x", 7},
        {"one that is far larger", {4, 4, 4, 90, 4, 4}, 20, "xxx.xx", 4},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const uint32_t count = (uint32_t)strlen(cases[i].chosen);
        bool chosen[17] = {[16] = true};
        char got[17] = "";
        uint64_t largest = cuda_offload_choose(cases[i].bytes, count, cases[i].budget, chosen);
        for (uint32_t k = 0; k < count; k++)
            got[k] = chosen[k] ? 'x' : '.';
        if (strcmp(got, cases[i].chosen) != 0 || largest != cases[i].largest)
            fail_msg("%s: %s with %llu instead of %s with %llu", cases[i].what, got,
                     (unsigned long long)largest, cases[i].chosen,
                     (unsigned long long)cases[i].largest);
    }
}

/* Whatever the sizes: within the budget, and never a loss; the least is the least that helps. */
static void test_bounds(void **state)
{
    (void)state;
    uint64_t random = 11;

    for (int round = 0; round < 2000; round++) {
        uint64_t bytes[40], all = 0, has = 0;
        bool chosen[40];
        const uint32_t count = (uint32_t)tiny_next(&random) % 40;
        for (uint32_t i = 0; i < count; i++)
            all += bytes[i] = 1 + tiny_next(&random) % (round % 2 ? 4 : 1000);
        const uint64_t budget = tiny_next(&random) % (all + all / 4 + 1);
        const uint64_t largest = cuda_offload_choose(bytes, count, budget, chosen);
        for (uint32_t i = 0; i < count; i++) {
            has += chosen[i] ? bytes[i] : 0;
            assert_true(!chosen[i] || bytes[i] <= largest);
        }
        assert_true(has <= budget);
        assert_true(largest == 0 ? has == 0 : has > CUDA_OFFLOAD_SLOTS * largest);
        const uint64_t least = cuda_offload_least(bytes, count);
        assert_int_equal(least > 0, cuda_offload_choose(bytes, count, all, chosen) > 0);
        if (least > 0)
            assert_true(cuda_offload_choose(bytes, count, least, chosen) > 0);
    }
}

/* ---- that nothing changes ---- */

static int open_model(const struct tiny_params *p, uint64_t offload, struct tiny **ret_tiny,
                      struct tiny_device *x)
{
    const struct ek_open_params open = {.device = 0};
    struct tiny_params with = *p;

    with.offload = offload;
    *ret_tiny = tiny_new(&with);
    return tiny_open_on(cuda_backend(), *ret_tiny, &open, 8, BLOCKS, x);
}

/* A prompt in two chunks, the first without logits, then decodes of which the third and later ones
 * are recorded; the logits of all. */
static int run(struct tiny_device *x, float *ret_logits)
{
    static const uint32_t table[4] = {3, 1, 7, 5};
    const struct ek_slot_set set = {.slot = 3, .sampling.top_p = 1.0f, .top = EK_TOP_MOST};
    int32_t tokens[PROMPT + MORE];
    uint64_t seed = 5;
    uint32_t n = 0;

    for (uint32_t i = 0; i < PROMPT + MORE; i++)
        tokens[i] = (int32_t)(tiny_next(&seed) % VOCAB);
    tiny_set(x, &set);
    for (uint32_t at = 0; at < PROMPT + MORE;) {
        uint32_t rows = at == 0 ? 9 : at < PROMPT ? PROMPT - at : 1;
        tiny_add(x, 3, tokens, at, rows, table, at > 0);
        int r = tiny_run(x, NULL);
        if (r < 0)
            return r;
        at += rows;
        for (uint32_t v = 0; at > 9 && v < VOCAB; v++)
            ret_logits[n + (uint32_t)x->result->seq[0].top_id[v]] = x->result->seq[0].top_logit[v];
        n += at > 9 ? VOCAB : 0;
    }
    return 0;
}

enum { LOGITS = (MORE + 1) * VOCAB };

static void test_same(void **state)
{
    (void)state;
    for (size_t m = share_next(0); m < MODELS; m = share_next(m + 1)) {
        float want[LOGITS], got[LOGITS];
        struct ek_device_stats s;
        struct tiny_device x;
        struct tiny *t;

        g_fake.card(CARD, true);
        assert_int_equal(open_model(&g_models[m], 0, &t, &x), 0);
        assert_int_equal(run(&x, want), 0);
        x.b->stats(x.d, &s);
        const uint64_t all = s.weight_bytes;
        assert_int_equal(s.host_weight_bytes, 0);
        tiny_close(&x);
        tiny_free(t);
        for (uint32_t way = 0; way < 4; way++) { /* all or some; late or early */
            g_fake.card(CARD, true);
            if (!g_fake.real)
                g_fake.eager(way % 2 == 1);
            int r = open_model(&g_models[m], way < 2 ? ALL : all * 2 / 3, &t, &x);
            if (r < 0)
                fail_msg("model %zu, way %u: %d", m, way, r);
            memset(got, 0, sizeof(got));
            assert_int_equal(run(&x, got), 0);
            if (memcmp(got, want, sizeof(got)) != 0)
                fail_msg("model %zu, way %u: other logits", m, way);
            x.b->stats(x.d, &s);
            assert_true(s.host_weight_bytes > 0 && s.weight_bytes < all);
            assert_true(s.stream_bytes > 0 && s.stream_bytes <= s.host_weight_bytes);
            assert_true(g_fake.real || g_fake.calls("cuGraphLaunch") >= MORE - 2);
            tiny_close(&x);
            tiny_free(t);
            assert_true(g_fake.real || (g_fake.objects() == 0 && g_fake.used() == 0));
        }
        if (!g_fake.real)
            g_fake.eager(false);
    }
}

/* Once a step is recorded its copies are launched with it; before, they are enqueued. */
static void test_recorded(void **state)
{
    (void)state;
    static const uint32_t table[4] = {1, 2, 3, 4};
    const struct ek_slot_set set = {.slot = 0, .sampling.top_p = 1.0f};
    const int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct tiny_device x;
    unsigned calls[6] = {0};
    struct tiny *t;

    if (g_fake.real)
        skip();
    g_fake.card(CARD, true);
    assert_int_equal(open_model(&g_models[1], ALL, &t, &x), 0);
    tiny_set(&x, &set);
    tiny_add(&x, 0, tokens, 0, 9, table, true);
    assert_int_equal(tiny_run(&x, NULL), 0);
    for (uint32_t i = 0; i < 6; i++) {
        unsigned before = g_fake.calls("cuMemcpyHtoDAsync_v2");
        tiny_add(&x, 0, NULL, 9 + i, 1, table, true);
        assert_int_equal(tiny_run(&x, NULL), 0);
        calls[i] = g_fake.calls("cuMemcpyHtoDAsync_v2") - before;
    }
    const unsigned streamed = x.d->shape.offload.streamed;
    assert_int_equal(streamed, 16);
    assert_int_equal(calls[0], streamed + 1); /* the step itself is one more */
    assert_int_equal(calls[1], streamed + 1); /* enqueued while it is recorded */
    for (uint32_t i = 2; i < 6; i++)
        assert_int_equal(calls[i], 1);
    tiny_close(&x);
    tiny_free(t);
}

/* A step of few rows asks for few experts: it reads those where they are, and copies no others. */
static void test_experts_in_place(void **state)
{
    (void)state;
    static const uint32_t table[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
    const int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct ek_device_stats s;
    struct tiny_device x;
    struct tiny *t;

    if (g_fake.real)
        skip();
    for (uint32_t seqs = 1; seqs <= 2; seqs++) {
        g_fake.card(CARD, true);
        assert_int_equal(open_model(&g_models[6], ALL, &t, &x), 0); /* 5 experts, 2 of a token */
        x.b->stats(x.d, &s);
        assert_int_equal(s.stream_rows, 1);
        const struct cuda_offload *o = &x.d->shape.offload;
        uint32_t experts = 0;
        for (uint32_t i = 0; i < o->streamed; i++)
            experts += x.d->items[i].experts;
        assert_true(experts >= 6 && experts < o->streamed); /* 3 layers, ups and downs */
        for (uint32_t i = 0; i < 2; i++) {                  /* a prompt, then what comes after it */
            unsigned before = g_fake.calls("cuMemcpyHtoDAsync_v2");
            for (uint32_t q = 0; q < seqs; q++) {
                const struct ek_slot_set set = {.slot = q, .sampling.top_p = 1.0f};
                if (i == 0)
                    tiny_set(&x, &set);
                tiny_add(&x, q, i == 0 ? tokens : NULL, i * 9, i == 0 ? 9 : 1, table[q], true);
            }
            assert_int_equal(tiny_run(&x, NULL), 0);
            const unsigned copies = g_fake.calls("cuMemcpyHtoDAsync_v2") - before - 1;
            assert_int_equal(copies, i == 1 && seqs == 1 ? o->streamed - experts : o->streamed);
        }
        tiny_close(&x);
        tiny_free(t);
    }
}

/* Two cards that share each layer, or have half of the layers each. */
static void test_two_cards(void **state)
{
    const uint32_t stages = *(const uint32_t *)*state;
    static const struct tiny_params models[] = {
        MODEL(EK_BF16, 4, 64, 4, 4, 64, 96, .act = EK_ACT_SILU),
        MODEL(EK_F16, 3, 64, 4, 2, 64, 64, .experts = 4, .top = 3),
    };

    if (g_fake.real)
        skip();
    for (size_t m = 0; m < 2; m++) {
        float want[LOGITS], got[LOGITS];
        for (uint32_t way = 0; way < 3; way++) {
            const struct ek_open_params open = {
                .ranks = 2, .stages = stages, .each = cuda_backend()};
            struct tiny_params with = models[m];
            struct ek_device_stats s, one;
            struct tiny_device x;
            g_fake.card(CARD, true);
            g_fake.cards(2);
            g_fake.eager(way == 2);
            with.offload = way > 0 ? ALL : 0;
            struct tiny *t = tiny_new(&with);
            int r = tiny_open_on(ek_ranks_backend(open.each), t, &open, 8, BLOCKS, &x);
            if (r < 0)
                fail_msg("model %zu, way %u: %d", m, way, r);
            assert_int_equal(run(&x, way > 0 ? got : want), 0);
            x.b->stats(x.d, &s);
            x.b->rank_stats(x.d, 1, &one);
            assert_int_equal(s.host_weight_bytes > 0, way > 0);
            assert_true(one.host_weight_bytes * 4 >= s.host_weight_bytes);
            tiny_close(&x);
            tiny_free(t);
            if (way > 0)
                assert_memory_equal(got, want, sizeof(got));
            assert_true(g_fake.objects() == 0 && g_fake.used() == 0);
        }
        g_fake.eager(false);
    }
}

/* ---- the plan ---- */

static void test_plan(void **state)
{
    (void)state;
    const struct ek_open_params open = {.device = 0};

    for (size_t m = 0; m < MODELS; m++) {
        struct ek_plan_request q = {
            .ceiling = {512, 16, 1024, 8, 4096, 8}, .logit_rows = 24, .block_size = 8};
        struct ek_plan without, plan;
        struct ek_device_stats s;
        struct tiny_device x;
        struct tiny *t;

        g_fake.card(CARD, true);
        assert_int_equal(open_model(&g_models[m], ALL, &t, &x), 0);
        q.graph = &t->g;
        assert_int_equal(x.b->plan(&open, &q, &without, NULL), 0);
        q.offload_bytes = ALL;
        assert_int_equal(x.b->plan(&open, &q, &plan, NULL), 0);
        x.b->stats(x.d, &s);
        assert_int_equal(s.weight_bytes, plan.weight_bytes + plan.staging_bytes);
        assert_int_equal(s.host_weight_bytes, plan.host_weight_bytes);
        assert_int_equal(without.host_weight_bytes + without.staging_bytes, 0);
        assert_int_equal(plan.weight_bytes + plan.host_weight_bytes, without.weight_bytes);
        assert_int_equal(plan.host_weight_bytes, plan.offload_most_bytes);
        assert_int_equal(plan.staging_bytes, plan.staging_most_bytes);
        assert_true(plan.activation_bytes - without.activation_bytes + plan.staging_bytes <=
                    without.staging_most_bytes);
        assert_true(plan.weight_bytes + plan.staging_bytes < without.weight_bytes);
        /* experts that are copied are copied once: room for all rows of a step */
        assert_true(g_models[m].experts > 0 ? plan.activation_bytes >= without.activation_bytes
                                            : plan.activation_bytes == without.activation_bytes);
        tiny_close(&x);
        tiny_free(t);
    }
}

static int plan_with(const struct tiny *t, uint64_t bytes, struct ek_fault *fault)
{
    const struct ek_open_params open = {.device = 0};
    const struct ek_plan_request q = {.graph = &t->g,
                                      .ceiling = {512, 16, 1024, 8, 4096, 8},
                                      .logit_rows = 24,
                                      .block_size = 8,
                                      .offload_bytes = bytes};
    struct ek_plan plan;

    return cuda_backend()->plan(&open, &q, &plan, fault);
}

/* The plan needs memory of the host for a moment. */
static void test_no_host_memory(void **state)
{
    (void)state;
    struct tiny *t = tiny_new(&g_models[5]);

    for (long n = 1;; n++) {
        struct ek_fault fault = {.msg = ""};
        alloc_fail_at(n);
        int r = plan_with(t, ALL, &fault);
        if (!alloc_failed()) {
            alloc_fail_at(0);
            assert_int_equal(r, 0);
            assert_true(n > 5);
            break;
        }
        assert_int_equal(r, -ENOMEM);
    }
    tiny_free(t);
}

/* What frees nothing is refused, with the least that does or that there is none. */
static void test_refused(void **state)
{
    (void)state;
    static const struct tiny_params large =
        MODEL(EK_F32, 4, 256, 4, 2, 16, 256, .tied = true, .act = EK_ACT_SILU);
    static const struct tiny_params alone =
        MODEL(EK_BF16, 1, 64, 4, 1, 64, 8, .tied = true, .act = EK_ACT_SILU);
    struct tiny *t = tiny_new(&large);
    struct ek_fault fault = {.msg = ""};

    assert_int_equal(plan_with(t, 4096, &fault), -EBADMSG);
    assert_string_equal(fault.field, "cpu-offload-gb");
    assert_non_null(strstr(fault.msg, "frees nothing"));
    assert_non_null(strstr(fault.msg, "give at least 0.01"));
    assert_int_equal(plan_with(t, (uint64_t)(0.01 * 0x1p30), &fault), 0);
    tiny_free(t);
    t = tiny_new(&alone); /* one matrix is more than half of all */
    assert_int_equal(plan_with(t, ALL, &fault), -EBADMSG);
    assert_non_null(strstr(fault.msg, "no weights that could stay in host memory"));
    tiny_free(t);
}

/* ---- failures ---- */

static void test_start_fails(void **state)
{
    (void)state;
    static const struct {
        const char *symbol;
        int result, code;
    } cases[] = {
        {"cuMemAlloc_v2", CU_OUT_OF_MEMORY, EK_EDEVMEM},
        {"cuStreamCreate", CU_OUT_OF_MEMORY, EK_EDEVMEM},
        {"cuEventCreate", CU_OUT_OF_MEMORY, EK_EDEVMEM},
        {"cuEventRecord", CU_OUT_OF_MEMORY, EK_EDEVMEM},
        {"cuMemHostAlloc", CU_OUT_OF_MEMORY, -ENOMEM},
        {"cuMemHostGetDevicePointer_v2", CU_INVALID_VALUE, -ENOMEM},
        {"cuMemHostRegister_v2", NOT_PERMITTED, -ENOMEM}, /* the host tier does without */
        {"cuMemcpyHtoDAsync_v2", CU_OUT_OF_MEMORY, EK_EDEVMEM},
        {"cuEventElapsedTime", CU_OUT_OF_MEMORY, EK_EDEVMEM},
    };

    if (g_fake.real)
        skip();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned n = 0;
        int r;
        do {
            struct tiny_device x;
            struct tiny *t;
            g_fake.card(CARD, true);
            g_fake.plant(cases[i].symbol, ++n, cases[i].result);
            r = open_model(&g_models[0], ALL, &t, &x);
            if (r == 0)
                tiny_close(&x);
            else if (r != cases[i].code)
                fail_msg("%s, call %u: %d instead of %d", cases[i].symbol, n, r, cases[i].code);
            tiny_free(t);
            if (g_fake.used() != 0 || g_fake.objects() != 0)
                fail_msg("%s, call %u: %zu bytes and %u objects are left", cases[i].symbol, n,
                         g_fake.used(), g_fake.objects());
        } while (r != 0 && n < 200);
        assert_true(n > 1 && n < 200);
    }
}

/* Memory that cannot be pinned: how much could, and what to do; the host tier goes without. */
static void test_not_pinned(void **state)
{
    (void)state;
    const struct ek_backend *b = cuda_backend();
    const struct ek_open_params open = {.device = 0};

    if (g_fake.real)
        skip();
    for (unsigned n = 1;; n++) {
        if (n < 14 && !share_takes(n))
            continue;
        struct tiny *t = tiny_new(&g_models[0]);
        const struct ek_plan_request q = {.graph = &t->g,
                                          .ceiling = {512, 16, 1024, 8, 4096, 8},
                                          .logit_rows = 24,
                                          .block_size = 8,
                                          .offload_bytes = ALL};
        struct ek_fault fault = {.msg = ""};
        struct ek_device *d = NULL;
        g_fake.card(CARD, true);
        g_fake.plant("cuMemHostRegister_v2", n, CU_OUT_OF_MEMORY);
        assert_int_equal(b->open(&open, &d, &fault), 0);
        int r = b->load(d, &q, &t->files, NULL, NULL, &fault);
        b->close(d);
        tiny_free(t);
        assert_true(g_fake.used() == 0 && g_fake.objects() == 0);
        if (r == 0) {
            assert_int_equal(n, 14); /* 3 layers of 4 matrices, and the embedding */
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_string_equal(fault.field, "cpu-offload-gb");
        assert_non_null(strstr(fault.msg, "LimitMEMLOCK"));
        assert_non_null(strstr(fault.msg, "CUDA_ERROR_OUT_OF_MEMORY"));
    }
}

/* A step that cannot be enqueued did not begin; the next one copies anew. */
static void test_step_fails(void **state)
{
    (void)state;
    static const char *const symbols[] = {"cuStreamWaitEvent", "cuEventRecord",
                                          "cuMemcpyHtoDAsync_v2", "cuLaunchKernel"};
    float want[LOGITS], got[LOGITS];
    struct tiny_device x;
    struct tiny *t;

    if (g_fake.real)
        skip();
    g_fake.card(CARD, true);
    assert_int_equal(open_model(&g_models[1], ALL, &t, &x), 0);
    assert_int_equal(run(&x, want), 0);
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        unsigned n = 0;
        int r;
        do {
            g_fake.card(0, true);
            g_fake.plant(symbols[i], n += 5, CU_OUT_OF_MEMORY);
            memset(got, 0, sizeof(got));
            r = run(&x, got);
            assert_true(r == 0 || r == EK_EDEVMEM);
        } while (r != 0 && n < 1000);
        assert_true(n > 5 && n < 1000);
        assert_memory_equal(got, want, sizeof(got));
        g_fake.card(0, true);
    }
    tiny_close(&x);
    assert_true(g_fake.objects() == 0 && g_fake.used() == 0);
    tiny_free(t);
}

/* Recording fails at each of its turns: those steps run launch by launch, with the same logits. */
static void test_not_recorded(void **state)
{
    (void)state;
    static const char *const symbols[] = {"cuStreamBeginCapture_v2", "cuStreamWaitEvent",
                                          "cuMemcpyHtoDAsync_v2", "cuStreamEndCapture",
                                          "cuGraphInstantiateWithFlags"};
    float want[LOGITS], got[LOGITS];
    uint64_t number = 0;

    if (g_fake.real)
        skip();
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        struct tiny_device x;
        struct tiny *t;
        g_fake.card(CARD, true);
        assert_int_equal(open_model(&g_models[1], ALL, &t, &x), 0);
        assert_int_equal(run(&x, want), 0);
        tiny_close(&x);
        tiny_free(t);
        const unsigned calls = g_fake.calls(symbols[i]); /* all but the last one come later */
        for (unsigned n = calls > 60 ? calls - 60 : 1; n <= calls; n += 7) {
            if (!share_takes(number++))
                continue;
            g_fake.card(CARD, true);
            assert_int_equal(open_model(&g_models[1], ALL, &t, &x), 0);
            g_fake.plant(symbols[i], n, CU_CAPTURE_INVALIDATED);
            memset(got, 0, sizeof(got));
            int r = run(&x, got);
            assert_true(r == 0 || r == -EINVAL);
            if (r == 0)
                assert_memory_equal(got, want, sizeof(got));
            tiny_close(&x);
            tiny_free(t);
            assert_true(g_fake.objects() == 0 && g_fake.used() == 0);
        }
    }
}

int main(void)
{
    static uint32_t shared = 1, staged = 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chosen),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_same),
        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_experts_in_place),
        cmocka_unit_test_prestate(test_two_cards, &shared),
        cmocka_unit_test_prestate(test_two_cards, &staged),
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_no_host_memory),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_start_fails),
        cmocka_unit_test(test_not_pinned),
        cmocka_unit_test(test_step_fails),
        cmocka_unit_test(test_not_recorded),
    };
    return cmocka_run_group_tests_name("cuda offload", tests, fake_setup, NULL);
}
