/* A CUDA driver for tests: see fake.h. Everything is under one lock; memory is filled with 0xff, so
 * that what was never written is not a number. */
#include "tests/cuda/fake.h"

#include <assert.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/clock.h"
#include "kernels/cuda/driver.h"
#include "tests/cuda/shim_run.h"

#define EXPORT __attribute__((visibility("default")))

enum { MOST_OBJECTS = 1024, MOST_FAILURES = 4, PIECE = 64, MOST_COUNTED = 64, ARG_BYTES = 512 };
#define DEFAULT_CARD ((size_t)8 << 30)
#define PAGE         ((size_t)2 << 20)

enum op_kind { OP_COPY, OP_FILL, OP_LAUNCH, OP_RECORD };

struct op {
    enum op_kind kind;
    void *to;
    const void *from;
    void *own; /* a snapshot of pageable memory */
    size_t bytes;
    unsigned char value;
    int kernel;
    unsigned grid[3], threads, dynamic;
    _Alignas(16) unsigned char args[ARG_BYTES];
    struct cu_opaque *event;
};

struct ops {
    struct op *at;
    size_t count, room, next;
};

enum object_kind { FREE, STREAM, EVENT, MODULE, FUNCTION, GRAPH, CONTEXT };

struct cu_opaque { /* whatever has a handle */
    enum object_kind kind;
    struct ops ops; /* of a stream or graph */
    struct cu_opaque *capturing;
    struct cu_opaque *last; /* stream in which an event was recorded */
    size_t pending;         /* records of this event that were not reached yet */
    uint64_t at_us;
    int kernel;
    size_t arg_bytes;
    unsigned dynamic_most;
};

struct range {
    char *at;
    size_t bytes;
    unsigned long long handle; /* mapped memory: which */
    enum { NO_RANGE, DEVICE, PINNED, REGISTERED, RESERVED, MAPPED, HANDLE } kind;
};

static struct {
    pthread_mutex_t lock;
    size_t total, used;
    bool vmm;
    int cards, sticky;
    struct range range[MOST_OBJECTS];
    struct cu_opaque *object[MOST_OBJECTS];
    struct {
        char name[48];
        unsigned left;
        int result;
    } fail[MOST_FAILURES];
    struct {
        char name[48];
        unsigned calls;
    } counted[MOST_COUNTED];
} g = {.lock = PTHREAD_MUTEX_INITIALIZER, .total = DEFAULT_CARD, .vmm = true, .cards = 1};

/* ---- steering ---- */

static bool is_sticky(int result)
{
    return result >= 700 && result < 800 && result != CU_LAUNCH_OUT_OF_RESOURCES;
}

static int enter(const char *symbol)
{
    pthread_mutex_lock(&g.lock);
    for (int i = 0; i < MOST_COUNTED; i++)
        if (!g.counted[i].name[0] || strcmp(g.counted[i].name, symbol) == 0) {
            (void)snprintf(g.counted[i].name, sizeof(g.counted[i].name), "%s", symbol);
            g.counted[i].calls++;
            break;
        }
    if (g.sticky)
        return g.sticky;
    for (int i = 0; i < MOST_FAILURES; i++)
        if (g.fail[i].left > 0 && strcmp(g.fail[i].name, symbol) == 0 && --g.fail[i].left == 0) {
            g.sticky = is_sticky(g.fail[i].result) ? g.fail[i].result : 0;
            return g.fail[i].result;
        }
    return CU_OK;
}

static int leave(int result)
{
    pthread_mutex_unlock(&g.lock);
    return result;
}

#define ENTER(symbol)                                                                              \
    int r_ = enter(symbol);                                                                        \
    if (r_ != CU_OK)                                                                               \
    return leave(r_)

/* What a lost device took with it: device memory, handles and objects. */
static void forget_all(void)
{
    for (int i = 0; i < MOST_OBJECTS; i++) {
        if (g.range[i].kind == HANDLE)
            (void)close((int)g.range[i].handle);
        if (g.range[i].kind == DEVICE || g.range[i].kind == PINNED)
            free(g.range[i].at);
        if (g.range[i].kind == RESERVED)
            (void)munmap(g.range[i].at, g.range[i].bytes);
        g.range[i].kind = NO_RANGE;
        if (g.object[i]) {
            for (size_t k = g.object[i]->ops.next; k < g.object[i]->ops.count; k++)
                free(g.object[i]->ops.at[k].own);
            free(g.object[i]->ops.at);
            free(g.object[i]);
        }
        g.object[i] = NULL;
    }
    g.used = 0;
}

EXPORT void fake_card(size_t bytes, bool vmm)
{
    pthread_mutex_lock(&g.lock);
    if (bytes > 0)
        forget_all();
    else
        bytes = g.total;
    g.total = bytes;
    g.vmm = vmm;
    g.cards = 1;
    g.sticky = 0;
    memset(g.fail, 0, sizeof(g.fail));
    memset(g.counted, 0, sizeof(g.counted));
    pthread_mutex_unlock(&g.lock);
}

/* FAKE_CUDA_FAIL="symbol:nth:result" plants a failure in a program that knows nothing of this. */
__attribute__((constructor)) static void plant_from_environment(void)
{
    const char *plan = getenv("FAKE_CUDA_FAIL");
    char symbol[48];
    unsigned nth;
    int result;

    if (plan && sscanf(plan, "%47[^:]:%u:%d", symbol, &nth, &result) == 3)
        fake_fail(symbol, nth, result);
}

EXPORT void fake_cards(int count)
{
    g.cards = count;
}

EXPORT void fake_fail(const char *symbol, unsigned nth, int result)
{
    pthread_mutex_lock(&g.lock);
    for (int i = 0; i < MOST_FAILURES; i++)
        if (g.fail[i].left == 0) {
            (void)snprintf(g.fail[i].name, sizeof(g.fail[i].name), "%s", symbol);
            g.fail[i].left = nth;
            g.fail[i].result = result;
            break;
        }
    pthread_mutex_unlock(&g.lock);
}

EXPORT unsigned fake_calls(const char *symbol)
{
    for (int i = 0; i < MOST_COUNTED; i++)
        if (strcmp(g.counted[i].name, symbol) == 0)
            return g.counted[i].calls;
    return 0;
}

EXPORT size_t fake_used(void)
{
    return g.used;
}

EXPORT unsigned fake_objects(void)
{
    unsigned n = 0;

    for (int i = 0; i < MOST_OBJECTS; i++)
        n += (g.range[i].kind != NO_RANGE) +
             (g.object[i] && g.object[i]->kind != FUNCTION && g.object[i]->kind != FREE);
    return n;
}

/* ---- objects and memory ---- */

static struct cu_opaque *object_new(enum object_kind kind)
{
    for (int i = 0; i < MOST_OBJECTS; i++)
        if (!g.object[i]) {
            g.object[i] = calloc(1, sizeof(struct cu_opaque));
            g.object[i]->kind = kind;
            return g.object[i];
        }
    abort();
}

static void ops_done(struct ops *o)
{
    for (size_t i = o->next; i < o->count; i++)
        free(o->at[i].own);
    free(o->at);
    *o = (struct ops){0};
}

static void object_free(struct cu_opaque *o, enum object_kind kind)
{
    for (int i = 0; i < MOST_OBJECTS; i++)
        if (g.object[i] == o) {
            assert(o->kind == kind);
            ops_done(&o->ops);
            free(o);
            g.object[i] = NULL;
            return;
        }
    abort(); /* freed twice, or never made */
}

static struct range *range_new(char *at, size_t bytes, int kind)
{
    for (int i = 0; i < MOST_OBJECTS; i++)
        if (g.range[i].kind == NO_RANGE) {
            g.range[i] = (struct range){.at = at, .bytes = bytes, .kind = kind};
            return &g.range[i];
        }
    abort();
}

static struct range *range_at(const void *at, int kind)
{
    for (int i = 0; i < MOST_OBJECTS; i++)
        if ((int)g.range[i].kind == kind && g.range[i].at == at)
            return &g.range[i];
    abort(); /* an address that was never given out */
}

static bool pinned(const void *at)
{
    for (int i = 0; i < MOST_OBJECTS; i++)
        if ((g.range[i].kind == PINNED || g.range[i].kind == REGISTERED) &&
            (const char *)at >= g.range[i].at &&
            (const char *)at < g.range[i].at + g.range[i].bytes)
            return true;
    return false;
}

/* ---- streams ---- */

static void op_run(struct op *o, bool keep)
{
    switch (o->kind) {
    case OP_COPY: memmove(o->to, o->own ? o->own : o->from, o->bytes); break;
    case OP_FILL: memset(o->to, o->value, o->bytes); break;
    case OP_LAUNCH: shim_launch(o->kernel, o->grid, o->threads, o->dynamic, o->args); break;
    case OP_RECORD:
        o->event->pending--;
        o->event->at_us = ek_now_us();
        break;
    }
    if (!keep) {
        free(o->own);
        o->own = NULL;
    }
}

static void drain(struct cu_opaque *stream, size_t most)
{
    struct ops *o = &stream->ops;

    while (most-- > 0 && o->next < o->count)
        op_run(&o->at[o->next++], false);
    if (o->next == o->count)
        o->next = o->count = 0;
}

static struct op *push(struct cu_opaque *stream, enum op_kind kind)
{
    struct ops *o = stream->capturing ? &stream->capturing->ops : &stream->ops;

    if (o->count == o->room) {
        o->room = o->room ? o->room * 2 : 64;
        o->at = realloc(o->at, o->room * sizeof(*o->at));
    }
    struct op *op = &o->at[o->count++];
    memset(op, 0, sizeof(*op));
    op->kind = kind;
    return op;
}

static bool capturing(void)
{
    for (int i = 0; i < MOST_OBJECTS; i++)
        if (g.object[i] && g.object[i]->kind == STREAM && g.object[i]->capturing)
            return true;
    return false;
}

#define API                          EXPORT int
#define DECLARE(field, symbol, args) API symbol args;
CU_FUNCTIONS(DECLARE) /* the same signatures as the backend calls them by */
#define NOT_IN_CAPTURE()                                                                           \
    if (capturing())                                                                               \
    return leave(CU_CAPTURE_UNSUPPORTED)

/* ---- the driver ---- */

API cuInit(unsigned flags)
{
    ENTER("cuInit");
    (void)flags;
    return leave(g.cards < 0 ? -g.cards : g.cards == 0 ? CU_NO_DEVICE : CU_OK);
}

API cuDriverGetVersion(int *version)
{
    ENTER("cuDriverGetVersion");
    *version = 13000;
    return leave(CU_OK);
}

API cuGetErrorName(int result, const char **name)
{
    *name = result == CU_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return CU_OK;
}

API cuDeviceGetCount(int *count)
{
    ENTER("cuDeviceGetCount");
    *count = g.cards;
    return leave(CU_OK);
}

API cuDeviceGet(int *device, int ordinal)
{
    ENTER("cuDeviceGet");
    *device = ordinal;
    return leave(ordinal < g.cards ? CU_OK : CU_INVALID_DEVICE);
}

API cuDeviceGetName(char *name, int size, int device)
{
    ENTER("cuDeviceGetName");
    (void)snprintf(name, (size_t)size, "Fake card %d", device);
    return leave(CU_OK);
}

API cuDeviceGetAttribute(int *value, int attr, int device)
{
    ENTER("cuDeviceGetAttribute");
    (void)device;
    *value = attr == CU_ATTR_SM_COUNT                 ? 2
             : attr == CU_ATTR_MAJOR                  ? 9
             : attr == CU_ATTR_VMM                    ? g.vmm
             : attr == CU_ATTR_SHARED_PER_BLOCK_OPTIN ? 99 << 10
                                                      : 0;
    return leave(CU_OK);
}

API cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    ENTER("cuDeviceTotalMem_v2");
    (void)device;
    *bytes = g.total;
    return leave(CU_OK);
}

API cuDevicePrimaryCtxRetain(struct cu_opaque **context, int device)
{
    ENTER("cuDevicePrimaryCtxRetain");
    (void)device;
    *context = object_new(CONTEXT);
    return leave(CU_OK);
}

API cuDevicePrimaryCtxRelease_v2(int device)
{
    ENTER("cuDevicePrimaryCtxRelease_v2");
    (void)device;
    for (int i = 0; i < MOST_OBJECTS; i++)
        if (g.object[i] && g.object[i]->kind == CONTEXT) {
            object_free(g.object[i], CONTEXT);
            break;
        }
    return leave(CU_OK);
}

API cuCtxSetCurrent(struct cu_opaque *context)
{
    (void)context;
    return CU_OK;
}

API cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    ENTER("cuMemGetInfo_v2");
    *total = g.total;
    *free_bytes = g.total > g.used ? g.total - g.used : 0;
    return leave(CU_OK);
}

API cuModuleLoadData(struct cu_opaque **module, const void *image)
{
    ENTER("cuModuleLoadData");
    if (!image)
        return leave(CU_INVALID_IMAGE);
    *module = object_new(MODULE);
    return leave(CU_OK);
}

API cuModuleUnload(struct cu_opaque *module)
{
    ENTER("cuModuleUnload");
    object_free(module, MODULE);
    return leave(CU_OK);
}

API cuModuleGetFunction(struct cu_opaque **function, struct cu_opaque *module, const char *name)
{
    ENTER("cuModuleGetFunction");
    size_t bytes;
    int kernel = shim_find(name, &bytes);
    if (kernel < 0 || module->kind != MODULE)
        return leave(CU_NOT_FOUND);
    *function = object_new(FUNCTION);
    **function = (struct cu_opaque){
        .kind = FUNCTION, .kernel = kernel, .arg_bytes = bytes, .dynamic_most = 48 << 10};
    return leave(CU_OK);
}

API cuFuncSetAttribute(struct cu_opaque *function, int attr, int value)
{
    ENTER("cuFuncSetAttribute");
    if (attr != CU_FUNC_MAX_DYNAMIC_SHARED || value > 99 << 10)
        return leave(CU_INVALID_VALUE);
    function->dynamic_most = (unsigned)value;
    return leave(CU_OK);
}

API cuLaunchKernel(struct cu_opaque *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                   unsigned by, unsigned bz, unsigned dynamic, struct cu_opaque *stream,
                   void **params, void **extra)
{
    ENTER("cuLaunchKernel");
    if (gx == 0 || gy == 0 || gz != 1 || gy > 65535 || bx == 0 || bx > 1024 || by != 1 || bz != 1 ||
        extra || dynamic > function->dynamic_most || function->arg_bytes > ARG_BYTES)
        return leave(CU_INVALID_VALUE);
    struct op *o = push(stream, OP_LAUNCH);
    o->kernel = function->kernel;
    o->grid[0] = gx;
    o->grid[1] = gy;
    o->grid[2] = gz;
    o->threads = bx;
    o->dynamic = dynamic;
    memcpy(o->args, params[0], function->arg_bytes);
    return leave(CU_OK);
}

API cuMemAlloc_v2(cu_ptr *at, size_t bytes)
{
    ENTER("cuMemAlloc_v2");
    NOT_IN_CAPTURE();
    if (bytes == 0)
        return leave(CU_INVALID_VALUE);
    if (bytes > g.total - g.used)
        return leave(CU_OUT_OF_MEMORY);
    char *memory = aligned_alloc(512, (bytes + 511) & ~(size_t)511);
    memset(memory, 0xff, bytes);
    (void)range_new(memory, bytes, DEVICE);
    g.used += bytes;
    *at = (cu_ptr)(uintptr_t)memory;
    return leave(CU_OK);
}

API cuMemFree_v2(cu_ptr at)
{
    ENTER("cuMemFree_v2");
    struct range *r = range_at((void *)(uintptr_t)at, DEVICE);
    g.used -= r->bytes;
    free(r->at);
    r->kind = NO_RANGE;
    return leave(CU_OK);
}

API cuMemHostAlloc(void **at, size_t bytes, unsigned flags)
{
    ENTER("cuMemHostAlloc");
    (void)flags;
    *at = aligned_alloc(512, (bytes + 511) & ~(size_t)511);
    memset(*at, 0xff, bytes);
    (void)range_new(*at, bytes, PINNED);
    return leave(CU_OK);
}

API cuMemFreeHost(void *at)
{
    ENTER("cuMemFreeHost");
    range_at(at, PINNED)->kind = NO_RANGE;
    free(at);
    return leave(CU_OK);
}

API cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    ENTER("cuMemHostRegister_v2");
    (void)flags;
    (void)range_new(at, bytes, REGISTERED);
    return leave(CU_OK);
}

API cuMemHostUnregister(void *at)
{
    ENTER("cuMemHostUnregister");
    range_at(at, REGISTERED)->kind = NO_RANGE;
    return leave(CU_OK);
}

static void push_copy(struct cu_opaque *stream, void *to, const void *from, size_t bytes, bool own)
{
    struct op *o = push(stream, OP_COPY);
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
    push_copy(stream, (void *)(uintptr_t)to, from, bytes, !pinned(from));
    return leave(CU_OK);
}

API cuMemcpyDtoHAsync_v2(void *to, cu_ptr from, size_t bytes, struct cu_opaque *stream)
{
    ENTER("cuMemcpyDtoHAsync_v2");
    push_copy(stream, to, (void *)(uintptr_t)from, bytes, false);
    if (!pinned(to))
        drain(stream, SIZE_MAX);
    return leave(CU_OK);
}

API cuMemcpyDtoDAsync_v2(cu_ptr to, cu_ptr from, size_t bytes, struct cu_opaque *stream)
{
    ENTER("cuMemcpyDtoDAsync_v2");
    push_copy(stream, (void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes, false);
    return leave(CU_OK);
}

API cuMemsetD8Async(cu_ptr to, unsigned char value, size_t bytes, struct cu_opaque *stream)
{
    ENTER("cuMemsetD8Async");
    struct op *o = push(stream, OP_FILL);
    o->to = (void *)(uintptr_t)to;
    o->value = value;
    o->bytes = bytes;
    return leave(CU_OK);
}

API cuStreamCreate(struct cu_opaque **stream, unsigned flags)
{
    ENTER("cuStreamCreate");
    (void)flags;
    *stream = object_new(STREAM);
    return leave(CU_OK);
}

API cuStreamDestroy_v2(struct cu_opaque *stream)
{
    ENTER("cuStreamDestroy_v2");
    drain(stream, SIZE_MAX);
    object_free(stream, STREAM);
    return leave(CU_OK);
}

API cuStreamSynchronize(struct cu_opaque *stream)
{
    ENTER("cuStreamSynchronize");
    NOT_IN_CAPTURE();
    drain(stream, SIZE_MAX);
    return leave(CU_OK);
}

API cuStreamBeginCapture_v2(struct cu_opaque *stream, int mode)
{
    ENTER("cuStreamBeginCapture_v2");
    (void)mode;
    stream->capturing = object_new(GRAPH);
    return leave(CU_OK);
}

API cuStreamEndCapture(struct cu_opaque *stream, struct cu_opaque **graph)
{
    *graph = NULL;
    struct cu_opaque *made = stream->capturing;
    stream->capturing = NULL;
    int r = enter("cuStreamEndCapture");
    if (r == CU_OK)
        *graph = made;
    else
        object_free(made, GRAPH);
    return leave(r);
}

API cuGraphInstantiateWithFlags(struct cu_opaque **exec, struct cu_opaque *graph,
                                unsigned long long flags)
{
    ENTER("cuGraphInstantiateWithFlags");
    (void)flags;
    *exec = object_new(GRAPH);
    (*exec)->ops = (struct ops){.at = malloc((graph->ops.count + 1) * sizeof(struct op)),
                                .count = graph->ops.count,
                                .room = graph->ops.count + 1};
    memcpy((*exec)->ops.at, graph->ops.at, graph->ops.count * sizeof(struct op));
    return leave(CU_OK);
}

API cuGraphLaunch(struct cu_opaque *exec, struct cu_opaque *stream)
{
    ENTER("cuGraphLaunch");
    for (size_t i = 0; i < exec->ops.count; i++) {
        struct op *o = push(stream, OP_LAUNCH);
        *o = exec->ops.at[i];
        assert(!o->own && o->kind != OP_RECORD); /* a pageable copy or an event in a graph */
    }
    return leave(CU_OK);
}

API cuGraphDestroy(struct cu_opaque *graph)
{
    ENTER("cuGraphDestroy");
    object_free(graph, GRAPH);
    return leave(CU_OK);
}

API cuGraphExecDestroy(struct cu_opaque *exec)
{
    ENTER("cuGraphExecDestroy");
    object_free(exec, GRAPH);
    return leave(CU_OK);
}

API cuEventCreate(struct cu_opaque **event, unsigned flags)
{
    ENTER("cuEventCreate");
    (void)flags;
    *event = object_new(EVENT);
    return leave(CU_OK);
}

API cuEventDestroy_v2(struct cu_opaque *event)
{
    ENTER("cuEventDestroy_v2");
    object_free(event, EVENT);
    return leave(CU_OK);
}

API cuEventRecord(struct cu_opaque *event, struct cu_opaque *stream)
{
    ENTER("cuEventRecord");
    push(stream, OP_RECORD)->event = event;
    event->pending++;
    event->last = stream;
    return leave(CU_OK);
}

API cuEventQuery(struct cu_opaque *event)
{
    ENTER("cuEventQuery");
    if (event->pending > 0)
        drain(event->last, PIECE);
    return leave(event->pending > 0 ? CU_NOT_READY : CU_OK);
}

API cuEventElapsedTime(float *ms, struct cu_opaque *from, struct cu_opaque *to)
{
    ENTER("cuEventElapsedTime");
    if (from->pending > 0 || to->pending > 0)
        return leave(CU_NOT_READY);
    *ms = (float)(to->at_us - from->at_us) / 1000.0f;
    return leave(CU_OK);
}

/* ---- virtual memory ---- */

API cuMemGetAllocationGranularity(size_t *bytes, const struct cu_mem_prop *prop, int option)
{
    ENTER("cuMemGetAllocationGranularity");
    (void)option;
    *bytes = PAGE;
    return leave(prop->location.type == CU_LOCATION_DEVICE ? CU_OK : CU_INVALID_VALUE);
}

API cuMemAddressReserve(cu_ptr *at, size_t bytes, size_t align, cu_ptr wish,
                        unsigned long long flags)
{
    ENTER("cuMemAddressReserve");
    (void)align;
    (void)wish;
    (void)flags;
    if (bytes == 0 || bytes % PAGE != 0)
        return leave(CU_INVALID_VALUE);
    char *va = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (va == MAP_FAILED)
        return leave(CU_OUT_OF_MEMORY);
    (void)range_new(va, bytes, RESERVED);
    *at = (cu_ptr)(uintptr_t)va;
    return leave(CU_OK);
}

API cuMemAddressFree(cu_ptr at, size_t bytes)
{
    ENTER("cuMemAddressFree");
    struct range *r = range_at((void *)(uintptr_t)at, RESERVED);
    assert(r->bytes == bytes);
    (void)munmap(r->at, bytes);
    r->kind = NO_RANGE;
    return leave(CU_OK);
}

API cuMemCreate(unsigned long long *handle, size_t bytes, const struct cu_mem_prop *prop,
                unsigned long long flags)
{
    ENTER("cuMemCreate");
    (void)flags;
    NOT_IN_CAPTURE();
    if (bytes % PAGE != 0 || prop->type != CU_MEM_PINNED ||
        prop->location.type != CU_LOCATION_DEVICE)
        return leave(CU_INVALID_VALUE);
    if (bytes > g.total - g.used)
        return leave(CU_OUT_OF_MEMORY);
    int fd = memfd_create("fake-device", MFD_CLOEXEC);
    assert(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    g.used += bytes;
    struct range *r = range_new(NULL, bytes, HANDLE);
    r->handle = (unsigned long long)fd;
    *handle = (unsigned long long)fd;
    return leave(CU_OK);
}

API cuMemRelease(unsigned long long handle)
{
    ENTER("cuMemRelease");
    for (int i = 0; i < MOST_OBJECTS; i++)
        if (g.range[i].kind == HANDLE && g.range[i].handle == handle) {
            g.used -= g.range[i].bytes;
            g.range[i].kind = NO_RANGE;
            (void)close((int)handle);
            return leave(CU_OK);
        }
    return leave(CU_INVALID_VALUE);
}

API cuMemMap(cu_ptr at, size_t bytes, size_t offset, unsigned long long handle,
             unsigned long long flags)
{
    ENTER("cuMemMap");
    (void)offset;
    (void)flags;
    void *va = (void *)(uintptr_t)at;
    void *got = mmap(va, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle, 0);
    if (got == MAP_FAILED)
        return leave(CU_INVALID_VALUE);
    range_new(va, bytes, MAPPED)->handle = handle;
    return leave(CU_OK);
}

API cuMemUnmap(cu_ptr at, size_t bytes)
{
    ENTER("cuMemUnmap");
    void *va = (void *)(uintptr_t)at;
    range_at(va, MAPPED)->kind = NO_RANGE;
    void *got =
        mmap(va, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return leave(got == MAP_FAILED ? CU_UNKNOWN : CU_OK);
}

API cuMemSetAccess(cu_ptr at, size_t bytes, const struct cu_access *access, size_t count)
{
    ENTER("cuMemSetAccess");
    if (count != 1 || access->flags != CU_ACCESS_READWRITE)
        return leave(CU_INVALID_VALUE);
    void *va = (void *)(uintptr_t)at;
    if (mprotect(va, bytes, PROT_READ | PROT_WRITE) != 0)
        return leave(CU_INVALID_VALUE);
    return leave(CU_OK);
}
