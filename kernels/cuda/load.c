/*
 * Weights from file ranges to the device, or to host memory for those that stay there (stream.c):
 * rows are converted to the type to compute with, or packed
 * (taken over from quantized files number by number, or quantized here), into one of two pinned
 * buffers and copied while the other is filled. Some threads share the rows of a buffer: quantizing
 * is arithmetic, and pages that lie in no cache are slow to come. Behind the last column of a row
 * are zeros, so that products need no tail; behind that of a packed row is something finite.
 */
#include "kernels/cuda/load.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "kernels/cuda/cuda.h"
#include "kernels/num.h"
#include "kernels/quant.h"

#define SOME  256u       /* elements of a quantized row that are unpacked together */
#define STAGE (8u << 20) /* bytes of a pinned buffer, more where a row needs it */
#define SMALL (1u << 18) /* bytes that one thread fills alone */

enum { MOST_THREADS = 16 };

/* What a thread needs for a row of a packed weight. */
struct scratch {
    float *row;       /* before it is quantized */
    uint8_t *numbers; /* of it */
};

struct upload {
    struct ek_device *d;
    const struct ek_weight_files *files;
    char *stage[2];
    cu_handle sent[2]; /* events: the buffer may be filled again */
    size_t stage_bytes;
    uint32_t turn;
    char *behind; /* scales and zeros of a packed weight */
    uint32_t threads;
    struct scratch scratch[MOST_THREADS];
};

/* A thread's share: rows [first, end) of a weight, to `out`. */
struct load_share {
    const struct upload *u;
    const struct ek_weight *w;
    const struct cuda_weight *shape;
    const struct scratch *scratch;
    uint32_t first, end;
    char *out;
    pthread_t thread;
};

/* Where a row's part begins: which part, and the row in it. */
static uint32_t load_part_of(const struct ek_weight *w, uint32_t *row)
{
    uint32_t part = 0;

    while (part + 1 < w->parts && *row >= w->part[part].rows)
        *row -= w->part[part++].rows;
    *row += w->part[part].skip;
    return part;
}

/* Columns [k, k + count) of a quantized row, whose file may have it as a column. */
static void quant_values(const struct upload *u, const struct ek_weight *w, uint32_t row,
                         uint32_t k, uint32_t count, float *ret)
{
    const struct ek_quant *q = &u->d->graph->quants[w->quant];

    if (w->row_step == 0) {
        q += load_part_of(w, &row);
        ek_quant_values(q, u->files, row, w->first_col + k, count, ret);
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        ek_quant_values(q, u->files, w->part[0].skip + k + i, row, 1, ret + i);
}

static void unpack_row(const struct upload *u, const struct ek_weight *w, enum ek_dtype to,
                       uint32_t row, char *out)
{
    float some[SOME];

    for (uint32_t k = 0; k < w->cols; k += SOME) {
        uint32_t count = w->cols - k < SOME ? w->cols - k : SOME;
        quant_values(u, w, row, k, count, some);
        for (uint32_t i = 0; i < count; i++)
            cpu_store(to, out, k + i, some[i]);
    }
}

/* The bytes of one stored row: in which part it lies. */
static const char *stored_row(const struct upload *u, const struct ek_weight *w, uint32_t row)
{
    const uint32_t part = load_part_of(w, &row);
    const char *file = u->files->file[w->part[part].file].data;
    size_t elem = ek_dtype_bits(w->source) / 8;
    return file + w->part[part].offset_bytes + ek_weight_element(w, row, w->first_col) * elem;
}

/* From an element of such a row to the next. */
static uint32_t step_of(const struct ek_weight *w)
{
    return w->row_step > 0 ? w->col_step : 1;
}

static void convert_row(const struct upload *u, const struct ek_weight *w, enum ek_dtype to,
                        uint32_t row, char *out, size_t out_bytes)
{
    size_t bytes = (size_t)w->cols * (ek_dtype_bits(to) / 8);

    if (w->quantized) {
        unpack_row(u, w, to, row, out);
    } else if (w->source == to && step_of(w) == 1) {
        memcpy(out, stored_row(u, w, row), bytes);
    } else {
        const char *from = stored_row(u, w, row);
        for (uint32_t i = 0; i < w->cols; i++)
            cpu_store(to, out, i, cpu_load(w->source, from, (size_t)i * step_of(w)));
    }
    memset(out + bytes, 0, out_bytes - bytes);
}

/* A row's numbers where packed.cuh says; what lies behind its last column stays as it is. */
static void load_place(enum cu_form form, const uint8_t *numbers, uint32_t cols, uint8_t *out)
{
    const uint32_t wide = form == CU_I4 ? 128 : 64;
    const uint8_t flip = form == CU_I8 ? 128 : 0;

    for (uint32_t i = 0; i < cols; i++) {
        const uint32_t lane = i % 32 / 8, e = i % 8, slice = i % wide / 32;
        uint8_t *to = out + i / wide * 64 + lane * 16;
        if (form == CU_I4)
            to[slice * 4 + (e % 2 * 4 + e / 2) / 2] |=
                (uint8_t)((numbers[i] & 15u) << (e / 2 % 2 * 4));
        else
            to[slice * 8 + e] = numbers[i] ^ flip;
    }
}

/* Scales and zeros of the weight that is being loaded. */
static float *scales_of(const struct upload *u, const struct cuda_weight *shape, uint32_t row)
{
    return (float *)(void *)u->behind + (size_t)row * shape->packing.groups;
}
static int16_t *zeros_of(const struct upload *u, const struct cuda_weight *shape, uint32_t row)
{
    return (int16_t *)(void *)(u->behind + shape->packing.zero_at - shape->packing.scale_at) +
           (size_t)row * shape->packing.groups;
}

/* A row whose file has such numbers. */
static void keep_row(const struct load_share *s, uint32_t row)
{
    const struct upload *u = s->u;
    const struct ek_weight *w = s->w;
    const struct cuda_weight *shape = s->shape;
    float *scales = scales_of(u, shape, row);
    int16_t *zeros = zeros_of(u, shape, row);
    const struct ek_quant *q = &u->d->graph->quants[w->quant + load_part_of(w, &row)];

    ek_quant_numbers(q, u->files, w->dtype, row, w->first_col, w->cols, s->scratch->numbers);
    for (uint32_t g = 0; g < shape->packing.groups; g++) {
        int16_t zero;
        ek_quant_scale(q, u->files, w->dtype, row, w->first_col + g * w->group, &scales[g], &zero);
        if (shape->packing.zero_at > 0)
            zeros[g] = zero;
    }
}

/* A row of plain numbers; the largest magnitude of all of it, or the best of a group, decides. */
static void quantize_row(const struct load_share *s, uint32_t row)
{
    const struct upload *u = s->u;
    const struct ek_weight *w = s->w;
    const struct cuda_weight *shape = s->shape;
    const uint32_t groups = shape->packing.groups, group = groups > 1 ? w->group : w->cols;
    float *scales = scales_of(u, shape, row);
    const char *from = stored_row(u, w, row);

    for (uint32_t i = 0; i < w->cols; i++)
        s->scratch->row[i] = cpu_load(w->source, from, (size_t)i * step_of(w));
    for (uint32_t g = 0; g < groups; g++) {
        const uint32_t first = g * group, n = w->cols - first < group ? w->cols - first : group;
        const float *values = s->scratch->row + first;
        scales[g] = w->dtype == EK_I4
                        ? ek_quantize_scale4(values, n)
                        : ek_quantize_scale(w->dtype, ek_quantize_most(values, n, 0.0f));
        ek_quantize(w->dtype, scales[g], values, n, s->scratch->numbers + first);
        if (shape->packing.zero_at > 0)
            zeros_of(u, shape, row)[g] = ek_kept_zero(w->dtype);
    }
}

static void pack_row(const struct load_share *s, uint32_t row, char *out)
{
    if (s->w->quantized)
        keep_row(s, row);
    else
        quantize_row(s, row);
    memset(out, 0, s->shape->row_bytes);
    load_place((enum cu_form)s->shape->packing.form, s->scratch->numbers, s->w->cols,
               (uint8_t *)out);
}

static void *fill_share(void *arg)
{
    const struct load_share *s = arg;
    const enum ek_dtype to = s->shape->vector ? EK_F32 : s->u->d->graph->dtype;
    char *out = s->out;

    for (uint32_t row = s->first; row < s->end; row++, out += s->shape->row_bytes) {
        if (s->shape->packing.form != CU_PLAIN)
            pack_row(s, row, out);
        else
            convert_row(s->u, s->w, to, row, out, s->shape->row_bytes);
    }
    return NULL;
}

/* Scales of blocks, from those of their first rows. */
static void fill_blocks(const struct upload *u, uint32_t index)
{
    const struct cuda_weight *shape = &u->d->weights[index];
    const uint32_t rows = u->d->graph->weights[index].rows, groups = shape->packing.groups;

    if (shape->block_at == 0)
        return;
    float *to = (float *)(void *)(u->behind + (shape->block_at - shape->packing.scale_at));
    for (uint32_t row = 0; row < rows; row += 128, to += groups)
        memcpy(to, scales_of(u, shape, row), groups * sizeof(*to));
}

/* Rows [first, first + count) of a weight to `out`. */
static void load_fill(const struct upload *u, uint32_t index, uint32_t first, uint32_t count,
                      char *out)
{
    const struct cuda_weight *shape = &u->d->weights[index];
    const uint32_t threads = count * shape->row_bytes > SMALL ? u->threads : 1;
    struct load_share share[MOST_THREADS];
    bool started[MOST_THREADS] = {false};

    for (uint32_t i = 0; i < threads; i++) {
        const uint32_t from = (uint32_t)((uint64_t)count * i / threads);
        const uint32_t to = (uint32_t)((uint64_t)count * (i + 1) / threads);
        share[i] = (struct load_share){.u = u,
                                       .w = &u->d->graph->weights[index],
                                       .shape = shape,
                                       .scratch = &u->scratch[i],
                                       .first = first + from,
                                       .end = first + to,
                                       .out = out + from * shape->row_bytes};
        if (i + 1 < threads)
            started[i] = pthread_create(&share[i].thread, NULL, fill_share, &share[i]) == 0;
        if (!started[i])
            (void)fill_share(&share[i]);
    }
    for (uint32_t i = 0; i < threads; i++)
        if (started[i])
            (void)pthread_join(share[i].thread, NULL);
}

/* Copies what lies in the current buffer and turns to the other once that is free. */
static int send(struct upload *u, cu_ptr to, size_t bytes)
{
    struct cu_driver *cu = &u->d->cu;

    int result = cu->copy_in(to, u->stage[u->turn], bytes, u->d->stream);
    if (result == CU_OK)
        result = cu->event_record(u->sent[u->turn], u->d->stream);
    u->turn ^= 1;
    while (result == CU_OK && (result = cu->event_query(u->sent[u->turn])) == CU_NOT_READY)
        result = CU_OK;
    return cu_code(result);
}

/* What was gathered beside the rows of a packed weight. */
static int send_behind(struct upload *u, uint32_t index)
{
    const struct cuda_weight *shape = &u->d->weights[index];
    const size_t all = shape->bytes - shape->packing.scale_at;
    cu_ptr at = cuda_weight_at(u->d, index) + shape->packing.scale_at;
    int r = 0;

    fill_blocks(u, index);
    for (size_t done = 0, n; r == 0 && done < all; done += n) {
        n = all - done < u->stage_bytes ? all - done : u->stage_bytes;
        memcpy(u->stage[u->turn], u->behind + done, n);
        r = send(u, at + done, n);
    }
    return r;
}

/* A weight that stays in host memory. */
static void keep_weight(struct upload *u, uint32_t index)
{
    const struct cuda_weight *shape = &u->d->weights[index];
    char *host = u->d->items[shape->item - 1].host + shape->at;

    load_fill(u, index, 0, u->d->graph->weights[index].rows, host);
    fill_blocks(u, index);
    if (shape->packing.form != CU_PLAIN)
        memcpy(host + shape->packing.scale_at, u->behind, shape->bytes - shape->packing.scale_at);
}

static int upload_weight(struct upload *u, uint32_t index)
{
    const struct ek_weight *w = &u->d->graph->weights[index];
    const struct cuda_weight *shape = &u->d->weights[index];
    const size_t fit = u->stage_bytes / (shape->row_bytes + !shape->row_bytes);
    cu_ptr at = cuda_weight_at(u->d, index);
    int r = 0;

    if (shape->item > 0) {
        keep_weight(u, index);
        return 0;
    }
    for (uint32_t row = 0, n; r == 0 && row < w->rows; row += n) {
        n = w->rows - row < fit ? w->rows - row : (uint32_t)fit;
        load_fill(u, index, row, n, u->stage[u->turn]);
        r = send(u, at + row * shape->row_bytes, n * shape->row_bytes);
    }
    return r == 0 && shape->packing.form != CU_PLAIN ? send_behind(u, index) : r;
}

static int upload_ropes(struct ek_device *d)
{
    int result = CU_OK;

    for (uint32_t i = 0; result == CU_OK && i < d->graph->rope_count; i++) {
        const struct ek_rope *r = &d->graph->ropes[i];
        if (r->count > 0)
            result = d->cu.copy_in(cuda_arena(d, d->rope_at[i]), r->inv_freq,
                                   r->count * sizeof(float), d->stream);
    }
    return cu_code(result);
}

/* Memory for the widest row and for what lies behind the packed rows of a weight. */
static int take_rows(struct upload *u)
{
    size_t most = 0, behind = 0;

    for (uint32_t i = 0; i < u->d->graph->weight_count; i++) {
        const struct cuda_weight *w = &u->d->weights[i];
        const size_t more = w->bytes - w->packing.scale_at;
        u->stage_bytes = w->row_bytes > u->stage_bytes ? w->row_bytes : u->stage_bytes;
        if (w->packing.form == CU_PLAIN)
            continue;
        most = w->stride > most ? w->stride : most;
        behind = more > behind ? more : behind;
    }
    if (most == 0)
        return 0;
    bool ok = true;
    for (uint32_t i = 0; i < u->threads; i++) {
        u->scratch[i].row = malloc(most * sizeof(float));
        u->scratch[i].numbers = malloc(most);
        ok = ok && u->scratch[i].row && u->scratch[i].numbers;
    }
    u->behind = malloc(behind);
    return ok && u->behind ? 0 : -ENOMEM;
}

static uint32_t usable_cores(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        return 1;
    return CPU_COUNT(&set) < MOST_THREADS ? (uint32_t)CPU_COUNT(&set) : MOST_THREADS;
}

static int upload_begin(struct upload *u)
{
    struct cu_driver *cu = &u->d->cu;
    int result = CU_OK;

    u->stage_bytes = STAGE;
    u->threads = usable_cores();
    int r = take_rows(u);
    if (r < 0)
        return r;
    for (int i = 0; result == CU_OK && i < 2; i++) {
        result = cu->host_alloc((void **)&u->stage[i], u->stage_bytes, CU_HOST_PORTABLE);
        if (result != CU_OK)
            return -ENOMEM; /* pinned memory is the host's */
        result = cu->event_new(&u->sent[i], CU_EVENT_DEFAULT);
    }
    return cu_code(result);
}

static void upload_end(struct upload *u)
{
    struct cu_driver *cu = &u->d->cu;

    (void)cu->stream_wait(u->d->stream); /* nothing may read the buffers any more */
    for (int i = 0; i < 2; i++) {
        if (u->sent[i])
            (void)cu->event_free(u->sent[i]);
        if (u->stage[i])
            (void)cu->host_free(u->stage[i]);
    }
    for (int i = 0; i < MOST_THREADS; i++) {
        free(u->scratch[i].row);
        free(u->scratch[i].numbers);
    }
    free(u->behind);
}

int cuda_weights_load(struct ek_device *d, const struct ek_weight_files *files,
                      ek_progress_fn progress, void *ctx, struct ek_fault *fault)
{
    const struct ek_graph *g = d->graph;
    struct upload u = {.d = d, .files = files};
    uint64_t done = 0, total = 0, kept = 0; /* kept: done when pages were last given back */
    uint32_t ahead = 0;

    for (uint32_t i = 0; i < g->weight_count; i++) {
        int r = ek_weight_check(g, i, files, fault);
        if (r < 0)
            return r;
        total += d->weights[i].bytes;
    }
    int r = upload_begin(&u);
    for (uint32_t i = 0; r == 0 && i < g->weight_count; i++) {
        ek_weights_fetch(g, files, i, &ahead);
        r = upload_weight(&u, i);
        done += d->weights[i].bytes;
        if (done - kept >= EK_WEIGHTS_RESIDENT) {
            ek_weights_forget(files);
            kept = done;
        }
        if (r == 0 && progress)
            progress(ctx, done, total);
    }
    if (r == 0)
        r = upload_ropes(d);
    if (r == 0)
        r = cu_code(d->cu.stream_wait(d->stream));
    upload_end(&u);
    return r;
}
