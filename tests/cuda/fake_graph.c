/* Captures, graphs and events of the driver for tests. A graph has what the stream did that began
 * to record it and, beside that, what a second stream did, which joined by waiting for an event of
 * the first. Captures are of one thread (CU_STREAM_CAPTURE_MODE_THREAD_LOCAL): what this thread
 * must not do meanwhile spoils them, what others do does not. See fake.h. */
#include <string.h>

#include "tests/cuda/fake_inner.h"

enum { PIECE = 64, CU_EVENT_FLAGS = 7 };

/* ---- captures ---- */

/* What the calling thread captures, or NULL. */
static struct cu_opaque *captured(void)
{
    for (int i = 0; i < MOST_OBJECTS; i++) {
        const struct cu_opaque *o = fake_g.object[i];
        if (o && o->kind == STREAM && o->capturing && !o->beside &&
            pthread_equal(o->capturing->owner, pthread_self()))
            return o->capturing;
    }
    return NULL;
}

bool fake_captures(void)
{
    return captured() != NULL;
}

bool fake_spoils(void)
{
    struct cu_opaque *graph = captured();

    if (graph)
        graph->invalid = true;
    return graph != NULL;
}

void fake_planted(void)
{
    struct cu_opaque *graph = captured();

    if (graph)
        graph->failed = true;
}

int fake_capture_state(const struct cu_opaque *stream)
{
    return stream->capturing && stream->capturing->invalid ? CU_CAPTURE_INVALIDATED : CU_OK;
}

API cuStreamBeginCapture_v2(struct cu_opaque *stream, int mode)
{
    ENTER_CARD("cuStreamBeginCapture_v2");
    RULE(fake_stream_is(stream), INVALID_HANDLE, "a capture of no stream, or the default one");
    RULE(mode == CU_CAPTURE_THREAD_LOCAL, CU_INVALID_VALUE,
         "a capture that calls of other threads spoil, or that nothing does");
    RULE(!stream->capturing && !fake_captures(), ILLEGAL_STATE, "a capture in a capture");
    stream->capturing = fake_object_new(GRAPH);
    stream->capturing->owner = pthread_self();
    stream->capturing->number = ++fake_g.numbers;
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

static void release(const struct cu_opaque *graph)
{
    for (int i = 0; i < MOST_OBJECTS; i++) {
        struct cu_opaque *o = fake_g.object[i];
        if (o && o->kind == STREAM && o->capturing == graph) {
            o->capturing = NULL;
            o->beside = false;
        }
    }
}

API cuStreamEndCapture(struct cu_opaque *stream, struct cu_opaque **graph)
{
    *graph = NULL;
    int r = fake_enter("cuStreamEndCapture");
    struct cu_opaque *made = fake_is(stream, STREAM) ? stream->capturing : NULL;

    RULE(made && !stream->beside, ILLEGAL_STATE, "the end of a capture that was not begun there");
    release(made);
    if (r == CU_OK && !pthread_equal(made->owner, pthread_self()))
        r = fake_broken(CU_CAPTURE_LAST, "a capture is ended by another thread");
    if (r == CU_OK && made->invalid)
        r = CU_CAPTURE_INVALIDATED;
    if (r == CU_OK && !joined(made) && made->failed)
        r = CU_CAPTURE_UNJOINED;
    if (r == CU_OK && !joined(made))
        r = fake_broken(CU_CAPTURE_UNJOINED,
                        "the first stream of a capture does not wait for the end of the second");
    if (r == CU_OK)
        *graph = made;
    else
        fake_object_free(made, GRAPH);
    return fake_leave(r);
}

/* ---- graphs ---- */

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
    ENTER_SAFE("cuGraphInstantiateWithFlags");
    RULE(fake_is(graph, GRAPH) && !graph->exec && flags == 0, CU_INVALID_VALUE,
         "cuGraphInstantiate: no graph, or flags");
    *exec = fake_object_new(GRAPH);
    (*exec)->exec = true;
    (*exec)->edges = graph->edges;
    (*exec)->ops = copy_of(&graph->ops);
    (*exec)->side = copy_of(&graph->side);
    if (graph->side.count > 0)
        (*exec)->lane = fake_object_new(STREAM);
    return fake_leave(CU_OK);
}

/* What is there no more of what was recorded. */
static const char *why_not(const struct ops *o)
{
    for (size_t i = 0; i < o->count; i++) {
        const struct op *op = &o->at[i];
        if (op->kind == OP_LAUNCH && !fake_is(op->function, FUNCTION))
            return "has a kernel of a module that is gone";
        if (op->kind != OP_COPY)
            continue;
        const bool to = fake_on_card(op->to, op->bytes), from = fake_on_card(op->from, op->bytes);
        if ((!to && fake_host(op->to, op->bytes) != IS_PINNED) ||
            (!from && fake_host(op->from, op->bytes) != IS_PINNED))
            return "copies what is given back or no longer pinned";
    }
    return NULL;
}

/* One launch of what was recorded of a stream. */
static void put_all(const struct ops *from, struct cu_opaque *stream, struct edges *edges)
{
    for (size_t i = 0; i < from->count; i++) {
        struct op *o = fake_push(stream, OP_LAUNCH);
        *o = from->at[i];
        if (o->kind != OP_RECORD && o->kind != OP_AWAIT)
            continue;
        o->event = NULL;
        o->edges = edges;
        edges->ops++;
    }
}

/* What a graph takes of the card; a launch does that where it was not done before. */
static void upload(struct cu_opaque *exec)
{
    if (!exec->uploaded)
        fake_g.card[exec->card].graphs += fake_g.graph_bytes;
    exec->uploaded = true;
}

API cuGraphUpload(struct cu_opaque *exec, struct cu_opaque *stream)
{
    ENTER_SAFE("cuGraphUpload");
    RULE(fake_stream_is(stream) && !stream->capturing, INVALID_HANDLE,
         "cuGraphUpload in no stream of the context, or in a capture");
    RULE(fake_is(exec, GRAPH) && exec->exec && exec->card == stream->card, CU_INVALID_VALUE,
         "cuGraphUpload of what was not instantiated, or on another card");
    upload(exec);
    return fake_leave(CU_OK);
}

API cuGraphLaunch(struct cu_opaque *exec, struct cu_opaque *stream)
{
    ENTER_CARD("cuGraphLaunch");
    RULE(fake_stream_is(stream) && !stream->capturing, INVALID_HANDLE,
         "cuGraphLaunch in no stream of the context, or in a capture");
    RULE(fake_is(exec, GRAPH) && exec->exec && exec->card == stream->card, CU_INVALID_VALUE,
         "cuGraphLaunch of what was not instantiated, or on another card");
    const char *why = why_not(&exec->ops);
    why = why ? why : why_not(&exec->side);
    RULE(!why, CU_INVALID_VALUE, "cuGraphLaunch: it %s", why);
    struct edges *edges = calloc(1, sizeof(*edges) + exec->edges + 1);
    upload(exec);
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
    ENTER_CARD("cuGraphDestroy");
    RULE(fake_is(graph, GRAPH) && !graph->exec, CU_INVALID_VALUE, "cuGraphDestroy of no graph");
    fake_object_free(graph, GRAPH);
    return fake_leave(CU_OK);
}

API cuGraphExecDestroy(struct cu_opaque *exec)
{
    ENTER_CARD("cuGraphExecDestroy");
    RULE(fake_is(exec, GRAPH) && exec->exec, CU_INVALID_VALUE,
         "cuGraphExecDestroy of what was not instantiated");
    if (exec->lane) {
        fake_drain_all(exec->lane);
        fake_object_free(exec->lane, STREAM);
    }
    if (exec->uploaded)
        fake_g.card[exec->card].graphs -= fake_g.graph_bytes;
    fake_object_free(exec, GRAPH);
    return fake_leave(CU_OK);
}

/* ---- events ---- */

API cuEventCreate(struct cu_opaque **event, unsigned flags)
{
    ENTER_CARD("cuEventCreate");
    RULE((flags & ~(unsigned)CU_EVENT_FLAGS) == 0, CU_INVALID_VALUE, "an event with flags %x",
         flags);
    *event = fake_object_new(EVENT);
    (*event)->flags = flags;
    return fake_leave(CU_OK);
}

API cuEventDestroy_v2(struct cu_opaque *event)
{
    ENTER_CARD("cuEventDestroy_v2");
    RULE(fake_is(event, EVENT), INVALID_HANDLE, "cuEventDestroy of no event");
    if (event->pending > 0)
        fake_drain_card(event->card); /* what is on its way keeps it for as long */
    fake_object_free(event, EVENT);
    return fake_leave(CU_OK);
}

API cuEventRecord(struct cu_opaque *event, struct cu_opaque *stream)
{
    ENTER_CARD("cuEventRecord");
    RULE(fake_is(event, EVENT) && fake_stream_is(stream) && event->card == stream->card,
         INVALID_HANDLE, "cuEventRecord: event and stream are not both of the context");
    if (fake_capture_state(stream) != CU_OK)
        return fake_leave(fake_capture_state(stream));
    struct op *o = fake_push(stream, OP_RECORD);
    event->graph = stream->capturing ? stream->capturing->number : 0;
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

/* The graph that this event was recorded in, while it is captured. */
static struct cu_opaque *graph_of(const struct cu_opaque *event)
{
    for (int i = 0; event->edge > 0 && i < MOST_OBJECTS; i++) {
        const struct cu_opaque *o = fake_g.object[i];
        if (o && o->kind == STREAM && o->capturing && o->capturing->number == event->graph)
            return o->capturing;
    }
    return NULL;
}

API cuStreamWaitEvent(struct cu_opaque *stream, struct cu_opaque *event, unsigned flags)
{
    ENTER_CARD("cuStreamWaitEvent");
    RULE(fake_stream_is(stream) && fake_is(event, EVENT) && flags == 0, INVALID_HANDLE,
         "cuStreamWaitEvent: no stream of the context, no event, or flags");
    if (fake_capture_state(stream) != CU_OK)
        return fake_leave(fake_capture_state(stream));
    struct cu_opaque *graph = graph_of(event);
    RULE(graph || event->edge == 0, CAPTURED_EVENT,
         "a wait for an event whose capture is over: it is of a graph");
    RULE(event->edge > 0 || event->records > 0, CU_INVALID_VALUE,
         "a wait for an event that was never recorded is no wait");
    if (stream->capturing && graph != stream->capturing) {
        stream->capturing->invalid = true;
        return fake_leave(fake_broken(graph ? CAPTURE_MERGE : CAPTURE_ISOLATION,
                                      "what is captured waits for what is not"));
    }
    if (graph && !stream->capturing) { /* it joins */
        stream->capturing = graph;
        stream->beside = true;
    }
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
    ENTER_SAFE("cuEventQuery");
    RULE(fake_is(event, EVENT), INVALID_HANDLE, "cuEventQuery of no event");
    RULE(event->edge == 0, CAPTURED_EVENT, "cuEventQuery of an event of a graph");
    if (event->pending > 0)
        fake_drain(event->last, PIECE);
    return fake_leave(event->pending > 0 ? CU_NOT_READY : CU_OK);
}

static bool has_time(const struct cu_opaque *event)
{
    return fake_is(event, EVENT) && event->records > 0 && event->edge == 0 &&
           !(event->flags & CU_EVENT_NO_TIMES);
}

API cuEventElapsedTime(float *ms, struct cu_opaque *from, struct cu_opaque *to)
{
    ENTER_CARD("cuEventElapsedTime");
    RULE(has_time(from) && has_time(to), INVALID_HANDLE,
         "the time between events of which one was not recorded, or without times");
    if (from->pending > 0 || to->pending > 0)
        return fake_leave(CU_NOT_READY);
    *ms = (float)(to->at_us - from->at_us) / 1000.0f;
    return fake_leave(CU_OK);
}
