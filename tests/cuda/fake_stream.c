/* Streams, events and graphs of the driver for tests: work is put in lists and done when somebody
 * waits for it, or in pieces when an event is asked. A collective is done once the streams of all
 * ranks have come to it. See fake.h. */
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/cuda/fake_inner.h"
#include "tests/cuda/shim_run.h"

enum { PIECE = 64, LOOK_US = 100 };

void fake_ops_done(struct ops *o)
{
    for (size_t i = o->next; i < o->count; i++)
        free(o->at[i].own);
    free(o->at);
    *o = (struct ops){0};
}

static void op_run(struct op *o)
{
    switch (o->kind) {
    case OP_COPY: memmove(o->to, o->own ? o->own : o->from, o->bytes); break;
    case OP_FILL: memset(o->to, o->value, o->bytes); break;
    case OP_LAUNCH: shim_launch(o->kernel, o->grid, o->threads, o->dynamic, o->args); break;
    case OP_RECORD:
        o->event->pending--;
        o->event->at_us = ek_now_us();
        break;
    case OP_MEET: abort(); /* by fake_meet() */
    }
    free(o->own);
    o->own = NULL;
}

void fake_advance(struct cu_opaque *stream)
{
    struct ops *o = &stream->ops;

    while (o->next < o->count && o->at[o->next].kind != OP_MEET)
        op_run(&o->at[o->next++]);
}

void fake_drain(struct cu_opaque *stream, size_t most)
{
    struct ops *o = &stream->ops;

    while (most-- > 0 && o->next < o->count) {
        if (o->at[o->next].kind != OP_MEET)
            op_run(&o->at[o->next++]);
        else if (!fake_meet(stream))
            break;
    }
    if (o->next == o->count)
        o->next = o->count = 0;
}

/* All of it: others may still have to enqueue their part of a collective. */
static void drain_all(struct cu_opaque *stream)
{
    for (fake_drain(stream, SIZE_MAX); stream->ops.count > 0; fake_drain(stream, SIZE_MAX)) {
        pthread_mutex_unlock(&fake_g.lock);
        (void)usleep(LOOK_US);
        pthread_mutex_lock(&fake_g.lock);
    }
}

struct op *fake_push(struct cu_opaque *stream, enum op_kind kind)
{
    struct ops *o = stream->capturing ? &stream->capturing->ops : &stream->ops;

    assert(kind == OP_MEET || stream->card == fake_current()); /* its context is the caller's */
    if (o->count == o->room) {
        o->room = o->room ? o->room * 2 : 64;
        o->at = realloc(o->at, o->room * sizeof(*o->at));
    }
    struct op *op = &o->at[o->count++];
    memset(op, 0, sizeof(*op));
    op->kind = kind;
    return op;
}

bool fake_capturing(void)
{
    for (int i = 0; i < MOST_OBJECTS; i++) {
        const struct cu_opaque *o = fake_g.object[i];
        if (o && o->kind == STREAM && o->capturing && o->card == fake_current())
            return true;
    }
    return false;
}

API cuLaunchKernel(struct cu_opaque *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                   unsigned by, unsigned bz, unsigned dynamic, struct cu_opaque *stream,
                   void **params, void **extra)
{
    ENTER_CARD("cuLaunchKernel");
    if (function->card != stream->card)
        return fake_leave(INVALID_HANDLE);
    if (gx == 0 || gy == 0 || gz != 1 || gy > 65535 || bx == 0 || bx > 1024 || by != 1 || bz != 1 ||
        extra || dynamic > function->dynamic_most || function->arg_bytes > ARG_BYTES)
        return fake_leave(CU_INVALID_VALUE);
    struct op *o = fake_push(stream, OP_LAUNCH);
    o->kernel = function->kernel;
    o->grid[0] = gx;
    o->grid[1] = gy;
    o->grid[2] = gz;
    o->threads = bx;
    o->dynamic = dynamic;
    memcpy(o->args, params[0], function->arg_bytes);
    return fake_leave(CU_OK);
}

static void push_copy(struct cu_opaque *stream, void *to, const void *from, size_t bytes, bool own)
{
    struct op *o = fake_push(stream, OP_COPY);
    o->to = to;
    o->from = from;
    o->bytes = bytes;
    if (own) {
        o->own = malloc(bytes + 1);
        memcpy(o->own, from, bytes);
    }
}

API cuMemcpyHtoDAsync_v2(cu_ptr to, const void *from, size_t bytes, struct cu_opaque *stream)
{
    ENTER("cuMemcpyHtoDAsync_v2");
    push_copy(stream, (void *)(uintptr_t)to, from, bytes, !fake_pinned(from));
    return fake_leave(CU_OK);
}

API cuMemcpyDtoHAsync_v2(void *to, cu_ptr from, size_t bytes, struct cu_opaque *stream)
{
    ENTER("cuMemcpyDtoHAsync_v2");
    push_copy(stream, to, (void *)(uintptr_t)from, bytes, false);
    if (!fake_pinned(to))
        drain_all(stream);
    return fake_leave(CU_OK);
}

API cuMemcpyDtoDAsync_v2(cu_ptr to, cu_ptr from, size_t bytes, struct cu_opaque *stream)
{
    ENTER("cuMemcpyDtoDAsync_v2");
    push_copy(stream, (void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes, false);
    return fake_leave(CU_OK);
}

API cuMemsetD8Async(cu_ptr to, unsigned char value, size_t bytes, struct cu_opaque *stream)
{
    ENTER("cuMemsetD8Async");
    struct op *o = fake_push(stream, OP_FILL);
    o->to = (void *)(uintptr_t)to;
    o->value = value;
    o->bytes = bytes;
    return fake_leave(CU_OK);
}

API cuStreamCreate(struct cu_opaque **stream, unsigned flags)
{
    ENTER_CARD("cuStreamCreate");
    (void)flags;
    *stream = fake_object_new(STREAM);
    return fake_leave(CU_OK);
}

API cuStreamDestroy_v2(struct cu_opaque *stream)
{
    ENTER("cuStreamDestroy_v2");
    drain_all(stream);
    fake_nccl_gone(stream);
    fake_object_free(stream, STREAM);
    return fake_leave(CU_OK);
}

API cuStreamSynchronize(struct cu_opaque *stream)
{
    ENTER("cuStreamSynchronize");
    NOT_IN_CAPTURE();
    drain_all(stream);
    return fake_leave(CU_OK);
}

API cuStreamBeginCapture_v2(struct cu_opaque *stream, int mode)
{
    ENTER("cuStreamBeginCapture_v2");
    (void)mode;
    stream->capturing = fake_object_new(GRAPH);
    return fake_leave(CU_OK);
}

API cuStreamEndCapture(struct cu_opaque *stream, struct cu_opaque **graph)
{
    *graph = NULL;
    struct cu_opaque *made = stream->capturing;
    stream->capturing = NULL;
    int r = fake_enter("cuStreamEndCapture");
    if (r == CU_OK)
        *graph = made;
    else
        fake_object_free(made, GRAPH);
    return fake_leave(r);
}

API cuGraphInstantiateWithFlags(struct cu_opaque **exec, struct cu_opaque *graph,
                                unsigned long long flags)
{
    ENTER("cuGraphInstantiateWithFlags");
    (void)flags;
    *exec = fake_object_new(GRAPH);
    (*exec)->ops = (struct ops){.at = malloc((graph->ops.count + 1) * sizeof(struct op)),
                                .count = graph->ops.count,
                                .room = graph->ops.count + 1};
    memcpy((*exec)->ops.at, graph->ops.at, graph->ops.count * sizeof(struct op));
    return fake_leave(CU_OK);
}

API cuGraphLaunch(struct cu_opaque *exec, struct cu_opaque *stream)
{
    ENTER("cuGraphLaunch");
    for (size_t i = 0; i < exec->ops.count; i++) {
        struct op *o = fake_push(stream, OP_LAUNCH);
        *o = exec->ops.at[i];
        assert(!o->own && o->kind != OP_RECORD); /* a pageable copy or an event in a graph */
    }
    return fake_leave(CU_OK);
}

API cuGraphDestroy(struct cu_opaque *graph)
{
    ENTER("cuGraphDestroy");
    fake_object_free(graph, GRAPH);
    return fake_leave(CU_OK);
}

API cuGraphExecDestroy(struct cu_opaque *exec)
{
    ENTER("cuGraphExecDestroy");
    fake_object_free(exec, GRAPH);
    return fake_leave(CU_OK);
}

API cuEventCreate(struct cu_opaque **event, unsigned flags)
{
    ENTER("cuEventCreate");
    (void)flags;
    *event = fake_object_new(EVENT);
    return fake_leave(CU_OK);
}

API cuEventDestroy_v2(struct cu_opaque *event)
{
    ENTER("cuEventDestroy_v2");
    fake_object_free(event, EVENT);
    return fake_leave(CU_OK);
}

API cuEventRecord(struct cu_opaque *event, struct cu_opaque *stream)
{
    ENTER("cuEventRecord");
    fake_push(stream, OP_RECORD)->event = event;
    event->pending++;
    event->last = stream;
    return fake_leave(CU_OK);
}

API cuEventQuery(struct cu_opaque *event)
{
    ENTER("cuEventQuery");
    if (event->pending > 0)
        fake_drain(event->last, PIECE);
    return fake_leave(event->pending > 0 ? CU_NOT_READY : CU_OK);
}

API cuEventElapsedTime(float *ms, struct cu_opaque *from, struct cu_opaque *to)
{
    ENTER("cuEventElapsedTime");
    if (from->pending > 0 || to->pending > 0)
        return fake_leave(CU_NOT_READY);
    *ms = (float)(to->at_us - from->at_us) / 1000.0f;
    return fake_leave(CU_OK);
}
