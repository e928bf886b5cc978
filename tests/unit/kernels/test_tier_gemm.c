/*
 * The products of every instruction tier of this machine against "ref" over edge shapes: weights as
 * they are, expanded from a few bits, and in bytes with groups. And the rule that makes answers
 * independent of their company: a row's bits are the same whatever rows stand beside it.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/quads.h"
#include "kernels/cpu/tier.h"
#include "kernels/num.h"
#include "tests/unit/kernels/noise.h"
#include "tests/unit/kernels/tiles.h"

static const enum ek_dtype g_types[] = {EK_F32, EK_BF16, EK_F16};

enum { MOST_ROWS = 67, MOST_K = 298, MOST_PANELS = 6, WIDTH = MOST_PANELS * CPU_PANEL };

struct tier_product {
    float x[MOST_ROWS * MOST_K], want[MOST_ROWS * WIDTH], got[MOST_ROWS * WIDTH];
    char w[MOST_PANELS * MOST_K * CPU_PANEL * 4];
    uint32_t work[CPU_GEMM_WORK(MOST_ROWS, MOST_K) / sizeof(uint32_t)];
};

/* The panels as this tier wants them; what is read behind them is not a number. */
static char *packed_for(const struct cpu_ops *ops, const struct tier_product *c,
                        const struct cpu_gemm *g)
{
    const size_t bytes = g->panels * g->panel_bytes;
    char *to = malloc(bytes + 2048);

    assert_non_null(to);
    memset(to, 0xff, bytes + 2048);
    memcpy(to, c->w, bytes);
    if (!ops->pairs || g->dtype != EK_BF16)
        return to;
    for (uint32_t p = 0; p < g->panels; p++)
        for (uint32_t k = 0; k < g->k + g->k % 2; k++)
            for (uint32_t col = 0; col < CPU_PANEL; col++)
                memcpy(to + p * g->panel_bytes + 2 * cpu_panel_index(true, EK_BF16, k, col),
                       c->w + p * g->panel_bytes + 2 * cpu_panel_index(false, EK_BF16, k, col), 2);
    return to;
}

static float flushed(float x)
{
    return fabsf(x) < FLT_MIN ? copysignf(0.0f, x) : x;
}

/* One element as tiles multiply it: the manual's pseudo-code for TDPBF16PS, instruction after
 * instruction. */
static float tiles_element(const struct cpu_gemm *g, const char *w, uint32_t row, uint32_t col,
                           float before)
{
    const char *panel = w + col / CPU_PANEL * g->panel_bytes;
    float sum = g->add ? before : 0.0f;

    for (uint32_t first = 0; first < g->k; first += CPU_K_STEP) {
        float part[2] = {0.0f, 0.0f};
        for (uint32_t k = first; k < g->k && k < first + CPU_K_STEP; k++) {
            const float x = g->x[row * g->x_stride + k];
            const size_t at = cpu_panel_index(true, EK_BF16, k, col % CPU_PANEL);
            part[k % 2] =
                flushed(fmaf(flushed(x), flushed(cpu_load(EK_BF16, panel, at)), part[k % 2]));
        }
        sum = flushed(flushed(sum) + flushed(part[0] + part[1]));
    }
    return sum;
}

/* What c holds at first. */
static float first_sum(uint32_t row, uint32_t col)
{
    return noise(row * WIDTH + col);
}

static void fill_row(float *c, uint32_t row)
{
    for (uint32_t col = 0; col < WIDTH; col++)
        c[col] = first_sum(row, col);
}

/* A row alone, one panel at a time, k in two parts. */
static void gemm_alone(const struct cpu_ops *ops, const struct cpu_gemm *g, uint32_t row, float *c)
{
    const uint32_t step = ops == &cpu_ops_amx ? CPU_K_STEP : 2;
    struct cpu_gemm one = *g;

    fill_row(c, row);
    one.rows = 1;
    for (uint32_t p = 0; p < g->panels; p++) {
        one.panels = 1;
        one.c = c + (size_t)p * CPU_PANEL;
        one.x = g->x + (size_t)row * MOST_K;
        one.w = (const char *)g->w + p * g->panel_bytes;
        one.add = g->add;
        one.k = g->k / 3 / step * step;
        if (one.k > 0)
            ops->gemm(&one);
        one.add = g->add || one.k > 0;
        one.x += one.k;
        one.w = (const char *)one.w + (size_t)one.k * CPU_PANEL * (ek_dtype_bits(g->dtype) / 8);
        one.k = g->k - one.k;
        ops->gemm(&one);
    }
}

/* The same from the rounded inputs that a call left behind, nobody looks at x; and whatever is
 * fetched for the next call. */
static void gemm_rounded(const struct cpu_ops *ops, struct tier_product *c, struct cpu_gemm g)
{
    float *first = malloc(sizeof(c->got));

    assert_non_null(first);
    memcpy(first, c->got, sizeof(c->got));
    for (uint32_t row = 0; row < MOST_ROWS; row++)
        fill_row(c->got + (size_t)row * WIDTH, row);
    g.rounded = true;
    g.x = NULL;
    g.next = g.w;
    ops->gemm(&g);
    assert_memory_equal(c->got, first, sizeof(c->got));
    free(first);
}

static void gemm_shape(const struct cpu_ops *ops, struct tier_product *c, struct cpu_gemm g)
{
    float alone[WIDTH];

    g.x = c->x;
    g.x_stride = MOST_K;
    g.w = c->w;
    g.panel_bytes = (size_t)(g.k + g.k % 2) * CPU_PANEL * (ek_dtype_bits(g.dtype) / 8);
    g.c_stride = WIDTH;
    for (uint32_t row = 0; row < MOST_ROWS; row++)
        fill_row(c->want + (size_t)row * WIDTH, row);
    memcpy(c->got, c->want, sizeof(c->got));
    g.c = c->want;
    cpu_ops_ref.gemm(&g);
    g.c = c->got;
    g.work = c->work;
    char *packed = packed_for(ops, c, &g);
    g.w = packed;
    ops->gemm(&g);
    if (ops->pairs && g.dtype == EK_BF16)
        gemm_rounded(ops, c, g);
    for (uint32_t i = 0; i < MOST_ROWS * WIDTH; i++)
        near(c->got[i], c->want[i], 1e-5f, "gemm");
    for (uint32_t i = 0; ops == &cpu_ops_amx && g.dtype == EK_BF16 && i < g.rows * WIDTH; i++) {
        const uint32_t row = i / WIDTH, col = i % WIDTH;
        if (col < g.panels * CPU_PANEL)
            assert_true(c->got[i] == tiles_element(&g, packed, row, col, first_sum(row, col)));
    }
    for (uint32_t row = 0; row < g.rows; row++) {
        gemm_alone(ops, &g, row, alone);
        assert_memory_equal(alone, c->got + (size_t)row * WIDTH,
                            g.panels * CPU_PANEL * sizeof(float));
    }
    free(packed);
}

static void gemm_shapes(const struct cpu_ops *ops, struct tier_product *c, enum ek_dtype t)
{
    static const uint32_t rows[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                    11, 12, 13, 14, 15, 20, 27, 28, 40, 43};
    static const uint32_t ks[] = {1, 2, 15, 16, 33, 70}, panels[] = {1, 2, 4, 5, 6};
    static const struct cpu_gemm more[] = {{.rows = 9, .k = 131, .panels = 3, .add = true},
                                           {.rows = 13, .k = 128, .panels = 4},
                                           {.rows = 14, .k = 298, .panels = 3},
                                           {.rows = 16, .k = 298, .panels = 5},
                                           {.rows = 32, .k = 96, .panels = 2, .add = true},
                                           {.rows = 35, .k = 298, .panels = 3, .add = true},
                                           {.rows = 49, .k = 257, .panels = 1},
                                           {.rows = 67, .k = 288, .panels = 2}};

    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++)
        for (size_t k = 0; k < sizeof(ks) / sizeof(ks[0]); k++)
            for (size_t p = 0; p < sizeof(panels) / sizeof(panels[0]); p++) {
                struct cpu_gemm g = {.dtype = t,
                                     .rows = rows[r],
                                     .k = ks[k],
                                     .panels = panels[p],
                                     .add = (r + k + p) % 2};
                gemm_shape(ops, c, g);
            }
    for (size_t i = 0; i < 2 * sizeof(more) / sizeof(more[0]); i++) {
        struct cpu_gemm g = more[i / 2];
        g.dtype = t;
        g.wide = i % 2; /* a row alone never is, and has the same bits */
        gemm_shape(ops, c, g);
    }
}

static void test_gemm(const struct cpu_ops *ops)
{
    struct tier_product *c = calloc(1, sizeof(*c));
    const uint64_t before = tiles_count();

    assert_non_null(c);
    fill(c->x, MOST_ROWS * MOST_K, 1, 1.0f);
    for (size_t i = 0; i < MOST_K; i++) /* some products are below what is normal */
        c->x[5 * MOST_K + i] *= 0x1p-124f;
    for (size_t i = 0; i < MOST_ROWS * MOST_K; i++) /* some tiers round them to bf16 */
        c->x[i] = cpu_from_bf16(cpu_to_bf16(c->x[i]));
    for (size_t t = 0; t < 3; t++) {
        for (size_t i = 0; i < (size_t)MOST_PANELS * MOST_K * CPU_PANEL; i++)
            cpu_store(g_types[t], c->w, i, noise((uint32_t)i + 99));
        gemm_shapes(ops, c, g_types[t]);
    }
    if (ops == &cpu_ops_amx && tiles_emulated())
        assert_true(tiles_count() > before); /* they are what was tested */
    free(c);
}

/* Every number with every zero is exactly itself, in floats and in pairs. */
static void test_expand(const struct cpu_ops *ops)
{
    static const enum ek_dtype types[] = {EK_I8, EK_I4, EK_F8_E4M3, EK_F4_E2M1};
    static uint8_t numbers[258 * CPU_PANEL];
    static float got[258 * CPU_PANEL];
    int16_t zeros[CPU_PANEL];

    for (size_t i = 0; i < sizeof(numbers); i++)
        numbers[i] = (uint8_t)(i / CPU_PANEL);
    for (int c = 0; c < 32; c++) {
        struct cpu_expand e = {.from = types[c % 4],
                               .pairs = c / 4 % 2 && ops->pairs,
                               .numbers = numbers,
                               .zeros = zeros,
                               .k = c < 16 ? 256 : 31,
                               .out = got};
        for (int i = 0; i < (int)CPU_PANEL; i++)
            zeros[i] = c / 8 % 2 ? (int16_t)(i * 4 - 64) : e.from == EK_I4 ? 8 : 0;
        ops->expand(&e);
        for (uint32_t at = 0; at < e.k * CPU_PANEL; at++) {
            uint32_t k = at / CPU_PANEL, col = at % CPU_PANEL, half = k / 2;
            float want = cpu_from_f8((uint8_t)k), is = got[at];
            if (e.from == EK_F8_E4M3 && (k & 0x7fu) == 0x7fu)
                continue; /* not a number: never kept */
            if (e.from == EK_I8)
                want = (float)((int8_t)k - zeros[col]);
            if (e.from == EK_I4)
                want = (float)((int)(half >> k % 2 * 4 & 15u) - zeros[col]);
            if (e.from == EK_F4_E2M1)
                want = cpu_from_f4(half >> k % 2 * 4 & 15u);
            if (e.pairs)
                is = cpu_load(EK_BF16, got, cpu_panel_index(true, EK_BF16, k, col));
            if (!(is == want))
                fail_msg("%s: number %u of type %d less %d is %g instead of %g", ops->name, k,
                         e.from, zeros[col], (double)is, (double)want);
        }
    }
}

enum {
    QUADS_K = 584, /* more than a part of the tier that has them (PART in quads_avx512vnni.c) */
    QUADS_GROUPS = (QUADS_K + QUADS_GROUP - 1) / QUADS_GROUP,
    QUADS_ROWS = 35,
    QUADS_PANELS = 5,
    QUADS_WIDTH = QUADS_PANELS * CPU_PANEL
};

struct quads_case {
    float x[QUADS_ROWS * QUADS_K], got[QUADS_ROWS * QUADS_WIDTH], want[QUADS_ROWS * QUADS_WIDTH];
    char w[QUADS_PANELS * CPU_PANEL * (QUADS_K + QUADS_GROUPS * 6)],
        work[QUADS_WORK(QUADS_ROWS, QUADS_K, QUADS_BYTES_MOST)];
};

/* One element as the rule of quads.h has it. */
static float quads_element(const struct cpu_quads *q, uint32_t row, uint32_t col)
{
    const char *panel = (const char *)q->w + col / CPU_PANEL * q->panel_bytes;
    float c = q->add ? q->c[row * q->c_stride + col] : 0.0f, shared = 0.0f, scale = 0.0f;
    bool add = q->add;

    for (uint32_t k = 0; k < q->k; k += QUADS_GROUP) {
        const float *x = q->x + row * q->x_stride + k;
        uint32_t n = q->k - k < QUADS_GROUP ? q->k - k : QUADS_GROUP;
        size_t at = (size_t)((q->first + k) / q->group) * CPU_PANEL + col % CPU_PANEL;
        float most = 0.0f;
        int sum = 0, inputs = 0;
        int16_t zero = q->dtype == EK_I4 ? 8 : 0;
        for (uint32_t i = 0; i < n; i++)
            most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        for (uint32_t i = 0; i < n; i++) {
            size_t in = cpu_quads_index(q->dtype, q->first + k + i, col % CPU_PANEL);
            int w = (uint8_t)panel[in];
            w = q->dtype == EK_I8 ? w - 128 : (w >> ((q->first + k + i) & 4) & 15);
            if (q->dtype == EK_F4_E2M1)
                w = (int)(2.0f * cpu_from_f4((uint8_t)w));
            w -= q->dtype == EK_I4 ? 8 : 0;
            int rounded = most >= 0x1p-121f ? (int)lrintf(x[i] * (127.0f / most)) : 0;
            sum += w * rounded;
            inputs += rounded;
        }
        if (q->dtype == EK_F4_E2M1)
            scale = cpu_from_power((uint8_t)panel[q->scale_at + at]);
        else
            memcpy(&scale, panel + q->scale_at + at * sizeof(scale), sizeof(scale));
        if (q->zero_at == 0) {
            shared = fmaf((float)sum, most / (q->dtype == EK_F4_E2M1 ? 254.0f : 127.0f), shared);
            if ((q->first + k + n) % q->group != 0 && k + n < q->k)
                continue;
            c = add ? fmaf(shared, scale, c) : shared * scale;
            shared = 0.0f;
            add = true;
            continue;
        }
        c = fmaf((float)sum * (most / 127.0f), scale, c);
        memcpy(&zero, panel + q->zero_at + at * sizeof(zero), sizeof(zero));
        float less = (float)(zero - (q->dtype == EK_I4 ? 8 : 0)) * scale;
        c = fmaf(-((float)inputs * (most / 127.0f)), less, c);
    }
    return c;
}

static void quads_shape(const struct cpu_ops *ops, struct quads_case *c, struct cpu_quads q)
{
    const size_t elements = (size_t)QUADS_ROWS * QUADS_WIDTH;

    q.x = c->x;
    q.x_stride = QUADS_K;
    q.c_stride = QUADS_WIDTH;
    q.w = c->w;
    q.work = c->work;
    q.panel_bytes = sizeof(c->w) / QUADS_PANELS;
    fill(c->want, elements, 5, 1.0f);
    q.c = c->want;
    memcpy(c->got, c->want, sizeof(c->got));
    for (uint32_t row = 0; row < q.rows; row++)
        for (uint32_t col = 0; col < q.panels * CPU_PANEL; col++)
            c->want[row * q.c_stride + col] = quads_element(&q, row, col);
    q.c = c->got;
    ops->quads(&q);
    assert_memory_equal(c->got, c->want, elements * sizeof(float)); /* and nothing beside it */
    struct cpu_quads again = q; /* from the rounded inputs that are left */
    fill(c->got, elements, 5, 1.0f);
    again.rounded = true;
    again.x = NULL;
    ops->quads(&again);
    assert_memory_equal(c->got, c->want, elements * sizeof(float));
    if (q.k <= QUADS_GROUP)
        return;
    uint32_t k = q.k; /* the rows without their company, in two steps where that is the same */
    fill(c->got, elements, 5, 1.0f);
    for (uint32_t row = 0; row < q.rows; row++) {
        struct cpu_quads one = q;
        one.rows = 1;
        one.x += row * q.x_stride;
        one.c += row * q.c_stride;
        one.k = q.zero_at == 0 && (q.first + QUADS_GROUP) % q.group != 0 ? k : QUADS_GROUP;
        ops->quads(&one);
        if (one.k == k)
            continue;
        one.x += QUADS_GROUP;
        one.first += QUADS_GROUP;
        one.k = k - QUADS_GROUP;
        one.add = true;
        ops->quads(&one);
    }
    assert_memory_equal(c->got, c->want, elements * sizeof(float));
}

/* Numbers and inputs that are as large as they get, of either sign: where pairs of bytes are added
 * in 16 bits, these are what would not fit. */
static void quads_extremes(const struct cpu_ops *ops, struct quads_case *c)
{
    static const unsigned char bytes[] = {0xff, 0x00, 0x77, 0x88, 0x7f, 0x80};
    static const enum ek_dtype types[] = {EK_I8, EK_I4, EK_F4_E2M1};

    for (uint32_t i = 0; i < 3 * sizeof(bytes) * 3; i++) {
        struct cpu_quads q = {.dtype = types[i % 3],
                              .rows = i % 2 ? 14 : 3,
                              .panels = 2,
                              .k = 128,
                              .group = 2 * QUADS_GROUP};
        q.scale_at = (size_t)QUADS_K * CPU_PANEL * ek_dtype_bits(q.dtype) / 8;
        for (size_t at = 0; at < QUADS_ROWS * QUADS_K; at++)
            c->x[at] = i / 18 == 0 ? 1.0f : i / 18 == 1 ? -1.0f : at % 3 ? -1.0f : 1.0f;
        for (size_t p = 0; p < QUADS_PANELS; p++) {
            char *panel = c->w + p * (sizeof(c->w) / QUADS_PANELS);
            memset(panel, bytes[i / 3 % 6], q.scale_at);
            fill((float *)(void *)(panel + q.scale_at), QUADS_GROUPS * CPU_PANEL, 9, 0.01f);
            if (q.dtype == EK_F4_E2M1)
                memset(panel + q.scale_at, 120, QUADS_GROUPS * CPU_PANEL);
        }
        quads_shape(ops, c, q);
    }
}

static void test_quads(const struct cpu_ops *ops)
{
    static const uint32_t rows[] = {1, 2, 3, 4, 6, 7, 14, 17, 35};
    static const uint32_t ks[] = {1, 9, 32, 33, 70, 136, QUADS_K}, groups[] = {1, 2, 5};
    struct quads_case *c = calloc(1, sizeof(*c));

    if (!ops->quads) {
        free(c);
        return;
    }
    fill(c->x, QUADS_ROWS * QUADS_K, 1, 1.0f);
    memset(c->x + 3 * QUADS_K, 0, 40 * sizeof(float)); /* a group of nothing but zeros */
    for (uint32_t i = 0; i < 40; i++)                  /* and one whose inverse is no number */
        c->x[2 * QUADS_K + i] = i % 2 ? -2e-38f : 2e-38f;
    for (int form = 0; form < 5; form++)
        for (size_t i = 0; i < 9 * 7; i++) {
            enum ek_dtype t = form == 4 ? EK_F4_E2M1 : form % 2 ? EK_I4 : EK_I8;
            struct cpu_quads q = {.dtype = t, .rows = rows[i / 7], .k = ks[i % 7]};
            q.panels = (uint32_t)i % 5 + 1;
            q.group = groups[(i / 7 + i) % 3] * QUADS_GROUP;
            q.scale_at = (size_t)QUADS_K * CPU_PANEL * ek_dtype_bits(t) / 8;
            q.zero_at =
                form / 2 == 1 ? q.scale_at + (size_t)QUADS_GROUPS * CPU_PANEL * sizeof(float) : 0;
            q.add = i % 2 == 0;
            for (size_t p = 0; p < QUADS_PANELS; p++) {
                char *panel = c->w + p * (sizeof(c->w) / QUADS_PANELS);
                for (size_t b = 0; b < q.scale_at; b++)
                    panel[b] = (char)(noise((uint32_t)(b + p * 7)) * 127.0f);
                fill((float *)(void *)(panel + q.scale_at), QUADS_GROUPS * CPU_PANEL, 9, 0.01f);
                for (size_t g = 0; t == EK_F4_E2M1 && g < QUADS_GROUPS * CPU_PANEL; g++)
                    panel[q.scale_at + g] = (char)(g % 9 == 8 ? 0 : 110 + g % 23);
                for (size_t z = 0; form / 2 == 1 && z < QUADS_GROUPS * CPU_PANEL; z++) {
                    int16_t zero = (int16_t)(z % (t == EK_I4 ? 17 : 100));
                    memcpy(panel + q.zero_at + z * 2, &zero, 2);
                }
            }
            quads_shape(ops, c, q);
        }
    quads_extremes(ops, c);
    c->x[2] = INFINITY; /* what is no number stays none */
    struct cpu_quads bad = {.dtype = EK_I8,
                            .rows = 1,
                            .panels = 1,
                            .k = 40,
                            .group = QUADS_GROUP,
                            .x = c->x,
                            .x_stride = QUADS_K,
                            .w = c->w,
                            .c = c->got,
                            .c_stride = QUADS_WIDTH,
                            .work = c->work};
    bad.scale_at = (size_t)QUADS_K * CPU_PANEL;
    bad.panel_bytes = sizeof(c->w) / QUADS_PANELS;
    ops->quads(&bad);
    assert_true(isnan(c->got[0]));
    free(c);
}

static void test_products(void **state)
{
    (void)state;
    const struct cpu_ops *tiers[CPU_TIERS];

    cpu_tier_list(tiers);
    for (uint32_t i = 0; tiers[i]; i++) {
        test_gemm(tiers[i]);
        test_expand(tiers[i]);
        test_quads(tiers[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
