/*
 * Families in the forms in which they are published quantized. The products of a model as
 * transformers wrote it (tests/fixtures/models) are rounded and stored in each form, by the names
 * and shapes that its tools write; the same model with the rounded values as plain floats must give
 * the same logits, and every matrix that was packed must be read as such. What plain models give is
 * test_goldens' subject, what the bytes of a form mean is test_quant's (kernels) and the packers'.
 * Run from the root of the tree; FORMS=word takes models and forms with the word in their names.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/buf.h"
#include "common/err.h"
#include "kernels/backend.h"
#include "kernels/cpu/num.h"
#include "kernels/registry.h"
#include "server/model/files.h"
#include "server/model/model.h"
#include "server/model/safetensors.h"
#include "tests/unit/model/make.h"

#define MODELS    "tests/fixtures/models/"
#define TOLERANCE 1e-4f /* of the largest logit: sums in another order */

enum { TOKENS = 24, BLOCK = 8, BLOCKS = TOKENS / BLOCK, GROUP = 16 };

/* ---- files ---- */

struct out {
    json_t *head;
    struct ek_buf data;
    uint32_t packed; /* matrices */
};

static void put(struct out *o, const char *name, const char *type, json_t *shape, const void *bytes,
                size_t count)
{
    const json_int_t begin = (json_int_t)o->data.len, end = begin + (json_int_t)count;
    json_t *t = json_pack("{s:s, s:o, s:[I, I]}", "dtype", type, "shape", shape, "data_offsets",
                          begin, end);
    assert_non_null(t);
    assert_int_equal(json_object_set_new(o->head, name, t), 0);
    assert_int_equal(ek_buf_add(&o->data, bytes, count), 0);
}

static void out_write(struct out *o, const struct make *m)
{
    struct ek_buf all = {0};
    char *head = json_dumps(o->head, JSON_COMPACT);
    const uint64_t len = strlen(head);
    assert_int_equal(ek_buf_add(&all, &len, 8), 0);
    assert_int_equal(ek_buf_puts(&all, head), 0);
    assert_int_equal(ek_buf_add(&all, o->data.data, o->data.len), 0);
    make_file(m, "model.safetensors", all.data, all.len);
    free(head);
    ek_buf_done(&all);
    ek_buf_done(&o->data);
    json_decref(o->head);
}

/* ---- forms ---- */

/* A matrix [rows, cols] that becomes what it is stored as. */
struct matrix {
    const char *name; /* without ".weight" */
    float *w;
    uint32_t rows, cols;
};

static json_t *shape2(uint32_t a, uint32_t b)
{
    return json_pack("[i, i]", (int)a, (int)b);
}

static void part(struct out *o, const struct matrix *m, const char *suffix, const char *type,
                 json_t *shape, const void *bytes, size_t count)
{
    char name[160];
    assert_true(snprintf(name, sizeof(name), "%s%s", m->name, suffix) < (int)sizeof(name));
    put(o, name, type, shape, bytes, count);
}

static float bf16(float f)
{
    return cpu_from_bf16(cpu_to_bf16(f));
}

/* The largest magnitude of a block. */
static float most_of(const struct matrix *m, uint32_t row, uint32_t rows, uint32_t col,
                     uint32_t cols)
{
    float most = 1e-3f;
    for (uint32_t r = row; r < row + rows && r < m->rows; r++)
        for (uint32_t c = col; c < col + cols && c < m->cols; c++)
            most = fmaxf(most, fabsf(m->w[(size_t)r * m->cols + c]));
    return most;
}

static uint32_t parts_of(uint32_t count, uint32_t block)
{
    return (count + block - 1) / block;
}

/* E4M3 with a scale, a bfloat16 widened, for each block; the scales in order of the blocks. */
static void round8(struct matrix *m, uint32_t block_rows, uint32_t block_cols, bool f8,
                   uint8_t *numbers, float *scales)
{
    const uint32_t across = parts_of(m->cols, block_cols);
    for (uint32_t r = 0; r < m->rows; r++)
        for (uint32_t c = 0; c < m->cols; c++) {
            const uint32_t at_row = r / block_rows, at_col = c / block_cols;
            float *scale = &scales[(size_t)at_row * across + at_col];
            const size_t at = (size_t)r * m->cols + c;
            if (r % block_rows == 0 && c % block_cols == 0)
                *scale = bf16(most_of(m, r, block_rows, c, block_cols) / (f8 ? 440.0f : 126.0f));
            const float v = m->w[at] / *scale;
            numbers[at] = f8 ? cpu_to_f8(v) : (uint8_t)(int8_t)lrintf(v);
            m->w[at] = (f8 ? cpu_from_f8(numbers[at]) : (float)(int8_t)numbers[at]) * *scale;
        }
}

struct form;
typedef bool pack_fn(struct out *o, struct matrix *m, const struct form *f);

struct form {
    const char *name, *config;
    pack_fn *pack;                 /* false: stays as it is */
    uint32_t block_rows;           /* 8 bits: of a scale, 0 = all */
    const char *scale, *type;      /* its name and type */
    bool f8, gptq, turned, joined; /* joined: experts of one tensor stay so */
};

static bool pack8(struct out *o, struct matrix *m, const struct form *f)
{
    const bool blocked = f->block_rows > 1;
    const uint32_t rows = f->block_rows ? f->block_rows : m->rows, cols = blocked ? rows : m->cols;
    const uint32_t down = parts_of(m->rows, rows), across = parts_of(m->cols, cols);
    const size_t count = (size_t)m->rows * m->cols, scale_count = (size_t)down * across;
    uint8_t *numbers = malloc(count);
    float *scales = calloc(scale_count, sizeof(float));
    uint16_t half;
    round8(m, rows, cols, f->f8, numbers, scales);
    part(o, m, ".weight", f->f8 ? "F8_E4M3" : "I8", shape2(m->rows, m->cols), numbers, count);
    if (f->block_rows ==
        0) { /* one number, and one of the inputs, by Mistral's and transformers' names */
        half = cpu_to_bf16(scales[0]);
        part(o, m, f->scale, "BF16", json_array(), &half, 2);
        part(o, m, ".activation_scale", "BF16", json_array(), &half, 2);
    } else if (strcmp(f->type, "F32") == 0) {
        part(o, m, f->scale, "F32", shape2(down, across), scales, scale_count * 4);
    } else {
        uint16_t *halves = malloc(scale_count * 2);
        for (size_t i = 0; i < scale_count; i++)
            halves[i] = cpu_to_bf16(scales[i]);
        part(o, m, f->scale, "BF16", shape2(down, across), halves, scale_count * 2);
        free(halves);
    }
    free(numbers);
    free(scales);
    return true;
}

/* Numbers of 4 bits less 8, with a scale for each GROUP columns of a row. */
static void round4(struct matrix *m, uint32_t group, uint8_t *numbers, float *scales)
{
    const uint32_t across = parts_of(m->cols, group);
    for (uint32_t r = 0; r < m->rows; r++)
        for (uint32_t c = 0; c < m->cols; c++) {
            const size_t at = (size_t)r * m->cols + c;
            float *scale = &scales[(size_t)r * across + c / group];
            if (c % group == 0)
                *scale = bf16(most_of(m, r, 1, c, group) / 7.5f);
            const float v = fminf(fmaxf(rintf(m->w[at] / *scale) + 8, 0), 15);
            numbers[at] = (uint8_t)v;
            m->w[at] = (v - 8) * *scale;
        }
}

static bool pack_packed(struct out *o, struct matrix *m, const struct form *f)
{
    const uint32_t group = m->cols % GROUP == 0 ? GROUP : m->cols, words = parts_of(m->cols, 8);
    const uint32_t across = m->cols / group;
    uint8_t *numbers = malloc((size_t)m->rows * m->cols);
    float *scales = calloc((size_t)m->rows * across, sizeof(float));
    uint32_t *packed = calloc((size_t)m->rows * words, 4);
    uint16_t *halves = malloc((size_t)m->rows * across * 2);
    const int64_t shape[2] = {m->rows, m->cols};
    (void)f;
    round4(m, group, numbers, scales);
    for (uint32_t r = 0; r < m->rows; r++)
        for (uint32_t c = 0; c < m->cols; c++)
            packed[(size_t)r * words + c / 8] |= (uint32_t)numbers[(size_t)r * m->cols + c]
                                                 << c % 8 * 4;
    for (size_t i = 0; i < (size_t)m->rows * across; i++)
        halves[i] = cpu_to_bf16(scales[i]);
    part(o, m, ".weight_packed", "I32", shape2(m->rows, words), packed,
         (size_t)m->rows * words * 4);
    part(o, m, ".weight_scale", "BF16", shape2(m->rows, across), halves,
         (size_t)m->rows * across * 2);
    part(o, m, ".weight_shape", "I64", json_pack("[i]", 2), shape, sizeof(shape));
    free(numbers);
    free(scales);
    free(packed);
    free(halves);
    return true;
}

/* GPTQ: words along the columns; AWQ: along the rows, in an order of its own. Zeros of all are 8,
 * which GPTQ stores less 1. */
static bool pack_columns(struct out *o, struct matrix *m, const struct form *f)
{
    static const uint8_t place[] = {0, 4, 1, 5, 2, 6, 3, 7};
    const uint32_t across = parts_of(m->cols, GROUP), row_words = parts_of(m->rows, 8);
    const uint32_t down = f->gptq ? parts_of(m->cols, 8) : m->cols;
    const uint32_t wide = f->gptq ? m->rows : row_words;
    const size_t words = (size_t)down * wide, zero_words = (size_t)across * row_words,
                 scale_count = (size_t)across * m->rows;
    if (m->rows % 8 != 0 || m->cols % 8 != 0)
        return false;
    uint8_t *numbers = malloc((size_t)m->rows * m->cols);
    float *scales = calloc(scale_count, sizeof(float));
    uint32_t *packed = calloc(words, 4), *zeros = malloc(zero_words * 4);
    uint16_t *halves = malloc(scale_count * 2);
    round4(m, GROUP, numbers, scales);
    for (uint32_t r = 0; r < m->rows; r++)
        for (uint32_t c = 0; c < m->cols; c++) {
            const uint32_t v = numbers[(size_t)r * m->cols + c];
            if (f->gptq)
                packed[(size_t)(c / 8) * wide + r] |= v << c % 8 * 4;
            else
                packed[(size_t)c * wide + r / 8] |= v << place[r % 8] * 4;
        }
    memset(zeros, f->gptq ? 0x77 : 0x88, zero_words * 4);
    for (uint32_t r = 0; r < m->rows; r++)
        for (uint32_t g = 0; g < across; g++)
            halves[(size_t)g * m->rows + r] = cpu_to_f16(scales[(size_t)r * across + g]);
    part(o, m, ".qweight", "I32", shape2(down, wide), packed, words * 4);
    part(o, m, ".qzeros", "I32", shape2(across, row_words), zeros, zero_words * 4);
    part(o, m, ".scales", "F16", shape2(across, m->rows), halves, scale_count * 2);
    free(numbers);
    free(scales);
    free(packed);
    free(zeros);
    free(halves);
    return true;
}

static uint8_t nearest4(float v)
{
    uint8_t best = 0;
    for (uint8_t i = 1; i < 16; i++)
        if (fabsf(cpu_from_f4(i) - v) < fabsf(cpu_from_f4(best) - v))
            best = i;
    return best;
}

/* E2M1 with E4M3 scales for 16 columns, times a number, or with powers of two for 32. */
static void round_four(struct matrix *m, bool powers, uint8_t *codes, uint8_t *scales, float times)
{
    const uint32_t group = powers ? 32 : 16, across = m->cols / group;
    for (uint32_t r = 0; r < m->rows; r++)
        for (uint32_t c = 0; c < m->cols; c++) {
            const size_t at = (size_t)r * m->cols + c, s = (size_t)r * across + c / group;
            if (c % group == 0 && powers)
                scales[s] = (uint8_t)(127 + ilogbf(most_of(m, r, 1, c, group)) - 2);
            else if (c % group == 0)
                scales[s] = cpu_to_f8(most_of(m, r, 1, c, group) / 6 / times);
            const float scale =
                powers ? ldexpf(1.0f, scales[s] - 127) : cpu_from_f8(scales[s]) * times;
            codes[at] = nearest4(m->w[at] / scale);
            m->w[at] = cpu_from_f4(codes[at]) * scale;
        }
}

static bool pack_four(struct out *o, struct matrix *m, const struct form *f)
{
    const bool powers = strcmp(f->type, "U8") == 0, quark = powers && f->joined;
    const uint32_t group = powers ? 32 : 16;
    const size_t count = (size_t)m->rows * m->cols;
    const float times = 0.0078125f;
    if (m->cols % group != 0)
        return false;
    uint8_t *codes = malloc(count), *scales = malloc(count / group);
    round_four(m, powers, codes, scales, times);
    for (size_t i = 0; i < count / 2; i++)
        codes[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
    part(o, m, powers && !quark ? ".weight_packed" : ".weight", "U8", shape2(m->rows, m->cols / 2),
         codes, count / 2);
    part(o, m, ".weight_scale", f->type, shape2(m->rows, m->cols / group), scales, count / group);
    if (!powers)
        part(o, m, ".weight_scale_2", "F32", json_array(), &times, 4);
    free(codes);
    free(scales);
    return true;
}

/* ---- all experts of a layer in one tensor [experts, a, b] ---- */

struct cube {
    const char *name;
    float *w;
    uint32_t count, a, b;
};

static json_t *shape3(uint32_t a, uint32_t b, uint32_t c)
{
    return json_pack("[i, i, i]", (int)a, (int)b, (int)c);
}

/* NVFP4 as ModelOpt calls it in one tensor: NAME, NAME_weight_scale, NAME_weight_scale_2. */
static bool cube_four(struct out *o, const struct cube *c, bool turned)
{
    const uint32_t rows = turned ? c->b : c->a, cols = turned ? c->a : c->b;
    const size_t each = (size_t)rows * cols;
    float times[16];
    struct matrix m = {.name = c->name, .rows = rows, .cols = cols};
    if (cols % 16 != 0)
        return false;
    uint8_t *codes = malloc(each), *scales = malloc(each / 16), *all = calloc(c->count, each / 2),
            *all_scales = calloc(c->count, each / 16);
    m.w = malloc(each * sizeof(float));
    for (uint32_t e = 0; e < c->count; e++) {
        float *w = c->w + e * each;
        for (size_t i = 0; i < each; i++) /* [rows, cols] */
            m.w[i] = turned ? w[i % cols * rows + i / cols] : w[i];
        times[e] = turned ? 0.0078125f : 0.0078125f * (float)(e + 1);
        round_four(&m, false, codes, scales, times[e]);
        for (size_t i = 0; i < each; i++) {
            const size_t r = i / cols, k = i % cols;
            uint8_t *byte =
                all + e * (each / 2) + (turned ? k / 2 * rows + r : r * (cols / 2) + k / 2);
            *byte = (uint8_t)(*byte | codes[i] << k % 2 * 4);
            w[turned ? k * rows + r : i] = m.w[i];
            if (k % 16 == 0)
                all_scales[e * (each / 16) +
                           (turned ? k / 16 * rows + r : r * (cols / 16) + k / 16)] =
                    scales[r * (cols / 16) + k / 16];
        }
    }
    part(o, &m, "", "U8",
         turned ? shape3(c->count, cols / 2, rows) : shape3(c->count, rows, cols / 2), all,
         c->count * each / 2);
    part(o, &m, "_weight_scale", "F8_E4M3",
         turned ? shape3(c->count, cols / 16, rows) : shape3(c->count, rows, cols / 16), all_scales,
         c->count * each / 16);
    part(o, &m, "_weight_scale_2", "F32", turned ? json_array() : json_pack("[i]", (int)c->count),
         times, 4 * (turned ? 1 : c->count));
    free(m.w);
    free(codes);
    free(scales);
    free(all);
    free(all_scales);
    return true;
}

/* Transposed, in E4M3: FBGEMM's with a scale for each row, ModelOpt's with one for all. */
static bool cube_turned8(struct out *o, const struct cube *c, bool rows_each)
{
    const size_t each = (size_t)c->a * c->b;
    struct matrix m = {.name = c->name};
    uint8_t *all = malloc(c->count * each);
    float *scales = calloc(c->count, c->b * sizeof(float));
    for (uint32_t e = 0; e < c->count; e++)
        for (size_t i = 0; i < each; i++) {
            float *w = &c->w[e * each + i];
            float *scale = &scales[e * c->b + i % c->b];
            *scale = rows_each ? bf16(0.004f + 0.0001f * (float)(i % c->b)) : 0.0078125f;
            all[e * each + i] = cpu_to_f8(*w / *scale);
            *w = cpu_from_f8(all[e * each + i]) * *scale;
        }
    part(o, &m, "", "F8_E4M3", shape3(c->count, c->a, c->b), all, c->count * each);
    if (rows_each) /* down: [experts, rows, 1], gate_up: [experts, 1, rows] */
        part(o, &m, "_scale", "F32",
             strstr(c->name, "down") ? shape3(c->count, c->b, 1) : shape3(c->count, 1, c->b),
             scales, c->count * c->b * 4);
    else {
        part(o, &m, "_weight_scale", "F32", json_array(), scales, 4);
        part(o, &m, "_input_scale", "F32", json_array(), scales, 4);
    }
    free(all);
    free(scales);
    return true;
}

#define CT(format)                                                                                 \
    "{\"quant_method\": \"compressed-tensors\", \"format\": \"" format                             \
    "\", \"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {}}}}"
#define ALGO(name) "{\"quant_method\": \"modelopt\", \"quant_algo\": \"" name "\"}"
#define ROUND(packing)                                                                             \
    "{\"quant_method\": \"auto-round\", \"packing_format\": \"auto_round:" packing                 \
    "\", \"bits\": 4, \"group_size\": 16, \"sym\": true, \"data_type\": \"int\"}"

#define QUARK(dtype)                                                                               \
    "{\"quant_method\": \"quark\", \"global_quant_config\": {\"weight\": {\"dtype\": \"" dtype     \
    "\"}}}"

static const struct form forms[] = {
    {.name = "fp8-block",
     .config = "{\"quant_method\": \"fp8\", \"weight_block_size\": [16, 16], "
               "\"activation_scheme\": \"dynamic\"}",
     .pack = pack8,
     .block_rows = 16,
     .scale = ".weight_scale_inv",
     .type = "F32",
     .f8 = true},
    {.name = "fp8-static",
     .config = "{\"quant_method\": \"fp8\", \"weight_block_size\": null, "
               "\"activation_scheme\": \"static\"}",
     .pack = pack8,
     .scale = ".weight_scale_inv",
     .f8 = true},
    {.name = "ct-fp8",
     .config = CT("float-quantized"),
     .pack = pack8,
     .block_rows = 1,
     .scale = ".weight_scale",
     .type = "BF16",
     .f8 = true},
    {.name = "ct-int8",
     .config = CT("int-quantized"),
     .pack = pack8,
     .block_rows = 1,
     .scale = ".weight_scale",
     .type = "BF16"},
    {.name = "fbgemm-fp8",
     .config = "{\"quant_method\": \"fbgemm_fp8\", \"activation_scale_ub\": 1200.0}",
     .pack = pack8,
     .block_rows = 1,
     .scale = ".weight_scale",
     .type = "F32",
     .f8 = true,
     .joined = true},
    {.name = "modelopt-fp8",
     .config = ALGO("FP8"),
     .pack = pack8,
     .block_rows = 0,
     .scale = ".weight_scale",
     .f8 = true,
     .joined = true},
    {.name = "ct-w4a16", .config = CT("pack-quantized"), .pack = pack_packed},
    {.name = "gptq",
     .config = "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 16, \"desc_act\": false}",
     .pack = pack_columns,
     .gptq = true},
    {.name = "awq",
     .config =
         "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 16, \"version\": \"gemm\"}",
     .pack = pack_columns},
    {.name = "auto-round-gptq", .config = ROUND("auto_gptq"), .pack = pack_columns, .gptq = true},
    {.name = "auto-round-awq", .config = ROUND("auto_awq"), .pack = pack_columns},
    {.name = "nvfp4", .config = ALGO("NVFP4"), .pack = pack_four, .type = "F8_E4M3"},
    {.name = "nvfp4-joined",
     .config = ALGO("NVFP4"),
     .pack = pack_four,
     .type = "F8_E4M3",
     .joined = true},
    {.name = "quark-fp8",
     .config = QUARK("fp8_e4m3"),
     .pack = pack8,
     .block_rows = 1,
     .scale = ".weight_scale",
     .type = "F32",
     .f8 = true},
    {.name = "quark-mxfp4",
     .config = QUARK("fp4"),
     .pack = pack_four,
     .type = "U8",
     .joined = true},
    {.name = "mxfp4", .config = CT("mxfp4-pack-quantized"), .pack = pack_four, .type = "U8"},
};

static bool cube_pack(struct out *o, const struct cube *c, const struct form *f, bool turned)
{
    if (f->pack == pack_four)
        return strcmp(f->type, "U8") != 0 && cube_four(o, c, turned);
    return turned && cube_turned8(o, c, f->block_rows == 1);
}

/* ---- a model in a form ---- */

/* Products of layers, by the ends of their names. */
static bool is_product(const char *name)
{
    static const char *const ends[] = {"_proj.weight",
                                       "_proj_with_mqa.weight",
                                       "in_proj_qkv.weight",
                                       "in_proj_z.weight",
                                       "in_proj_qkvz.weight",
                                       ".w1.weight",
                                       ".w2.weight",
                                       ".w3.weight",
                                       "mlp.input_linear.weight",
                                       "mlp.output_linear.weight"};
    const size_t len = strlen(name);
    if (strstr(name, "vision") || strstr(name, "projector"))
        return false;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        if (len > strlen(ends[i]) && strcmp(name + len - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

static void plain_put(struct out *o, const struct st_tensor *t, const void *data)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; i < t->dims; i++)
        assert_int_equal(json_array_append_new(shape, json_integer((json_int_t)t->shape[i])), 0);
    put(o, t->name, "F32", shape, data, (t->end - t->begin) * 2);
}

/* The experts of one tensor as a matrix each, as llm-compressor takes them apart. */
static void apart(struct out *o, const struct st_tensor *t, float *w, const struct form *f)
{
    const uint32_t rows = (uint32_t)t->shape[1], cols = (uint32_t)t->shape[2];
    const bool both = ends_with(t->name, "gate_up_proj");
    const int stem = (int)(strrchr(t->name, '.') - t->name);
    for (uint32_t e = 0; e < t->shape[0]; e++)
        for (uint32_t half = 0; half < (both ? 2 : 1); half++) {
            char name[128];
            struct matrix m = {name, w + (size_t)e * rows * cols, both ? rows / 2 : rows, cols};
            m.w += (size_t)half * m.rows * cols;
            (void)snprintf(name, sizeof(name), "%.*s.%u.%s", stem, t->name, e,
                           !both  ? "down_proj"
                           : half ? "up_proj"
                                  : "gate_proj");
            if (f->pack(o, &m, f)) {
                o->packed++;
                continue;
            }
            char whole[144];
            (void)snprintf(whole, sizeof(whole), "%s.weight", name);
            put(o, whole, "F32", shape2(m.rows, m.cols), m.w, (size_t)m.rows * m.cols * 4);
        }
}

/* One tensor: into `packed` as the form has it, into `plain` as the values that it then has. */
static void convert(const struct st_tensor *t, float *w, const struct form *f, struct out *packed,
                    struct out *plain)
{
    char name[128];
    struct matrix m = {name, w, (uint32_t)t->shape[0], (uint32_t)(t->dims > 1 ? t->shape[1] : 1)};
    struct cube c = {t->name, w, m.rows, m.cols, (uint32_t)(t->dims > 2 ? t->shape[2] : 1)};
    const bool experts = t->dims == 3 && (ends_with(t->name, "experts.gate_up_proj") ||
                                          ends_with(t->name, "experts.down_proj"));
    const bool turned = experts && strstr(t->name, "feed_forward") != NULL; /* Llama 4's */
    bool done = false;

    (void)snprintf(name, sizeof(name), "%.*s",
                   (int)(strlen(t->name) - (ends_with(t->name, ".weight") ? 7 : 0)), t->name);
    if (t->dims == 2 && is_product(t->name)) {
        done = f->pack(packed, &m, f);
    } else if (experts && f->joined) {
        done = cube_pack(packed, &c, f, turned);
    } else if (experts && !turned) {
        apart(packed, t, w, f);
        plain_put(plain, t, w);
        return;
    }
    packed->packed += done;
    if (!done)
        plain_put(packed, t, w);
    plain_put(plain, t, w);
}

static void config_copy(const struct make *m, const char *model, const char *quantization)
{
    char path[160], *text;
    (void)snprintf(path, sizeof(path), MODELS "%s/config.json", model);
    json_t *config = json_load_file(path, 0, NULL);
    assert_non_null(config);
    if (quantization) {
        json_t *q = json_loads(quantization, 0, NULL);
        assert_non_null(q);
        assert_int_equal(json_object_set_new(config, "quantization_config", q), 0);
    }
    text = json_dumps(config, 0);
    make_text(m, "config.json", text);
    free(text);
    json_decref(config);
}

/* Writes both directories; how many matrices are packed. */
static uint32_t write_both(const char *model, const struct form *f, const struct make *packed_dir,
                           const struct make *plain_dir)
{
    char dir[128];
    struct ek_fault fault = {.msg = ""};
    struct ek_weight_file file;
    struct st_set set = {0};
    struct out packed = {.head = json_object()}, plain = {.head = json_object()};

    (void)snprintf(dir, sizeof(dir), MODELS "%s", model);
    if (model_file_map(dir, "model.safetensors", &file, NULL, &fault) < 0 ||
        st_parse(&set, "model.safetensors", file.data, file.size_bytes, &fault) < 0)
        fail_msg("%s: %s", model, fault.msg);
    for (uint32_t i = 0; i < set.count; i++) {
        const struct st_tensor *t = &set.tensor[i];
        const size_t elements = (t->end - t->begin) / 2;
        const uint16_t *from = (const uint16_t *)((const char *)file.data + t->begin);
        float *w = malloc((elements + 1) * sizeof(float));
        assert_string_equal(t->type, "BF16");
        for (size_t k = 0; k < elements; k++)
            w[k] = cpu_from_bf16(from[k]);
        convert(t, w, f, &packed, &plain);
        free(w);
    }
    const uint32_t count = packed.packed;
    out_write(&packed, packed_dir);
    out_write(&plain, plain_dir);
    config_copy(packed_dir, model, f->config);
    config_copy(plain_dir, model, NULL);
    st_done(&set);
    model_file_unmap(&file);
    return count;
}

/* ---- computing ---- */

/* What follows each of some tokens; how many weights were quantized. */
static uint32_t compute(const char *dir, const char *what, struct ek_result_seq *ret_results)
{
    const struct ek_backend *b = ek_backend_find("cpu", NULL);
    const struct ek_open_params open = {.threads = 1};
    const struct ek_kv_params kv = {1 + BLOCKS, 0, BLOCK, 1};
    const struct ek_step_ceiling ceiling = {.rows = TOKENS, .seqs = 1, .entries = BLOCKS};
    struct ek_fault fault = {.msg = ""};
    struct ek_device *d;
    struct model *m = NULL;

    if (model_open(dir, MODEL_DTYPE_F32, &m, &fault) < 0)
        fail_msg("%s: %s", what, fault.msg);
    const uint32_t quants = m->graph.quant_count;
    model_serve(m, m->max_model_len);
    struct ek_plan_request q = {
        .graph = &m->graph, .ceiling = ceiling, .logit_rows = 1, .block_size = BLOCK};
    assert_int_equal(b->open(&open, &d, &fault), 0);
    if (b->load(d, &q, &m->files, NULL, NULL, &fault) < 0)
        fail_msg("%s: %s", what, fault.msg);
    assert_int_equal(b->kv_open(d, &kv), 0);
    struct ek_step *s = calloc(1, ek_step_size(&ceiling));
    struct ek_result *r = calloc(1, ek_result_size(1));
    for (uint32_t at = 0; at < TOKENS; at++) {
        ek_step_layout(s, &ceiling);
        if (at == 0)
            ek_step_sets(s)[s->sets++] =
                (struct ek_slot_set){.sampling.top_p = 1.0f, .top = EK_TOP_MOST};
        ek_step_seqs(s)[s->seqs++] = (struct ek_step_seq){.rows = 1,
                                                          .context = at + 1,
                                                          .blocks = at / BLOCK + 1,
                                                          .prompt = TOKENS,
                                                          .sample = true};
        s->logit_rows = s->rows = 1;
        for (uint32_t i = 0; i <= at / BLOCK; i++)
            ek_step_tables(s)[s->entries++] = 1 + i;
        ek_step_tokens(s)[0] = (int32_t)(3 + at * 7 % 50);
        ek_step_positions(s)[0] = at;
        ek_step_kv_slots(s)[0] = BLOCK + at;
        s->id = at + 1;
        assert_int_equal(b->forward(d, s), 0);
        assert_int_equal(b->sample(d, s, NULL), 0);
        assert_int_equal(b->wait(d, s->id, r, ek_result_size(1), 60000000), 0);
        assert_int_equal(r->error, 0);
        ret_results[at] = r->seq[0];
    }
    b->close(d);
    free(s);
    free(r);
    model_free(m);
    return quants;
}

static void check(const char *model, const struct form *f)
{
    static struct ek_result_seq is[TOKENS], should[TOKENS];
    struct make packed = {.dir = ""}, plain = {.dir = ""};
    char what[96];
    float worst = 0;

    (void)snprintf(what, sizeof(what), "%s, %s", model, f->name);
    (void)snprintf(packed.dir, sizeof(packed.dir), "/tmp/evenkeel-forms-XXXXXX");
    (void)snprintf(plain.dir, sizeof(plain.dir), "/tmp/evenkeel-forms-XXXXXX");
    assert_non_null(mkdtemp(packed.dir));
    assert_non_null(mkdtemp(plain.dir));
    const uint32_t matrices = write_both(model, f, &packed, &plain);
    const uint32_t quants = compute(packed.dir, what, is);
    (void)compute(plain.dir, what, should);
    if (matrices < 4 || quants < matrices)
        fail_msg("%s: %u matrices are packed, %u are read as such", what, matrices, quants);
    for (uint32_t at = 0; at < TOKENS; at++) {
        float most = fabsf(should[at].lse);
        for (uint32_t i = 0; i < should[at].top; i++)
            most = fmaxf(most, fabsf(should[at].top_logit[i]));
        assert_int_equal(is[at].top, should[at].top);
        float off = fabsf(is[at].lse - should[at].lse) / most;
        for (uint32_t i = 0; i < is[at].top; i++)
            off = fmaxf(off, fabsf(is[at].top_logit[i] - should[at].top_logit[i]) / most);
        if (!(off <= TOLERANCE))
            fail_msg("%s: off by %g of the largest logit at position %u", what, (double)off, at);
        worst = fmaxf(worst, off);
    }
    print_message("%-40s %3u matrices, off by at most %.1e\n", what, matrices, (double)worst);
    make_done(&packed);
    make_done(&plain);
}

static const char *const models[] = {"qwen3-next",
                                     "qwen3.5",
                                     "qwen3.5-moe",
                                     "sees-qwen3.5",
                                     "gemma4",
                                     "gemma4-moe",
                                     "sees-gemma4",
                                     "glm4",
                                     "glm4-moe",
                                     "glm4-moe-lite",
                                     "deepseek-v2",
                                     "deepseek-v3",
                                     "granite-hybrid",
                                     "granite-hybrid-dense",
                                     "nemotron-h",
                                     "nemotron-h-moe",
                                     "nemotron-h-latent",
                                     "lfm2",
                                     "lfm2-moe",
                                     "llama4",
                                     "ministral3",
                                     "sees-ministral3",
                                     "seed-oss",
                                     "ernie",
                                     "ernie-moe",
                                     "exaone4",
                                     "exaone-moe",
                                     "hunyuan",
                                     "hunyuan-moe",
                                     "minimax-m2"};

static void test_forms(void **state)
{
    (void)state;
    const char *word = getenv("FORMS");
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
        for (size_t k = 0; k < sizeof(forms) / sizeof(forms[0]); k++)
            if (!word || strstr(models[i], word) || strstr(forms[k].name, word))
                check(models[i], &forms[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
