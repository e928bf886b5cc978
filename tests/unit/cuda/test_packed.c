/*
 * Weights of 8 and 4 bits on the device: every published layout, with zeros and without, with
 * groups that lie in a slice, over chunks and past the end, against the values that it stands for;
 * up to 32 rows directly, some hundred by fused products, cut along k or not, more by way of
 * panels. A row's answer is the same bits alone and among others. And what the plan says of the
 * bytes.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/product.h"
#include "kernels/cuda/shape.h"
#include "tests/share.h"
#include "tests/unit/cuda/one_product.h"

static const struct layout g_layouts[] = {
    {EK_QUANT_I8, 8, 0, false, 1},      {EK_QUANT_I8, 8, 32, true, 1},
    {EK_QUANT_I8, 8, 128, false, 1},    {EK_QUANT_I8, 8, 0, true, N},
    {EK_QUANT_F8, 8, 0, false, 1},      {EK_QUANT_F8, 8, 128, false, 16},
    {EK_QUANT_F8, 8, 32, false, 1},     {EK_QUANT_PACKED, 4, 32, false, 1},
    {EK_QUANT_PACKED, 4, 128, true, 1}, {EK_QUANT_PACKED, 8, 64, true, 1},
    {EK_QUANT_PACKED, 2, 0, false, 1},  {EK_QUANT_GPTQ, 4, 64, true, 1},
    {EK_QUANT_GPTQ, 3, 128, true, 1},   {EK_QUANT_GPTQ, 8, 0, true, 1},
    {EK_QUANT_GPTQ, 4, 256, true, 1},   {EK_QUANT_PACKED, 4, 16, true, 1}, /* is unpacked */
};
#define LAYOUTS (sizeof(g_layouts) / sizeof(g_layouts[0]))

/* A product that is not as it was: of the same row of a step with other rows in it. */
static void same(const float *a, const float *b, size_t layout, uint32_t rows)
{
    if (memcmp(a, b, N * sizeof(float)) != 0)
        fail_msg("layout %zu: a row's answer changes among %u rows", layout, rows);
}

/* The device with fused products up to `fused` rows. */
static void layout_runs(const struct one *o, size_t layout, bool packed, uint32_t fused,
                        const uint32_t *rows)
{
    static float alone[1][N], among[N], got[MOST_ROWS][N];
    bool first = true;
    char limit[16];
    struct device x;

    (void)snprintf(limit, sizeof(limit), "%u", fused);
    setenv("EVENKEEL_FUSED_ROWS", limit, 1);
    device_open(o, &x);
    unsetenv("EVENKEEL_FUSED_ROWS");
    run(&x, 1, 5, alone);
    check(o, layout, 1, 5, packed, alone);
    for (; *rows > 0; rows++) {
        const bool few = *rows <= CUDA_PACKED_ROWS || o->dtype == EK_F32;
        const bool direct = few || *rows <= fused;
        run(&x, *rows, 3, got); /* token 5 is the third */
        check(o, layout, *rows, 3, packed && direct, got);
        if (few)
            same(got[2], alone[0], layout, *rows);
        if (few || !direct || !packed)
            continue;
        if (first)
            memcpy(among, got[2], sizeof(among));
        first = false;
        same(got[2], among, layout, *rows);
    }
    device_close(&x);
}

static void test_layouts(void **state)
{
    (void)state;
    static const enum ek_dtype types[] = {EK_BF16, EK_F16, EK_F32};
    static const uint32_t widths[] = {33, 96, 130, 264, 516};
    static const uint32_t rows[4][6] = {{9, 31, 64}, {8, 17, 35}, {33, 65}, {32, 40}};

    for (size_t n = share_next(0); n < LAYOUTS * 3; n = share_next(n + 1)) {
        const struct layout *l = &g_layouts[n / 3];
        struct one *o = one_new(l, widths[n % 5], types[n % 3]);
        const bool packed = l->group != 16 || o->dtype == EK_F32;
        layout_runs(o, n / 3, packed, n % 4 == 3 ? 0 : CUDA_FUSED_MOST, rows[n % 4]);
        free(o);
    }
}

/* In parts of k, over tiles of 64 and of 128 rows. */
static void test_fused(void **state)
{
    (void)state;
    static const struct {
        struct layout l;
        uint32_t k, parts, rows[4];
        enum ek_dtype dtype;
    } cases[] = {
        {{EK_QUANT_I8, 8, 0, false, 1}, 1090, 2, {33, 130}, EK_BF16},
        {{EK_QUANT_I8, 8, 96, true, 1}, 1088, 1, {40}, EK_F16}, /* is unpacked */
        {{EK_QUANT_PACKED, 8, 128, true, 1}, 1600, 3, {65, 64}, EK_F16},
        {{EK_QUANT_F8, 8, 256, false, 128}, 1088, 2, {33, 129}, EK_F16},
        {{EK_QUANT_GPTQ, 4, 128, true, 1}, 2080, 2, {33, 129}, EK_BF16},
        {{EK_QUANT_GPTQ, 4, 512, true, 1}, 3100, 3, {64, 66}, EK_F16},
        {{EK_QUANT_PACKED, 4, 32, false, 1}, 2048, 2, {200, 33}, EK_F16},
    };
    for (size_t i = share_next(0); i < sizeof(cases) / sizeof(cases[0]); i = share_next(i + 1)) {
        struct one *o = one_new(&cases[i].l, cases[i].k, cases[i].dtype);
        const uint32_t form = cuda_weight_of(&o->g, 1).packing.form;
        if (form != CU_PLAIN)
            assert_int_equal(cuda_fused_parts(N, cases[i].k, form), cases[i].parts);
        layout_runs(o, 100 + i, form != CU_PLAIN, CUDA_FUSED_MOST, cases[i].rows);
        free(o);
    }
    assert_int_equal(cuda_fused_parts(4096, 4096, CU_I8), 4);
    assert_int_equal(cuda_fused_parts(4096, 14336, CU_I4), 4);
    assert_int_equal(cuda_fused_parts(28672, 4096, CU_I8), 1);
    assert_int_equal(cuda_fused_parts(64, 1u << 20, CU_I8), 16);
}

/* Up to how many rows: more where the own kernels reach what cuBLASLt does, all without it. */
static void test_choice(void **state)
{
    (void)state;
    static const struct {
        int capability;
        bool lt;
        uint32_t rows;
    } cases[] = {{80, true, 512},  {86, true, 512},  {89, true, 512},
                 {90, true, 320},  {100, true, 128}, {103, true, 128},
                 {120, true, 512}, {90, false, 512}, {75, true, 512}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(cuda_fused_rows(cases[i].capability, cases[i].lt), cases[i].rows);
    setenv("EVENKEEL_FUSED_ROWS", "100", 1);
    assert_int_equal(cuda_fused_rows(80, true), 100);
    setenv("EVENKEEL_FUSED_ROWS", "5000000000", 1);
    assert_int_equal(cuda_fused_rows(80, true), CUDA_FUSED_MOST);
    setenv("EVENKEEL_FUSED_ROWS", "many", 1);
    assert_int_equal(cuda_fused_rows(90, true), 320);
    unsetenv("EVENKEEL_FUSED_ROWS");
}

/* Bytes of a packed weight: its numbers, a scale for each group, a zero where there are some. */
static void test_bytes(void **state)
{
    (void)state;
    static const struct {
        struct layout l;
        uint32_t k;
        enum ek_dtype dtype;
        size_t bytes;
        uint32_t form;
    } cases[] = {
        {{EK_QUANT_I8, 8, 0, false, 1}, 512, EK_BF16, N * (512 + 4), CU_I8},
        {{EK_QUANT_I8, 8, 0, true, 1}, 500, EK_F16, N * (512 + 6), CU_I8},
        {{EK_QUANT_F8, 8, 128, false, 1}, 512, EK_BF16, N * (512 + 16), CU_F8},
        {{EK_QUANT_GPTQ, 4, 128, true, 1}, 512, EK_BF16, N * (256 + 24), CU_I4},
        {{EK_QUANT_PACKED, 4, 32, false, 1}, 512, EK_F32, N * (256 + 64), CU_I4},
        {{EK_QUANT_PACKED, 4, 48, false, 1}, 512, EK_BF16, N * 1024, CU_PLAIN},
        {{EK_QUANT_I8, 8, 8, false, 1}, 512, EK_F32, N * 2048, CU_PLAIN},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct one *o = one_new(&cases[i].l, cases[i].k, cases[i].dtype);
        struct cuda_weight w = cuda_weight_of(&o->g, 1);
        assert_int_equal(w.bytes, cases[i].bytes);
        assert_int_equal(w.packing.form, cases[i].form);
        struct ek_plan_request q = request_of(o);
        struct ek_plan plan;
        assert_int_equal(cuda_backend()->plan(&(struct ek_open_params){0}, &q, &plan, NULL), 0);
        size_t bytes = 0;
        for (uint32_t k = 0; k < 3; k++)
            bytes += (cuda_weight_of(&o->g, k).bytes + 255) & ~255ull;
        assert_int_equal(plan.weight_bytes, bytes);
        struct device x;
        struct ek_device_stats stats;
        device_open(o, &x);
        x.b->stats(x.d, &stats);
        assert_int_equal(stats.weight_bytes, plan.weight_bytes);
        assert_int_equal(stats.activation_bytes, plan.activation_bytes);
        device_close(&x);
        free(o);
    }
    assert_int_equal(cuda_panel_rows(4096), 8192);
    assert_int_equal(cuda_panel_rows(33), CUDA_PANEL_ROWS);
    assert_int_equal(cuda_panel_rows(1u << 30), 128);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layouts), cmocka_unit_test(test_fused),
                                       cmocka_unit_test(test_choice), cmocka_unit_test(test_bytes)};
    return cmocka_run_group_tests_name("packed", tests, fake_setup, NULL);
}
