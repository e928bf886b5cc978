/*
 * Weights of 8 and 4 bits on the device: every published layout, with zeros and without, with
 * groups that lie in a slice, over chunks and past the end, against the values that it stands for;
 * up to 32 rows directly, some hundred by fused products, cut along k or not, more by way of
 * panels. A row's answer is the same bits alone and among others. Products that round their inputs
 * are exact. And what the plan says of the bytes.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "common/memplan.h"
#include "kernels/cuda/cuda.h"
#include "kernels/quant.h"
#include "tests/unit/cuda/fake_card.h"
#include "tests/unit/kernels/tiny.h"

enum { N = 150, VOCAB = 8, MOST_K = 3100, MOST_ROWS = 200 };

/* Tokens are embedded, picked and multiplied with the matrix under test, [N, k]; what comes out is
 * asked for as the hidden state. */
struct one {
    uint32_t k;
    enum ek_dtype dtype;
    float embedding[VOCAB * MOST_K], head[VOCAB * N];
    uint32_t numbers[N * MOST_K / 4 + 64];
    float scales[N * MOST_K];
    uint32_t zeros[N * MOST_K / 4 + 64];
    float plain[N * MOST_K];
    struct ek_op op[4];
    struct ek_weight weight[3];
    struct ek_quant quant;
    uint32_t width[3];
    struct ek_weight_file file;
    struct ek_weight_files files;
    struct ek_graph g;
};

struct layout {
    enum ek_quant_kind kind;
    uint32_t bits, group; /* 0: a row */
    bool zeros;
    uint32_t block_rows;
};

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

static struct ek_quant_range range_of(enum ek_dtype t, size_t offset)
{
    return (struct ek_quant_range){0, t, offset};
}

static void add_quant(struct one *o, const struct layout *l, uint64_t *random)
{
    struct ek_quant *q = &o->quant;
    const uint32_t k = o->k;

    for (size_t i = 0; i < sizeof(o->numbers) / 4; i++) {
        o->numbers[i] = (uint32_t)tiny_next(random) ^ (uint32_t)(tiny_next(random) << 16);
        o->zeros[i] = (uint32_t)tiny_next(random) ^ (uint32_t)(tiny_next(random) << 16);
        if (l->kind == EK_QUANT_F8)
            o->numbers[i] &= 0xb7b7b7b7u; /* numbers up to 1.875 */
    }
    for (size_t i = 0; i < sizeof(o->scales) / sizeof(float); i++)
        o->scales[i] = (0.5f + tiny_float(random) / 4) / (l->kind == EK_QUANT_F8 ? 1.0f : 100.0f);
    *q = (struct ek_quant){.kind = l->kind,
                           .rows = N,
                           .cols = k,
                           .bits = l->bits,
                           .block_rows = l->block_rows,
                           .block_cols = l->group ? l->group : k,
                           .zero_add = l->kind == EK_QUANT_GPTQ,
                           .numbers = range_of(EK_I8, offsetof(struct one, numbers)),
                           .scales = range_of(EK_F32, offsetof(struct one, scales)),
                           .zeros = {.file = UINT32_MAX},
                           .groups = {.file = UINT32_MAX}};
    if (l->zeros)
        q->zeros = range_of(EK_I8, offsetof(struct one, zeros));
    struct ek_weight *w = &o->weight[1];
    *w = (struct ek_weight){.name = "packed",
                            .source = EK_I8,
                            .rows = N,
                            .cols = k,
                            .parts = 1,
                            .part = {{0, q->numbers.offset_bytes, N, 0}},
                            .quantized = true};
    assert_true(ek_quant_form(q, &w->dtype, &w->group));
    for (uint32_t i = 0; i < N; i++)
        ek_quant_values(q, &o->files, i, 0, k, o->plain + (size_t)i * k);
}

static struct one *one_new(const struct layout *l, uint32_t k, enum ek_dtype dtype)
{
    struct one *o = calloc(1, sizeof(*o));
    uint64_t random = 99 + k;

    o->k = k;
    o->dtype = dtype;
    o->file = (struct ek_weight_file){o, sizeof(*o), false};
    o->files = (struct ek_weight_files){&o->file, 1};
    for (uint32_t i = 0; i < VOCAB * k; i++) {
        cpu_store(dtype, &o->embedding[i], 0, tiny_float(&random));
        o->embedding[i] = cpu_load(dtype, &o->embedding[i], 0);
    }
    o->weight[0] = (struct ek_weight){.name = "embedding",
                                      .source = EK_F32,
                                      .dtype = dtype,
                                      .rows = VOCAB,
                                      .cols = k,
                                      .parts = 1,
                                      .part = {{0, offsetof(struct one, embedding), VOCAB, 0}}};
    add_quant(o, l, &random);
    o->weight[2] = (struct ek_weight){.name = "head",
                                      .source = EK_F32,
                                      .dtype = dtype,
                                      .rows = VOCAB,
                                      .cols = N,
                                      .parts = 1,
                                      .part = {{0, offsetof(struct one, head), VOCAB, 0}}};
    o->width[0] = o->width[1] = k;
    o->width[2] = N;
    o->op[0] = (struct ek_op){.kind = EK_OP_EMBED, .bias = EK_NO_WEIGHT, .u.embed.scale = 1.0f};
    o->op[1] = (struct ek_op){.kind = EK_OP_PICK, .dst = 1, .weight = EK_NO_WEIGHT};
    o->op[2] =
        (struct ek_op){.kind = EK_OP_LINEAR, .dst = 2, .src = 1, .weight = 1, .bias = EK_NO_WEIGHT};
    o->op[3] = (struct ek_op){.kind = EK_OP_LOGITS, .src = 2, .weight = 2, .u.logits.scale = 0.5f};
    o->g = (struct ek_graph){.ops = o->op,
                             .op_count = 4,
                             .weights = o->weight,
                             .weight_count = 3,
                             .quants = &o->quant,
                             .quant_count = 1,
                             .value_width = o->width,
                             .value_count = 3,
                             .layers = 1,
                             .kv_heads = 1,
                             .head_dim = 8,
                             .hidden = N,
                             .vocab = VOCAB,
                             .max_position = 64,
                             .dtype = dtype};
    return o;
}

struct device {
    const struct ek_backend *b;
    struct ek_device *d;
    struct ek_step_ceiling ceiling;
    struct ek_step *step;
    struct ek_result *result;
    uint64_t id;
};

static struct ek_plan_request request_of(const struct one *o)
{
    return (struct ek_plan_request){.graph = &o->g,
                                    .ceiling = {MOST_ROWS, MOST_ROWS, MOST_ROWS, 0, 16, 0},
                                    .logit_rows = MOST_ROWS,
                                    .block_size = 8};
}

static void device_open(const struct one *o, struct device *x)
{
    const struct ek_open_params open = {.device = 0};
    const struct ek_kv_params kv = {MOST_ROWS + 1, 0, 8};
    struct ek_plan_request q = request_of(o);
    struct ek_fault fault = {.msg = ""};

    g_fake.card((size_t)1 << 30, true);
    *x = (struct device){.b = cuda_backend(), .ceiling = q.ceiling};
    assert_int_equal(x->b->open(&open, &x->d, NULL), 0);
    if (x->b->load(x->d, &q, &o->files, NULL, NULL, &fault) != 0)
        fail_msg("%s", fault.msg);
    assert_int_equal(x->b->kv_open(x->d, &kv), 0);
    x->step = calloc(1, ek_step_size(&q.ceiling));
    x->result = calloc(1, ek_result_bytes(MOST_ROWS, 0, MOST_ROWS, N));
}

static void device_close(struct device *x)
{
    x->b->close(x->d);
    free(x->step);
    free(x->result);
    assert_true(g_fake.real || (g_fake.objects() == 0 && g_fake.used() == 0));
}

/* One token each of `rows` sequences, the first of which has token `first`. */
static void run(struct device *x, uint32_t rows, uint32_t first, float (*out)[N])
{
    struct ek_step *s = x->step;

    ek_step_layout(s, &x->ceiling);
    s->id = ++x->id;
    for (uint32_t i = 0; i < rows; i++) {
        ek_step_sets(s)[s->sets++] = (struct ek_slot_set){.slot = i, .top_p = 1.0f};
        ek_step_seqs(s)[s->seqs++] = (struct ek_step_seq){.slot = i,
                                                          .row = i,
                                                          .rows = 1,
                                                          .context = 1,
                                                          .table = i,
                                                          .blocks = 1,
                                                          .sample = 1,
                                                          .logit_row = i,
                                                          .hidden = 1};
        ek_step_tables(s)[s->entries++] = i + 1;
        ek_step_tokens(s)[i] = (int32_t)((first + i) % VOCAB);
        ek_step_kv_slots(s)[i] = (i + 1) * 8;
    }
    s->rows = s->logit_rows = rows;
    const size_t bytes = ek_result_bytes(MOST_ROWS, 0, MOST_ROWS, N);
    assert_int_equal(x->b->forward(x->d, s), 0);
    assert_int_equal(x->b->sample(x->d, s, NULL), 0);
    assert_int_equal(x->b->wait(x->d, s->id, x->result, bytes, 60000000), 0);
    assert_int_equal(x->result->error, 0);
    assert_int_equal(x->result->hiddens, rows);
    for (uint32_t i = 0; i < rows; i++)
        memcpy(out[i], ek_result_hidden(x->result, i), sizeof(out[i]));
}

/* How far it may be off: sums of f32 where numbers are taken as they are, else 16-bit weights; and
 * the result is rounded to the type of the model. */
static double slack_of(const struct one *o, double want, double sum, bool direct)
{
    const double one = o->dtype == EK_F32 ? 0 : o->dtype == EK_F16 ? 0x1p-11 : 0x1p-8;

    return 1e-6 + fabs(want) * one + sum * (direct ? 3e-6 : 3e-6 + one);
}

static void check(const struct one *o, size_t layout, uint32_t rows, uint32_t first, bool direct,
                  float (*got)[N])
{
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t v = 0; v < N; v++) {
            const float *x = o->embedding + (first + i) % VOCAB * o->k, *w = o->plain + v * o->k;
            double want = 0, sum = 0;
            for (uint32_t j = 0; j < o->k; j++) {
                want += (double)x[j] * (double)w[j];
                sum += fabs((double)x[j] * (double)w[j]);
            }
            if (!(fabs((double)got[i][v] - want) <= slack_of(o, want, sum, direct)))
                fail_msg("layout %zu, k %u, dtype %d, %u rows: row %u, column %u is %g, not %g",
                         layout, o->k, o->dtype, rows, i, v, (double)got[i][v], want);
        }
}

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

    for (size_t n = 0; n < LAYOUTS * 3; n++) {
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
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
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

    for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
        struct one *o = one_new(&layout, cases[n].k, cases[n].dtype);
        struct device x;
        o->weight[1].rounds_input = true;
        o->weight[1].input_scale = cases[n].scale;
        memset(o->embedding + (size_t)2 * o->k, 0, o->k * sizeof(float));
        assert_true(cuda_weight_of(&o->g, 1).rounds);
        device_open(o, &x);
        for (const uint32_t *rows = cases[n].rows; *rows > 0; rows++) {
            run(&x, *rows, n % VOCAB, got);
            check_rounded(o, *rows, n % VOCAB, got);
        }
        device_close(&x);
        free(o);
    }
}

/* A row that is not finite stays so; what cannot be rounded takes its inputs as they are. */
static void test_not_rounded(void **state)
{
    (void)state;
    static const struct {
        struct layout l;
        enum ek_dtype dtype;
    } cases[] = {{{EK_QUANT_I8, 8, 32, false, 1}, EK_BF16},
                 {{EK_QUANT_I8, 8, 0, true, N}, EK_F16},
                 {{EK_QUANT_F8, 8, 0, false, 1}, EK_F16},
                 {{EK_QUANT_PACKED, 4, 32, false, 1}, EK_BF16},
                 {{EK_QUANT_I8, 8, 0, false, 1}, EK_F32}};
    static const struct layout layout = {EK_QUANT_I8, 8, 0, false, 1};
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
    struct one *o = one_new(&layout, 130, EK_BF16);
    o->weight[1].rounds_input = true;
    o->embedding[1 * o->k + 129] = INFINITY;
    o->embedding[2 * o->k + 5] = NAN;
    device_open(o, &x);
    run(&x, 4, 0, got);
    for (uint32_t v = 0; v < N; v++) {
        assert_true(isfinite(got[0][v]) && isfinite(got[3][v]));
        assert_true(isnan(got[1][v]) && isnan(got[2][v]));
    }
    device_close(&x);
    free(o);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts), cmocka_unit_test(test_fused),
        cmocka_unit_test(test_rounded), cmocka_unit_test(test_not_rounded),
        cmocka_unit_test(test_choice),  cmocka_unit_test(test_bytes)};
    return cmocka_run_group_tests_name("packed", tests, fake_setup, NULL);
}
