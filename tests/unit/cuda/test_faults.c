/*
 * What can go wrong on a device, on the driver for tests: no driver, no card, a card too old;
 * memory that runs out at each place where it is taken; a pool without virtual memory; a graph that
 * cannot be recorded; a step that cannot be enqueued; a device that is lost. Each has its code and
 * its sentence, nothing leaks, and what can go on does.
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
#include "kernels/cuda/driver.h"
#include "tests/unit/cuda/fake_card.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"

#define CARD ((size_t)1 << 30)

static const struct ek_open_params g_first = {.device = 0};

static const struct tiny_params g_model = {.dtype = EK_BF16,
                                           .layers = 1,
                                           .hidden = 32,
                                           .q_heads = 2,
                                           .kv_heads = 1,
                                           .head_dim = 64,
                                           .rotary = 64,
                                           .ffn = 32,
                                           .vocab = 20};

static int open_model(const struct tiny *t, struct tiny_device *x)
{
    return tiny_open_on(ek_backend_get(EK_BACKEND_ABI), t, &g_first, 8, 20, x);
}

static void test_command_line(void **state)
{
    (void)state;
    static const struct {
        int cards;
        const char *says;
    } cases[] = {
        {0, "finds no card"},
        {-CU_SYSTEM_NOT_READY, "fabricmanager"},
        {-CU_SYSTEM_DRIVER_MISMATCH, "another version"},
        {-CU_DEVICE_NOT_LICENSED, "license"},
        {-CU_UNKNOWN, "CUDA_ERROR_"},
    };
    const struct ek_backend *b = ek_backend_get(EK_BACKEND_ABI);
    const struct ek_open_params second = {.device = 1};
    struct ek_device_info info;
    struct ek_device *d = NULL;

    assert_null(ek_backend_get(EK_BACKEND_ABI + 1));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_fault fault = {.msg = ""};
        g_fake.card(CARD, true);
        g_fake.cards(cases[i].cards);
        assert_int_equal(b->probe(&g_first, &info, &fault), -ENODEV);
        assert_non_null(strstr(fault.msg, cases[i].says));
        assert_int_equal(b->open(&g_first, &d, &fault), -ENODEV);
    }
    struct ek_fault fault = {.msg = ""};
    g_fake.card(CARD, true);
    assert_int_equal(b->probe(&second, &info, &fault), -ENODEV);
    assert_non_null(strstr(fault.msg, "no card 1"));
    assert_int_equal(b->probe(&g_first, &info, &fault), 0);
    assert_int_equal(info.memory_bytes, CARD);
    assert_non_null(strstr(info.name, "Fake card, sm_90"));

    char *path = strdup(getenv("EVENKEEL_CUDA_DRIVER"));
    setenv("EVENKEEL_CUDA_DRIVER", "/nowhere/libcuda.so.1", 1);
    assert_int_equal(b->probe(&g_first, &info, &fault), -ENODEV);
    assert_non_null(strstr(fault.msg, "no NVIDIA driver"));
    setenv("EVENKEEL_CUDA_DRIVER", "libm.so.6", 1); /* not a driver, or a very old one */
    assert_int_equal(b->probe(&g_first, &info, &fault), -ENODEV);
    assert_non_null(strstr(fault.msg, "too old"));
    setenv("EVENKEEL_CUDA_DRIVER", path, 1);
    free(path);
}

/* Each call that can fail at start fails once at each of its turns. */
static void test_start(void **state)
{
    (void)state;
    static const struct {
        const char *symbol;
        int result, code;
    } cases[] = {
        {"cuDevicePrimaryCtxRetain", CU_OUT_OF_MEMORY, EK_EDEVMEM},
        {"cuDevicePrimaryCtxRetain", CU_DEVICE_UNAVAILABLE, EK_EDEVICE},
        {"cuStreamCreate", CU_OUT_OF_MEMORY, EK_EDEVMEM},
        {"cuMemAlloc_v2", CU_OUT_OF_MEMORY, EK_EDEVMEM},
        {"cuModuleLoadData", CU_OUT_OF_MEMORY, EK_EDEVMEM},
        {"cuModuleLoadData", CU_NO_BINARY_FOR_GPU, -ENODEV},
        {"cuModuleGetFunction", CU_OUT_OF_MEMORY, EK_EDEVMEM},
        {"cuMemHostAlloc", CU_OUT_OF_MEMORY, -ENOMEM},
        {"cuEventCreate", CU_OUT_OF_MEMORY, EK_EDEVMEM},
        {"cuMemcpyHtoDAsync_v2", CU_ILLEGAL_ADDRESS, EK_EDEVICE},
        {"cuMemCreate", CU_OUT_OF_MEMORY, EK_EDEVMEM},
        {"cuMemMap", CU_OUT_OF_MEMORY, EK_EDEVMEM},
        {"cuMemSetAccess", CU_OUT_OF_MEMORY, EK_EDEVMEM},
    };
    struct tiny *t = tiny_new(&g_model);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned n = 0;
        int r;
        do {
            struct tiny_device x;
            g_fake.card(CARD, true);
            g_fake.plant(cases[i].symbol, ++n, cases[i].result);
            r = open_model(t, &x);
            if (r == 0)
                tiny_close(&x);
            else if (r != cases[i].code)
                fail_msg("%s, call %u: %d instead of %d", cases[i].symbol, n, r, cases[i].code);
            if (cases[i].code != EK_EDEVICE && (g_fake.used() != 0 || g_fake.objects() != 0))
                fail_msg("%s, call %u: %zu bytes and %u objects are left", cases[i].symbol, n,
                         g_fake.used(), g_fake.objects());
        } while (r != 0 && n < 100 && cases[i].code != EK_EDEVICE);
        assert_true(n > 1 || cases[i].code == EK_EDEVICE);
    }
    tiny_free(t);
}

/* A card that is too small says by how much. */
static void test_too_small(void **state)
{
    (void)state;
    struct tiny *t = tiny_new(&g_model);
    const struct ek_backend *b = ek_backend_get(EK_BACKEND_ABI);
    struct ek_plan_request q = {
        .graph = &t->g, .ceiling = {512, 16, 1024, 8}, .logit_rows = 16, .block_size = 8};
    const struct ek_kv_params kv = {1u << 20, 0, 8, 0};
    struct ek_fault fault = {.msg = ""};
    struct ek_device *d = NULL;

    g_fake.card(1 << 20, true);
    assert_int_equal(b->open(&g_first, &d, &fault), 0);
    assert_int_equal(b->load(d, &q, &t->files, NULL, NULL, &fault), EK_EDEVMEM);
    assert_non_null(strstr(fault.msg, "GiB free"));
    b->close(d);
    assert_int_equal(g_fake.used(), 0);

    g_fake.card((size_t)256 << 20, true);
    assert_int_equal(b->open(&g_first, &d, &fault), 0);
    assert_int_equal(b->load(d, &q, &t->files, NULL, NULL, &fault), 0);
    assert_int_equal(b->kv_open(d, &kv), EK_EDEVMEM);
    const struct ek_kv_params small = {20, 0, 8, 0};
    assert_int_equal(b->kv_open(d, &small), 0); /* the failure left nothing behind */
    b->close(d);
    assert_int_equal(g_fake.used(), 0);
    tiny_free(t);
}

static int run_prompt(struct tiny_device *x, uint32_t slot)
{
    const struct ek_slot_set set = {.slot = slot, .sampling.top_p = 1.0f};
    const uint32_t table[2] = {1 + slot, 10 + slot};
    const int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};

    tiny_set(x, &set);
    tiny_add(x, slot, tokens, 0, 9, table, true);
    return tiny_run(x, NULL);
}

static int run_decode(struct tiny_device *x, uint32_t slot)
{
    const uint32_t table[2] = {1 + slot, 10 + slot};

    tiny_add(x, slot, NULL, 9, 1, table, true);
    return tiny_run(x, NULL);
}

/* Growing stops where the card ends and takes back what it mapped; shrinking gives memory back. */
static void test_resize(void **state)
{
    (void)state;
    struct tiny *t = tiny_new(&g_model);
    struct tiny_device x;
    struct ek_device_stats s;

    g_fake.card(CARD, true);
    assert_int_equal(open_model(t, &x), 0);
    assert_int_equal(run_prompt(&x, 0), 0);
    int32_t token = x.result->seq[0].token[0];
    size_t before = g_fake.used();
    assert_int_equal(x.b->kv_resize(x.d, 40000), 0); /* 2 KiB each */
    assert_int_equal(g_fake.used(), before + (64 << 20));
    assert_int_equal(x.b->kv_resize(x.d, 400000000), EK_EDEVMEM);
    g_fake.plant("cuMemCreate", 3, CU_OUT_OF_MEMORY);
    assert_int_equal(x.b->kv_resize(x.d, 200000), EK_EDEVMEM);
    assert_int_equal(g_fake.used(), before + (64 << 20));
    x.b->stats(x.d, &s);
    assert_int_equal(s.kv_bytes, 40000 * 2048);
    assert_int_equal(x.b->kv_resize(x.d, 20), 0);
    assert_int_equal(g_fake.used(), before);
    assert_int_equal(run_prompt(&x, 0), 0);
    assert_int_equal(x.result->seq[0].token[0], token);
    tiny_close(&x);
    assert_int_equal(g_fake.used(), 0);
    tiny_free(t);
}

static void test_without_vmm(void **state)
{
    (void)state;
    struct tiny *t = tiny_new(&g_model);
    struct tiny_device x;

    for (int i = 0; i < 2; i++) {
        g_fake.card(CARD, i == 1);
        if (i == 1)
            g_fake.plant("cuMemAddressReserve", 1, CU_NOT_SUPPORTED);
        assert_int_equal(open_model(t, &x), 0);
        assert_int_equal(g_fake.calls("cuMemCreate"), 0);
        assert_int_equal(run_prompt(&x, 0), 0);
        assert_int_equal(run_decode(&x, 0), 0);
        assert_int_equal(x.b->kv_resize(x.d, 30), -ENOTSUP);
        assert_int_equal(run_decode(&x, 0), 0);
        tiny_close(&x);
        assert_int_equal(g_fake.used(), 0);
        assert_int_equal(g_fake.objects(), 0);
    }
    tiny_free(t);
}

/* Recording fails in each of its calls: the step runs launch by launch, and later ones do. */
static void test_no_graph(void **state)
{
    (void)state;
    static const struct {
        const char *symbol;
        int result;
    } cases[] = {
        {"cuStreamBeginCapture_v2", CU_OUT_OF_MEMORY},
        {"cuStreamEndCapture", CU_OUT_OF_MEMORY},
        {"cuGraphInstantiateWithFlags", CU_OUT_OF_MEMORY},
        /* none of what is said of captures means that the card is lost */
        {"cuStreamBeginCapture_v2", CU_CAPTURE_UNSUPPORTED},
        {"cuStreamEndCapture", CU_CAPTURE_INVALIDATED},
        {"cuStreamEndCapture", 905},
        {"cuStreamEndCapture", 906},
        {"cuStreamEndCapture", CU_CAPTURE_LAST},
    };
    struct tiny *t = tiny_new(&g_model);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tiny_device x;
        g_fake.card(CARD, true);
        g_fake.plant(cases[i].symbol, 1, cases[i].result);
        assert_int_equal(open_model(t, &x), 0);
        assert_int_equal(run_prompt(&x, 0), 0);
        for (int k = 0; k < 4; k++)
            assert_int_equal(run_decode(&x, 0), 0);
        assert_int_equal(g_fake.calls("cuGraphLaunch"), 0);
        tiny_close(&x);
        assert_int_equal(g_fake.objects(), 0);
    }
    tiny_free(t);
}

/* A step that cannot be enqueued did not begin: its code comes from forward() or sample(), and the
 * same step asked for again gives what it would have given. */
static void test_step_fails(void **state)
{
    (void)state;
    static const char *const symbols[] = {"cuLaunchKernel", "cuMemcpyHtoDAsync_v2",
                                          "cuMemcpyDtoHAsync_v2", "cuEventRecord"};
    struct tiny *t = tiny_new(&g_model);
    struct tiny_device x;

    g_fake.card(CARD, true);
    assert_int_equal(open_model(t, &x), 0);
    assert_int_equal(run_prompt(&x, 0), 0);
    int32_t token = x.result->seq[0].token[0];
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        unsigned n = 0;
        int r;
        do {
            g_fake.plant(symbols[i], ++n, CU_OUT_OF_MEMORY);
            r = run_prompt(&x, 0);
            assert_true(r == 0 || r == EK_EDEVMEM);
        } while (r != 0 && n < 100);
        assert_true(n > 1 && n < 100);
        assert_int_equal(x.result->seq[0].token[0], token);
        g_fake.card(0, true); /* forgets the failure that did not happen */
    }
    tiny_close(&x);
    tiny_free(t);
}

/* A sticky error: every call says so from then on, and closing ends all the same. */
static void test_device_lost(void **state)
{
    (void)state;
    static const char *const symbols[] = {"cuEventQuery", "cuLaunchKernel", "cuEventRecord"};
    struct tiny *t = tiny_new(&g_model);

    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        struct tiny_device x;
        g_fake.card(CARD, true);
        assert_int_equal(open_model(t, &x), 0);
        g_fake.plant(symbols[i], 2, CU_ILLEGAL_ADDRESS);
        int r = run_prompt(&x, 0);
        for (int k = 0; k < 3 && r == 0; k++)
            r = run_decode(&x, 0);
        assert_int_equal(r, EK_EDEVICE);
        ek_step_layout(x.step, &x.ceiling);
        x.step->id = 1000;
        r = x.b->forward(x.d, x.step);
        assert_true(r == EK_EDEVICE || r == -EBUSY || r == -EINVAL);
        tiny_close(&x); /* the context is lost with all that is in it: nothing can be freed */
    }
    tiny_free(t);
}

/* What the backend does not compute is refused at load with a sentence. */
static void test_refusals(void **state)
{
    (void)state;
    const struct ek_backend *b = ek_backend_get(EK_BACKEND_ABI);
    struct tiny *t = tiny_new(&g_model);
    struct ek_plan_request q = {
        .graph = &t->g, .ceiling = {8, 2, 8, 0}, .logit_rows = 2, .block_size = 8};
    struct ek_fault fault = {.msg = ""};
    struct ek_device *d = NULL;
    struct ek_plan plan;

    g_fake.card(CARD, true);
    assert_int_equal(b->open(&g_first, &d, &fault), 0);
    t->g.dtype = EK_I8;
    assert_int_equal(b->load(d, &q, &t->files, NULL, NULL, &fault), -ENOTSUP);
    assert_non_null(strstr(fault.msg, "bfloat16"));
    t->g.dtype = EK_BF16;
    q.block_size = 12;
    assert_int_equal(b->load(d, &q, &t->files, NULL, NULL, &fault), -EBADMSG);
    assert_int_equal(b->plan(&g_first, &q, &plan, &fault), -EBADMSG);
    q.block_size = 8;
    enum ek_op_kind kind = t->op[1].kind;
    t->op[1].kind = (enum ek_op_kind)99;
    assert_true(b->load(d, &q, &t->files, NULL, NULL, &fault) < 0);
    t->op[1].kind = kind;
    t->file.size_bytes -= 4; /* a truncated file */
    assert_int_equal(b->load(d, &q, &t->files, NULL, NULL, &fault), -EBADMSG);
    assert_non_null(strstr(fault.msg, "end of its file"));
    t->file.size_bytes += 4;
    assert_int_equal(b->load(d, &q, &t->files, NULL, NULL, &fault), 0);
    assert_int_equal(b->load(d, &q, &t->files, NULL, NULL, &fault), -EBUSY);
    b->close(d);
    b->close(NULL);
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_command_line), cmocka_unit_test(test_start),
        cmocka_unit_test(test_too_small),    cmocka_unit_test(test_resize),
        cmocka_unit_test(test_without_vmm),  cmocka_unit_test(test_no_graph),
        cmocka_unit_test(test_step_fails),   cmocka_unit_test(test_device_lost),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("cuda faults", tests, fake_setup, NULL);
}
