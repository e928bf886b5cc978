/*
 * Finding the tensors of quantized matrices. Shapes are checked here against config.json, ranges by
 * the backend against the files. Called by graph_weights.c and graph_matrices.c.
 */
#include "server/model/quant.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"

#define NO_FILE UINT32_MAX

#define VIEWS_MOST 16u /* suffixes that are asked for of one matrix */

/* The tensors of one matrix among many of three dimensions: as if they lay alone. */
struct views {
    struct quant_slice of;
    struct st_tensor view[VIEWS_MOST];
    uint32_t count;
};

struct find {
    const struct st_set *tensors;
    const struct config_quant_params *p;
    const char *name;
    uint32_t rows, cols;
    struct ek_quant *q;
    struct ek_fault *fault;
    struct views *views; /* NULL: each tensor is of one matrix */
};

/* The part of a tensor that is the matrix's: its first dimension counts the matrices. */
static struct st_tensor *view_of(struct views *v, struct st_tensor *t)
{
    assert(v->count < VIEWS_MOST);
    struct st_tensor *view = &v->view[v->count++];
    *view = *t;
    if (t->dims == 0 || (t->dims == 1 && t->shape[0] == 1)) {
        t->used = true;
        return view; /* one number for all of them */
    }
    view->dims = ST_DIMS_MOST; /* which fits nowhere */
    if (t->shape[0] != v->of.count)
        return view;
    const uint64_t bytes = (t->end - t->begin) / v->of.count;
    t->used = true;
    view->dims = t->dims - 1;
    memmove(view->shape, view->shape + 1, view->dims * sizeof(view->shape[0]));
    view->begin = t->begin + v->of.index * bytes;
    view->end = view->begin + bytes;
    return view;
}

static struct st_tensor *find_named(const struct find *f, const char *between, const char *end)
{
    char name[128];
    const int n = snprintf(name, sizeof(name), "%s%s%s", f->name, between, end);
    return n > 0 && (size_t)n < sizeof(name) ? st_find(f->tensors, name) : NULL;
}

/* Of many matrices NAME.weight_scale may be called NAME_scale or NAME_weight_scale, and NAME.weight
 * NAME. */
static struct st_tensor *quant_get(const struct find *f, const char *suffix)
{
    static const char WEIGHT[] = ".weight";
    struct st_tensor *t = find_named(f, "", suffix);
    if (!f->views)
        return t;
    if (!t && strncmp(suffix, WEIGHT, sizeof(WEIGHT) - 1) == 0)
        t = find_named(f, "", suffix + sizeof(WEIGHT) - 1);
    if (!t)
        t = find_named(f, "_", suffix + 1);
    return t ? view_of(f->views, t) : NULL;
}

static int wrong(const struct find *f, const struct st_tensor *t, const char *why)
{
    return ek_fault_set(f->fault, t->name,
                        "%s: tensor '%.128s' has %s for quantized weights of [%u, %u]; use the "
                        "files of one model",
                        st_file_name(f->tensors, t), t->name, why, f->rows, f->cols);
}

static bool is_type(const struct st_tensor *t, const char *type)
{
    return strcmp(t->type, type) == 0;
}

static void quant_take(struct st_tensor *t, struct ek_quant_range *r)
{
    t->used = true;
    *r = (struct ek_quant_range){.file = t->file, .dtype = t->dtype, .offset_bytes = t->begin};
}

/* Which group each column belongs to. Most files say what is so without being said: one group after
 * the other; then there is no order to keep. */
static void take_order(const struct find *f, struct st_tensor *t)
{
    const struct ek_weight_file *file = &f->tensors->file[t->file];
    const char *at = (const char *)file->data + t->begin;
    bool plain = t->begin <= file->size_bytes && file->size_bytes - t->begin >= 4ull * f->cols;

    for (uint32_t i = 0; plain && i < f->cols; i++) {
        uint32_t group;
        memcpy(&group, at + (size_t)i * 4, 4);
        plain = group == i / f->q->block_cols;
    }
    quant_take(t, &f->q->groups);
    if (plain)
        f->q->groups.file = NO_FILE;
}

/* A tensor that must be there, of that type and shape. */
static int need(const struct find *f, const char *suffix, const char *type, uint64_t rows,
                uint64_t cols, struct ek_quant_range *r)
{
    struct st_tensor *t = quant_get(f, suffix);
    if (!t)
        return ek_fault_set(f->fault, f->name,
                            "tensor '%.100s%s' is missing beside its quantized weights; download "
                            "the model again",
                            f->name, suffix);
    if (!is_type(t, type) && !(type[0] == '\0' && t->usable))
        return wrong(f, t, "another type than is expected");
    if (t->dims != 2 || t->shape[0] != rows || t->shape[1] != cols)
        return wrong(f, t, "a shape that does not fit");
    quant_take(t, r);
    return 0;
}

static uint64_t parts(uint64_t count, uint64_t block)
{
    return count / block + (count % block != 0);
}

/* Scales beside plain numbers: one, one per row, or one per block. */
static int scales(const struct find *f, struct st_tensor *t)
{
    struct ek_quant *q = f->q;
    const uint64_t rows = t->dims > 0 ? t->shape[0] : 1, cols = t->dims > 1 ? t->shape[1] : 1;

    if (!t->usable || t->dims > 2)
        return wrong(f, t, "another type than is expected");
    q->block_cols = f->cols;
    if (rows == 1 && cols == 1)
        q->block_rows = f->rows;
    else if (rows == f->rows && cols == 1)
        q->block_rows = 1;
    else if (rows == f->rows && cols > 1 && f->cols % cols == 0) {
        q->block_rows = 1;
        q->block_cols = (uint32_t)(f->cols / cols);
    } else {
        q->block_rows = f->p->block_rows;
        q->block_cols = f->p->block_cols;
        if (rows != parts(f->rows, q->block_rows) || cols != parts(f->cols, q->block_cols)) {
            if (!f->views || rows != 2 || f->rows % 2 != 0 || cols != 1)
                return wrong(f, t, "a shape that does not fit");
            q->block_rows = f->rows / 2; /* one for gate and one for up */
            q->block_cols = f->cols;
        }
    }
    quant_take(t, &q->scales);
    return 1;
}

/* Zero points that take nothing away, as some tools write them for symmetric weights. */
static bool all_zero(const struct st_set *s, const struct st_tensor *t)
{
    const char *bytes = (const char *)s->file[t->file].data;

    for (uint64_t at = t->begin; at < t->end; at++)
        if (bytes[at] != 0)
            return false;
    return true;
}

/* "weight" holds the numbers themselves, of 8 bits. */
static int find_plain(const struct find *f, struct st_tensor *t)
{
    struct st_tensor *s = quant_get(f, ".weight_scale_inv"),
                     *z = quant_get(f, ".weight_zero_point");
    if (!s)
        s = quant_get(f, ".weight_scale");
    if (!s)
        return ek_fault_set(f->fault, t->name,
                            "%s: tensor '%.128s' is quantized but has no weight_scale beside it; "
                            "download the model again",
                            st_file_name(f->tensors, t), t->name);
    if (t->dims != 2 || t->shape[0] != f->rows || t->shape[1] != f->cols)
        return wrong(f, t, "a shape that does not fit");
    f->q->kind = is_type(t, "I8") ? EK_QUANT_I8 : EK_QUANT_F8;
    f->q->bits = 8;
    quant_take(t, &f->q->numbers);
    int r = scales(f, s);
    if (r > 0 && z && f->q->kind == EK_QUANT_I8) {
        if (!is_type(z, "I8") || z->dims != s->dims ||
            memcmp(z->shape, s->shape, s->dims * sizeof(s->shape[0])) != 0)
            return wrong(f, z, "a type or shape that does not fit");
        if (!all_zero(f->tensors, z))
            quant_take(z, &f->q->zeros);
    }
    return r;
}

/* Gate and up that lie joined may have a number each: that of the half which is asked for. */
static struct st_tensor half_of(const struct find *f, const struct st_tensor *t)
{
    const enum quant_half half = f->views ? f->views->of.half : HALF_NONE;
    struct st_tensor one = *t;
    if (half == HALF_NONE || t->dims == 0 || t->dims == ST_DIMS_MOST || t->shape[0] != 2)
        return one;
    const uint64_t bytes = (t->end - t->begin) / 2;
    one.shape[0] = 1;
    one.begin += half == HALF_UP ? bytes : 0;
    one.end = one.begin + bytes;
    return one;
}

/* One number, not 0; 1 where there is no such tensor. */
static int one_number(const struct find *f, const char *suffix, float *ret_number)
{
    struct st_tensor *t = quant_get(f, suffix);
    *ret_number = 1.0f;
    if (!t)
        return 0;
    t->used = true;
    const struct st_tensor one = half_of(f, t);
    if (st_number(f->tensors, &one, ret_number) < 0 || !isfinite(*ret_number) ||
        *ret_number == 0.0f)
        return wrong(f, t, "no number that scales could be multiplied with");
    return 0;
}

/* Numbers of E2M1, two in a byte: NVFP4 with scales of E4M3 for 16 columns, which ModelOpt
 * multiplies with a number for the matrix and compressed-tensors divides by one; MXFP4 with powers
 * of two for 32. */
static int find_four(const struct find *f, struct st_tensor *t)
{
    struct ek_quant *q = f->q;
    struct st_tensor *s = quant_get(f, ".weight_scale");
    const bool powers = s && (is_type(s, "U8") || is_type(s, "F8_E8M0"));
    float times, by;

    if (t->dims != 2 || t->shape[0] != f->rows || t->shape[1] != f->cols / 2 || f->cols % 2 != 0)
        return wrong(f, t, "a shape that does not fit");
    if (quant_get(f, ".weight_zero_point"))
        return wrong(f, t, "zeros, which nothing here knows,");
    if (!s || (!powers && !is_type(s, "F8_E4M3")))
        return s ? wrong(f, s, "another type than is expected")
                 : wrong(f, t, "no weight_scale beside it");
    q->kind = powers ? EK_QUANT_MXFP4 : EK_QUANT_NVFP4;
    q->bits = 4;
    q->block_rows = q->row_step = 1;
    q->block_cols = powers ? EK_MXFP4_GROUP : EK_NVFP4_GROUP;
    if (s->dims != 2 || s->shape[0] != f->rows || s->shape[1] != parts(f->cols, q->block_cols))
        return wrong(f, s, "a shape that does not fit");
    quant_take(t, &q->numbers);
    quant_take(s, &q->scales);
    int r = one_number(f, ".weight_scale_2", &times);
    if (r == 0)
        r = one_number(f, ".weight_global_scale", &by);
    q->times = r == 0 ? times / by : 1.0f;
    return r < 0 ? r : 1;
}

/* So many bits of each of `count` numbers fill so many words; of fewer than 32 numbers more than
 * one width does, then the usual one. 0: none. */
static uint32_t bits_in(uint64_t count, uint64_t words)
{
    static const uint8_t usual[] = {4, 8, 2, 3, 6, 5, 7, 1};

    for (size_t i = 0; i < sizeof(usual); i++)
        if (parts(count * usual[i], 32) == words)
            return usual[i];
    return 0;
}

static int find_packed(const struct find *f, struct st_tensor *t)
{
    struct ek_quant *q = f->q;
    struct st_tensor *s = quant_get(f, ".weight_scale"), *z = quant_get(f, ".weight_zero_point");
    struct st_tensor *groups = quant_get(f, ".weight_g_idx");

    q->kind = EK_QUANT_PACKED;
    if (!is_type(t, "I32") || t->dims != 2 || t->shape[0] != f->rows || t->shape[1] > f->cols)
        return wrong(f, t, "a type or shape that does not fit");
    q->bits = bits_in(f->cols, t->shape[1]);
    if (q->bits == 0)
        return wrong(f, t, "a shape that does not fit");
    quant_take(t, &q->numbers);
    if (!s)
        return wrong(f, t, "no weight_scale beside it");
    int r = scales(f, s);
    if (r < 0 || q->block_rows != 1)
        return r < 0 ? r : wrong(f, s, "a shape that does not fit");
    const uint64_t count = parts(f->cols, q->block_cols);
    if (z)
        r = need(f, ".weight_zero_point", "I32", parts((uint64_t)f->rows * q->bits, 32), count,
                 &q->zeros);
    if (r >= 0 && groups) {
        if (!is_type(groups, "I32") || groups->dims != 1 || groups->shape[0] != f->cols)
            return wrong(f, groups, "a type or shape that does not fit");
        take_order(f, groups);
    }
    return r < 0 ? r : 1;
}

/* GPTQ and AWQ: qweight, qzeros and scales, all with the output along the second dimension. */
static int find_columns(const struct find *f, struct st_tensor *t)
{
    struct ek_quant *q = f->q;
    const bool gptq = f->p->method == QUANT_GPTQ;
    const uint64_t along = gptq ? f->cols : f->rows, words = gptq ? t->shape[0] : t->shape[1];

    q->kind = gptq ? EK_QUANT_GPTQ : EK_QUANT_AWQ;
    q->bits = t->dims == 2 ? bits_in(along, words) : 0;
    q->block_rows = 1;
    q->block_cols = f->p->group ? f->p->group : f->cols;
    q->zero_add = gptq && !f->p->zeros_as_they_are ? 1 : 0;
    if (q->bits == 0 || words > along || (!gptq && (q->bits != 4 || f->rows % 8 != 0)))
        return wrong(f, t, "a type or shape that does not fit");
    const uint64_t groups = parts(f->cols, q->block_cols);
    const uint64_t row_words = parts((uint64_t)f->rows * q->bits, 32);
    int r = need(f, ".qweight", "I32", gptq ? words : f->cols, gptq ? f->rows : words, &q->numbers);
    if (r == 0)
        r = need(f, ".scales", "", groups, f->rows, &q->scales);
    if (r == 0)
        r = need(f, ".qzeros", "I32", groups, row_words, &q->zeros);
    struct st_tensor *order = quant_get(f, ".g_idx");
    if (r == 0 && order) {
        if (!is_type(order, "I32") || order->dims != 1 || order->shape[0] != f->cols)
            return wrong(f, order, "a type or shape that does not fit");
        take_order(f, order);
    }
    return r < 0 ? r : 1;
}

static int matrix_find(struct find *f)
{
    const enum config_quant method = f->p->method;
    struct st_tensor *t = NULL;
    *f->q = (struct ek_quant){.rows = f->rows,
                              .cols = f->cols,
                              .numbers.file = NO_FILE,
                              .scales.file = NO_FILE,
                              .zeros.file = NO_FILE,
                              .groups.file = NO_FILE};
    if (method == QUANT_NONE)
        return 0;
    if ((t = quant_get(f, ".weight")) != NULL) {
        if (is_type(t, "I8") || is_type(t, "F8_E4M3"))
            return find_plain(f, t);
        return is_type(t, "U8") ? find_four(f, t) : 0;
    }
    if (method == QUANT_COMPRESSED && (t = quant_get(f, ".weight_packed")) != NULL)
        return is_type(t, "U8") ? find_four(f, t) : find_packed(f, t);
    if ((method == QUANT_GPTQ || method == QUANT_AWQ) && (t = quant_get(f, ".qweight")) != NULL)
        return find_columns(f, t);
    return 0;
}

int quant_find(const struct st_set *tensors, const struct config_quant_params *p, const char *name,
               uint32_t rows, uint32_t cols, struct ek_quant *ret_quant, struct ek_fault *fault)
{
    struct ek_quant q;
    struct find f = {tensors, p, name, rows, cols, &q, fault, NULL};
    const int r = matrix_find(&f);
    if (r > 0)
        *ret_quant = q;
    return r;
}

int quant_find_slice(const struct st_set *tensors, const struct config_quant_params *p,
                     const struct quant_slice *slice, struct ek_quant *ret_quant,
                     struct ek_fault *fault)
{
    struct ek_quant q;
    struct views views = {.of = *slice};
    struct find f = {tensors, p, slice->name, slice->rows, slice->cols, &q, fault, &views};
    const int r = matrix_find(&f);
    if (r > 0)
        *ret_quant = q;
    return r;
}

/* Scales beside transposed numbers: of E2M1 one for each group of columns and row, else one for
 * each row, or one. */
static int turned_scales(const struct find *f, const struct quant_lane *l, struct st_tensor *s)
{
    struct ek_quant *q = f->q;
    uint64_t count = 1;
    for (uint32_t i = 0; i < s->dims && s->dims < ST_DIMS_MOST; i++)
        count *= s->shape[i];
    quant_take(s, &q->scales);
    if (q->bits == 4) {
        if (s->dims != 2 || s->shape[0] != parts(f->cols, q->block_cols) || s->shape[1] != l->all)
            return wrong(f, s, "a shape that does not fit");
        q->scales.offset_bytes += l->first;
        return 0;
    }
    if (!s->usable || s->dims == ST_DIMS_MOST || (count != 1 && count != l->all))
        return wrong(f, s, "a type or shape that does not fit");
    q->block_rows = count == 1 ? f->rows : 1;
    q->block_cols = f->cols;
    if (count > 1)
        q->scales.offset_bytes += (uint64_t)l->first * (ek_dtype_bits(s->dtype) / 8);
    return 0;
}

static int turned_find(const struct find *f, const struct quant_lane *l)
{
    struct ek_quant *q = f->q;
    struct st_tensor *t = quant_get(f, ".weight"), *s = quant_get(f, ".weight_scale");
    const bool four = t && is_type(t, "U8");
    float times = 1.0f;
    if (!t || (!four && !is_type(t, "F8_E4M3") && !is_type(t, "I8")))
        return 0;
    if (!s)
        return wrong(f, t, "no scale beside it");
    if (quant_get(f, ".weight_zero_point"))
        return wrong(f, t, "zeros, which are not read here");
    const bool powers = four && is_type(s, "U8");
    if (four && !powers && !is_type(s, "F8_E4M3"))
        return wrong(f, s, "another type than is expected");
    if (t->dims != 2 || t->shape[0] != (four ? f->cols / 2 : f->cols) || t->shape[1] != l->all ||
        (four && f->cols % 2 != 0))
        return wrong(f, t, "a shape that does not fit");
    *q = (struct ek_quant){.kind = powers                  ? EK_QUANT_MXFP4
                                   : four                  ? EK_QUANT_NVFP4
                                   : is_type(t, "F8_E4M3") ? EK_QUANT_F8
                                                           : EK_QUANT_I8,
                           .rows = f->rows,
                           .cols = f->cols,
                           .bits = four ? 4 : 8,
                           .block_rows = 1,
                           .block_cols = powers ? EK_MXFP4_GROUP : EK_NVFP4_GROUP,
                           .row_step = 1,
                           .col_step = l->all,
                           .zeros.file = NO_FILE,
                           .groups.file = NO_FILE};
    quant_take(t, &q->numbers);
    q->numbers.offset_bytes += l->first;
    int r = turned_scales(f, l, s);
    if (r == 0)
        r = one_number(f, ".weight_scale_2", &times);
    q->times = times;
    return r < 0 ? r : 1;
}

int quant_find_lane(const struct st_set *tensors, const struct config_quant_params *p,
                    const struct quant_lane *lane, struct ek_quant *ret_quant,
                    struct ek_fault *fault)
{
    const struct quant_slice *s = &lane->of;
    struct ek_quant q;
    struct views views = {.of = *s};
    struct find f = {tensors, p, s->name, s->rows, s->cols, &q, fault, &views};
    const int r = p->method == QUANT_NONE ? 0 : turned_find(&f, lane);
    if (r > 0)
        *ret_quant = q;
    return r;
}

bool quant_rounds_input(const struct st_set *tensors, const struct config_quant_params *p,
                        const struct ek_quant *q, const char *name, float *ret_scale)
{
    const struct find f = {.tensors = tensors, .name = name};
    const bool f8 = p->inputs >= INPUTS_F8_TOKEN, whole = q->block_cols >= q->cols;
    float scale = 0.0f;

    if (p->inputs == INPUTS_AS_THEY_ARE || q->kind != (f8 ? EK_QUANT_F8 : EK_QUANT_I8) ||
        q->zeros.file != NO_FILE)
        return false;
    if (f8 && p->inputs != INPUTS_F8_GROUP && !whole)
        return false;
    if (p->inputs == INPUTS_F8_GROUP && q->block_cols != QUANT_INPUT_GROUP &&
        q->cols > QUANT_INPUT_GROUP)
        return false;
    if (p->inputs == INPUTS_TENSOR || p->inputs == INPUTS_F8_TENSOR) {
        struct st_tensor *t = quant_get(&f, ".input_scale");
        if (!t) /* as transformers calls it */
            t = quant_get(&f, ".activation_scale");
        if (!t || st_number(tensors, t, &scale) < 0 || !isfinite(scale) || !(scale > 0.0f))
            return false;
    }
    *ret_scale = scale;
    return true;
}

bool quant_harmless(const char *name)
{
    static const char *const ends[] = {".input_scale",
                                       ".input_zero_point",
                                       ".weight_shape",
                                       ".k_scale",
                                       ".v_scale",
                                       ".q_scale",
                                       ".output_scale",
                                       ".prob_scale",
                                       ".input_scale_ub",
                                       ".activation_scale",
                                       ".weight_zero_point",
                                       ".input_global_scale",
                                       "_proj_activation_scale",
                                       "_proj_shape",
                                       "_proj_input_scale",
                                       "_proj_input_global_scale",
                                       "_proj_input_zero_point",
                                       "_proj_input_scale_ub"};
    const size_t len = strlen(name);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        size_t tail = strlen(ends[i]);
        if (len >= tail && strcmp(name + len - tail, ends[i]) == 0)
            return true;
    }
    return false;
}
