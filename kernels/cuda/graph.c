/*
 * Decode steps as recorded graphs: a step of so many rows is rounded up to a bucket. All are
 * recorded at the end of a load that measures (room.c); else the second step of a bucket is
 * recorded while it is enqueued. Launches read all counts from the step on the
 * device, so the rows behind the last one do nothing but a product's share of a tile. What cannot
 * be recorded (no memory, a library that will not) runs launch by launch, as before. Of several
 * ranks all record a step or none does: what is summed in it is summed by all in the same way.
 */
#include "kernels/cuda/graph.h"

#include <errno.h>

#include "common/err.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/group.h"
#include "kernels/cuda/program.h"

/* Few at the small end, where steps differ most in what they cost. */
static const uint16_t buckets[CUDA_BUCKETS] = {1,   2,   4,   8,   12,  16,   24,   32,   48,  64,
                                               80,  96,  112, 128, 160, 192,  224,  256,  320, 384,
                                               448, 512, 640, 768, 896, 1024, 1536, 2048, 3072};

/* Rows of the largest step that decodes and nothing else: the last bucket is for these, whatever
 * the table has below and above. */
static uint32_t most_decodes(const struct ek_device *d)
{
    const struct ek_step_ceiling *c = &d->plan.ceiling;
    const uint32_t most = c->rows < c->seqs ? c->rows : c->seqs;

    return most < d->plan.logit_rows ? most : d->plan.logit_rows;
}

uint32_t cuda_bucket_rows(const struct ek_device *d, uint32_t bucket)
{
    const uint32_t most = most_decodes(d);

    if (bucket > 0 && (bucket > CUDA_BUCKETS || buckets[bucket - 1] >= most))
        return 0;
    return bucket < CUDA_BUCKETS && buckets[bucket] < most ? buckets[bucket] : most;
}

static uint32_t graph_bucket_of(const struct ek_device *d, uint32_t rows)
{
    for (uint32_t b = 0; cuda_bucket_rows(d, b) > 0; b++)
        if (rows <= cuda_bucket_rows(d, b))
            return b;
    return UINT32_MAX;
}

/* What all ranks say, if there are several. */
static int all_ranks(struct ek_device *d, int r)
{
    return d->group ? cuda_group_agree(d->group, r) : r;
}

static int begin_recording(struct ek_device *d)
{
    cu_handle nothing = NULL;

    int own = cu_code(d->cu.capture_begin(d->stream, CU_CAPTURE_THREAD_LOCAL));
    int r = all_ranks(d, own);
    if (own == 0 && r < 0 && d->cu.capture_end(d->stream, &nothing) == CU_OK && nothing)
        (void)d->cu.graph_free(nothing);
    return r;
}

/* The graph of a bucket, or NULL; a step that could not be recorded is not tried again. */
static int record(struct ek_device *d, uint32_t bucket, cu_handle *ret_graph)
{
    uint32_t rows = cuda_bucket_rows(d, bucket);
    cu_handle graph = NULL, made = NULL;

    int r = begin_recording(d);
    if (r < 0)
        return r;
    d->seqs = rows;
    /* as many parts of contexts as there can be: the grid is for the card, not for them */
    r = cuda_program_run(d, rows, rows, d->shape.latent_groups > 0 ? d->shape.most_tiles : 0,
                         d->shape.most_items);
    int ended = cu_code(d->cu.capture_end(d->stream, &graph));
    r = r < 0 ? r : ended;
    if (r == 0)
        r = cu_code(d->cu.graph_make(&made, graph, 0));
    if (r == 0) /* what it takes of the card is taken now, not by its first launch */
        r = cu_code(d->cu.graph_upload(made, d->stream));
    if (graph)
        (void)d->cu.graph_free(graph);
    r = all_ranks(d, r);
    if (r == 0)
        *ret_graph = made;
    else if (made)
        (void)d->cu.exec_free(made);
    return r;
}

int cuda_graph_run(struct ek_device *d, uint32_t rows, uint32_t tiles, uint32_t items)
{
    uint32_t b = d->records ? graph_bucket_of(d, rows) : UINT32_MAX;

    if (b != UINT32_MAX && d->seen[b] == 1) {
        d->seen[b] = 2;
        int r = record(d, b, &d->recorded[b]);
        if (r == EK_EDEVICE || r == EK_ECOMM)
            return r;
    }
    if (b != UINT32_MAX && d->recorded[b])
        return cu_code(d->cu.graph_launch(d->recorded[b], d->stream));
    if (b != UINT32_MAX && d->seen[b] == 0)
        d->seen[b] = 1;
    return cuda_program_run(d, rows, rows, tiles, items);
}

int cuda_graphs_record(struct ek_device *d, bool *ret_all)
{
    bool all = true;

    for (uint32_t b = 0; cuda_bucket_rows(d, b) > 0; b++) {
        int r = record(d, b, &d->recorded[b]);
        if (r == EK_EDEVICE)
            return r;
        all = all && r == 0;
        d->seen[b] = r == 0 ? 2 : 0;
    }
    *ret_all = all;
    return 0;
}

void cuda_graphs_free(struct ek_device *d)
{
    for (uint32_t b = 0; b <= CUDA_BUCKETS; b++) {
        if (d->recorded[b])
            (void)d->cu.exec_free(d->recorded[b]);
        d->recorded[b] = NULL;
        d->seen[b] = 0;
    }
}
