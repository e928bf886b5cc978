/*
 * Quantized weights to floats, one element after the other: plain on purpose, it runs once for each
 * weight. What the formats share is where their bits lie: along one dimension of a matrix of words.
 */
#include "kernels/quant.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/err.h"
#include "kernels/backend.h"
#include "kernels/num.h"

#define NO_FILE UINT32_MAX

static const char *data_of(const struct ek_quant_range *r, const struct ek_weight_files *files)
{
    return (const char *)files->file[r->file].data + r->offset_bytes;
}

static uint64_t words_of(const struct ek_quant *q, uint32_t count)
{
    return ((uint64_t)count * q->bits + 31) / 32;
}

/* Element `index` of a run of packed words that lie `stride` words apart. */
static uint32_t quant_unpack(const char *words, uint64_t stride, uint32_t index, uint32_t bits)
{
    uint64_t bit = (uint64_t)index * bits, word = bit / 32;
    uint32_t low, high = 0, shift = (uint32_t)(bit % 32);

    memcpy(&low, words + word * stride * 4, 4);
    if (shift + bits > 32)
        memcpy(&high, words + (word + 1) * stride * 4, 4);
    uint64_t both = (uint64_t)high << 32 | low;
    return (uint32_t)(both >> shift) & ((1u << bits) - 1);
}

static uint32_t unpack_awq(const char *words, uint32_t index)
{
    static const uint8_t place[] = {0, 4, 1, 5, 2, 6, 3, 7};
    uint32_t word;

    memcpy(&word, words + (size_t)(index / 8) * 4, 4);
    return word >> place[index % 8] * 4 & 15u;
}

/* The byte of a number of 8 bits. */
static uint64_t byte_at(const struct ek_quant *q, uint32_t row, uint32_t col)
{
    return q->col_step > 0 ? (uint64_t)col * q->col_step + row : (uint64_t)row * q->cols + col;
}

static uint8_t code4(const struct ek_quant *q, const char *from, uint32_t row, uint32_t col)
{
    const uint64_t turned = (uint64_t)(col / 2) * q->col_step + row,
                   plain = (uint64_t)row * q->row_step * (q->cols / 2) + col / 2;
    const uint8_t byte = (uint8_t)from[q->col_step > 0 ? turned : plain];

    return byte >> col % 2 * 4 & 15u;
}

static bool is_four(const struct ek_quant *q)
{
    return q->kind == EK_QUANT_MXFP4 || q->kind == EK_QUANT_NVFP4;
}

/* Some of a row; two at a time where they begin a byte: all weights come by here. */
static void codes4(const struct ek_quant *q, const char *from, uint32_t row, uint32_t col,
                   uint32_t count, uint8_t *ret)
{
    const uint8_t *bytes =
        (const uint8_t *)from + (uint64_t)row * q->row_step * (q->cols / 2) + col / 2;
    uint32_t i = 0;

    for (; q->col_step == 0 && col % 2 == 0 && i + 2 <= count; i += 2) {
        ret[i] = bytes[i / 2] & 15u;
        ret[i + 1] = bytes[i / 2] >> 4;
    }
    for (; i < count; i++)
        ret[i] = code4(q, from, row, col + i);
}

static float quant_number(const struct ek_quant *q, const char *from, uint32_t row, uint32_t col)
{
    switch (q->kind) {
    case EK_QUANT_F8: return cpu_from_f8((uint8_t)from[byte_at(q, row, col)]);
    case EK_QUANT_I8: return (float)(int8_t)from[byte_at(q, row, col)];
    case EK_QUANT_PACKED:
        return (float)quant_unpack(from + row * words_of(q, q->cols) * 4, 1, col, q->bits);
    case EK_QUANT_GPTQ: return (float)quant_unpack(from + (uint64_t)row * 4, q->rows, col, q->bits);
    case EK_QUANT_AWQ: return (float)unpack_awq(from + col * words_of(q, q->rows) * 4, row);
    case EK_QUANT_MXFP4:
    case EK_QUANT_NVFP4: return cpu_from_f4(code4(q, from, row, col));
    }
    return 0.0f;
}

static float zero(const struct ek_quant *q, const struct ek_weight_files *files, uint32_t row,
                  uint32_t group, uint32_t groups)
{
    if (q->zeros.file == NO_FILE)
        return q->kind == EK_QUANT_PACKED ? (float)(1u << (q->bits - 1)) : 0.0f;
    const char *from = data_of(&q->zeros, files);
    switch (q->kind) {
    case EK_QUANT_F8:
    case EK_QUANT_MXFP4:
    case EK_QUANT_NVFP4: break;
    case EK_QUANT_I8: return (float)(int8_t)from[(uint64_t)row / q->block_rows * groups + group];
    case EK_QUANT_PACKED:
        return (float)quant_unpack(from + (uint64_t)group * 4, groups, row, q->bits);
    case EK_QUANT_GPTQ:
        from += group * words_of(q, q->rows) * 4;
        return (float)(quant_unpack(from, 1, row, q->bits) + q->zero_add);
    case EK_QUANT_AWQ: return (float)unpack_awq(from + group * words_of(q, q->rows) * 4, row);
    }
    return 0.0f;
}

static uint32_t quant_blocks(uint32_t count, uint32_t block)
{
    return count / block + (count % block != 0);
}

static float scale_of(const struct ek_quant *q, const struct ek_weight_files *files, uint32_t row,
                      uint32_t group, uint32_t groups)
{
    const bool by_column = q->kind == EK_QUANT_GPTQ || q->kind == EK_QUANT_AWQ;
    uint64_t at = by_column ? (uint64_t)group * q->rows + row
                            : (uint64_t)(row / q->block_rows) * groups + group;

    if (is_four(q)) {
        const uint64_t turned = (uint64_t)group * q->col_step + row,
                       plain = (uint64_t)row * q->row_step * groups + group;
        const uint8_t power = (uint8_t)data_of(&q->scales, files)[q->col_step > 0 ? turned : plain];
        if (q->kind == EK_QUANT_NVFP4)
            return cpu_from_f8(power) * q->times;
        return power == 255 ? NAN : ldexpf(1.0f, power - 127);
    }
    return cpu_load(q->scales.dtype, data_of(&q->scales, files), at);
}

void ek_quant_values(const struct ek_quant *q, const struct ek_weight_files *files, uint32_t row,
                     uint32_t col, uint32_t count, float *ret_values)
{
    const char *numbers = data_of(&q->numbers, files);
    const uint32_t groups = quant_blocks(q->cols, q->block_cols);
    uint32_t last = UINT32_MAX;
    float scale = 0.0f, less = 0.0f;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t group = (col + i) / q->block_cols;
        if (q->groups.file != NO_FILE) {
            memcpy(&group, data_of(&q->groups, files) + (uint64_t)(col + i) * 4, 4);
        }
        if (group != last) {
            scale = scale_of(q, files, row, group, groups);
            less = zero(q, files, row, group, groups);
            last = group;
        }
        ret_values[i] = (quant_number(q, numbers, row, col + i) - less) * scale;
    }
}

static bool is_signed(const struct ek_quant *q)
{
    return q->kind == EK_QUANT_F8 || q->kind == EK_QUANT_I8;
}

/* What is added to stored numbers and zeros, which keeps their difference. */
static int shift(const struct ek_quant *q, enum ek_dtype t)
{
    int middle = is_signed(q) ? 0 : 1 << (q->bits - 1);

    return t == EK_I4 ? 8 - middle : -middle;
}

bool ek_quant_form(const struct ek_quant *q, enum ek_dtype *ret_dtype, uint32_t *ret_group)
{
    uint32_t group = q->block_cols < q->cols ? q->block_cols : 0;

    if (q->groups.file != NO_FILE || group % 2 != 0)
        return false;
    if (q->kind == EK_QUANT_NVFP4 && group == 0)
        return false; /* the group tells what its scales are */
    *ret_dtype = q->kind == EK_QUANT_F8 ? EK_F8_E4M3 : EK_I8;
    if (is_four(q))
        *ret_dtype = EK_F4_E2M1;
    else if (!is_signed(q) && q->bits <= 4)
        *ret_dtype = EK_I4;
    *ret_group = group;
    return true;
}

void ek_quant_numbers(const struct ek_quant *q, const struct ek_weight_files *files,
                      enum ek_dtype t, uint32_t row, uint32_t col, uint32_t count,
                      uint8_t *ret_numbers)
{
    const char *numbers = data_of(&q->numbers, files);
    const int add = shift(q, t);

    if (is_signed(q) && q->col_step == 0) {
        memcpy(ret_numbers, numbers + (uint64_t)row * q->cols + col, count);
        return;
    }
    if (is_signed(q)) {
        for (uint32_t i = 0; i < count; i++)
            ret_numbers[i] = (uint8_t)numbers[byte_at(q, row, col + i)];
        return;
    }
    if (is_four(q)) {
        codes4(q, numbers, row, col, count, ret_numbers);
        for (uint32_t i = 0; i < count && t != EK_F4_E2M1; i++)
            ret_numbers[i] = (uint8_t)(int)(2.0f * cpu_from_f4(ret_numbers[i]));
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        ret_numbers[i] = (uint8_t)((int)quant_number(q, numbers, row, col + i) + add);
}

void ek_quant_scale(const struct ek_quant *q, const struct ek_weight_files *files, enum ek_dtype t,
                    uint32_t row, uint32_t col, float *ret_scale, int16_t *ret_zero)
{
    const uint32_t groups = quant_blocks(q->cols, q->block_cols), group = col / q->block_cols;

    *ret_scale = scale_of(q, files, row, group, groups);
    if (is_four(q)) {
        *ret_scale *= t == EK_F4_E2M1 ? 1.0f : 0.5f;
        *ret_zero = 0;
        return;
    }
    *ret_zero = (int16_t)((int)zero(q, files, row, group, groups) + shift(q, t));
}

static bool quant_within(const struct ek_quant_range *r, uint64_t bytes,
                         const struct ek_weight_files *files)
{
    if (r->file == NO_FILE)
        return true;
    if (r->file >= files->count)
        return false;
    uint64_t size = files->file[r->file].size_bytes;
    return r->offset_bytes <= size && bytes <= size - r->offset_bytes;
}

/* MXFP4, NVFP4: from the first to the last. */
static uint64_t file_rows(const struct ek_quant *q)
{
    return q->rows > 0 ? (uint64_t)(q->rows - 1) * q->row_step + 1 : 0;
}

/* From the first byte of `count` runs to the last one of the last. */
static uint64_t turned_bytes(const struct ek_quant *q, uint64_t count)
{
    return count > 0 ? (count - 1) * q->col_step + q->rows : 0;
}

/* Bytes of numbers and zeros. */
static void sizes(const struct ek_quant *q, uint64_t *ret_numbers, uint64_t *ret_zeros)
{
    const uint64_t groups = quant_blocks(q->cols, q->block_cols);

    *ret_numbers = (uint64_t)q->rows * q->cols;
    *ret_zeros = quant_blocks(q->rows, q->block_rows) * groups;
    switch (q->kind) {
    case EK_QUANT_F8:
    case EK_QUANT_I8:
        if (q->col_step > 0)
            *ret_numbers = turned_bytes(q, q->cols);
        break;
    case EK_QUANT_PACKED:
        *ret_numbers = q->rows * words_of(q, q->cols) * 4;
        *ret_zeros = words_of(q, q->rows) * groups * 4;
        break;
    case EK_QUANT_GPTQ:
        *ret_numbers = words_of(q, q->cols) * q->rows * 4;
        *ret_zeros = groups * words_of(q, q->rows) * 4;
        break;
    case EK_QUANT_AWQ:
        *ret_numbers = q->cols * words_of(q, q->rows) * 4;
        *ret_zeros = groups * words_of(q, q->rows) * 4;
        break;
    case EK_QUANT_MXFP4:
    case EK_QUANT_NVFP4:
        *ret_numbers =
            q->col_step > 0 ? turned_bytes(q, q->cols / 2) : file_rows(q) * (q->cols / 2);
        break;
    }
}

static uint64_t scale_bytes(const struct ek_quant *q)
{
    const uint64_t groups = quant_blocks(q->cols, q->block_cols);

    if (is_four(q))
        return q->col_step > 0 ? turned_bytes(q, groups) : file_rows(q) * groups;
    return quant_blocks(q->rows, q->block_rows) * groups * (ek_dtype_bits(q->scales.dtype) / 8);
}

static bool groups_known(const struct ek_quant *q, const struct ek_weight_files *files)
{
    const uint32_t groups = quant_blocks(q->cols, q->block_cols);

    if (q->groups.file == NO_FILE)
        return true;
    for (uint32_t i = 0; i < q->cols; i++) {
        uint32_t group;
        memcpy(&group, data_of(&q->groups, files) + (uint64_t)i * 4, 4);
        if (group >= groups)
            return false;
    }
    return true;
}

int ek_quant_check(const struct ek_quant *q, const char *name, const struct ek_weight_files *files,
                   struct ek_fault *fault)
{
    uint64_t numbers, zeros;
    bool packed = q->kind == EK_QUANT_PACKED || q->kind == EK_QUANT_GPTQ;

    if (q->block_rows == 0 || q->block_cols == 0 || q->numbers.file == NO_FILE ||
        q->scales.file == NO_FILE || (packed && (q->bits == 0 || q->bits > 8)) ||
        (q->kind == EK_QUANT_AWQ && (q->bits != 4 || q->rows % 8 != 0)) ||
        (q->col_step > 0 && (q->col_step < q->rows || (!is_signed(q) && !is_four(q)))) ||
        (is_four(q) && (q->cols % 2 != 0 || q->row_step == 0 || q->block_rows != 1 ||
                        q->zeros.file != NO_FILE || q->groups.file != NO_FILE)))
        return ek_fault_set(fault, name, "%s is quantized in a way that is not known", name);
    sizes(q, &numbers, &zeros);
    if (!quant_within(&q->numbers, numbers, files) || !quant_within(&q->zeros, zeros, files) ||
        !quant_within(&q->scales, scale_bytes(q), files) ||
        !quant_within(&q->groups, (uint64_t)q->cols * 4, files))
        return ek_fault_set(fault, name, "%s reaches past the end of its file", name);
    if (!groups_known(q, files))
        return ek_fault_set(fault, name,
                            "%s: its g_idx names a group that it has no scale for; the file is "
                            "damaged, download it again",
                            name);
    return 0;
}

/* The quantized parts of a weight: shapes that fit, within the files. */
static int check_quants(const struct ek_graph *g, const struct ek_weight *w,
                        const struct ek_weight_files *files, struct ek_fault *fault)
{
    uint64_t rows = 0;

    if (w->parts == 0 || w->parts > EK_MOST_PARTS || w->quant > g->quant_count ||
        w->parts > g->quant_count - w->quant)
        return ek_fault_set(fault, w->name, "%s names parts that are not there", w->name);
    for (uint32_t i = 0; i < w->parts; i++) {
        const struct ek_quant *q = &g->quants[w->quant + i];
        const struct ek_weight_part *p = &w->part[i];
        const bool turned = w->row_step > 0;
        const uint32_t of_file = turned ? w->cols : p->rows;
        if (p->skip > q->rows || of_file > q->rows - p->skip ||
            q->cols != (turned ? w->rows : ek_weight_file_cols(w)) || (turned && w->parts > 1))
            return ek_fault_set(fault, w->name, "%s has quantized parts of other shapes", w->name);
        int r = ek_quant_check(q, w->name, files, fault);
        if (r < 0)
            return r;
        rows += p->rows;
    }
    return rows == w->rows ? 0 : ek_fault_set(fault, w->name, "%s lacks rows", w->name);
}

static int check_parts(const struct ek_weight *w, const struct ek_weight_files *files,
                       struct ek_fault *fault)
{
    const uint32_t bytes = ek_dtype_bits(w->source) / 8, cols = ek_weight_file_cols(w);
    uint64_t rows = 0;

    if (bytes == 0)
        return ek_fault_set(fault, w->name, "%s holds parts of bytes, which need quants", w->name);
    for (uint32_t i = 0; i < w->parts && i < EK_MOST_PARTS; i++) {
        const struct ek_weight_part *p = &w->part[i];
        if (p->file >= files->count)
            return ek_fault_set(fault, w->name, "%s lies in a file that is not there", w->name);
        uint64_t size = files->file[p->file].size_bytes;
        const uint64_t end = (uint64_t)p->skip + p->rows;
        if (p->offset_bytes > size || end > UINT32_MAX ||
            (p->rows > 0 && cols > 0 &&
             ek_weight_element(w, (uint32_t)end - 1, cols - 1) >= (size - p->offset_bytes) / bytes))
            return ek_fault_set(fault, w->name, "%s reaches past the end of its file", w->name);
        rows += p->rows;
    }
    if (w->parts == 0 || w->parts > EK_MOST_PARTS || rows != w->rows)
        return ek_fault_set(fault, w->name, "%s has %llu rows in its files but needs %u", w->name,
                            (unsigned long long)rows, w->rows);
    return 0;
}

int ek_weight_check(const struct ek_graph *g, uint32_t index, const struct ek_weight_files *files,
                    struct ek_fault *fault)
{
    const struct ek_weight *w = &g->weights[index];
    const uint32_t all = ek_weight_file_cols(w);

    if (w->parts == 0 && w->rows == 0)
        return 0; /* what other ranks have alone */
    if (w->first_col > all || w->cols > all - w->first_col)
        return ek_fault_set(fault, w->name, "%s has fewer columns than are wanted of it", w->name);
    return w->quantized ? check_quants(g, w, files, fault) : check_parts(w, files, fault);
}

#define AHEAD (128ull << 20) /* bytes that are being read before they are needed */

/* Advice about the pages that bytes [from, from + bytes) of a file lie in; only faster. */
static void advise(const struct ek_weight_file *f, uint64_t from, uint64_t bytes, int advice)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t begin = from / page * page, end = from + bytes;

    if (f->mapped && from < f->size_bytes && bytes <= f->size_bytes - from)
        (void)madvise((char *)(uintptr_t)f->data + begin, end - begin, advice);
}

/* Of so many rows of a part; of one that lies across others, about where they are. */
static uint64_t stored_bytes(const struct ek_graph *g, const struct ek_weight *w, uint32_t rows)
{
    const uint64_t cols = ek_weight_file_cols(w);
    uint64_t elements = rows * cols;

    if (w->quantized && g->quants[w->quant].row_step > 0)
        elements *= g->quants[w->quant].row_step;

    if (w->row_step > 0)
        elements = w->row_step > w->col_step ? (uint64_t)rows * w->row_step : cols * w->col_step;
    return elements * ek_dtype_bits(w->source) / 8;
}

void ek_weights_fetch(const struct ek_graph *g, const struct ek_weight_files *files, uint32_t next,
                      uint32_t *ahead)
{
    uint64_t bytes = 0;

    for (uint32_t i = next; i < g->weight_count && bytes < AHEAD; i++) {
        const struct ek_weight *w = &g->weights[i];
        const bool turned = w->row_step > 0 && w->row_step <= w->col_step; /* rows lie across */
        for (const struct ek_weight_part *p = w->part; p < w->part + w->parts; p++) {
            bytes += stored_bytes(g, w, p->rows);
            if (i >= *ahead)
                advise(&files->file[p->file],
                       p->offset_bytes + (turned ? 0 : stored_bytes(g, w, p->skip)),
                       stored_bytes(g, w, p->rows), MADV_WILLNEED);
        }
        *ahead = i >= *ahead ? i + 1 : *ahead;
    }
}

void ek_weights_forget(const struct ek_weight_files *files)
{
    for (uint32_t i = 0; i < files->count; i++)
        advise(&files->file[i], 0, files->file[i].size_bytes, MADV_DONTNEED);
}
