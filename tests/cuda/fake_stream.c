/* What the driver for tests enqueues: launches, copies, fills; and its streams. Every address is
 * held against what the card has when it is enqueued, as on a card. See fake.h. */
#include <string.h>

#include "tests/cuda/fake_inner.h"

enum { MOST_SIDE = 65535, MOST_THREADS = 1024 };

/* A call that enqueues, by the thread whose context the stream is of. */
#define ENTER_STREAM(symbol, stream)                                                               \
    ENTER_CARD(symbol);                                                                            \
    RULE(fake_stream_is(stream), INVALID_HANDLE,                                                   \
         "%s: no stream of the context, or the default one", symbol);                              \
    if (fake_capture_state(stream) != CU_OK)                                                       \
    return fake_leave(fake_capture_state(stream))

static const char *why_not(const struct cu_opaque *f, const unsigned grid[3],
                           const unsigned block[3], unsigned dynamic)
{
    if (!fake_is(f, FUNCTION))
        return "no function, or one of a module that is gone";
    if (f->card != fake_current())
        return "a function of another card";
    if (grid[0] == 0 || grid[0] > INT32_MAX || grid[1] == 0 || grid[1] > MOST_SIDE ||
        grid[2] == 0 || grid[2] > MOST_SIDE)
        return "a grid of nothing, or of more than a card takes";
    if (block[0] == 0 || block[1] != 1 || block[2] != 1 || block[0] > MOST_THREADS)
        return "a block of nothing, or of more than 1024 threads";
    if (dynamic > f->dynamic_most)
        return "more shared memory than was asked for";
    return f->arg_bytes > ARG_BYTES ? "more arguments than a test has room for" : NULL;
}

API cuLaunchKernel(struct cu_opaque *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                   unsigned by, unsigned bz, unsigned dynamic, struct cu_opaque *stream,
                   void **params, void **extra)
{
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};

    ENTER_STREAM("cuLaunchKernel", stream);
    const char *why = extra || !params ? "no arguments" : why_not(function, grid, block, dynamic);
    RULE(!why, CU_INVALID_VALUE, "cuLaunchKernel (%u, %u, %u by %u, %u bytes): %s", gx, gy, gz, bx,
         dynamic, why);
    if (function->lame)
        return fake_leave(CU_OK);
    struct op *o = fake_push(stream, OP_LAUNCH);
    o->function = function;
    o->kernel = function->kernel;
    memcpy(o->grid, grid, sizeof(grid));
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

static const char *why_no_host(const struct cu_opaque *stream, enum fake_host host)
{
    if (host == STRADDLES)
        return "its host memory is pinned in part";
    if (host == NOT_OF_HOST)
        return "its host memory is the card's";
    return host == PAGEABLE && stream->capturing ? "its host memory is not pinned, in a capture"
                                                 : NULL;
}

API cuMemcpyHtoDAsync_v2(cu_ptr to, const void *from, size_t bytes, struct cu_opaque *stream)
{
    void *at = (void *)(uintptr_t)to;

    ENTER_STREAM("cuMemcpyHtoDAsync_v2", stream);
    const enum fake_host host = fake_host(from, bytes);
    const char *why = why_no_host(stream, host);
    RULE(!why, CU_INVALID_VALUE, "a copy of %zu bytes to the card: %s", bytes, why);
    RULE(fake_on_card(at, bytes), CU_INVALID_VALUE,
         "a copy of %zu bytes to where the card has no such memory", bytes);
    push_copy(stream, at, from, bytes, host == PAGEABLE);
    return fake_leave(CU_OK);
}

API cuMemcpyDtoHAsync_v2(void *to, cu_ptr from, size_t bytes, struct cu_opaque *stream)
{
    const void *at = (const void *)(uintptr_t)from;

    ENTER_STREAM("cuMemcpyDtoHAsync_v2", stream);
    const enum fake_host host = fake_host(to, bytes);
    const char *why = why_no_host(stream, host);
    RULE(!why, CU_INVALID_VALUE, "a copy of %zu bytes from the card: %s", bytes, why);
    RULE(fake_on_card(at, bytes), CU_INVALID_VALUE,
         "a copy of %zu bytes from where the card has no such memory", bytes);
    push_copy(stream, to, at, bytes, false);
    if (host == PAGEABLE)
        fake_drain_all(stream);
    return fake_leave(CU_OK);
}

API cuMemcpyDtoDAsync_v2(cu_ptr to, cu_ptr from, size_t bytes, struct cu_opaque *stream)
{
    void *a = (void *)(uintptr_t)to, *b = (void *)(uintptr_t)from;

    ENTER_STREAM("cuMemcpyDtoDAsync_v2", stream);
    RULE(fake_on_card(a, bytes) && fake_on_card(b, bytes), CU_INVALID_VALUE,
         "a copy of %zu bytes on the card, of which it has not all", bytes);
    RULE(to >= from + bytes || from >= to + bytes, CU_INVALID_VALUE,
         "a copy of %zu bytes over itself has no order", bytes);
    push_copy(stream, a, b, bytes, false);
    return fake_leave(CU_OK);
}

API cuMemsetD8Async(cu_ptr to, unsigned char value, size_t bytes, struct cu_opaque *stream)
{
    void *at = (void *)(uintptr_t)to;

    ENTER_STREAM("cuMemsetD8Async", stream);
    RULE(fake_on_card(at, bytes), CU_INVALID_VALUE,
         "%zu bytes are filled of which the card has not all", bytes);
    struct op *o = fake_push(stream, OP_FILL);
    o->to = at;
    o->value = value;
    o->bytes = bytes;
    return fake_leave(CU_OK);
}

API cuStreamCreate(struct cu_opaque **stream, unsigned flags)
{
    ENTER_SAFE("cuStreamCreate");
    RULE(flags == CU_STREAM_NON_BLOCKING, CU_INVALID_VALUE,
         "a stream that waits for the default one, as all do that are not non-blocking");
    *stream = fake_object_new(STREAM);
    return fake_leave(CU_OK);
}

API cuStreamDestroy_v2(struct cu_opaque *stream)
{
    ENTER_SAFE("cuStreamDestroy_v2");
    RULE(fake_stream_is(stream), INVALID_HANDLE, "cuStreamDestroy: no stream of the context");
    RULE(!stream->capturing, CU_CAPTURE_UNSUPPORTED, "cuStreamDestroy of one that is captured");
    fake_drain_all(stream);
    fake_nccl_gone(stream);
    fake_object_free(stream, STREAM);
    return fake_leave(CU_OK);
}

API cuStreamSynchronize(struct cu_opaque *stream)
{
    ENTER_SAFE("cuStreamSynchronize");
    RULE(fake_stream_is(stream), INVALID_HANDLE, "cuStreamSynchronize: no stream of the context");
    if (stream->capturing) {
        stream->capturing->invalid = true;
        return fake_leave(fake_broken(CU_CAPTURE_UNSUPPORTED,
                                      "cuStreamSynchronize of a stream that is captured"));
    }
    fake_drain_all(stream);
    return fake_leave(CU_OK);
}
