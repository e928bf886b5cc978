/*
 * Weights in host memory on their way to the card: a stream of its own copies one after the other
 * into two buffers in turn, so that one is copied while what stands before its use is computed.
 *
 *   step's begin ──begun──► copy 1, copy 2 ──full──► use of 1 ──left──► copy 3 into the first ...
 *
 * Which buffer an item goes to is the same in every step (odd ones to the first), so addresses are
 * fixed (a step that leaves some out waits a little where two of the others share one), and a
 * recorded step has all of it: the copies become nodes of its graph. Each step begins with its
 * first two copies and waits for its last ones; nothing is left from step to step, and a step that
 * was given up leaves nothing behind once its copies are waited for.
 *
 * The memory is ordinary pages that the driver pins: without that copies would wait for the host,
 * and none could be recorded. The embedding is not copied: the card reads its rows where they are;
 * so it reads experts in a step of few rows, which asks for few of them.
 */
#include "kernels/cuda/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "common/err.h"
#include "kernels/cuda/cuda.h"

/* ---- making and ending ---- */

/* How many bytes each item has: up to the end of its last weight. Which are of experts. */
static void measure_items(struct ek_device *d)
{
    for (uint32_t i = 0; i < d->graph->weight_count; i++) {
        const struct cuda_weight *w = &d->weights[i];
        struct cuda_item *item = w->item > 0 ? &d->items[w->item - 1] : NULL;
        if (item && w->at + w->bytes > item->bytes)
            item->bytes = w->at + w->bytes;
    }
    for (uint32_t i = 0; i < d->graph->op_count; i++) {
        const struct ek_op *op = &d->graph->ops[i];
        for (uint32_t e = 0; op->kind == EK_OP_EXPERTS && e < op->u.experts.count; e++) {
            const uint32_t item[] = {d->weights[op->weight + e].item,
                                     d->weights[op->u.experts.down + e].item};
            for (int k = 0; k < 2; k++)
                if (item[k] > 0)
                    d->items[item[k] - 1].experts = true;
        }
    }
}

static int cuda_stream_refuse(const struct ek_device *d, uint32_t item, const char *why,
                              struct ek_fault *fault)
{
    double had = 0;

    for (uint32_t i = 0; i < item; i++)
        had += (double)d->items[i].bytes;
    ek_fault_write(fault, "cpu-offload-gb",
                   "Only %.2f of %.2f GiB of weights got pinned host memory for --cpu-offload-gb "
                   "(%s): lower it, or allow more (LimitMEMLOCK= of the unit or ulimit -l, the "
                   "memory of the machine or container).",
                   had / 0x1p30, (double)d->shape.host_bytes / 0x1p30, why);
    return -ENOMEM;
}

static int take_item(struct ek_device *d, uint32_t i, struct ek_fault *fault)
{
    struct cuda_item *item = &d->items[i];
    int result = CU_OK;

    void *at = mmap(NULL, item->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return cuda_stream_refuse(d, i, "there is no more", fault);
    item->host = at;
    (void)madvise(at, item->bytes, MADV_HUGEPAGE); /* pinning is quicker then, if it is granted */
    result = d->cu.host_register(at, item->bytes, CU_HOST_PORTABLE | CU_HOST_MAPPED);
    item->pinned = result == CU_OK;
    item->at = d->slots.at + i % CUDA_OFFLOAD_SLOTS * d->shape.slot_bytes;
    if (result == CU_OK)
        result = d->cu.host_at(&item->in_place, at, 0);
    if (i >= d->shape.offload.streamed)
        item->at = item->in_place;
    if (result == CU_OK)
        return 0;
    size_t left, all;
    if (cu_code(d->cu.mem_info(&left, &all)) == EK_EDEVICE) /* the card is lost: that is why */
        return EK_EDEVICE;
    return cuda_stream_refuse(d, i, cu_name(&d->cu, result), fault);
}

static int make_events(struct ek_device *d)
{
    cu_handle *event[1 + 2 * CUDA_OFFLOAD_SLOTS] = {&d->begun};
    int result = d->cu.stream_new(&d->copier, CU_STREAM_NON_BLOCKING);

    for (uint32_t i = 0; i < CUDA_OFFLOAD_SLOTS; i++) {
        event[1 + 2 * i] = &d->full[i];
        event[2 + 2 * i] = &d->left[i];
    }
    for (size_t i = 0; result == CU_OK && i < sizeof(event) / sizeof(event[0]); i++)
        result = d->cu.event_new(event[i], CU_EVENT_NO_TIMES);
    return cu_code(result);
}

int cuda_stream_open(struct ek_device *d, struct ek_fault *fault)
{
    const struct cuda_offload *o = &d->shape.offload;
    int r = 0;

    if (o->items == 0)
        return 0;
    d->items = calloc(o->items, sizeof(*d->items));
    if (!d->items)
        return -ENOMEM;
    measure_items(d);
    if (o->streamed > 0)
        r = make_events(d);
    for (uint32_t i = 0; r == 0 && i < o->items; i++)
        r = take_item(d, i, fault);
    return r;
}

void cuda_stream_close(struct ek_device *d)
{
    cu_handle events[] = {d->begun, d->full[0], d->full[1], d->left[0], d->left[1]};

    if (d->copier)
        (void)d->cu.stream_wait(d->copier); /* nothing may read what is given back */
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        if (events[i])
            (void)d->cu.event_free(events[i]);
    if (d->copier)
        (void)d->cu.stream_free(d->copier);
    for (uint32_t i = 0; d->items && i < d->shape.offload.items; i++) {
        if (d->items[i].pinned)
            (void)d->cu.host_unregister(d->items[i].host);
        if (d->items[i].host)
            (void)munmap(d->items[i].host, d->items[i].bytes);
    }
    if (d->slots.at)
        (void)d->cu.free(d->slots.at);
    free(d->items);
    d->items = NULL;
    d->slots = (struct cuda_buffer){0};
    d->begun = d->copier = NULL;
    for (uint32_t i = 0; i < CUDA_OFFLOAD_SLOTS; i++)
        d->full[i] = d->left[i] = NULL;
}

/* ---- in a step ---- */

/* Copies an item once what is enqueued on the copier allows it. */
static int stream_bring(struct ek_device *d, uint32_t item)
{
    const struct cuda_item *it = &d->items[item - 1];
    int result = d->cu.copy_in(it->at, it->host, it->bytes, d->copier);

    if (result == CU_OK)
        result = d->cu.event_record(d->full[(item - 1) % CUDA_OFFLOAD_SLOTS], d->copier);
    return cu_code(result);
}

/* The buffer that the next item goes to; -1 when there is no more to copy in this step. */
static int next_slot(struct ek_device *d)
{
    while (d->next <= d->shape.offload.streamed && d->in_place && d->items[d->next - 1].experts)
        d->next++;
    return d->next <= d->shape.offload.streamed ? (int)((d->next - 1) % CUDA_OFFLOAD_SLOTS) : -1;
}

/* Has the copier wait for `event`, then copies to what is free. */
static int stream_fill(struct ek_device *d, cu_handle event)
{
    int slot = next_slot(d), r = 0;

    if (slot < 0 || d->holds[slot] > 0)
        return 0;
    r = cu_code(d->cu.event_record(event, d->stream));
    if (r == 0)
        r = cu_code(d->cu.stream_await(d->copier, event, 0));
    for (; r == 0 && slot >= 0 && d->holds[slot] == 0; slot = next_slot(d)) {
        d->holds[slot] = d->next++;
        r = stream_bring(d, d->holds[slot]);
    }
    return r;
}

int cuda_stream_begin(struct ek_device *d, uint32_t rows)
{
    if (d->shape.offload.streamed == 0)
        return 0;
    d->in_place = rows <= d->shape.offload.few_rows;
    d->next = 1;
    for (uint32_t i = 0; i < CUDA_OFFLOAD_SLOTS; i++)
        d->holds[i] = 0;
    return stream_fill(d, d->begun);
}

int cuda_stream_await(struct ek_device *d, uint32_t item)
{
    return cu_code(d->cu.stream_await(d->stream, d->full[(item - 1) % CUDA_OFFLOAD_SLOTS], 0));
}

int cuda_stream_leave(struct ek_device *d, uint32_t item)
{
    const uint32_t slot = (item - 1) % CUDA_OFFLOAD_SLOTS;

    d->holds[slot] = 0;
    return stream_fill(d, d->left[slot]);
}

int cuda_stream_settle(struct ek_device *d)
{
    return d->copier ? cu_code(d->cu.stream_wait(d->copier)) : 0;
}

int cuda_stream_time(struct ek_device *d, uint64_t *ret_us)
{
    const struct cuda_flight *f = &d->flight[0]; /* its events take times; no step is in flight */
    uint64_t bytes = 0;
    float ms = 0.0f;

    if (d->shape.offload.streamed == 0) {
        *ret_us = 0;
        return 0;
    }
    int r = stream_bring(d, 1); /* the first one of all may be slower */
    if (r == 0)
        r = cu_code(d->cu.event_record(f->begin, d->copier));
    for (uint32_t i = 1; r == 0 && i <= CUDA_OFFLOAD_SLOTS; i++) {
        bytes += d->items[i - 1].bytes;
        r = stream_bring(d, i);
    }
    if (r == 0)
        r = cu_code(d->cu.event_record(f->done, d->copier));
    if (r == 0)
        r = cu_code(d->cu.stream_wait(d->copier));
    if (r == 0)
        r = cu_code(d->cu.event_ms(&ms, f->begin, f->done));
    if (r == 0)
        *ret_us = (uint64_t)((double)ms * 1000 * (double)d->shape.stream_bytes / (double)bytes);
    return r;
}
