/* Streams, events and graphs of the driver for tests: work is put in lists and done when somebody
 * waits for it, or in pieces when an event is asked. A collective is done once the streams of all
 * ranks have come to it. A graph has what the stream did that began to record it and, beside that,
 * what a second stream did, which joined by waiting for an event of the first. See fake.h. */
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "kernels/cuda/args.h"
#include "tests/cuda/fake_inner.h"
#include "tests/cuda/shim_run.h"

enum { PIECE = 64, LOOK_US = 100 };

static void forget_edges(struct op *o)
{
    if (o->edges && --o->edges->ops == 0)
        free(o->edges);
    o->edges = NULL;
}

void fake_ops_done(struct ops *o)
{
    for (size_t i = o->next; i < o->count; i++) {
        free(o->at[i].own);
        forget_edges(&o->at[i]);
    }
    free(o->at);
    *o = (struct ops){0};
}

/* What a mixture's router has chosen here goes into the card's sum of it. */
static void note_routes(const struct op *o, int card)
{
    struct cu_experts_args a;
    size_t bytes;

    if (o->kernel != shim_find("ek_route", &bytes))
        return;
    memcpy(&a, o->args, sizeof(a));
    const unsigned char *at = (const unsigned char *)(uintptr_t)a.route;
    const struct cu_step *step = (const struct cu_step *)(uintptr_t)a.step;
    const uint32_t rows = a.picked ? step->logit_rows : step->rows;
    const uint32_t left = rows > a.first ? rows - a.first : 0;
    bytes = (size_t)(left < a.chunk ? left : a.chunk) * a.top * sizeof(struct cu_route);
    for (size_t i = 0; i < bytes; i++)
        fake_g.card[card].routes = (fake_g.card[card].routes ^ at[i]) * 0x100000001b3ull;
    fake_g.card[card].routed += bytes > 0;
}

static void op_run(struct op *o, int card)
{
    switch (o->kind) {
    case OP_COPY: memmove(o->to, o->own ? o->own : o->from, o->bytes); break;
    case OP_FILL: memset(o->to, o->value, o->bytes); break;
    case OP_LAUNCH:
        shim_launch(o->kernel, o->grid, o->threads, o->dynamic, o->args);
        note_routes(o, card);
        break;
    case OP_RECORD:
        if (o->edges) {
            o->edges->reached[o->edge] = true;
            break;
        }
        o->event->pending--;
        o->event->at_us = ek_now_us();
        break;
    case OP_PRODUCT: fake_multiply(&o->product); break;
    case OP_AWAIT: break;  /* it was reached */
    case OP_MEET: abort(); /* by fake_meet() */
    }
    free(o->own);
    o->own = NULL;
    forget_edges(o);
}

static bool reached(const struct op *o)
{
    if (o->edges)
        return o->edges->reached[o->edge];
    return o->event->records - o->event->pending >= o->record;
}

/* Whether an event is there that `stream` waits for; the stream that comes to it goes on so far. */
static bool await(struct cu_opaque *stream, const struct op *o)
{
    struct cu_opaque *other = !o->edges                   ? o->event->last
                              : o->edges->of[0] == stream ? o->edges->of[1]
                                                          : o->edges->of[0];

    while (!reached(o) && !other->draining && other->ops.count > 0) {
        size_t before = other->ops.next;
        fake_drain(other, 1);
        if (other->ops.next == before)
            break; /* it waits for others */
    }
    return reached(o);
}

/* What other streams of the card could do by now. */
static void run_ahead(const struct cu_opaque *stream)
{
    for (int i = 0; i < MOST_OBJECTS; i++) {
        struct cu_opaque *o = fake_g.object[i];
        if (o && o != stream && o->kind == STREAM && o->card == stream->card && !o->draining)
            fake_drain(o, SIZE_MAX);
    }
}

/* Does what is next in a stream, unless it waits for others. */
static bool go_on(struct cu_opaque *stream, bool meets)
{
    struct ops *o = &stream->ops;

    if (fake_g.eager)
        run_ahead(stream);
    if (o->at[o->next].kind == OP_MEET)
        return meets && fake_meet(stream);
    if (o->at[o->next].kind == OP_AWAIT && !await(stream, &o->at[o->next]))
        return false;
    op_run(&o->at[o->next++], stream->card);
    return true;
}

static void drain(struct cu_opaque *stream, size_t most, bool meets)
{
    struct ops *o = &stream->ops;

    if (stream->draining)
        return;
    stream->draining = true;
    while (most-- > 0 && o->next < o->count && go_on(stream, meets))
        continue;
    stream->draining = false;
    if (o->next == o->count)
        o->next = o->count = 0;
}

void fake_advance(struct cu_opaque *stream)
{
    drain(stream, SIZE_MAX, false);
}

void fake_drain(struct cu_opaque *stream, size_t most)
{
    drain(stream, most, true);
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

static struct op *push(struct ops *o, enum op_kind kind)
{
    if (o->count == o->room) {
        o->room = o->room ? o->room * 2 : 64;
        o->at = realloc(o->at, o->room * sizeof(*o->at));
    }
    struct op *op = &o->at[o->count++];
    memset(op, 0, sizeof(*op));
    op->kind = kind;
    return op;
}

struct op *fake_push(struct cu_opaque *stream, enum op_kind kind)
{
    assert(kind == OP_MEET || stream->card == fake_current()); /* its context is the caller's */
    return push(!stream->capturing ? &stream->ops
                : stream->beside   ? &stream->capturing->side
                                   : &stream->capturing->ops,
                kind);
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
    if (stream->kind != STREAM)
        return fake_leave(INVALID_HANDLE);
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

/* The last thing that the second stream does is an event that the first one waits for. */
static bool joined(const struct cu_opaque *graph)
{
    const struct ops *main = &graph->ops, *side = &graph->side;

    if (side->count == 0)
        return true;
    const struct op *last = &side->at[side->count - 1];
    for (size_t i = 0; i < main->count; i++)
        if (main->at[i].kind == OP_AWAIT && last->kind == OP_RECORD &&
            main->at[i].edge == last->edge)
            return true;
    return false;
}

API cuStreamEndCapture(struct cu_opaque *stream, struct cu_opaque **graph)
{
    *graph = NULL;
    struct cu_opaque *made = stream->capturing;
    stream->capturing = NULL;
    int r = fake_enter("cuStreamEndCapture");
    for (int i = 0; i < MOST_OBJECTS; i++) {
        struct cu_opaque *o = fake_g.object[i];
        if (o && o->kind == STREAM && o->capturing == made && made) {
            o->capturing = NULL;
            o->beside = false;
        }
    }
    if (r == CU_OK && !joined(made))
        r = CU_CAPTURE_UNJOINED;
    if (r == CU_OK)
        *graph = made;
    else
        fake_object_free(made, GRAPH);
    return fake_leave(r);
}

static struct ops copy_of(const struct ops *o)
{
    struct ops copy = {
        .at = calloc(o->count + 1, sizeof(struct op)), .count = o->count, .room = o->count + 1};
    for (size_t i = 0; i < o->count; i++)
        copy.at[i] = o->at[i];
    return copy;
}

API cuGraphInstantiateWithFlags(struct cu_opaque **exec, struct cu_opaque *graph,
                                unsigned long long flags)
{
    ENTER("cuGraphInstantiateWithFlags");
    (void)flags;
    *exec = fake_object_new(GRAPH);
    (*exec)->edges = graph->edges;
    (*exec)->ops = copy_of(&graph->ops);
    (*exec)->side = copy_of(&graph->side);
    if (graph->side.count > 0)
        (*exec)->lane = fake_object_new(STREAM);
    return fake_leave(CU_OK);
}

/* One launch of what was recorded of a stream. */
static void put_all(const struct ops *from, struct cu_opaque *stream, struct edges *edges)
{
    for (size_t i = 0; i < from->count; i++) {
        struct op *o = fake_push(stream, OP_LAUNCH);
        *o = from->at[i];
        assert(!o->own); /* a pageable copy in a graph */
        if (o->kind != OP_RECORD && o->kind != OP_AWAIT)
            continue;
        assert(o->edge > 0); /* of a graph */
        o->event = NULL;
        o->edges = edges;
        edges->ops++;
    }
}

API cuGraphLaunch(struct cu_opaque *exec, struct cu_opaque *stream)
{
    ENTER("cuGraphLaunch");
    struct edges *edges = calloc(1, sizeof(*edges) + exec->edges + 1);
    edges->of[0] = stream;
    edges->of[1] = exec->lane;
    edges->ops = 1; /* us */
    put_all(&exec->ops, stream, edges);
    put_all(&exec->side, exec->lane, edges);
    if (--edges->ops == 0)
        free(edges);
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
    if (exec->lane) {
        drain_all(exec->lane);
        fake_object_free(exec->lane, STREAM);
    }
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
    struct op *o = fake_push(stream, OP_RECORD);
    event->graph = stream->capturing;
    event->edge = 0;
    if (stream->capturing) {
        o->edge = event->edge = ++stream->capturing->edges;
        return fake_leave(CU_OK);
    }
    o->event = event;
    event->pending++;
    event->records++;
    event->last = stream;
    return fake_leave(CU_OK);
}

API cuStreamWaitEvent(struct cu_opaque *stream, struct cu_opaque *event, unsigned flags)
{
    ENTER("cuStreamWaitEvent");
    if (flags != 0 || stream->kind != STREAM || event->kind != EVENT)
        return fake_leave(CU_INVALID_VALUE);
    if (event->edge > 0 && !stream->capturing) { /* it joins */
        stream->capturing = event->graph;
        stream->beside = true;
    }
    assert(!stream->capturing || event->edge > 0); /* a graph waits for nothing else */
    struct op *o = fake_push(stream, OP_AWAIT);
    if (stream->capturing) {
        o->edge = event->edge;
        return fake_leave(CU_OK);
    }
    o->event = event;
    o->record = event->records;
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
