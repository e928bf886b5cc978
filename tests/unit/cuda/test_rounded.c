/*
 * Products whose inputs are rounded to 8 bits on the device. Of integers they are exact, to the
 * bit. Those of E4M3, with a scale for each row, one for all or one for each 128 columns of a row,
 * are compared with sums in double of the same numbers, which a search among all 256 rounds; a
 * row's answer is the same bits alone and among others. What cannot be rounded, or on a card
 * without such products, takes its inputs as they are.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/lt.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/shape.h"
#include "tests/share.h"
#include "tests/unit/cuda/one_product.h"

/* What a row with this token is rounded to; its scale. */
static float rounded_row(const struct one *o, uint32_t token, int8_t *ret_row)
{
    const float *x = o->embedding + (size_t)token * o->k;
    float most = 0;

    for (uint32_t i = 0; i < o->k; i++)
        most = fmaxf(most, fabsf(x[i]));
    const float fixed = o->weight[1].input_scale, scale = fixed > 0 ? fixed : most / 127.0f;
    const float by = scale > 0 ? 1.0f / scale : 0.0f;
    for (uint32_t i = 0; i < o->k; i++)
        ret_row[i] = (int8_t)rintf(fminf(fmaxf(x[i] * by, -128.0f), 127.0f));
    return scale;
}

/* To the bit, whatever the number of rows: sums of integers. */
static void check_rounded(const struct one *o, uint32_t rows, uint32_t first, float (*got)[N])
{
    const int8_t *w = (const int8_t *)o->numbers;
    static int8_t x[MOST_K];

    for (uint32_t i = 0; i < rows; i++) {
        const float scale = rounded_row(o, (first + i) % VOCAB, x);
        for (uint32_t v = 0; v < N; v++) {
            int32_t sum = 0;
            for (uint32_t j = 0; j < o->k; j++)
                sum += x[j] * w[(size_t)v * o->k + j];
            float want = (float)sum * (scale * o->scales[v]);
            cpu_store(o->dtype, &want, 0, want);
            want = cpu_load(o->dtype, &want, 0);
            if (memcmp(&got[i][v], &want, sizeof(want)) != 0)
                fail_msg("k %u, dtype %d, %u rows: row %u, column %u is %g, not %g", o->k,
                         (int)o->dtype, rows, i, v, (double)got[i][v], (double)want);
        }
    }
}

/* A checkpoint that was made for inputs of 8 bits. A token of zeros, one that is clipped. */
static void test_rounded(void **state)
{
    (void)state;
    static const struct {
        uint32_t k;
        enum ek_dtype dtype;
        float scale;
        uint32_t rows[6];
    } cases[] = {
        {33, EK_BF16, 0, {1, 8, 9, 31, 33}}, {96, EK_F16, 0.005f, {1, 17, 64, 65}},
        {520, EK_F16, 0, {3, 32, 130}},      {1090, EK_BF16, 0, {2, 40, 129}},
        {1600, EK_BF16, 0.01f, {16, 200}},
    };
    static const struct layout layout = {EK_QUANT_I8, 8, 0, false, 1};
    static float got[MOST_ROWS][N];
    uint64_t number = 0;

    for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
        struct one *o = one_new(&layout, cases[n].k, cases[n].dtype);
        struct device x;
        o->weight[1].rounds_input = true;
        o->weight[1].input_scale = cases[n].scale;
        memset(o->embedding + (size_t)2 * o->k, 0, o->k * sizeof(float));
        assert_true(cuda_weight_of(&o->g, 1).rounds);
        device_open(o, &x);
        for (const uint32_t *rows = cases[n].rows; *rows > 0; rows++) {
            if (!share_takes(number++))
                continue;
            run(&x, *rows, n % VOCAB, got);
            check_rounded(o, *rows, n % VOCAB, got);
        }
        device_close(&x);
        free(o);
    }
}

/* The number of E4M3 that is nearest, of two the even one, of those beyond the largest. */
static uint8_t nearest(float f)
{
    uint8_t best = 0;
    double least = INFINITY;

    for (int b = 0; b < 128; b++) {
        const double off = fabs((double)cpu_from_f8((uint8_t)b) - fabs((double)f));
        if (off < least || (off == least && b % 2 == 0)) {
            least = off;
            best = (uint8_t)b;
        }
    }
    return best | (signbit(f) ? 0x80 : 0);
}

/* What a product of E4M3 rounds this token's row to, scale included. */
static void rounded_e4m3(const struct one *o, uint32_t token, float *ret_row)
{
    const struct ek_weight *w = &o->weight[1];
    const float *x = o->embedding + (size_t)token * o->k;
    const uint32_t group = w->group > 0 ? w->group : o->k;

    for (uint32_t first = 0; first < o->k; first += group) {
        const uint32_t end = first + group < o->k ? first + group : o->k;
        float most = 0, scale;
        for (uint32_t i = first; i < end; i++)
            most = fmaxf(most, fabsf(x[i]));
        if (w->input_most > 0)
            most = fminf(most, w->input_most);
        if (group < o->k)
            scale = fmaxf(most, 1e-10f) / 448.0f;
        else
            scale = fmaxf(most / 448.0f, 1.0f / (448.0f * 512.0f));
        if (w->input_scale > 0)
            scale = w->input_scale;
        const float by = 1.0f / scale;
        for (uint32_t i = first; i < end; i++)
            ret_row[i] = cpu_from_f8(nearest(x[i] * by)) * scale;
    }
}

/* Hopper's tensor cores keep about 14 bits of the sum of a product of E4M3, whatever type it has.
 */
#define FP8_SUMS 0x1p-13

/* Exactly but for sums of floats, or once more rounded to the type of the model on the way. */
static void check_e4m3(const struct one *o, uint32_t rows, uint32_t first, bool exact,
                       float (*got)[N])
{
    static float x[VOCAB][MOST_K];

    for (uint32_t i = 0; i < VOCAB; i++)
        rounded_e4m3(o, i, x[i]);
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t v = 0; v < o->n; v++) {
            const float *row = x[(first + i) % VOCAB], *w = o->plain + (size_t)v * o->k;
            double want = 0, sum = 0;
            for (uint32_t j = 0; j < o->k; j++) {
                want += (double)row[j] * (double)w[j];
                sum += fabs((double)row[j] * (double)w[j]);
            }
            const double card = g_fake.real ? sum * FP8_SUMS : 0;
            if (!(fabs((double)got[i][v] - want) <= slack_of(o, want, sum, exact) + card))
                fail_msg("k %u, dtype %d, %u rows: row %u, column %u is %g, not %g", o->k,
                         (int)o->dtype, rows, i, v, (double)got[i][v], want);
        }
}

static void same_bits(const struct one *o, uint32_t rows, const float *a, const float *b)
{
    for (uint32_t v = 0; v < N; v++)
        if (memcmp(&a[v], &b[v], sizeof(a[v])) != 0)
            fail_msg("k %u, dtype %d: column %u is %g among %u rows, and was %g", o->k,
                     (int)o->dtype, v, (double)a[v], rows, (double)b[v]);
}

/* Rows of these numbers; token 5 alone, among few and among many, and among more again. */
static void e4m3_runs(const struct one *o, const uint32_t *rows)
{
    static float alone[1][N], among[N], got[MOST_ROWS][N];
    bool many = false;
    struct device x;

    device_open(o, &x);
    run(&x, 1, 5, alone);
    check_e4m3(o, 1, 5, true, alone);
    for (; *rows > 0; rows++) {
        const bool few = *rows <= CUDA_PACKED_ROWS;
        run(&x, *rows, 3, got);
        check_e4m3(o, *rows, 3, true, got);
        if (few || many)
            same_bits(o, *rows, got[2], few ? alone[0] : among);
        if (!few)
            memcpy(among, got[2], sizeof(among));
        many = many || !few;
    }
    device_close(&x);
}

/* A token of zeros, one that is clipped; groups that end in the middle of a chunk, parts of k. */
static void test_e4m3(void **state)
{
    (void)state;
    static const struct {
        struct layout l;
        uint32_t k;
        enum ek_dtype dtype;
        float scale, most;
        uint32_t rows[6];
    } cases[] = {
        {{EK_QUANT_F8, 8, 0, false, 1}, 33, EK_BF16, 0, 0, {8, 9, 31, 33}},
        {{EK_QUANT_F8, 8, 0, false, N}, 96, EK_F16, 0.002f, 0, {17, 64, 65}},
        {{EK_QUANT_F8, 8, 0, false, 1}, 520, EK_F16, 0, 0.4f, {3, 32, 130}},
        {{EK_QUANT_F8, 8, 0, false, 1}, 1090, EK_BF16, 0, 0, {5, 40, 100}},
        {{EK_QUANT_F8, 8, 128, false, 128}, 96, EK_BF16, 0, 0, {8, 34}},
        {{EK_QUANT_F8, 8, 128, false, 128}, 130, EK_F16, 0, 0, {9, 16, 66}},
        {{EK_QUANT_F8, 8, 128, false, 128}, 520, EK_BF16, 0, 0, {32, 33, 200}},
        {{EK_QUANT_F8, 8, 128, false, 128}, 1088, EK_F16, 0, 0, {7, 64, 128}},
        {{EK_QUANT_F8, 8, 128, false, 1}, 2100, EK_BF16, 0, 0, {16, 40}},
    };

    for (size_t n = share_next(0); n < sizeof(cases) / sizeof(cases[0]); n = share_next(n + 1)) {
        struct one *o = one_new(&cases[n].l, cases[n].k, cases[n].dtype);
        o->weight[1].rounds_input = true;
        o->weight[1].input_scale = cases[n].scale;
        o->weight[1].input_most = cases[n].most;
        memset(o->embedding + (size_t)2 * o->k, 0, o->k * sizeof(float));
        assert_true(cuda_weight_of(&o->g, 1).rounds);
        if (!g_fake.real)
            g_fake.capability(n % 2 ? 90 : 89); /* only the latter has tiles of 128 rows */
        e4m3_runs(o, cases[n].rows);
        free(o);
    }
    if (!g_fake.real)
        g_fake.capability(90);
}

/* Many rows by cuBLASLt, with the scales that it knows on this card; what it does not do. */
static void test_e4m3_lt(void **state)
{
    (void)state;
    enum how { LT, BARE, OWN, AS_THEY_ARE };
    static const struct {
        uint32_t group, k, rows;
        enum ek_dtype dtype;
        int capability;
        enum how how;
    } cases[] = {
        {0, 520, 40, EK_BF16, 90, LT},           {0, 1024, 200, EK_F16, 90, LT},
        {128, 1024, 60, EK_BF16, 90, LT},        {128, 512, 130, EK_F16, 90, LT},
        {128, 1088, 100, EK_BF16, 90, OWN},      {0, 520, 140, EK_BF16, 100, BARE},
        {0, 130, 100, EK_BF16, 89, BARE},        {0, 520, 40, EK_F16, 100, OWN},
        {0, 520, 140, EK_F16, 100, AS_THEY_ARE}, {128, 1024, 140, EK_BF16, 100, AS_THEY_ARE},
        {128, 1024, 140, EK_BF16, 120, OWN},
    };
    static float got[MOST_ROWS][N];

    for (size_t n = share_next(0); n < sizeof(cases) / sizeof(cases[0]); n = share_next(n + 1)) {
        const struct layout l = {EK_QUANT_F8, 8, cases[n].group, false, cases[n].group ? 128 : 1};
        struct one *o = one_new(&l, cases[n].k, cases[n].dtype);
        struct device x;
        if (g_fake.real && cases[n].capability != 90)
            continue;
        one_narrow(o, 144);
        o->weight[1].rounds_input = true;
        if (!g_fake.real) {
            g_fake.capability(cases[n].capability);
            setenv("EVENKEEL_CUBLASLT", getenv("EVENKEEL_CUDA_DRIVER"), 1);
        }
        device_open(o, &x);
        for (uint32_t again = 0; again < 2; again++) {
            run(&x, cases[n].rows, 3, got);
            if (cases[n].how == AS_THEY_ARE)
                check(o, n, cases[n].rows, 3, false, got);
            else
                check_e4m3(o, cases[n].rows, 3, cases[n].how != BARE, got);
        }
        const unsigned calls = g_fake.real ? 0 : g_fake.calls("cublasLtMatmul");
        if (!g_fake.real && calls != (cases[n].how == OWN ? 2 : 4)) /* two are of the logits */
            fail_msg("case %zu: cuBLASLt was called %u times", n, calls);
        device_close(&x);
        setenv("EVENKEEL_CUBLASLT", "off", !g_fake.real);
        free(o);
    }
    if (!g_fake.real)
        g_fake.capability(90);
}

/* What cuBLASLt refuses when it is asked at last, the own kernels do. */
static void test_refused(void **state)
{
    (void)state;
    static const struct layout layout = {EK_QUANT_F8, 8, 0, false, 1};
    static float got[MOST_ROWS][N];
    struct one *o = one_new(&layout, 520, EK_BF16);
    struct device x;

    if (g_fake.real)
        skip();
    one_narrow(o, 144);
    o->weight[1].rounds_input = true;
    setenv("EVENKEEL_CUBLASLT", getenv("EVENKEEL_CUDA_DRIVER"), 1);
    device_open(o, &x);
    g_fake.plant("cublasLtMatmul", 1, LT_NOT_SUPPORTED);
    run(&x, 70, 3, got);
    check_e4m3(o, 70, 3, true, got);
    run(&x, 70, 3, got);
    check_e4m3(o, 70, 3, false, got);
    device_close(&x);
    setenv("EVENKEEL_CUBLASLT", "off", 1);
    free(o);
}

/* From how many rows on that is: where own kernels would be bound by arithmetic. */
static void test_many(void **state)
{
    (void)state;
    static const struct {
        int capability;
        bool lt;
        uint32_t rows;
    } cases[] = {
        {89, true, 96}, {90, true, 32}, {100, true, 32}, {120, true, 64}, {90, false, UINT32_MAX}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(cuda_e4m3_rows(cases[i].capability, cases[i].lt), cases[i].rows);
    setenv("EVENKEEL_FUSED_ROWS", "100", 1);
    assert_int_equal(cuda_e4m3_rows(90, true), 100);
    unsetenv("EVENKEEL_FUSED_ROWS");
}

/* Before Ada there are no such products. */
static void test_old_card(void **state)
{
    (void)state;
    static const struct layout layout = {EK_QUANT_F8, 8, 0, false, 1};
    static float got[MOST_ROWS][N];
    struct one *o = one_new(&layout, 130, EK_BF16);
    struct device x;

    if (g_fake.real)
        skip();
    o->weight[1].rounds_input = true;
    g_fake.capability(86);
    device_open(o, &x);
    run(&x, 9, 3, got);
    check(o, 0, 9, 3, true, got);
    device_close(&x);
    g_fake.capability(90);
    free(o);
}

/* What cannot be rounded takes its inputs as they are. */
static void test_not_rounded(void **state)
{
    (void)state;
    static const struct {
        struct layout l;
        enum ek_dtype dtype;
    } cases[] = {
        {{EK_QUANT_I8, 8, 32, false, 1}, EK_BF16},     {{EK_QUANT_I8, 8, 0, true, N}, EK_F16},
        {{EK_QUANT_F8, 8, 32, false, 1}, EK_F16},      {{EK_QUANT_F8, 8, 0, false, 1}, EK_F32},
        {{EK_QUANT_PACKED, 4, 32, false, 1}, EK_BF16}, {{EK_QUANT_I8, 8, 0, false, 1}, EK_F32}};
    static float got[MOST_ROWS][N];
    struct device x;

    for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
        struct one *o = one_new(&cases[n].l, 96, cases[n].dtype);
        o->weight[1].rounds_input = true;
        assert_false(cuda_weight_of(&o->g, 1).rounds);
        device_open(o, &x);
        run(&x, 9, 3, got);
        check(o, n, 9, 3, true, got);
        device_close(&x);
        free(o);
    }
}

static void test_not_finite(void **state)
{
    (void)state;
    static const struct layout layouts[] = {{EK_QUANT_I8, 8, 0, false, 1},
                                            {EK_QUANT_F8, 8, 0, false, 1},
                                            {EK_QUANT_F8, 8, 128, false, 128}};
    static float got[MOST_ROWS][N];

    for (size_t n = 0; n < 2 * sizeof(layouts) / sizeof(layouts[0]); n++) {
        struct one *o = one_new(&layouts[n / 2], 130, EK_BF16);
        struct device x;
        o->weight[1].rounds_input = true;
        o->embedding[1 * o->k + 129] = INFINITY;
        o->embedding[2 * o->k + 5] = NAN;
        device_open(o, &x);
        run(&x, n % 2 ? 36 : 4, 0, got);
        for (uint32_t v = 0; v < N; v++) {
            assert_true(isfinite(got[0][v]) && isfinite(got[3][v]));
            assert_true(isnan(got[1][v]) && isnan(got[2][v]));
        }
        device_close(&x);
        free(o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounded),     cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_e4m3_lt),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_many),        cmocka_unit_test(test_old_card),
        cmocka_unit_test(test_not_rounded), cmocka_unit_test(test_not_finite)};
    return cmocka_run_group_tests_name("rounded", tests, fake_setup, NULL);
}
