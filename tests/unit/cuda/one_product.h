/*
 * A model of one product for tests of the CUDA backend: tokens are embedded, picked and multiplied
 * with a packed matrix [N, k]; what comes out is asked for as the hidden state. Header only.
 */
#pragma once

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
    uint32_t n, k; /* n: N, or less after one_narrow() */
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

static inline struct ek_quant_range range_of(enum ek_dtype t, size_t offset)
{
    return (struct ek_quant_range){0, t, offset};
}

static inline void add_quant(struct one *o, const struct layout *l, uint64_t *random)
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

static inline struct one *one_new(const struct layout *l, uint32_t k, enum ek_dtype dtype)
{
    struct one *o = calloc(1, sizeof(*o));
    uint64_t random = 99 + k;

    o->n = N;
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
    o->op[3] = (struct ek_op){
        .kind = EK_OP_LOGITS, .src = 2, .weight = 2, .bias = EK_NO_WEIGHT, .u.logits.scale = 0.5f};
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

/* Leaves the first n rows of the matrix. */
static inline void one_narrow(struct one *o, uint32_t n)
{
    o->n = o->weight[1].rows = o->weight[1].part[0].rows = o->quant.rows = n;
    o->weight[2].cols = o->width[2] = o->g.hidden = n;
}

struct device {
    const struct ek_backend *b;
    struct ek_device *d;
    struct ek_step_ceiling ceiling;
    struct ek_step *step;
    struct ek_result *result;
    uint64_t id;
};

static inline struct ek_plan_request request_of(const struct one *o)
{
    return (struct ek_plan_request){.graph = &o->g,
                                    .ceiling = {MOST_ROWS, MOST_ROWS, MOST_ROWS, 0, 16, 0},
                                    .logit_rows = MOST_ROWS,
                                    .block_size = 8};
}

static inline void device_open(const struct one *o, struct device *x)
{
    const struct ek_open_params open = {.device = 0};
    const struct ek_kv_params kv = {MOST_ROWS + 1, 0, 8, 0};
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

static inline void device_close(struct device *x)
{
    x->b->close(x->d);
    free(x->step);
    free(x->result);
    assert_true(g_fake.real || (g_fake.objects() == 0 && g_fake.used() == 0));
}

/* One token each of `rows` sequences, the first of which has token `first`. */
static inline void run(struct device *x, uint32_t rows, uint32_t first, float (*out)[N])
{
    struct ek_step *s = x->step;

    ek_step_layout(s, &x->ceiling);
    s->id = ++x->id;
    for (uint32_t i = 0; i < rows; i++) {
        ek_step_sets(s)[s->sets++] = (struct ek_slot_set){.slot = i, .sampling.top_p = 1.0f};
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
static inline double slack_of(const struct one *o, double want, double sum, bool direct)
{
    const double one = o->dtype == EK_F32 ? 0 : o->dtype == EK_F16 ? 0x1p-11 : 0x1p-8;

    return 1e-6 + fabs(want) * one + sum * (direct ? 3e-6 : 3e-6 + one);
}

static inline void check(const struct one *o, size_t layout, uint32_t rows, uint32_t first,
                         bool direct, float (*got)[N])
{
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t v = 0; v < o->n; v++) {
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
