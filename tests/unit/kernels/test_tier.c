/*
 * Every instruction tier of this machine against "ref" over edge shapes, and the rule that makes
 * answers independent of their company: a row's bits are the same whatever rows stand beside it.
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

#include "common/err.h"
#include "kernels/cpu/num.h"
#include "kernels/cpu/quads.h"
#include "kernels/cpu/tier.h"
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

/* The same from the rounded inputs that a call left behind: nobody looks at x. */
static void gemm_rounded(const struct cpu_ops *ops, struct tier_product *c, struct cpu_gemm g)
{
    float *first = malloc(sizeof(c->got));

    assert_non_null(first);
    memcpy(first, c->got, sizeof(c->got));
    for (uint32_t row = 0; row < MOST_ROWS; row++)
        fill_row(c->got + (size_t)row * WIDTH, row);
    g.rounded = true;
    g.x = NULL;
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
    static const uint32_t rows[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 20};
    static const uint32_t ks[] = {1, 2, 15, 16, 33, 70}, panels[] = {1, 2, 4, 5, 6};
    static const struct cpu_gemm more[] = {{.rows = 9, .k = 131, .panels = 3, .add = true},
                                           {.rows = 13, .k = 128, .panels = 4},
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

enum { QUADS_K = 136, QUADS_ROWS = 35, QUADS_PANELS = 5, QUADS_WIDTH = QUADS_PANELS * CPU_PANEL };

struct quads_case {
    float x[QUADS_ROWS * QUADS_K], got[QUADS_ROWS * QUADS_WIDTH], want[QUADS_ROWS * QUADS_WIDTH];
    char w[QUADS_PANELS * CPU_PANEL * (QUADS_K + 5 * 6)], work[QUADS_ROWS * 2 * QUADS_K];
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
            int rounded = most > 0.0f ? (int)lrintf(x[i] * (127.0f / most)) : 0;
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

static void test_quads(const struct cpu_ops *ops)
{
    static const uint32_t rows[] = {1, 2, 3, 4, 6, 7, 14, 17, 35};
    static const uint32_t ks[] = {1, 9, 32, 33, 70, 136}, groups[] = {1, 2, 5};
    struct quads_case *c = calloc(1, sizeof(*c));

    if (!ops->quads) {
        free(c);
        return;
    }
    fill(c->x, QUADS_ROWS * QUADS_K, 1, 1.0f);
    memset(c->x + 3 * QUADS_K, 0, 40 * sizeof(float)); /* a group of nothing but zeros */
    for (int form = 0; form < 5; form++)
        for (size_t i = 0; i < 9 * 6; i++) {
            enum ek_dtype t = form == 4 ? EK_F4_E2M1 : form % 2 ? EK_I4 : EK_I8;
            struct cpu_quads q = {.dtype = t, .rows = rows[i / 6], .k = ks[i % 6]};
            q.panels = (uint32_t)i % 5 + 1;
            q.group = groups[(i / 6 + i) % 3] * QUADS_GROUP;
            q.scale_at = (size_t)QUADS_K * CPU_PANEL * ek_dtype_bits(t) / 8;
            q.zero_at = form / 2 == 1 ? q.scale_at + (size_t)5 * CPU_PANEL * sizeof(float) : 0;
            q.add = i % 2 == 0;
            for (size_t p = 0; p < QUADS_PANELS; p++) {
                char *panel = c->w + p * (sizeof(c->w) / QUADS_PANELS);
                for (size_t b = 0; b < q.scale_at; b++)
                    panel[b] = (char)(noise((uint32_t)(b + p * 7)) * 127.0f);
                fill((float *)(void *)(panel + q.scale_at), 5 * CPU_PANEL, 9, 0.01f);
                for (size_t g = 0; t == EK_F4_E2M1 && g < 5 * CPU_PANEL; g++)
                    panel[q.scale_at + g] = (char)(g % 9 == 8 ? 0 : 110 + g % 23);
                for (size_t z = 0; form / 2 == 1 && z < 5 * CPU_PANEL; z++) {
                    int16_t zero = (int16_t)(z % (t == EK_I4 ? 17 : 100));
                    memcpy(panel + q.zero_at + z * 2, &zero, 2);
                }
            }
            quads_shape(ops, c, q);
        }
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

enum { DIM = 144, STRIDE = 160 };

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

/* Blocks beside each other: `one`, and its last row alone, against ref. */
static void block_shape(const struct cpu_ops *ops, struct cpu_block b, bool mix)
{
    static char kv[CPU_BLOCKS][2][DIM * 32 * 4];
    static float in[QUERIES * STRIDE], want[QUERIES * STRIDE], got[QUERIES * STRIDE];
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
    for (b.rows = 1; b.rows <= QUERIES; b.rows += b.rows < 8 ? 1 : 4) {
        struct cpu_block one = b;
        one.in = in;
        one.pairs = false;
        fill(want, QUERIES * STRIDE, 8, 1.0f);
        memcpy(got, want, sizeof(got));
        one.out = want;
        (mix ? cpu_ops_ref.mix : cpu_ops_ref.scores)(&one);
        one.out = got;
        one.pairs = b.pairs;
        one.in = b.pairs ? (const void *)half : in;
        for (uint32_t k = 0; k < CPU_BLOCKS; k++)
            one.kv[k] = kv[k][b.pairs];
        (mix ? ops->mix : ops->scores)(&one);
        for (uint32_t k = 0; k < QUERIES * STRIDE; k++)
            near(got[k], want[k], b.dtype == EK_I8 ? 1e-4f : 1e-5f, mix ? "mix" : "scores");
        uint32_t last = one.rows - 1;
        fill(want, QUERIES * STRIDE, 8, 1.0f);
        memcpy(alone, want + (size_t)last * STRIDE, sizeof(alone));
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
        test_gemm(tiers[i]);
        test_expand(tiers[i]);
        test_quads(tiers[i]);
        test_blocks(tiers[i]);
        test_store(tiers[i]);
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
