/*
 * Weights from file ranges to the device: rows are converted to the type to compute with into one
 * of two pinned buffers and copied while the other is filled. Behind the last column of a row are
 * zeros, so that products need no tail.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "kernels/cpu/num.h"
#include "kernels/cuda/cuda.h"
#include "kernels/quant.h"

#define SOME  256u       /* elements of a quantized row that are unpacked together */
#define STAGE (8u << 20) /* bytes of a pinned buffer, more where a row needs it */

struct upload {
    struct ek_device *d;
    const struct ek_weight_files *files;
    char *stage[2];
    cu_handle sent[2]; /* events: the buffer may be filled again */
    size_t stage_bytes;
    uint32_t turn;
};

static void unpack_row(const struct upload *u, const struct ek_weight *w, enum ek_dtype to,
                       uint32_t row, char *out)
{
    uint32_t part = 0;
    float some[SOME];

    while (part + 1 < w->parts && row >= w->part[part].rows)
        row -= w->part[part++].rows;
    row += w->part[part].skip;
    const struct ek_quant *q = &u->d->graph->quants[w->quant + part];
    for (uint32_t k = 0; k < w->cols; k += SOME) {
        uint32_t count = w->cols - k < SOME ? w->cols - k : SOME;
        ek_quant_values(q, u->files, row, w->first_col + k, count, some);
        for (uint32_t i = 0; i < count; i++)
            cpu_store(to, out, k + i, some[i]);
    }
}

/* The bytes of one stored row: in which part it lies. */
static const char *stored_row(const struct upload *u, const struct ek_weight *w, uint32_t row)
{
    uint32_t part = 0;

    while (part + 1 < w->parts && row >= w->part[part].rows)
        row -= w->part[part++].rows;
    const char *file = u->files->file[w->part[part].file].data;
    size_t elem = ek_dtype_bits(w->source) / 8;
    size_t at = (size_t)(row + w->part[part].skip) * ek_weight_file_cols(w) + w->first_col;
    return file + w->part[part].offset_bytes + at * elem;
}

static void convert_row(const struct upload *u, const struct ek_weight *w, enum ek_dtype to,
                        uint32_t row, char *out, size_t out_bytes)
{
    size_t bytes = (size_t)w->cols * (ek_dtype_bits(to) / 8);

    if (w->quantized) {
        unpack_row(u, w, to, row, out);
    } else if (w->source == to) {
        memcpy(out, stored_row(u, w, row), bytes);
    } else {
        const char *from = stored_row(u, w, row);
        for (uint32_t i = 0; i < w->cols; i++)
            cpu_store(to, out, i, cpu_load(w->source, from, i));
    }
    memset(out + bytes, 0, out_bytes - bytes);
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

static int upload_weight(struct upload *u, uint32_t index)
{
    const struct ek_weight *w = &u->d->graph->weights[index];
    const struct cuda_weight *shape = &u->d->weights[index];
    enum ek_dtype to = shape->vector ? EK_F32 : u->d->graph->dtype;
    size_t row_bytes = (size_t)shape->stride * (ek_dtype_bits(to) / 8), filled = 0;
    cu_ptr at = u->d->weight_memory.at + shape->at;
    int r = 0;

    for (uint32_t row = 0; r == 0 && row < w->rows; row++) {
        convert_row(u, w, to, row, u->stage[u->turn] + filled, row_bytes);
        filled += row_bytes;
        if (filled + row_bytes > u->stage_bytes || row + 1 == w->rows) {
            r = send(u, at, filled);
            at += filled;
            filled = 0;
        }
    }
    return r;
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

static int upload_begin(struct upload *u)
{
    struct cu_driver *cu = &u->d->cu;
    int result = CU_OK;

    u->stage_bytes = STAGE;
    for (uint32_t i = 0; i < u->d->graph->weight_count; i++) {
        size_t row_bytes = (size_t)u->d->weights[i].stride * sizeof(float);
        u->stage_bytes = row_bytes > u->stage_bytes ? row_bytes : u->stage_bytes;
    }
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
