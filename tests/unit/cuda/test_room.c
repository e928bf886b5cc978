/*
 * What is left of a card for the pool of KV blocks (kernels/cuda/room.c): a context and recorded
 * steps of any size, other processes that come between the plan and the load, the least of several
 * cards, and recordings that fail. Steps that were recorded before there was a pool compute what
 * launches one by one do.
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
#include "kernels/cuda/room.h"
#include "tests/unit/cuda/fake_card.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"

enum { VOCAB = 20, PROMPT = 11, MORE = 6, LAYERS = 3, BUCKETS = 6 };
#define MIB   ((size_t)1 << 20)
#define CARD  ((size_t)4 << 30)
#define SHARE 0.75 /* of a card, a whole number of bytes */
#define LATER (CUDA_LATER + CUDA_HANDLE)

#define MODEL(type, n, width, q, kv, dim, inner, ...)                                              \
    {                                                                                              \
        .dtype = (type), .layers = (n), .hidden = (width), .q_heads = (q), .kv_heads = (kv),       \
        .head_dim = (dim), .rotary = (dim), .ffn = (inner), .vocab = VOCAB, __VA_ARGS__            \
    }

static const struct tiny_params g_models[] = {
    MODEL(EK_BF16, LAYERS, 64, 4, 2, 32, 72, .act = EK_ACT_SILU),
    MODEL(EK_BF16, 2, 40, 2, 1, 64, 36, .experts = 3, .top = 2, .act = EK_ACT_SILU),
    MODEL(EK_F16, 1, 200, 2, 1, 64, 150, .kept = EK_I4, .group = 128, .act = EK_ACT_GELU_TANH),
    MODEL(EK_BF16, 4, 64, 4, 2, 32, 72, .act = EK_ACT_SILU, .offload = (uint64_t)1 << 40),
};
#define MODELS (sizeof(g_models) / sizeof(g_models[0]))

static struct ek_plan_request request(const struct tiny *t, double share)
{
    return (struct ek_plan_request){.graph = &t->g,
                                    .ceiling = {512, 16, 1024, 8, 4096, 8},
                                    .logit_rows = 24,
                                    .block_size = 8,
                                    .offload_bytes = t->p.offload,
                                    .share = share};
}

static struct ek_device_stats stats_of(const struct ek_backend *b, struct ek_device *d)
{
    struct ek_device_stats s;

    b->stats(d, &s);
    return s;
}

/* What a load measures on a card with such a context, others' memory taken after it was opened. */
static struct ek_device_stats measured(const struct tiny *t, size_t context, size_t graph,
                                       size_t others, size_t *ret_used)
{
    const struct ek_backend *b = cuda_backend();
    const struct ek_open_params open = {0};
    const struct ek_plan_request q = request(t, SHARE);
    struct ek_device *d = NULL;

    g_fake.card(CARD, true);
    g_fake.costs(context, graph);
    assert_int_equal(b->open(&open, &d, NULL), 0);
    g_fake.others(0, others);
    assert_int_equal(b->load(d, &q, &t->files, NULL, NULL, NULL), 0);
    const struct ek_device_stats s = stats_of(b, d);
    *ret_used = g_fake.used();
    assert_int_equal(g_fake.calls("cuGraphInstantiateWithFlags"), BUCKETS);
    b->close(d);
    assert_int_equal(g_fake.objects(), 0);
    return s;
}

static void test_measured(void **state)
{
    (void)state;
    static const struct {
        size_t context, graph, others;
    } cases[] = {{0, 0, 0},
                 {300 * MIB, 0, 0},
                 {900 * MIB, 0, 0},
                 {900 * MIB, 7 * MIB, 0},
                 {600 * MIB, 2 * MIB, 1000 * MIB},
                 {600 * MIB, 0, 3 * (CARD / 4)}};
    struct tiny *t = tiny_new(&g_models[0]);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t used = 0;
        const size_t graphs = BUCKETS * cases[i].graph;
        const struct ek_device_stats s =
            measured(t, cases[i].context, cases[i].graph, cases[i].others, &used);
        const size_t own = used + cases[i].context + graphs + cases[i].others;
        const size_t share = CARD / 4 * 3;
        const size_t room = own + LATER < share ? share - own - LATER : 1;
        if (s.room_bytes != room)
            fail_msg("case %zu: %zu bytes instead of %zu", i, (size_t)s.room_bytes, room);
        assert_in_range(s.context_bytes, cases[i].context + graphs + cases[i].others,
                        cases[i].context + graphs + cases[i].others + 16);
        assert_int_equal(s.others_bytes, 0); /* no NVML: all is this process's */
    }
    tiny_free(t);
}

/* Without a share nothing is measured, nor recorded ahead. */
static void test_not_asked(void **state)
{
    (void)state;
    struct tiny *t = tiny_new(&g_models[0]);
    struct tiny_device x;
    const struct ek_plan_request q = request(t, 0);
    const struct ek_open_params open = {0};

    g_fake.card(CARD, true);
    assert_int_equal(tiny_open_for(cuda_backend(), t, &open, &q, 20, &x), 0);
    assert_int_equal(stats_of(x.b, x.d).room_bytes, 0);
    assert_int_equal(g_fake.calls("cuGraphInstantiateWithFlags"), 0);
    tiny_close(&x);
    tiny_free(t);
}

/* All cards have as many blocks as the one with the least room. */
static void test_least_of_cards(void **state)
{
    (void)state;
    struct tiny *t = tiny_new(&g_models[0]);
    const struct ek_open_params open = {.ranks = 2, .each = cuda_backend(), .stall_us = 60000000};
    const struct ek_plan_request q = request(t, SHARE);
    static const size_t taken[][2] = {{0, 0}, {100 * MIB, 0}, {0, 200 * MIB}};
    struct ek_device_stats first[2], now[2];

    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++) {
        struct tiny_device x;
        g_fake.card(CARD, true);
        g_fake.cards(2);
        g_fake.costs(500 * MIB, MIB);
        g_fake.others(0, taken[i][0]);
        g_fake.others(1, taken[i][1]);
        assert_int_equal(tiny_open_for(ek_ranks_backend(open.each), t, &open, &q, 20, &x), 0);
        for (uint32_t r = 0; r < 2; r++) {
            x.b->rank_stats(x.d, r, i == 0 ? &first[r] : &now[r]);
            if (i > 0)
                assert_int_equal(now[r].room_bytes, first[r].room_bytes - taken[i][r]);
        }
        const struct ek_device_stats *one = i == 0 ? first : now, all = stats_of(x.b, x.d);
        assert_int_equal(all.room_bytes, one[0].room_bytes < one[1].room_bytes ? one[0].room_bytes
                                                                               : one[1].room_bytes);
        assert_string_equal(all.collectives, "NCCL 2.28.9");
        tiny_close(&x);
    }
    tiny_free(t);
}

/* A prompt and steps of decode of two sequences; what was sampled. */
static void run(struct tiny_device *x, int32_t *ret_tokens)
{
    static const uint32_t table[2][3] = {{1, 3, 5}, {2, 4, 6}};
    int32_t tokens[2][PROMPT];
    uint64_t seed = 7;

    for (uint32_t s = 0; s < 2; s++) {
        const struct ek_slot_set set = {.slot = s, .sampling.top_p = 1.0f, .top = 1};
        tiny_set(x, &set);
        for (uint32_t i = 0; i < PROMPT; i++)
            tokens[s][i] = (int32_t)(tiny_next(&seed) % VOCAB);
    }
    for (uint32_t k = 0; k <= MORE; k++) {
        for (uint32_t s = 0; s < 2; s++)
            tiny_add(x, s, k > 0 ? NULL : tokens[s], k > 0 ? PROMPT + k - 1 : 0, k > 0 ? 1 : PROMPT,
                     table[s], true);
        assert_int_equal(tiny_run(x, NULL), 0);
        for (uint32_t s = 0; s < 2; s++)
            *ret_tokens++ = x->result->seq[s].token[0];
    }
}

static void test_recorded_before_the_pool(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODELS; m++) {
        struct tiny *t = tiny_new(&g_models[m]);
        int32_t tokens[2][2 * (MORE + 1)];
        for (int i = 0; i < 2; i++) {
            const struct ek_plan_request q = request(t, i == 0 ? 0 : SHARE);
            const struct ek_open_params open = {0};
            const bool ahead = i == 1 && t->p.offload == 0;
            struct tiny_device x;
            g_fake.card(CARD, true);
            assert_int_equal(tiny_open_for(cuda_backend(), t, &open, &q, 20, &x), 0);
            assert_int_equal(g_fake.calls("cuGraphInstantiateWithFlags"), ahead ? BUCKETS : 0);
            run(&x, tokens[i]);
            assert_int_equal(g_fake.calls("cuGraphInstantiateWithFlags"), ahead ? BUCKETS : 1);
            assert_int_equal(g_fake.calls("cuGraphLaunch"), ahead ? MORE : MORE - 1);
            tiny_close(&x);
            assert_int_equal(g_fake.objects(), 0);
        }
        assert_memory_equal(tokens[0], tokens[1], sizeof(tokens[0]));
        tiny_free(t);
    }
}

/* What could not be recorded is left room for, and recorded by its steps. */
static void test_recording_fails(void **state)
{
    (void)state;
    static const struct {
        const char *symbol;
        int result, code;
    } cases[] = {
        {"", CU_OK, 0},
        {"cuStreamBeginCapture_v2", CU_OUT_OF_MEMORY, 0},
        {"cuStreamEndCapture", CU_CAPTURE_INVALIDATED, 0},
        {"cuGraphInstantiateWithFlags", CU_OUT_OF_MEMORY, 0},
        {"cuGraphUpload", CU_OUT_OF_MEMORY, 0},
        {"cuGraphUpload", CU_ILLEGAL_ADDRESS, EK_EDEVICE},
        {"cuMemGetInfo_v2", CU_ILLEGAL_ADDRESS, EK_EDEVICE},
    };
    struct tiny *t = tiny_new(&g_models[0]);
    const struct ek_plan_request q = request(t, SHARE);
    const struct ek_open_params open = {0};
    int32_t tokens[2 * (MORE + 1)], want[2 * (MORE + 1)];
    size_t room = 0;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tiny_device x;
        g_fake.card(CARD, true);
        if (i > 0)
            g_fake.plant(cases[i].symbol, 1, cases[i].result);
        assert_int_equal(tiny_open_for(cuda_backend(), t, &open, &q, 20, &x), cases[i].code);
        if (cases[i].code < 0)
            continue;
        room = i == 0 ? stats_of(x.b, x.d).room_bytes : room;
        if (i > 0) /* 12 MiB a layer */
            assert_int_equal(room - stats_of(x.b, x.d).room_bytes, LAYERS * 12 * MIB);
        run(&x, i == 0 ? want : tokens);
        if (i > 0)
            assert_memory_equal(tokens, want, sizeof(want));
        tiny_close(&x);
        assert_int_equal(g_fake.objects(), 0);
    }
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measured),        cmocka_unit_test(test_not_asked),
        cmocka_unit_test(test_least_of_cards),  cmocka_unit_test(test_recorded_before_the_pool),
        cmocka_unit_test(test_recording_fails),
    };

    if (getenv("EVENKEEL_GPU"))
        return 0; /* its memory is others', too */
    return cmocka_run_group_tests_name("room", tests, fake_setup, NULL);
}
