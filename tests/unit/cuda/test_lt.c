/*
 * Products by cuBLASLt, on one for tests that holds every call against the documented rules (with
 * EVENKEEL_GPU on the real one): the same answers, plain weights and panels of packed ones, prompts
 * and recorded steps; and what becomes of a product that is refused.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/library.h"
#include "kernels/cuda/lt.h"
#include "tests/share.h"
#include "tests/unit/cuda/fake_card.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"
#include "tests/unit/kernels/tiny_plain.h"

enum { VOCAB = 20, LONG = 150, SEQS = 20 };
#define CARD ((size_t)4 << 30)

#define MODEL(type, n, width, q, kv, dim, inner, ...)                                              \
    {                                                                                              \
        .dtype = (type), .layers = (n), .hidden = (width), .q_heads = (q), .kv_heads = (kv),       \
        .head_dim = (dim), .rotary = (dim), .ffn = (inner), .vocab = VOCAB, __VA_ARGS__            \
    }

static const struct tiny_params g_models[] = {
    MODEL(EK_BF16, 2, 40, 4, 2, 32, 36, .tied = true),
    MODEL(EK_F16, 1, 72, 3, 3, 64, 70, .bias = true, .softcap = 5.0f, .act = EK_ACT_SILU),
    MODEL(EK_F16, 1, 72, 2, 1, 64, 130, .kept = EK_I8, .group = 32, .bias = true),
    MODEL(EK_BF16, 1, 200, 2, 1, 64, 150, .kept = EK_I4, .group = 128, .tied = true),
};
#define MODELS (sizeof(g_models) / sizeof(g_models[0]))

static const struct ek_slot_set g_greedy = {.sampling.top_p = 1.0f, .top = EK_TOP_MOST};

struct planted {
    const char *library, *symbol; /* NULL = the one for tests, none */
    int result;
};

/* With more sequences at once than the own kernels take. */
static int open_model(const struct tiny *t, struct planted p, struct tiny_device *x)
{
    const struct ek_plan_request q = {
        .graph = &t->g, .ceiling = {512, 24, 1024, 24, 4096, 8}, .logit_rows = 24, .block_size = 8};
    const struct ek_kv_params kv = {.blocks = 90, .block_size = 8};
    const struct ek_open_params open = {.device = 0};

    g_fake.card(CARD, true);
    if (!g_fake.real)
        setenv("EVENKEEL_CUBLASLT", p.library ? p.library : getenv("EVENKEEL_CUDA_DRIVER"), 1);
    if (p.symbol)
        g_fake.plant(p.symbol, 1, p.result);
    setenv("EVENKEEL_FUSED_ROWS", "0", 1); /* packed weights go by way of panels */
    *x = (struct tiny_device){.b = cuda_backend(), .ceiling = q.ceiling, .block_size = 8};
    int r = x->b->open(&open, &x->d, NULL);
    if (r == 0)
        r = x->b->load(x->d, &q, &t->files, NULL, NULL, NULL);
    if (r == 0)
        r = x->b->kv_open(x->d, &kv);
    x->step = calloc(1, ek_step_size(&q.ceiling));
    x->result = calloc(1, ek_result_bytes(q.ceiling.seqs, q.ceiling.scores, q.ceiling.seqs, 64));
    ek_step_layout(x->step, &q.ceiling);
    return r;
}

static void close_model(struct tiny_device *x)
{
    tiny_close(x);
    assert_true(g_fake.real || (g_fake.objects() == 0 && g_fake.used() == 0));
}

static void make_tokens(int32_t *tokens, uint32_t n, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(tiny_next(&seed) % VOCAB);
}

static void check_close(const struct tiny *t, const struct ek_result_seq *s, const int32_t *tokens,
                        uint32_t n)
{
    const double slack = t->p.dtype == EK_F16 ? 2e-2 : 1.2e-1;
    double want[VOCAB];

    tiny_reference(t, tokens, n, want);
    assert_int_equal(s->top, VOCAB);
    for (uint32_t i = 0; i < VOCAB; i++)
        if (!(fabs((double)s->top_logit[i] - want[s->top_id[i]]) < slack))
            fail_msg("%u tokens: logit %d is %g instead of %g", n, s->top_id[i],
                     (double)s->top_logit[i], want[s->top_id[i]]);
}

/* A prompt of n tokens in one step. */
static int run_prompt(struct tiny_device *x, const int32_t *tokens, uint32_t n)
{
    uint32_t table[LONG / 8 + 1];

    for (uint32_t i = 0; i <= LONG / 8; i++)
        table[i] = 1 + 2 * i;
    tiny_set(x, &g_greedy);
    tiny_add(x, 0, tokens, 0, n, table, true);
    return tiny_run(x, NULL);
}

static void test_prompts(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {17, 33, 150};
    int32_t tokens[LONG];

    make_tokens(tokens, LONG, 5);
    for (size_t m = share_next(0); m < MODELS; m = share_next(m + 1)) {
        struct tiny *t = tiny_new(&g_models[m]);
        struct tiny_device x;
        assert_int_equal(open_model(t, (struct planted){0}, &x), 0);
        for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
            const bool own = t->p.kept != EK_F32 && lengths[l] <= 32;
            unsigned before = g_fake.real ? 0 : g_fake.calls("cublasLtMatmul");
            assert_int_equal(run_prompt(&x, tokens, lengths[l]), 0);
            check_close(t, &x.result->seq[0], tokens, lengths[l]);
            assert_true(g_fake.real || own || g_fake.calls("cublasLtMatmul") > before);
        }
        close_model(&x);
        tiny_free(t);
    }
}

/* Twenty at once: the second step of a kind is recorded, with its products. */
static void test_recorded(void **state)
{
    (void)state;
    enum { PROMPT = 4, MORE = 4 };
    int32_t tokens[SEQS + PROMPT + MORE];
    uint32_t table[SEQS];

    make_tokens(tokens, SEQS + PROMPT + MORE, 3);
    for (size_t m = 0; m < 2; m++) {
        struct tiny *t = tiny_new(&g_models[m]);
        struct tiny_device x;
        assert_int_equal(open_model(t, (struct planted){0}, &x), 0);
        for (uint32_t s = 0; s < SEQS; s++) {
            struct ek_slot_set set = g_greedy;
            set.slot = s;
            table[s] = 1 + s;
            tiny_set(&x, &set);
            tiny_add(&x, s, tokens + s, 0, PROMPT, &table[s], true);
        }
        assert_int_equal(tiny_run(&x, NULL), 0);
        for (uint32_t at = PROMPT; at < PROMPT + MORE; at++) {
            for (uint32_t s = 0; s < SEQS; s++)
                tiny_add(&x, s, tokens + s, at, 1, &table[s], true);
            assert_int_equal(tiny_run(&x, NULL), 0);
            for (uint32_t s = 0; s < SEQS; s++)
                check_close(t, &x.result->seq[s], tokens + s, at + 1);
        }
        assert_true(g_fake.real || g_fake.calls("cuGraphLaunch") >= MORE - 1);
        close_model(&x);
        tiny_free(t);
    }
}

/* A call that fails: what is refused goes to the own kernels, what takes the card along does not.
 */
static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        struct planted planted;
        int code;
        bool none; /* of its products are made, from the start on */
    } cases[] = {
        {{"off", NULL, 0}, 0, true},
        {{"libm.so.6", NULL, 0}, 0, true},
        {{"/nowhere/libcublasLt.so", NULL, 0}, 0, true},
        {{NULL, "cublasLtCreate", LT_NOT_INITIALIZED}, 0, true},
        {{NULL, "cublasLtMatmulPreferenceCreate", LT_ALLOC_FAILED}, 0, true},
        {{NULL, "cublasLtMatmulPreferenceSetAttribute", LT_INVALID_VALUE}, 0, true},
        {{NULL, "cublasLtMatmulDescCreate", LT_ALLOC_FAILED}, 0, false},
        {{NULL, "cublasLtMatmulDescSetAttribute", LT_INVALID_VALUE}, 0, false},
        {{NULL, "cublasLtMatrixLayoutCreate", LT_ALLOC_FAILED}, 0, false},
        {{NULL, "cublasLtMatmulAlgoGetHeuristic", LT_NOT_SUPPORTED}, 0, false},
        {{NULL, "cublasLtMatmul", LT_NOT_SUPPORTED}, 0, false},
        {{NULL, "cublasLtMatmul", LT_INVALID_VALUE}, 0, false},
        {{NULL, "cublasLtMatmul", LT_EXECUTION_FAILED}, 0, false},
        {{NULL, "cublasLtMatmul", LT_ALLOC_FAILED}, EK_EDEVMEM, false},
    };
    struct tiny *t = tiny_new(&g_models[0]);
    int32_t tokens[LONG];

    make_tokens(tokens, LONG, 5);
    for (size_t i = share_next(0); i < sizeof(cases) / sizeof(cases[0]); i = share_next(i + 1)) {
        struct tiny_device x;
        assert_int_equal(open_model(t, cases[i].planted, &x), 0);
        int r = run_prompt(&x, tokens, 40);
        if (r != cases[i].code)
            fail_msg("case %zu, %s: %d", i, cases[i].planted.symbol, r);
        assert_int_equal(g_fake.calls("cublasLtMatmul") == 0, cases[i].none);
        for (int k = 0; k < 2; k++) { /* and the server goes on */
            assert_int_equal(run_prompt(&x, tokens, 40), 0);
            check_close(t, &x.result->seq[0], tokens, 40);
        }
        close_model(&x);
    }
    tiny_free(t);
}

/* Sums up in a sentence what is used and, when it is not found, where it was looked for. */
static void check_said(const struct tiny_device *x, const char *products, const char *note)
{
    struct ek_device_stats now = {0};
    x->b->stats(x->d, &now);
    assert_non_null(now.products);
    if (!strstr(now.products, products))
        fail_msg("products: %s", now.products);
    if (note ? !now.note || !strstr(now.note, note) : now.note != NULL)
        fail_msg("note: %s", now.note ? now.note : "none");
}

static bool takes_any(void *ctx, void *library)
{
    (void)ctx;
    return library != NULL;
}

/* As pip lays it out. A file that everybody can write is not loaded. */
static void test_python_packages(void **state)
{
    (void)state;
    char folder[] = "/tmp/evenkeel-lt-XXXXXX", path[128], file[160], list[160], own[160];
    /* No name that this machine might have: its own library would be loaded. */
    static const char *const names[] = {"libevenkeel-is-nowhere.so", NULL};
    static const char *const packages[] = {"nvidia/cublas/lib/libcublasLt.so.1[2-9]", NULL};
    static const struct cuda_library wanted = {"EVENKEEL_NO_LIBRARY", names, packages};
    assert_non_null(mkdtemp(folder));
    const char *const parts[] = {"nvidia", "nvidia/cublas", "nvidia/cublas/lib"};
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", folder, parts[i]);
        assert_int_equal(mkdir(path, 0755), 0);
    }
    (void)snprintf(file, sizeof(file), "%s/libcublasLt.so.12", path);
    (void)snprintf(own, sizeof(own), "%s/libcublasLt.so.13", path);
    (void)snprintf(list, sizeof(list), "/nowhere::%s", folder);
    FILE *f = fopen(own, "we"); /* newer, and anybody's */
    assert_non_null(f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(own, 0666), 0);
    setenv("EVENKEEL_PYTHON_PACKAGES", list, 1);
    for (int there = 0; there < 2; there++) {
        char where[256];
        if (there)
            assert_int_equal(symlink(getenv("EVENKEEL_CUDA_DRIVER"), file), 0);
        void *library = cuda_library_find(&wanted, takes_any, NULL, where, sizeof(where));
        assert_int_equal(library != NULL, there);
        assert_non_null(strstr(where, there ? "lib" : "of Python packages"));
        assert_true(!library || dlclose(library) == 0);
    }
    unsetenv("EVENKEEL_PYTHON_PACKAGES");
    assert_int_equal(unlink(file) | unlink(own), 0);
    for (size_t i = 3; i > 0; i--) {
        (void)snprintf(path, sizeof(path), "%s/%s", folder, parts[i - 1]);
        assert_int_equal(rmdir(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

/* Who switched it off need not be told; a file that was named is named again. */
static void test_says(void **state)
{
    (void)state;
    struct tiny *t = tiny_new(&g_models[0]);
    struct tiny_device x;
    static const struct {
        const char *library, *products, *note;
    } cases[] = {{NULL, "cuBLASLt (", NULL},
                 {"off", "own kernels", NULL},
                 {"/nowhere/lt.so", "own kernels", "EVENKEEL_CUBLASLT=/nowhere/lt.so"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(open_model(t, (struct planted){cases[i].library, NULL, 0}, &x), 0);
        check_said(&x, cases[i].products, cases[i].note);
        close_model(&x);
    }
    tiny_free(t);
}

/* One of many small products that differ in shape. */
static void multiply(struct tiny_device *x, uint32_t shape)
{
    const cu_ptr at = cuda_arena(x->d, x->d->shape.space_at);
    const struct cu_gemm_args g = {.x = {.at = at, .stride = 8, .dtype = EK_BF16},
                                   .c = {.at = at + 8192, .stride = 64 + shape / 64 * 4},
                                   .w = at + 65536,
                                   .n = 1 + shape % 64,
                                   .k = 8,
                                   .scale = 1.0f};

    assert_int_equal(cuda_lt_gemm(x->d, &g, 16), 1);
}

/* What a shape was found to be is kept for as many shapes as a server has: 134 numbers of rows and
 * four products; then the one goes that was not used for longest. */
static void test_plans_are_kept(void **state)
{
    (void)state;
    enum { SERVED = 134 * 4, ROOM = 1024 };
    struct tiny *t = tiny_new(&g_models[0]);
    struct tiny_device x;

    assert_int_equal(open_model(t, (struct planted){0}, &x), 0);
    assert_int_equal(x.d->cu.ctx_set(x.d->context), CU_OK);
    const unsigned before = g_fake.calls("cublasLtMatmulAlgoGetHeuristic");
    for (int turn = 0; turn < 3; turn++)
        for (uint32_t i = 0; i < SERVED; i++)
            multiply(&x, i);
    assert_int_equal(g_fake.calls("cublasLtMatmulAlgoGetHeuristic") - before, SERVED);
    for (uint32_t i = SERVED; i < ROOM; i++)
        multiply(&x, i);
    multiply(&x, 0);
    assert_int_equal(g_fake.calls("cublasLtMatmulAlgoGetHeuristic") - before, ROOM);
    for (uint32_t i = 0; i < 40; i++) { /* in the places of 1 to 40 */
        multiply(&x, ROOM + i);
        multiply(&x, 0);
    }
    for (uint32_t i = 41; i < ROOM; i++)
        multiply(&x, i);
    assert_int_equal(g_fake.calls("cublasLtMatmulAlgoGetHeuristic") - before, ROOM + 40);
    multiply(&x, 40);
    assert_int_equal(g_fake.calls("cublasLtMatmulAlgoGetHeuristic") - before, ROOM + 41);
    assert_int_equal(x.d->cu.stream_wait(x.d->stream), CU_OK);
    close_model(&x);
    tiny_free(t);
}

/* The heuristic's first algorithm, or another one of those that work. */
static void test_candidates(void **state)
{
    (void)state;
    static const struct {
        const char *wanted;
        unsigned made; /* the library offers four, of which number 2 does not work */
    } cases[] = {{NULL, 0}, {"0", 0}, {"1", 1}, {"2", 3}, {"7", 3}, {"8", 0}, {"12", 0}, {"a", 0}};
    struct tiny *t = tiny_new(&g_models[0]);
    int32_t tokens[LONG];

    make_tokens(tokens, LONG, 5);
    for (size_t i = share_next(0); i < sizeof(cases) / sizeof(cases[0]); i = share_next(i + 1)) {
        struct tiny_device x;
        if (cases[i].wanted)
            setenv("EVENKEEL_CUBLASLT_CANDIDATE", cases[i].wanted, 1);
        assert_int_equal(open_model(t, (struct planted){0}, &x), 0);
        assert_int_equal(run_prompt(&x, tokens, 40), 0);
        check_close(t, &x.result->seq[0], tokens, 40);
        assert_int_equal(g_fake.algorithm(), cases[i].made);
        close_model(&x);
    }
    unsetenv("EVENKEEL_CUBLASLT_CANDIDATE");
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts),    cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_refusals),   cmocka_unit_test(test_python_packages),
        cmocka_unit_test(test_says),       cmocka_unit_test(test_plans_are_kept),
        cmocka_unit_test(test_candidates),
    };
    if (getenv("EVENKEEL_GPU"))
        return cmocka_run_group_tests_name("lt", ((struct CMUnitTest[]){tests[0], tests[1]}),
                                           fake_setup, NULL);
    return cmocka_run_group_tests_name("lt", tests, fake_setup, NULL);
}
