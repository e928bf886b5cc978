/*
 * How the tools that publish quantized models round matrices and store them (published_forms.h): 8
 * bits with scales for blocks, rows or a tensor, packed numbers of 4 bits, GPTQ's and AWQ's
 * columns, E2M1 with scales for groups, and the experts of a layer in one tensor. Called by
 * test_forms.
 */
#include "tests/unit/model/published_forms.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/num.h"

void form_put(struct form_out *o, const char *name, const char *type, json_t *shape,
              const void *bytes, size_t count)
{
    const json_int_t begin = (json_int_t)o->data.len, end = begin + (json_int_t)count;
    json_t *t = json_pack("{s:s, s:o, s:[I, I]}", "dtype", type, "shape", shape, "data_offsets",
                          begin, end);
    assert_non_null(t);
    assert_int_equal(json_object_set_new(o->head, name, t), 0);
    assert_int_equal(ek_buf_add(&o->data, bytes, count), 0);
}

json_t *form_shape2(uint32_t a, uint32_t b)
{
    return json_pack("[i, i]", (int)a, (int)b);
}

static void part(struct form_out *o, const struct form_matrix *m, const char *suffix,
                 const char *type, json_t *shape, const void *bytes, size_t count)
{
    char name[160];
    assert_true(snprintf(name, sizeof(name), "%s%s", m->name, suffix) < (int)sizeof(name));
    form_put(o, name, type, shape, bytes, count);
}

static float bf16(float f)
{
    return cpu_from_bf16(cpu_to_bf16(f));
}

/* The largest magnitude of a block. */
static float most_of(const struct form_matrix *m, uint32_t row, uint32_t rows, uint32_t col,
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
static void round8(struct form_matrix *m, uint32_t block_rows, uint32_t block_cols, bool f8,
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

static bool pack8(struct form_out *o, struct form_matrix *m, const struct form *f)
{
    const bool blocked = f->block_rows > 1;
    const uint32_t rows = f->block_rows ? f->block_rows : m->rows, cols = blocked ? rows : m->cols;
    const uint32_t down = parts_of(m->rows, rows), across = parts_of(m->cols, cols);
    const size_t count = (size_t)m->rows * m->cols, scale_count = (size_t)down * across;
    uint8_t *numbers = malloc(count);
    float *scales = calloc(scale_count, sizeof(float));
    uint16_t half;
    round8(m, rows, cols, f->f8, numbers, scales);
    part(o, m, ".weight", f->f8 ? "F8_E4M3" : "I8", form_shape2(m->rows, m->cols), numbers, count);
    if (f->block_rows ==
        0) { /* one number, and one of the inputs, by Mistral's and transformers' names */
        half = cpu_to_bf16(scales[0]);
        part(o, m, f->scale, "BF16", json_array(), &half, 2);
        part(o, m, ".activation_scale", "BF16", json_array(), &half, 2);
    } else if (strcmp(f->type, "F32") == 0) {
        part(o, m, f->scale, "F32", form_shape2(down, across), scales, scale_count * 4);
    } else {
        uint16_t *halves = malloc(scale_count * 2);
        for (size_t i = 0; i < scale_count; i++)
            halves[i] = cpu_to_bf16(scales[i]);
        part(o, m, f->scale, "BF16", form_shape2(down, across), halves, scale_count * 2);
        free(halves);
    }
    free(numbers);
    free(scales);
    return true;
}

/* Numbers of 4 bits less 8, with a scale for each FORM_GROUP columns of a row. */
static void round4(struct form_matrix *m, uint32_t group, uint8_t *numbers, float *scales)
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

static bool pack_packed(struct form_out *o, struct form_matrix *m, const struct form *f)
{
    const uint32_t group = m->cols % FORM_GROUP == 0 ? FORM_GROUP : m->cols,
                   words = parts_of(m->cols, 8);
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
    part(o, m, ".weight_packed", "I32", form_shape2(m->rows, words), packed,
         (size_t)m->rows * words * 4);
    part(o, m, ".weight_scale", "BF16", form_shape2(m->rows, across), halves,
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
static bool pack_columns(struct form_out *o, struct form_matrix *m, const struct form *f)
{
    static const uint8_t place[] = {0, 4, 1, 5, 2, 6, 3, 7};
    const uint32_t across = parts_of(m->cols, FORM_GROUP), row_words = parts_of(m->rows, 8);
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
    round4(m, FORM_GROUP, numbers, scales);
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
    part(o, m, ".qweight", "I32", form_shape2(down, wide), packed, words * 4);
    part(o, m, ".qzeros", "I32", form_shape2(across, row_words), zeros, zero_words * 4);
    part(o, m, ".scales", "F16", form_shape2(across, m->rows), halves, scale_count * 2);
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
static void round_four(struct form_matrix *m, bool powers, uint8_t *codes, uint8_t *scales,
                       float times)
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

static bool pack_four(struct form_out *o, struct form_matrix *m, const struct form *f)
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
    part(o, m, powers && !quark ? ".weight_packed" : ".weight", "U8",
         form_shape2(m->rows, m->cols / 2), codes, count / 2);
    part(o, m, ".weight_scale", f->type, form_shape2(m->rows, m->cols / group), scales,
         count / group);
    if (!powers)
        part(o, m, ".weight_scale_2", "F32", json_array(), &times, 4);
    free(codes);
    free(scales);
    return true;
}

/* ---- all experts of a layer in one tensor [experts, a, b] ---- */

static json_t *shape3(uint32_t a, uint32_t b, uint32_t c)
{
    return json_pack("[i, i, i]", (int)a, (int)b, (int)c);
}

/* NVFP4 as ModelOpt calls it in one tensor: NAME, NAME_weight_scale, NAME_weight_scale_2. */
static bool cube_four(struct form_out *o, const struct form_cube *c, bool turned)
{
    const uint32_t rows = turned ? c->b : c->a, cols = turned ? c->a : c->b;
    const size_t each = (size_t)rows * cols;
    float times[16];
    struct form_matrix m = {.name = c->name, .rows = rows, .cols = cols};
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
static bool cube_turned8(struct form_out *o, const struct form_cube *c, bool rows_each)
{
    const size_t each = (size_t)c->a * c->b;
    struct form_matrix m = {.name = c->name};
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

const struct form published_forms[PUBLISHED_FORMS] = {
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

bool form_cube_pack(struct form_out *o, const struct form_cube *c, const struct form *f,
                    bool turned)
{
    if (f->pack == pack_four)
        return strcmp(f->type, "U8") != 0 && cube_four(o, c, turned);
    return turned && cube_turned8(o, c, f->block_rows == 1);
}
