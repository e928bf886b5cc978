/*
 * Stages of a pipeline on cards, on the driver and the NCCL for tests: two, three and four cards,
 * also with shares in each stage, give bit for bit what one stage gives (flow.h says what of), and
 * recorded steps hand on rows, too; plans and refusals; and what goes wrong: a stage that stays
 * away, links that are broken, errors of NCCL at any call, a token that was never sampled.
 *
 * With EVENKEEL_GPU set only what two cards can show runs, where there are two.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/memplan.h"
#include "kernels/cuda/nccl.h"
#include "tests/share.h"
#include "tests/unit/alloc.h"
#include "tests/unit/cuda/fake_card.h"
#include "tests/unit/kernels/flow.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"

/* Deadlines: of what stays away, at start, of what does not stay away. */
enum { STALL_US = 150000, START_US = 2000000, PATIENT_US = 60000000 };
#define CARD ((size_t)1 << 30)

#define MODEL(type, n, ...)                                                                        \
    {                                                                                              \
        .dtype = (type), .layers = (n), .hidden = 32, .q_heads = 4, .kv_heads = 2, .head_dim = 16, \
        .rotary = 16, .ffn = 96, .vocab = 40, __VA_ARGS__                                          \
    }

static const struct tiny_params g_models[] = {
    MODEL(EK_F32, 3, .bias = true, .tied = true, .act = EK_ACT_SILU),
    MODEL(EK_BF16, 2, .tied = true, .window = 9, .softcap = 5.0f, .act = EK_ACT_GELU),
    MODEL(EK_F16, 2, .experts = 4, .top = 2, .normalise = true),
    MODEL(EK_BF16, 2, .kept = EK_I8, .tied = true, .qk_norm = true, .act = EK_ACT_SILU),
};
#define MODELS (sizeof(g_models) / sizeof(g_models[0]))

static struct ek_open_params open_of(uint32_t shares, uint32_t stages, uint64_t stall_us)
{
    return (struct ek_open_params){
        .ranks = shares * stages, .stages = stages, .each = cuda_backend(), .stall_us = stall_us};
}

static void new_cards(uint32_t count)
{
    g_fake.card(CARD, true);
    if (!g_fake.real)
        g_fake.cards((int)count);
}

static void run_in(const struct tiny *t, uint32_t shares, uint32_t stages, struct flow_log *log)
{
    const struct ek_open_params open = open_of(shares, stages, 20000000);
    const bool alone = shares * stages == 1;

    new_cards(shares * stages);
    flow_run(alone ? cuda_backend() : ek_ranks_backend(cuda_backend()), t, &open, log);
    if (!g_fake.real && (g_fake.objects() != 0 || g_fake.used() != 0))
        fail_msg("%u objects and %zu bytes are left", g_fake.objects(), g_fake.used());
}

static void check_same(const struct flow_log *a, const struct flow_log *b, size_t model,
                       uint32_t shares, uint32_t stages)
{
    assert_int_equal(a->bytes, b->bytes);
    for (size_t i = 0; i < a->bytes; i++)
        if (a->at[i] != b->at[i])
            fail_msg("model %zu, %u stages of %u: byte %zu of the results differs", model, stages,
                     shares, i);
}

static void test_same(void **state)
{
    (void)state;
    uint64_t number = 0;

    for (size_t m = 0; m < MODELS; m++)
        for (uint32_t shares = 1; shares <= (m < 2 ? 2 : 1); shares++) {
            if (!share_takes(number++))
                continue;
            struct tiny *t = tiny_new(&g_models[m]);
            struct flow_log whole = {0}, parts;
            run_in(t, shares, 1, &whole);
            for (uint32_t stages = 2; stages <= t->p.layers && shares * stages <= 4; stages++) {
                parts = (struct flow_log){0};
                run_in(t, shares, stages, &parts);
                assert_true(g_fake.calls("cuGraphLaunch") >= shares * stages);
                assert_true(g_fake.calls("ncclSend") > 0);
                check_same(&parts, &whole, m, shares, stages);
                flow_free(&parts);
            }
            flow_free(&whole);
            tiny_free(t);
        }
}

/* Where there are two: the same tokens as on one of them. */
static void test_two_cards(void **state)
{
    (void)state;
    const struct ek_open_params open = open_of(1, 2, 20000000);
    struct ek_device_info info;
    struct ek_fault fault = {.msg = ""};

    if (ek_ranks_backend(open.each)->probe(&open, &info, &fault) < 0) {
        print_message("not with two cards: %s\n", fault.msg);
        skip();
    }
    for (size_t m = 0; m < MODELS; m++) {
        struct tiny *t = tiny_new(&g_models[m]);
        struct flow_log whole = {0}, parts = {0};
        run_in(t, 1, 1, &whole);
        run_in(t, 1, 2, &parts);
        check_same(&parts, &whole, m, 1, 2);
        flow_free(&whole);
        flow_free(&parts);
        tiny_free(t);
    }
}

/* ---- plans and words ---- */

static void test_plan(void **state)
{
    (void)state;
    struct tiny_params p = g_models[1];
    p.layers = 4;
    struct tiny *t = tiny_new(&p);
    const struct ek_backend *cuda = cuda_backend();
    const struct ek_open_params open = open_of(1, 2, 0);
    const struct ek_plan_request q = {.graph = &t->g,
                                      .ceiling = {512, 16, 1024, 8, 4096, 8},
                                      .logit_rows = 24,
                                      .block_size = FLOW_BLOCK};
    struct ek_device_stats of[2];
    struct tiny_device x;
    struct ek_plan one, each;

    new_cards(2);
    assert_int_equal(cuda->plan(&(struct ek_open_params){0}, &q, &one, NULL), 0);
    assert_int_equal(ek_ranks_backend(cuda)->plan(&open, &q, &each, NULL), 0);
    assert_int_equal(each.block_bytes * 2, one.block_bytes);
    assert_true(each.weight_bytes < one.weight_bytes * 3 / 4);
    assert_int_equal(tiny_open_on(ek_ranks_backend(cuda), t, &open, FLOW_BLOCK, FLOW_BLOCKS, &x),
                     0);
    for (uint32_t r = 0; r < 2; r++) {
        x.b->rank_stats(x.d, r, &of[r]);
        assert_int_equal(of[r].kv_bytes, FLOW_BLOCKS * each.block_bytes);
        assert_true(of[r].weight_bytes <= each.weight_bytes);
        assert_true(of[r].activation_bytes <= each.activation_bytes);
    }
    /* logits, masks and histories are with the last stage alone */
    assert_true(of[0].activation_bytes + 16 * 4096 * sizeof(uint32_t) < of[1].activation_bytes);
    tiny_close(&x);
    assert_int_equal(g_fake.objects(), 0);
    tiny_free(t);
}

static void test_command_line(void **state)
{
    (void)state;
    const struct ek_open_params open = open_of(2, 2, 0), line = open_of(1, 3, 0);
    struct ek_device_info info;
    struct ek_fault fault = {.msg = ""};

    new_cards(3);
    assert_int_equal(ek_ranks_backend(open.each)->probe(&open, &info, &fault), -ENODEV);
    assert_non_null(strstr(fault.msg, "--pipeline-parallel-size 2 with --tensor-parallel-size 2 "
                                      "needs 4 cards, and there is no card 3: the driver has 3"));
    assert_string_equal(fault.field, "pipeline-parallel-size");
    g_fake.links(true, false); /* what stages hand on is little: nothing to warn of */
    assert_int_equal(ek_ranks_backend(line.each)->probe(&line, &info, &fault), 0);
    assert_string_equal(info.note, "");
}

/* ---- what goes wrong ---- */

static int run_prompt(struct tiny_device *x)
{
    static const int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    static const uint32_t table[3] = {1, 2, 3};
    const struct ek_slot_set set = {.sampling.top_p = 1.0f};

    tiny_set(x, &set);
    tiny_add(x, 0, tokens, 0, 9, table, true);
    return tiny_run(x, NULL);
}

static int run_decode(struct tiny_device *x, uint32_t at)
{
    static const uint32_t table[3] = {1, 2, 3};

    tiny_add(x, 0, NULL, at, 1, table, true);
    return tiny_run(x, NULL);
}

static int open_in(const struct tiny *t, uint32_t shares, uint32_t stages, uint64_t stall_us,
                   struct tiny_device *x)
{
    const struct ek_open_params open = open_of(shares, stages, stall_us);

    new_cards(shares * stages);
    return tiny_open_on(ek_ranks_backend(open.each), t, &open, FLOW_BLOCK, FLOW_BLOCKS, x);
}

/* A deadline that nothing misses on this machine as busy as it is: many times what a prompt takes,
 * STALL_US at least. */
static uint64_t measured_stall_us(const struct tiny *t, uint32_t shares, uint32_t stages)
{
    struct tiny_device x;

    assert_int_equal(open_in(t, shares, stages, PATIENT_US, &x), 0);
    const uint64_t begin = ek_now_us();
    assert_int_equal(run_prompt(&x), 0);
    const uint64_t stall_us = 20 * (ek_now_us() - begin);
    tiny_close(&x);
    return stall_us > STALL_US ? stall_us : STALL_US;
}

/* A stage that stays away: after the deadline, not before, all steps are EK_ECOMM. */
static void test_stall(void **state)
{
    (void)state;
    struct tiny *t = tiny_new(&g_models[0]);
    struct tiny_device x;

    for (int rank = 0; rank < 3; rank++) {
        const uint64_t stall_us = measured_stall_us(t, 1, 3);
        assert_int_equal(open_in(t, 1, 3, stall_us, &x), 0);
        assert_int_equal(run_prompt(&x), 0);
        assert_int_equal(g_fake.calls("ncclCommAbort"), 0);
        g_fake.stall(rank);
        uint64_t begin = ek_now_us();
        assert_int_equal(run_decode(&x, 9), EK_ECOMM);
        assert_true(ek_now_us() - begin >= stall_us);
        assert_int_equal(run_decode(&x, 9), EK_ECOMM);
        tiny_close(&x);
        assert_int_equal(g_fake.calls("ncclCommAbort"), 3);
        assert_int_equal(g_fake.objects(), 0);
    }
    tiny_free(t);
}

/* The same with recorded steps, which have calls of both communicators of a rank: an abort waits
 * until they are gone, so both have to be told before that. */
static void test_stall_recorded(void **state)
{
    (void)state;
    struct tiny *t = tiny_new(&g_models[1]);
    struct tiny_device x;

    assert_int_equal(open_in(t, 2, 2, measured_stall_us(t, 2, 2), &x), 0);
    assert_int_equal(run_prompt(&x), 0);
    for (uint32_t at = 9; at < 12; at++)
        assert_int_equal(run_decode(&x, at), 0);
    assert_true(g_fake.calls("cuGraphLaunch") > 0);
    g_fake.stall(2); /* hands on nothing; it is no third one of any stage */
    assert_int_equal(run_decode(&x, 12), EK_ECOMM);
    tiny_close(&x);
    assert_int_equal(g_fake.calls("ncclCommAbort"), 8);
    assert_int_equal(g_fake.objects(), 0);
    tiny_free(t);
}

/* At start: a communicator that cannot be split, calls that fail, numbers that come wrong. */
static void test_start(void **state)
{
    (void)state;
    static const struct {
        const char *symbol;
        int result, code;
        const char *says;
    } cases[] = {
        {"ncclCommSplit@0", NCCL_INTERNAL_ERROR, EK_ECOMM, ""},
        {"ncclCommSplit@3", NCCL_SYSTEM_ERROR, EK_ECOMM, ""},
        {"ncclSend@1", NCCL_CUDA_ERROR, EK_ECOMM, ""},
        {"ncclRecv@2", NCCL_SYSTEM_ERROR, EK_ECOMM, ""},
        {"cuMemAlloc_v2@3", CU_OUT_OF_MEMORY, EK_EDEVMEM, "GiB free"},
    };
    struct tiny *t = tiny_new(&g_models[0]);
    const struct ek_open_params open = open_of(2, 2, START_US);
    const struct ek_backend *b = ek_ranks_backend(open.each);
    const struct ek_plan_request q = {
        .graph = &t->g, .ceiling = {64, 4, 64, 8}, .logit_rows = 8, .block_size = 8};

    for (size_t i = 0; i <= sizeof(cases) / sizeof(cases[0]); i++) {
        const bool spoils = i == sizeof(cases) / sizeof(cases[0]);
        struct ek_fault fault = {.msg = ""};
        struct ek_device *d = NULL;
        new_cards(4);
        if (spoils)
            g_fake.spoil(1);
        else
            g_fake.plant(cases[i].symbol, 1, cases[i].result);
        int r = b->open(&open, &d, &fault);
        if (r == 0) {
            r = b->load(d, &q, &t->files, NULL, NULL, &fault);
            b->close(d);
        }
        if (r != (spoils ? EK_ECOMM : cases[i].code) ||
            !strstr(fault.msg, spoils ? "got wrong numbers" : cases[i].says))
            fail_msg("%s: %d, \"%s\"", spoils ? "spoilt" : cases[i].symbol, r, fault.msg);
        if (g_fake.objects() != 0 || g_fake.used() != 0)
            fail_msg("case %zu: %u objects are left", i, g_fake.objects());
    }
    tiny_free(t);
}

/* An error at any of the calls of some steps: its code, from then on too, and a clean end. */
static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *symbol;
        int result, code;
    } cases[] = {
        {"ncclSend@0", NCCL_INTERNAL_ERROR, EK_ECOMM},
        {"ncclSend@1", NCCL_REMOTE_ERROR, EK_ECOMM}, /* what was sampled */
        {"ncclRecv@0", NCCL_INTERNAL_ERROR, EK_ECOMM},
        {"ncclRecv@1", NCCL_CUDA_ERROR, EK_ECOMM},
        {"cuLaunchKernel@1", CU_OUT_OF_MEMORY, EK_EDEVMEM},
        {"cuEventQuery@0", CU_ILLEGAL_ADDRESS, EK_EDEVICE},
        {"cuGraphLaunch@1", CU_ILLEGAL_ADDRESS, EK_EDEVICE},
    };
    struct tiny *t = tiny_new(&g_models[1]);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (unsigned nth = 1; nth < 8; nth += 3) {
            struct tiny_device x;
            assert_int_equal(open_in(t, 1, 2, 0, &x), 0);
            int r = run_prompt(&x);
            assert_int_equal(r, 0);
            g_fake.plant(cases[i].symbol, nth, cases[i].result);
            for (uint32_t k = 0; k < 12 && r == 0; k++)
                r = run_decode(&x, 9 + k);
            if (r != cases[i].code && (r != 0 || nth == 1))
                fail_msg("%s, call %u: %d instead of %d", cases[i].symbol, nth, r, cases[i].code);
            if (r != 0)
                assert_int_equal(run_decode(&x, 9), cases[i].code);
            tiny_close(&x);
            assert_true(cases[i].code == EK_EDEVICE || g_fake.objects() == 0);
        }
    tiny_free(t);
}

/* Nobody is left waiting for a step that asks for a token which was never sampled. */
static void test_bad_token(void **state)
{
    (void)state;
    struct tiny *t = tiny_new(&g_models[1]);
    const struct ek_slot_set set = {.sampling.top_p = 1.0f};
    struct tiny_device x;

    assert_int_equal(open_in(t, 1, 2, 20000000, &x), 0);
    tiny_set(&x, &set);
    assert_int_equal(run_decode(&x, 0), -EBADMSG);
    assert_int_equal(run_prompt(&x), 0);
    assert_int_equal(run_decode(&x, 9), 0);
    tiny_close(&x);
    assert_int_equal(g_fake.objects(), 0);
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same),         cmocka_unit_test(test_plan),
        cmocka_unit_test(test_command_line), cmocka_unit_test(test_stall),
        cmocka_unit_test(test_start),        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_bad_token),    cmocka_unit_test(test_stall_recorded),
    };
    const struct CMUnitTest on_card[] = {cmocka_unit_test(test_two_cards)};

    if (getenv("EVENKEEL_GPU"))
        return cmocka_run_group_tests(on_card, fake_setup, NULL);
    return cmocka_run_group_tests(tests, fake_setup, NULL);
}
