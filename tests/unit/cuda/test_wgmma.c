/*
 * Attention to prompts by wgmma: right against a plain computation, over head sizes, groups,
 * windows, caps, chunks and company; chosen where it can be, after a trial that finds a kernel that
 * is wrong. And the emulation that this runs on (tests/cuda/shim_wgmma.h): its layouts are those of
 * the examples that the PTX ISA gives, and it ends a kernel that does what a card would not stand.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/err.h"
#include "common/memplan.h"
#include "kernels/cuda/cuda.h"
#include "tests/cuda/wgmma_wrong.h"
#include "tests/share.h"
#include "tests/unit/cuda/fake_card.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"
#include "tests/unit/kernels/tiny_plain.h"

enum { VOCAB = 20, LONG = 300 };
#define CARD ((size_t)4 << 30)

#define MODEL(type, n, width, q, kv, dim, ...)                                                     \
    {                                                                                              \
        .dtype = (type), .layers = (n), .hidden = (width), .q_heads = (q), .kv_heads = (kv),       \
        .head_dim = (dim), .rotary = (dim) > 128 ? 100 : (dim), .ffn = 36, .vocab = VOCAB,         \
        __VA_ARGS__                                                                                \
    }

static const struct tiny_params g_models[] = {
    MODEL(EK_BF16, 2, 40, 4, 2, 64, .tied = true),
    MODEL(EK_F16, 1, 40, 8, 1, 64, .softcap = 5.0f, .qk_norm = true, .sinks = true),
    MODEL(EK_BF16, 1, 40, 3, 3, 32, .window = 33, .bias = true), /* less than a panel of columns */
    MODEL(EK_BF16, 2, 40, 4, 1, 128, .qk_norm = true),
    MODEL(EK_BF16, 1, 40, 7, 1, 128, .window = 100,
          .sinks = true),                           /* two of 128 pairs are nobody's */
    MODEL(EK_F16, 1, 40, 12, 1, 80, .window = 130), /* five rows in a warpgroup, 60 pairs */
    MODEL(EK_F16, 1, 40, 2, 2, 128, .softcap = 3.0f, .window = 129),
    MODEL(EK_BF16, 1, 64, 4, 2, 256, .softcap = 4.0f, .window = 64),
    MODEL(EK_F16, 1, 40, 16, 1, 136),
    MODEL(EK_BF16, 1, 40, 64, 1, 8), /* a row fills a warpgroup */
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

static const char *attention_of(struct tiny_device *x, const char **ret_note)
{
    struct ek_device_stats s;

    x->b->stats(x->d, &s);
    if (ret_note)
        *ret_note = s.note;
    return s.attention;
}

static void make_tokens(int32_t *tokens, uint32_t n, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(tiny_next(&seed) % VOCAB);
}

static void check_close(size_t model, uint32_t n, const struct ek_result_seq *s, const double *want)
{
    double slack = g_models[model].dtype == EK_F16 ? 2e-2 : 1.2e-1;

    assert_int_equal(s->tokens, 1);
    assert_int_equal(s->top, VOCAB);
    for (uint32_t i = 0; i < VOCAB; i++)
        if (!(fabs((double)s->top_logit[i] - want[s->top_id[i]]) < slack))
            fail_msg("model %zu, %u tokens: logit %d is %g instead of %g", model, n, s->top_id[i],
                     (double)s->top_logit[i], want[s->top_id[i]]);
}

/* A prompt in chunks; the logits of the last row of the last one. */
static void run_prompt(struct tiny_device *x, size_t model, const int32_t *tokens, uint32_t n,
                       uint32_t chunk, const double *want)
{
    struct ek_slot_set set = g_greedy;
    uint32_t table[LONG];

    for (uint32_t i = 0; i < n / x->block_size + 1; i++)
        table[i] = 1 + (i * 29) % 79; /* 29 and 79 have no common factor: all different */
    set.slot = 3;
    tiny_set(x, &set);
    for (uint32_t at = 0; at < n;) {
        uint32_t rows = n - at < chunk ? n - at : chunk;
        tiny_add(x, 3, tokens, at, rows, table, at + rows == n);
        int r = tiny_run(x, NULL);
        if (r < 0)
            fail_msg("model %zu, %u tokens of %u from %u: %s", model, rows, n, at, ek_strerror(r));
        at += rows;
    }
    check_close(model, n, &x->result->seq[0], want);
}

static void test_reference(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {2, 65, 128, 129, 300}, sizes[] = {16, 8, 32};
    int32_t tokens[LONG];

    uint64_t number = 0;

    make_tokens(tokens, LONG, 5);
    for (size_t m = 0; m < MODELS; m++) {
        struct tiny *t = tiny_new(&g_models[m]);
        struct tiny_device x;
        int r = open_model(t, sizes[m % 3], 90, &x);
        if (r < 0)
            fail_msg("model %zu: %s", m, ek_strerror(r));
        if (!g_fake.real)
            assert_string_equal(attention_of(&x, NULL), "wgmma");
        for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
            const uint32_t n = lengths[l];
            double want[VOCAB];
            if (n < LONG && l % 4 != m % 4) /* a short one for each model */
                continue;
            if (!share_takes(number++))
                continue;
            tiny_reference(t, tokens, n, want);
            run_prompt(&x, m, tokens, n, n == 129 ? 128 : n > 129 ? 170 + (uint32_t)m : n, want);
        }
        tiny_close(&x);
        tiny_free(t);
    }
}

/* Sequences in one step: tiles of some rows each, decodes between them; each as if alone. */
static void test_company(void **state)
{
    (void)state;
    enum { SEQS = 6 };
    static const size_t models[] = {0, 4};
    static const uint32_t rows[SEQS] = {3, 70, 1, 33, 140, 2},
                          before[SEQS] = {0, 5, 20, 140, 0, 60};
    int32_t tokens[LONG];

    make_tokens(tokens, LONG, 11);
    for (size_t m = share_next(0); m < sizeof(models) / sizeof(models[0]); m = share_next(m + 1)) {
        struct tiny *t = tiny_new(&g_models[models[m]]);
        struct tiny_device x;
        uint32_t table[SEQS][24];
        double want[VOCAB];

        assert_int_equal(open_model(t, 8, 24 * SEQS + 1, &x), 0);
        for (uint32_t i = 0; i < SEQS; i++) {
            struct ek_slot_set set = g_greedy;
            set.slot = i;
            tiny_set(&x, &set);
            for (uint32_t k = 0; k < 24; k++)
                table[i][k] = 1 + k * SEQS + i;
            if (before[i] > 0)
                tiny_add(&x, i, tokens + i, 0, before[i], table[i], false);
        }
        assert_int_equal(tiny_run(&x, NULL), 0);
        for (uint32_t i = 0; i < SEQS; i++)
            tiny_add(&x, i, tokens + i, before[i], rows[i], table[i], true);
        assert_int_equal(tiny_run(&x, NULL), 0);
        assert_int_equal(x.result->seqs, SEQS);
        for (uint32_t i = 0; i < SEQS; i++) {
            const struct ek_result_seq *s = &x.result->seq[i];
            const uint32_t n = before[s->slot] + rows[s->slot];
            tiny_reference(t, tokens + s->slot, n, want);
            check_close(models[m], n, s, want);
        }
        tiny_close(&x);
        tiny_free(t);
    }
}

/* ---- which kernels ---- */

struct choice {
    const char *what, *wanted; /* EVENKEEL_WGMMA, NULL = not set */
    int capability;
    const char *lame; /* kernels that do nothing */
    float scale;      /* of all attention, 0 = the model's */
    float k_scale;    /* an 8-bit cache */
    const char *attention;
    const char *note; /* what is in it, NULL = there is none */
};

static void test_choice(void **state)
{
    (void)state;
    static const struct choice cases[] = {
        {"tried", NULL, 90, "", 0, 0, "wgmma", NULL},
        {"not tried", "on", 90, "attend_tile", 0, 0, "wgmma", NULL},
        {"off", "off", 90, "", 0, 0, "mma.sync", NULL},
        {"wrong", NULL, 90, "wgmma", 0, 0, "mma.sync", "differ from the others by "},
        {"older card", "on", 80, "", 0, 0, "mma.sync", NULL},
        {"newer card", "on", 100, "", 0, 0, "mma.sync", NULL},
        {"scale below zero", "on", 90, "", -0.5f, 0, "mma.sync", NULL},
        {"cache of 8 bits", "on", 90, "", 0, 1.0f, "mma.sync", NULL},
    };
    int32_t tokens[20];

    if (g_fake.real)
        skip();
    make_tokens(tokens, 20, 2);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct choice *c = &cases[i];
        struct tiny_params p = g_models[3];
        double want[VOCAB];
        const char *note;
        p.k_scale = p.v_scale = c->k_scale;
        struct tiny *t = tiny_new(&p);
        struct tiny_device x;
        for (uint32_t k = 0; k < t->g.op_count; k++)
            if (t->op[k].kind == EK_OP_ATTENTION && c->scale != 0.0f)
                t->op[k].u.attention.scale = c->scale;
        if (c->wanted)
            setenv("EVENKEEL_WGMMA", c->wanted, 1);
        else
            unsetenv("EVENKEEL_WGMMA");
        g_fake.capability(c->capability);
        g_fake.lame(c->lame);
        assert_int_equal(open_model(t, 16, 90, &x), 0);
        assert_string_equal(attention_of(&x, &note), c->attention);
        assert_int_equal(note != NULL, c->note != NULL);
        if (c->note)
            assert_non_null(strstr(note, c->note));
        tiny_reference(t, tokens, 20, want);
        if (!c->wanted || strcmp(c->wanted, "on") != 0) /* nothing is lame that is used */
            run_prompt(&x, 3, tokens, 20, 20, want);
        tiny_close(&x);
        assert_true(g_fake.objects() == 0 && g_fake.used() == 0);
        tiny_free(t);
    }
    g_fake.capability(90);
    g_fake.lame("");
    setenv("EVENKEEL_WGMMA", "on", 1);
}

/* A fault in the trial ends the start with what to do; what leaves the card well does not. */
static void test_trial_fails(void **state)
{
    (void)state;
    static const struct {
        const char *symbol;
        unsigned nth;
        int result, code;
        const char *says;
    } cases[] = {
        {"cuLaunchKernel", 2, CU_ILLEGAL_INSTRUCTION, EK_EDEVICE, "EVENKEEL_WGMMA=off"},
        {"cuEventQuery", 1, CU_LAUNCH_FAILED, EK_EDEVICE, "EVENKEEL_WGMMA=off"},
        {"cuLaunchKernel", 2, CU_LAUNCH_OUT_OF_RESOURCES, 0, "could not be tried"},
        {"cuMemAlloc_v2", 3, CU_OUT_OF_MEMORY, 0, "could not be tried"},
    };

    if (g_fake.real)
        skip();
    unsetenv("EVENKEEL_WGMMA");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tiny *t = tiny_new(&g_models[0]);
        struct ek_plan_request q = {.graph = &t->g,
                                    .ceiling = {512, 16, 1024, 8, 4096, 8},
                                    .logit_rows = 24,
                                    .block_size = 16};
        const struct ek_open_params open = {.device = 0};
        struct ek_fault fault = {.msg = ""};
        struct tiny_device x = {.b = cuda_backend()};

        g_fake.card(CARD, true);
        assert_int_equal(x.b->open(&open, &x.d, &fault), 0);
        g_fake.plant(cases[i].symbol, cases[i].nth, cases[i].result);
        assert_int_equal(x.b->load(x.d, &q, &t->files, NULL, NULL, &fault), cases[i].code);
        if (cases[i].code < 0) {
            assert_non_null(strstr(fault.msg, cases[i].says));
        } else {
            const char *note = NULL;
            assert_string_equal(attention_of(&x, &note), "mma.sync");
            assert_non_null(strstr(note, cases[i].says));
        }
        x.b->close(x.d);
        tiny_free(t);
    }
    g_fake.card(CARD, true);
    setenv("EVENKEEL_WGMMA", "on", 1);
}

/* ---- the emulation ---- */

static uint32_t (*g_address)(uint64_t descriptor, int columns, unsigned i, unsigned k);

static uint64_t descriptor(uint32_t lbo, uint32_t sbo, uint32_t mode)
{
    return (uint64_t)(lbo >> 4) << 16 | (uint64_t)(sbo >> 4) << 32 | (uint64_t)mode << 62;
}

static uint32_t swizzled(uint32_t at, uint32_t bits)
{
    return at ^ (at >> 7 & ((1u << bits) - 1)) << 4;
}

/* The examples of the PTX ISA's "Canonical Layouts" for bf16 as it spells them out: shape and
 * stride of the exact layout, LBO and SBO as they go into the descriptor. */
static void test_layouts(void **state)
{
    (void)state;
    static const struct {
        uint32_t lbo, sbo, mode, bits; /* in bytes */
        uint32_t shape[3], stride[3];  /* of the columns, in numbers */
        uint32_t k_stride[2];          /* of (8, 2) */
    } columns[] = {
        {128 * 2, 64 * 2, 0, 0, {8, 1, 2}, {1, 8, 64}, {8, 128}},
        {128 * 2, 256 * 2, 3, 1, {8, 2, 2}, {1, 8, 128}, {16, 256}},
        {256 * 2, 512 * 2, 2, 2, {8, 4, 2}, {1, 8, 256}, {32, 512}},
    };

    if (g_fake.real) {
        print_message("layouts: of the emulation, which is not there on a card\n");
        skip();
    }
    for (size_t c = 0; c < sizeof(columns) / sizeof(columns[0]); c++)
        for (uint32_t i = 0; i < columns[c].shape[0] * columns[c].shape[1] * 2; i++)
            for (uint32_t k = 0; k < 16; k++) {
                const uint32_t *shape = columns[c].shape, *stride = columns[c].stride;
                uint32_t at = i % 8 * stride[0] + i / 8 % shape[1] * stride[1] +
                              i / 8 / shape[1] * stride[2] + k % 8 * columns[c].k_stride[0] +
                              k / 8 * columns[c].k_stride[1];
                uint64_t d = descriptor(columns[c].lbo, columns[c].sbo, columns[c].mode);
                assert_int_equal(g_address(d, 1, i, k), swizzled(at * 2, columns[c].bits));
            }
    /* K-major, 128B: a row is 128 bytes, eight rows a pattern, and 16 numbers further along k is 32
     * bytes further in the same rows (CUTLASS steps its descriptors so). */
    for (uint32_t i = 0; i < 64; i++)
        for (uint32_t k = 0; k < 64; k++) {
            uint64_t d = descriptor(16, 1024, 1) + k / 16 * 2;
            uint32_t at = g_address(d, 0, i, k % 16);
            assert_int_equal(at / 128, i);
            assert_int_equal(at % 128 / 16, (k / 8) ^ (i % 8));
            assert_int_equal(at % 16, k % 8 * 2);
        }
}

/* Each mistake ends the process; the kernel without one does not, and is right. */
static void test_mistakes(void **state)
{
    (void)state;
    int (*run)(int mistake) = NULL;

    if (g_fake.real)
        skip();
    void *at = fake_symbol(g_fake.library, "wgmma_wrong_run");
    memcpy(&run, &at, sizeof(at));
    for (int mistake = 0; mistake < WRONG_KINDS; mistake++) {
        int status = 0;
        if (mistake != WRONG_NOT && !share_takes((uint64_t)mistake))
            continue;
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            (void)signal(SIGABRT, SIG_DFL);
            (void)!freopen("/dev/null", "w", stderr);
            _exit(run(mistake));
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        if (mistake == WRONG_NOT)
            assert_int_equal(status, 0);
        else if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
            fail_msg("mistake %d was not found (status %d)", mistake, status);
    }
}

static int set_up(void **state)
{
    int r = fake_setup(state);

    setenv("EVENKEEL_WGMMA", "on", 1);
    if (!g_fake.real) {
        void *at = fake_symbol(g_fake.library, "shim_wgmma_address");
        memcpy(&g_address, &at, sizeof(at));
    }
    return r;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),   cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_reference), cmocka_unit_test(test_company),
        cmocka_unit_test(test_choice),    cmocka_unit_test(test_trial_fails),
    };
    return cmocka_run_group_tests_name("wgmma", tests, set_up, NULL);
}
