/* Quantized weights: numbers by hand for each layout, and ranges and groups that are refused. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/backend.h"
#include "kernels/num.h"
#include "kernels/quant.h"

enum { ROWS = 8, COLS = 8 };

struct file {
    uint32_t words[64]; /* numbers at 0, zeros at 128, groups at 160 */
    float scales[16];
};

static const struct ek_quant_range g_none = {.file = UINT32_MAX};

/* [8, 8] with two groups of columns: scales 1 and 2, zeros as told. */
static struct ek_quant whole(enum ek_quant_kind kind, uint32_t bits)
{
    return (struct ek_quant){.kind = kind,
                             .rows = ROWS,
                             .cols = COLS,
                             .bits = bits,
                             .block_rows = 1,
                             .block_cols = 4,
                             .numbers = {0, EK_I8, 0},
                             .scales = {0, EK_F32, offsetof(struct file, scales)},
                             .zeros = {0, EK_I8, 128},
                             .groups = g_none};
}

static void values(const struct ek_quant *q, const struct file *f, uint32_t row, float *out)
{
    const struct ek_weight_file file = {f, sizeof(*f), false};
    const struct ek_weight_files files = {&file, 1};
    struct ek_fault fault = {.msg = ""};

    if (ek_quant_check(q, "w", &files, &fault) != 0)
        fail_msg("%s", fault.msg);
    ek_quant_values(q, &files, row, 0, COLS, out);
    float one;
    ek_quant_values(q, &files, row, 5, 1, &one); /* from the middle */
    assert_true(one == out[5]);
}

static void test_float8(void **state)
{
    (void)state;
    struct file f = {0};
    /* 1, -1, 448, 0.001953125 (the least), 0.015625, -0, 240, 1.875 */
    static const uint8_t stored[] = {0x38, 0xb8, 0x7e, 0x01, 0x08, 0x80, 0x77, 0x3f};
    static const float want[] = {1, -1, 448, 0x1p-9f, 0x1p-6f, 0, 240, 1.875f};
    struct ek_quant q = whole(EK_QUANT_F8, 8);
    float got[COLS];

    memcpy(f.words, stored, sizeof(stored));
    q.block_rows = ROWS;
    q.block_cols = COLS;
    q.zeros = g_none;
    f.scales[0] = 0.5f;
    values(&q, &f, 0, got);
    for (int i = 0; i < COLS; i++)
        assert_true(got[i] == want[i] * 0.5f);
    ((uint8_t *)f.words)[0] = 0x7f;
    values(&q, &f, 0, got);
    assert_true(got[0] != got[0]); /* not a number */
}

static void test_int8(void **state)
{
    (void)state;
    struct file f = {0};
    struct ek_quant q = whole(EK_QUANT_I8, 8);
    float got[COLS];

    for (int i = 0; i < 64; i++)
        ((int8_t *)f.words)[i] = (int8_t)(i - 128);
    for (int i = 0; i < 16; i++) {
        f.scales[i] = (float)(i + 1);
        ((int8_t *)f.words)[128 + i] = (int8_t)-i;
    }
    values(&q, &f, 3, got); /* scales 7 and 8, zeros -6 and -7 */
    for (int i = 0; i < COLS; i++)
        assert_true(got[i] == (float)(3 * 8 + i - 128 + (i < 4 ? 6 : 7)) * (i < 4 ? 7 : 8));
}

/* 3 bits: the eleventh number lies in two words. */
static void test_packed(void **state)
{
    (void)state;
    struct file f = {0};
    struct ek_quant q = whole(EK_QUANT_PACKED, 3);
    float got[16];
    const struct ek_weight_file file = {&f, sizeof(f), false};
    const struct ek_weight_files files = {&file, 1};

    q.rows = 1;
    q.cols = 16;
    q.block_cols = 16;
    q.zeros = g_none;
    f.scales[0] = 1;
    uint64_t bits = 0;
    for (uint64_t i = 0; i < 16; i++)
        bits |= i % 8 << (3 * i);
    memcpy(f.words, &bits, sizeof(bits));
    assert_int_equal(ek_quant_check(&q, "w", &files, NULL), 0);
    ek_quant_values(&q, &files, 0, 0, 16, got);
    for (int i = 0; i < 16; i++)
        assert_true(got[i] == (float)(i % 8 - 4));
}

static void test_columns(void **state)
{
    (void)state;
    struct file f = {0};
    struct ek_quant gptq = whole(EK_QUANT_GPTQ, 4), awq = whole(EK_QUANT_AWQ, 4);
    float got[COLS];

    for (uint32_t i = 0; i < 8; i++) {
        f.words[i] = 0x76543210u + i; /* GPTQ: row i, columns 0 to 7; AWQ: column i */
        f.words[40 + i] = i < 4;      /* the groups in another order */
    }
    f.words[32] = 0x11111111u;
    f.words[33] = 0x22222222u;
    for (int i = 0; i < 16; i++)
        f.scales[i] = i < 8 ? 1 : 2;
    gptq.zero_add = 1;
    gptq.groups = (struct ek_quant_range){0, EK_I8, 160};
    values(&gptq, &f, 2, got); /* 2 1 2 3 4 5 6 7, group 1 (zero 3), then 0 (zero 2) */
    for (int i = 0; i < COLS; i++)
        assert_true(got[i] == (i < 4 ? ((float)(i == 0 ? 2 : i) - 3) * 2 : (float)i - 2));
    values(&awq, &f, 1, got); /* row 1 is the fourth nibble */
    for (int i = 0; i < COLS; i++)
        assert_true(got[i] == (i < 4 ? 4.0f - 1 : (4.0f - 2) * 2));
}

static void test_refusals(void **state)
{
    (void)state;
    struct file f = {0};
    const struct ek_weight_file file = {&f, sizeof(f), false};
    const struct ek_weight_files files = {&file, 1};
    struct ek_quant bad[] = {
        whole(EK_QUANT_I8, 8),  whole(EK_QUANT_I8, 8),     whole(EK_QUANT_PACKED, 4),
        whole(EK_QUANT_AWQ, 8), whole(EK_QUANT_PACKED, 0), whole(EK_QUANT_I8, 8),
        whole(EK_QUANT_I8, 8),  whole(EK_QUANT_GPTQ, 4),   whole(EK_QUANT_AWQ, 4),
    };

    bad[0].block_cols = 0;
    bad[1].scales = g_none;
    bad[2].numbers.offset_bytes = sizeof(f) - 31;
    bad[5].numbers.file = 1;
    bad[6].zeros.offset_bytes = UINT64_MAX;
    bad[7].groups = (struct ek_quant_range){0, EK_I8, 0};
    f.words[7] = 2; /* there are two groups, 0 and 1 */
    bad[8].rows = 12;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct ek_fault fault = {.msg = ""};
        if (ek_quant_check(&bad[i], "w", &files, &fault) != -EBADMSG || !fault.msg[0])
            fail_msg("case %zu was accepted", i);
    }
}

/* To E4M3: every number comes back, halves go to the even neighbour, nothing beyond 448. */
static void test_to_float8(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 0x7f; b++) {
        float x = cpu_from_f8((uint8_t)b), next = cpu_from_f8((uint8_t)(b + 1));
        assert_int_equal(cpu_to_f8(x), b);
        assert_int_equal(cpu_to_f8(-x), b | 0x80u);
        if (b == 0x7e)
            break;
        float half = (x + next) / 2;
        assert_int_equal(cpu_to_f8(half), b % 2 ? b + 1 : b);
        assert_int_equal(cpu_to_f8(nextafterf(half, 0.0f)), b);
        assert_int_equal(cpu_to_f8(nextafterf(half, 1e9f)), b + 1);
    }
    assert_int_equal(cpu_to_f8(1e30f), 0x7e);
    assert_int_equal(cpu_to_f8(-INFINITY), 0xfe);
    assert_int_equal(cpu_to_f8(NAN), 0x7f);
}

/* Each number is the nearest there is; 4 bits leave less error than the plain scale does. */
static void test_quantize(void **state)
{
    (void)state;
    enum { N = 128 };
    static const enum ek_dtype types[] = {EK_I8, EK_F8_E4M3, EK_I4};
    float v[N];
    uint8_t got[N];

    for (uint32_t i = 0; i < N; i++) /* bell-shaped, with one far out */
        v[i] = sinf((float)i * 1.7f) * sinf((float)i * 0.9f) * 0.02f;
    v[77] = -0.05f;
    for (size_t t = 0; t < 3; t++) {
        float scale = types[t] == EK_I4 ? ek_quantize_scale4(v, N)
                                        : ek_quantize_scale(types[t], ek_quantize_most(v, N, 0.0f));
        double error = 0, plain = 0;
        ek_quantize(types[t], scale, v, N, got);
        for (uint32_t i = 0; i < N; i++) {
            float number = types[t] == EK_I4   ? (float)got[i] - 8.0f
                           : types[t] == EK_I8 ? (float)(int8_t)got[i]
                                               : cpu_from_f8(got[i]);
            float off = number * scale - v[i], simple = roundf(v[i] / 0.05f * 7) * 0.05f / 7 - v[i];
            float step = types[t] == EK_F8_E4M3 ? fmaxf(fabsf(v[i]) / 8, 0x1p-9f * scale) : scale;
            bool bounded = types[t] == EK_I4 && (got[i] == 0 || got[i] == 15);
            assert_true(bounded || fabsf(off) <= fabsf(step) * 0.501f);
            error += (double)(off * off);
            plain += (double)(simple * simple);
        }
        assert_true(types[t] != EK_I4 || error < plain * 0.8);
        assert_true(types[t] == EK_I4 || error < plain * 0.05);
    }
    memset(v, 0, sizeof(v));
    ek_quantize(EK_I4, ek_quantize_scale4(v, N), v, N, got);
    assert_int_equal(got[5], 8);
    assert_true(ek_quantize_scale(EK_I8, 0.0f) == 0.0f);
}

/* In which form matrices can be kept, and that numbers and scales are what the values were. */
static void test_form(void **state)
{
    (void)state;
    static const struct {
        enum ek_quant_kind kind;
        uint32_t bits, block_cols;
        bool order, kept;
        enum ek_dtype dtype;
        uint32_t group;
    } cases[] = {
        {EK_QUANT_GPTQ, 4, 4, false, true, EK_I4, 4},
        {EK_QUANT_GPTQ, 3, 4, false, true, EK_I4, 4},
        {EK_QUANT_GPTQ, 8, 8, false, true, EK_I8, 0},
        {EK_QUANT_AWQ, 4, 4, false, true, EK_I4, 4},
        {EK_QUANT_PACKED, 2, 8, false, true, EK_I4, 0},
        {EK_QUANT_PACKED, 5, 4, false, true, EK_I8, 4},
        {EK_QUANT_I8, 8, 4, false, true, EK_I8, 4},
        {EK_QUANT_F8, 8, 4, false, true, EK_F8_E4M3, 4},
        {EK_QUANT_GPTQ, 4, 4, true, false, EK_I4, 0},
        {EK_QUANT_GPTQ, 4, 3, false, false, EK_I4, 0},
    };
    struct file f;
    for (size_t i = 0; i < sizeof(f.words) / 4; i++) /* no exponent of E4M3 is 15 */
        f.words[i] = (uint32_t)(i + 1) * 0x9e3779b1u & 0xb7b7b7b7u;
    for (int i = 0; i < 16; i++)
        f.scales[i] = 0.25f * (float)(i + 1);
    const struct ek_weight_file file = {&f, sizeof(f), false};
    const struct ek_weight_files files = {&file, 1};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_quant q = whole(cases[i].kind, cases[i].bits);
        enum ek_dtype dtype;
        uint32_t group;
        q.block_cols = cases[i].block_cols;
        if (cases[i].kind == EK_QUANT_F8)
            q.zeros = g_none;
        if (cases[i].order)
            q.groups = (struct ek_quant_range){0, EK_I8, 160};
        assert_int_equal(ek_quant_form(&q, &dtype, &group), cases[i].kept);
        if (!cases[i].kept)
            continue;
        assert_int_equal(dtype, cases[i].dtype);
        assert_int_equal(group, cases[i].group);
        for (uint32_t at = 0; at < ROWS * COLS; at++)
            for (int wide = 0; wide < (dtype == EK_I4 ? 2 : 1); wide++) {
                enum ek_dtype t = wide ? EK_I8 : dtype;
                float want, scale;
                int16_t zero;
                uint8_t n;
                ek_quant_values(&q, &files, at / COLS, at % COLS, 1, &want);
                ek_quant_numbers(&q, &files, t, at / COLS, at % COLS, 1, &n);
                ek_quant_scale(&q, &files, t, at / COLS, at % COLS, &scale, &zero);
                assert_true(t != EK_I4 || n < 16);
                float number = t == EK_F8_E4M3 ? cpu_from_f8(n)
                               : t == EK_I8    ? (float)(int8_t)n
                                               : (float)n;
                assert_true((number - (float)zero) * scale == want);
            }
    }
}

/* Every other row of four, [2, 64]: the sixteen codes in order, with powers of two. */
static void test_mxfp4(void **state)
{
    (void)state;
    static const float codes[] = {0,   0.5f,  1,   1.5f,  2,   3,   4,   6,
                                  -0., -0.5f, -1., -1.5f, -2., -3., -4., -6.};
    uint8_t bytes[4 * 32 + 4 * 2] = {0}; /* numbers, then scales */
    const struct ek_weight_file file = {bytes, sizeof(bytes), false};
    const struct ek_weight_files files = {&file, 1};
    struct ek_quant q = {.kind = EK_QUANT_MXFP4,
                         .rows = 2,
                         .cols = 64,
                         .bits = 4,
                         .block_rows = 1,
                         .block_cols = 32,
                         .row_step = 2,
                         .numbers = {0, EK_I8, 32}, /* from the second row on */
                         .scales = {0, EK_I8, 128 + 2},
                         .zeros = g_none,
                         .groups = g_none};
    enum ek_dtype dtype;
    uint32_t group;

    for (uint32_t i = 0; i < 128; i++)
        bytes[i] = (uint8_t)((2 * i % 16) | ((2 * i + 1) % 16) << 4);
    memcpy(bytes + 128, (uint8_t[]){1, 1, 127, 130, 1, 1, 0, 255}, 8);
    assert_int_equal(ek_quant_check(&q, "w", &files, NULL), 0);
    assert_true(ek_quant_form(&q, &dtype, &group));
    assert_true(dtype == EK_F4_E2M1 && group == 32);
    for (uint32_t row = 0; row < 2; row++)
        for (uint32_t k = 0; k < 64; k++) {
            const float power = row > 0 ? 0x1p-127f : k < 32 ? 1.0f : 8.0f;
            const float want = codes[k % 16] * power;
            float value, scale, half;
            int16_t zero, none;
            uint8_t code, twice;
            ek_quant_values(&q, &files, row, k, 1, &value);
            ek_quant_numbers(&q, &files, EK_F4_E2M1, row, k, 1, &code);
            ek_quant_numbers(&q, &files, EK_I8, row, k, 1, &twice);
            ek_quant_scale(&q, &files, EK_F4_E2M1, row, k, &scale, &zero);
            ek_quant_scale(&q, &files, EK_I8, row, k, &half, &none);
            assert_true(zero == 0 && none == 0 && code == k % 16);
            if (row > 0 && k >= 32) { /* the byte that is no power */
                assert_true(value != value && scale != scale && half != half);
                continue;
            }
            assert_true(value == want && cpu_from_f4(code) * scale == want);
            assert_true((float)(int8_t)twice * half == want);
        }
    q.scales.offset_bytes++; /* one byte too far */
    assert_int_equal(ek_quant_check(&q, "w", &files, NULL), -EBADMSG);
    q.scales.offset_bytes--;
    q.row_step = 0;
    assert_int_equal(ek_quant_check(&q, "w", &files, NULL), -EBADMSG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float8),   cmocka_unit_test(test_int8),
        cmocka_unit_test(test_packed),   cmocka_unit_test(test_columns),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_to_float8),
        cmocka_unit_test(test_quantize), cmocka_unit_test(test_form),
        cmocka_unit_test(test_mxfp4),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
