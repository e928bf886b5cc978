/* What waits in the streams of the driver for tests, and how it is done: when somebody waits for
 * it, or in pieces when an event is asked. A collective is done once the streams of all ranks have
 * come to it. See fake.h. */
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "kernels/cuda/args.h"
#include "tests/cuda/fake_inner.h"
#include "tests/cuda/shim_run.h"

enum { LOOK_US = 100, PATIENCE = 600000 }; /* looks: a minute */

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
void fake_drain_all(struct cu_opaque *stream)
{
    unsigned looks = 0;

    for (fake_drain(stream, SIZE_MAX); stream->ops.count > 0; fake_drain(stream, SIZE_MAX)) {
        pthread_mutex_unlock(&fake_g.lock);
        (void)usleep(LOOK_US);
        pthread_mutex_lock(&fake_g.lock);
        if (++looks > PATIENCE)
            (void)fake_broken(0, "a call waits for a stream that never comes to its end");
    }
}

void fake_drain_card(int card)
{
    for (int i = 0; i < MOST_OBJECTS; i++)
        if (fake_g.object[i] && fake_g.object[i]->kind == STREAM && fake_g.object[i]->card == card)
            fake_drain_all(fake_g.object[i]);
}

/* ---- what touches memory ---- */

static bool meets(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x < y + b_bytes && y < x + a_bytes;
}

bool fake_awaited(const void *at, size_t bytes)
{
    for (int i = 0; i < MOST_OBJECTS; i++) {
        const struct cu_opaque *o = fake_g.object[i];
        for (size_t k = o && o->kind == STREAM ? o->ops.next : SIZE_MAX; o && k < o->ops.count;
             k++) {
            const struct op *op = &o->ops.at[k];
            if ((op->kind == OP_COPY || op->kind == OP_FILL) &&
                (meets(op->to, op->bytes, at, bytes) ||
                 (op->from && !op->own && meets(op->from, op->bytes, at, bytes))))
                return true;
        }
    }
    return false;
}

bool fake_busy(int card)
{
    for (int i = 0; i < MOST_OBJECTS; i++) {
        const struct cu_opaque *o = fake_g.object[i];
        if (o && o->kind == STREAM && o->card == card && o->ops.next < o->ops.count)
            return true;
    }
    return false;
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
    return push(!stream->capturing ? &stream->ops
                : stream->beside   ? &stream->capturing->side
                                   : &stream->capturing->ops,
                kind);
}
