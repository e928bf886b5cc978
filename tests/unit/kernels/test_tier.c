/*
 * Attention and the operations of single rows of every instruction tier of this machine against
 * "ref" over edge shapes, and that a row's bits are the same whatever rows stand beside it;
 * test_tier_gemm.c has the products. Also how a tier is found, and what numbers of 16 bits are.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/cpu/tier.h"
#include "kernels/num.h"
#include "tests/unit/kernels/noise.h"

static const enum ek_dtype g_types[] = {EK_F32, EK_BF16, EK_F16};

enum { DIM = 144, STRIDE = 272 };

/* Fills the blocks with the same elements, in pairs for `ops` if b says so, plain for ref. Inputs
 * that pairs would round are exact in bf16. */
static void fill_blocks(struct cpu_block *b, bool mix, char kv[][2][DIM * 32 * 4])
{
    for (uint32_t k = 0; k < CPU_BLOCKS; k++)
        for (uint32_t i = 0; i < b->dim; i++)
            for (uint32_t key = 0; key < b->keys; key++)
                for (int pairs = 0; pairs < 2; pairs++) {
                    size_t at = mix ? cpu_value_index(pairs, b->dim, i, key)
                                    : cpu_key_index(pairs, b->keys, i, key);
                    if (b->dtype == EK_I8)
                        kv[k][pairs][at] = (char)(noise(i * 32 + key + 17 * k) * 127.0f);
                    else
                        cpu_store(b->dtype, kv[k][pairs], at, noise(i * 32 + key + 17 * k));
                }
    for (uint32_t k = 0; k < CPU_BLOCKS; k++) {
        b->kv[k] = kv[k][0];
        b->next[k] = kv[0][0];
    }
}

enum { QUERIES = 20 };

/* Blocks beside each other: any number of rows, and the last one alone, against ref with all rows,
 * of which none looks at another one. */
static void block_shape(const struct cpu_ops *ops, struct cpu_block b, bool mix)
{
    static char kv[CPU_BLOCKS][2][DIM * 32 * 4];
    static float in[QUERIES * STRIDE], before[QUERIES * STRIDE];
    static float want[QUERIES * STRIDE], got[QUERIES * STRIDE];
    static uint16_t half[QUERIES * STRIDE * 2];
    float alone[STRIDE];

    memset(kv, 0xff, sizeof(kv)); /* not a number: what lies behind the last key is not used */
    memset(half, 0, sizeof(half));
    fill(in, QUERIES * STRIDE, 5, 1.0f);
    for (size_t i = 0; b.pairs && i < QUERIES * STRIDE; i++) {
        uint16_t *to = half + i / STRIDE * STRIDE * 2 + i % STRIDE;
        cpu_store(EK_BF16, to, 0, in[i]);
        in[i] = cpu_load(EK_BF16, to, 0);
        if (i % STRIDE >= (mix ? b.blocks * b.keys : b.dim))
            *to = 0; /* the weight of what lies behind the last key */
    }
    fill_blocks(&b, mix, kv);
    b.in_stride = b.out_stride = STRIDE;
    fill(before, QUERIES * STRIDE, 8, 1.0f);
    memcpy(want, before, sizeof(want));
    struct cpu_block ref = b;
    ref.rows = QUERIES;
    ref.in = in;
    ref.out = want;
    ref.pairs = false;
    (mix ? cpu_ops_ref.mix : cpu_ops_ref.scores)(&ref);
    for (b.rows = 1; b.rows <= QUERIES; b.rows += b.rows < 8 ? 1 : 4) {
        struct cpu_block one = b;
        memcpy(got, before, sizeof(got));
        one.out = got;
        one.in = b.pairs ? (const void *)half : in;
        for (uint32_t k = 0; k < CPU_BLOCKS; k++)
            one.kv[k] = kv[k][b.pairs];
        (mix ? ops->mix : ops->scores)(&one);
        for (uint32_t k = 0; k < QUERIES * STRIDE; k++)
            near(got[k], k < b.rows * STRIDE ? want[k] : before[k],
                 b.dtype == EK_I8 ? 1e-4f : 1e-5f, mix ? "mix" : "scores");
        uint32_t last = one.rows - 1;
        memcpy(alone, before + (size_t)last * STRIDE, sizeof(alone));
        one.rows = 1;
        one.in = (const float *)one.in + (size_t)last * STRIDE;
        one.out = alone;
        (mix ? ops->mix : ops->scores)(&one);
        assert_memory_equal(alone, got + (size_t)last * STRIDE, sizeof(alone));
    }
}

static void test_blocks(const struct cpu_ops *ops)
{
    static const uint32_t dims[] = {16, 64, 80, 144}, sizes[] = {1, 4, 5, 8, 16, 32};

    for (size_t i = 0; i < 2 * 4 * 4 * 6 * CPU_BLOCKS; i++) {
        bool mix = i % 2;
        struct cpu_block b = {.dtype = i / 2 % 4 == 3 ? EK_I8 : g_types[i / 2 % 4],
                              .dim = dims[i / 8 % 4],
                              .keys = sizes[i / 32 % 6],
                              .blocks = (uint32_t)(i / 192) + 1};
        bool odd = b.keys % 2 == 1;
        if (b.blocks * b.keys > STRIDE || (!mix && b.keys == 5) || (mix && odd && b.blocks > 1))
            continue;
        block_shape(ops, b, mix);
        b.pairs = ops->pairs && b.dtype == EK_BF16;
        if (b.pairs)
            block_shape(ops, b, mix);
    }
}

static void test_softmax(const struct cpu_ops *ops, uint32_t n, float cap)
{
    float want[CPU_TILE + CPU_SLACK], got[CPU_TILE + CPU_SLACK];
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {0.0f, 0.0f};

    for (uint32_t tile = 0; tile < 3; tile++) {
        fill(want, n, tile, 40.0f);
        memcpy(got, want, n * sizeof(float));
        float a = cpu_ops_ref.softmax(want, n, 0.3f, cap, &m[0], &l[0]);
        float b = ops->softmax(got, n, 0.3f, cap, &m[1], &l[1]);
        near(b, a, 1e-5f, "softmax factor");
        near(m[1], m[0], 1e-5f, "softmax maximum");
        near(l[1], l[0], 1e-5f, "softmax sum");
        for (uint32_t i = 0; i < n; i++)
            near(got[i], want[i], 1e-5f, "softmax weight");
    }
}

/* Weights in bf16 in place of the scores: near those in f32, and nothing behind the slack changed.
 */
static void test_softmax_pairs(const struct cpu_ops *ops, uint32_t n, float cap)
{
    float want[CPU_TILE + CPU_SLACK], got[CPU_TILE + CPU_SLACK];
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {0.0f, 0.0f};
    const float scale = n % 2 ? 0.3f : -0.3f;

    for (uint32_t tile = 0; ops->softmax_pairs && tile < 3; tile++) {
        fill(want, CPU_TILE + CPU_SLACK, tile, 40.0f);
        memcpy(got, want, sizeof(got));
        want[0] = got[0] = n > 1 ? -INFINITY * scale : got[0]; /* weighs nothing */
        float a = cpu_ops_ref.softmax(want, n, scale, cap, &m[0], &l[0]);
        float b = ops->softmax_pairs(got, n, scale, cap, &m[1], &l[1]);
        near(b, a, 1e-4f, "softmax factor");
        near(m[1], m[0], 1e-5f, "softmax maximum");
        near(l[1], l[0], 1e-4f, "softmax sum");
        for (uint32_t i = 0; i < n; i++)
            near(cpu_load(EK_BF16, got, i), want[i], 4e-3f, "softmax weight");
        for (uint32_t i = n; i < CPU_TILE; i++)
            assert_true(i < (n + 15) / 16 * 8 || got[i] == want[i]);
    }
    fill(got, n, 1, 1.0f);
    got[n / 2] = NAN;
    if (ops->softmax_pairs && n > 1)
        assert_true(
            isnan(cpu_load(EK_BF16, (ops->softmax_pairs(got, n, 1.0f, cap, m, l), got), n / 2)));
}

static void test_rows(const struct cpu_ops *ops, uint32_t n)
{
    float a[600], b[600], w[300], want[300], got[300];

    fill(a, 600, 1, 9.0f);
    fill(b, 600, 2, 3.0f);
    fill(w, 300, 3, 1.0f);
    for (int k = 0; k < 12; k++) {
        memcpy(want, b, sizeof(want));
        memcpy(got, b, sizeof(got));
        for (int ref = 0; ref < 2; ref++) {
            const struct cpu_ops *o = ref ? &cpu_ops_ref : ops;
            float *out = ref ? want : got;
            switch (k) {
            case 0: o->norm(out, a, w, n, 1e-6f, 0.0f); break;
            case 1: o->norm(out, a, NULL, n, 1e-6f, 0.0f); break;
            case 2: o->norm(out, a, w, n, 1e-6f, 1.0f); break;
            case 3: o->glu(out, a, a + n, n, EK_ACT_SILU); break;
            case 4: o->glu(out, a, a + n, n, EK_ACT_GELU_TANH); break;
            case 5: o->glu(out, a, a + n, n, EK_ACT_GELU); break;
            case 11: o->glu(out, a, a + n, n, EK_ACT_SWIGLU_CLAMPED); break;
            case 6: o->add(out, a, n, 0.7f); break;
            case 7: o->softcap(out, n, 2.5f); break;
            case 9: o->scale(out, a, n, 1.7f); break;
            case 10: o->rope(out, w, w + n / 2, n / 2); break;
            case 8: out[n] = o->sum_exp(a, n, o->max(a, n), 0.5f, out); break;
            }
        }
        for (uint32_t i = 0; i < 300; i++) /* what lies behind is unchanged, too */
            near(got[i], want[i], 2e-6f * (k == 8 ? 10.0f : 1.0f), "row operation");
    }
    assert_true(ops->max(a, n) == cpu_ops_ref.max(a, n));
    if (n > 1) {
        float most = ops->max(a, n);
        a[n / 2] = NAN;
        assert_true(ops->max(a, n) <= most && ops->max(a, n) > -9.5f);
        assert_true(isfinite(ops->sum_exp(a, n, 9.0f, 1.0f, NULL)));
    }
}

/* An element has the same bits by itself as among many, which are computed side by side. */
static void test_glu_alone(const struct cpu_ops *ops)
{
    float a[300], all[150];

    fill(a, 300, 6, 9.0f);
    a[40] = NAN;
    a[41] = INFINITY;
    a[42] = -95.0f;
    for (int k = EK_ACT_SILU; k <= EK_ACT_RELU; k++) {
        ops->glu(all, a, a + 150, 150, (enum ek_activation)k);
        for (uint32_t i = 0; i < 150; i++) {
            float one;
            ops->glu(&one, a + i, a + 150 + i, 1, (enum ek_activation)k);
            assert_memory_equal(&one, &all[i], sizeof(one));
        }
    }
}

/* Rounding to storage is bitwise the same in all tiers. */
static void test_store(const struct cpu_ops *ops)
{
    float x[133];
    char want[sizeof(x)], got[sizeof(x)];

    fill(x, 133, 4, 70000.0f);
    x[7] = INFINITY;
    x[8] = -0.0f;
    x[9] = 65520.0f;
    for (size_t t = 0; t < 3; t++)
        for (uint32_t n = 1; n <= 133; n += 11) {
            memset(want, 1, sizeof(want));
            memset(got, 1, sizeof(got));
            cpu_ops_ref.store(g_types[t], want, x, n);
            ops->store(g_types[t], got, x, n);
            assert_memory_equal(got, want, sizeof(got));
        }
}

static void test_tiers(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 7, 8, 9, 15, 16, 17, 64, 250, 256};
    const struct cpu_ops *tiers[CPU_TIERS];

    cpu_tier_list(tiers);
    for (uint32_t i = 0; tiers[i]; i++) {
        test_blocks(tiers[i]);
        test_store(tiers[i]);
        test_glu_alone(tiers[i]);
        for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
            test_softmax(tiers[i], sizes[k], 0.0f);
            test_softmax(tiers[i], sizes[k], 5.0f);
            test_softmax_pairs(tiers[i], sizes[k], 0.0f);
            test_softmax_pairs(tiers[i], sizes[k], 5.0f);
            test_rows(tiers[i], sizes[k]);
        }
    }
}

static void test_find(void **state)
{
    (void)state;
    const struct cpu_ops *tiers[CPU_TIERS];
    struct ek_fault fault = {.msg = ""};

    cpu_tier_list(tiers);
    assert_ptr_equal(cpu_tier_find("ref", NULL), &cpu_ops_ref);
    assert_ptr_equal(cpu_tier_find(tiers[0]->name, NULL), tiers[0]);
    for (uint32_t i = 0; tiers[i]; i++) {
        double times = -1;
        bool wide = cpu_widens(tiers[i], EK_F32, &times);
        assert_true(!wide && times == 0);
        wide = cpu_widens(tiers[i], EK_F16, &times);
        assert_true((times > 0) == (tiers[i] != &cpu_ops_ref) && (!wide || times > 1));
    }
    assert_null(cpu_tier_find("sse9", &fault));
    assert_non_null(strstr(fault.msg, "sse9"));
    assert_non_null(strstr(fault.msg, "ref"));
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        float f;
        uint16_t f16, bf16;
    } known[] = {
        {0.0f, 0, 0},
        {-0.0f, 0x8000, 0x8000},
        {1.0f, 0x3c00, 0x3f80},
        {65504.0f, 0x7bff, 0x4780},
        {65519.9f, 0x7bff, 0x4780},
        {65520.0f, 0x7c00, 0x4780},
        {0x1p-24f, 1, 0x3380},
        {0x1p-25f, 0, 0x3300},
        {0x1.8p-25f, 1, 0x3340},
        {1.00390625f, 0x3c04, 0x3f80},
        {1.01171875f, 0x3c0c, 0x3f82},
        {-INFINITY, 0xfc00, 0xff80},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        assert_int_equal(cpu_to_f16(known[i].f), known[i].f16);
        assert_int_equal(cpu_to_bf16(known[i].f), known[i].bf16);
    }
    for (uint32_t h = 0; h <= 0xffff; h++) { /* every value survives the way there and back */
        float a = cpu_from_f16((uint16_t)h), b = cpu_from_bf16((uint16_t)h);
        assert_true(isnan(a) ? isnan(cpu_from_f16(cpu_to_f16(a))) : cpu_to_f16(a) == h);
        assert_true(isnan(b) ? isnan(cpu_from_bf16(cpu_to_bf16(b))) : cpu_to_bf16(b) == h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiers),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
