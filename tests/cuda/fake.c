/* A CUDA driver for tests: see fake.h. Cards, contexts, modules and memory, and the failures that a
 * test plants. Memory is filled with 0xff, so that what was never written is not a number. */
#include "tests/cuda/fake.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda/fake_inner.h"
#include "tests/cuda/shim_run.h"

#define DEFAULT_CARD ((size_t)8 << 30)
#define GIB          ((size_t)1 << 30)

struct fake_state fake_g = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .vmm = true,
    .peers = true,
    .nvlink = true,
    .cards = 1,
    .card = {{.total = DEFAULT_CARD}},
};

static __thread int t_card = -1;

int fake_current(void)
{
    return t_card;
}

/* ---- steering ---- */

static bool is_sticky(int result)
{
    return result >= 700 && result < 800 && result != CU_LAUNCH_OUT_OF_RESOURCES;
}

int fake_enter(const char *symbol)
{
    struct card *here = t_card >= 0 ? &fake_g.card[t_card] : NULL;

    pthread_mutex_lock(&fake_g.lock);
    for (int i = 0; i < MOST_COUNTED; i++)
        if (!fake_g.counted[i].name[0] || strcmp(fake_g.counted[i].name, symbol) == 0) {
            (void)snprintf(fake_g.counted[i].name, sizeof(fake_g.counted[i].name), "%s", symbol);
            fake_g.counted[i].calls++;
            break;
        }
    if (here && here->sticky)
        return here->sticky;
    for (int i = 0; i < MOST_FAILURES; i++) {
        bool meant = fake_g.fail[i].left > 0 && strcmp(fake_g.fail[i].name, symbol) == 0 &&
                     (fake_g.fail[i].card < 0 || fake_g.fail[i].card == t_card);
        if (!meant || --fake_g.fail[i].left > 0)
            continue;
        if (here && is_sticky(fake_g.fail[i].result))
            here->sticky = fake_g.fail[i].result;
        return fake_g.fail[i].result;
    }
    return CU_OK;
}

int fake_leave(int result)
{
    pthread_mutex_unlock(&fake_g.lock);
    return result;
}

/* What a lost device took with it: device memory, handles and objects. */
static void forget_all(void)
{
    for (int i = 0; i < MOST_OBJECTS; i++) {
        struct range *r = &fake_g.range[i];
        struct cu_opaque *o = fake_g.object[i];
        if (r->kind == HANDLE)
            (void)close((int)r->handle);
        if (r->kind == DEVICE || r->kind == PINNED)
            free(r->at);
        if (r->kind == RESERVED)
            (void)munmap(r->at, r->bytes);
        r->kind = NO_RANGE;
        if (o) {
            fake_ops_done(&o->ops);
            fake_ops_done(&o->side);
            free(o);
        }
        fake_g.object[i] = NULL;
    }
    fake_nccl_forget();
}

EXPORT void fake_card(size_t bytes, bool vmm)
{
    pthread_mutex_lock(&fake_g.lock);
    if (bytes > 0) {
        forget_all();
        for (int i = 0; i < MOST_CARDS; i++)
            fake_g.card[i] = (struct card){.total = bytes};
        fake_g.cards = 1;
        fake_g.peers = fake_g.nvlink = true;
    }
    for (int i = 0; i < MOST_CARDS; i++)
        fake_g.card[i].sticky = 0;
    fake_g.vmm = vmm;
    memset(fake_g.fail, 0, sizeof(fake_g.fail));
    memset(fake_g.counted, 0, sizeof(fake_g.counted));
    pthread_mutex_unlock(&fake_g.lock);
}

/* FAKE_CUDA_FAIL="symbol[@card]:nth:result" plants a failure in a program that knows nothing of
 * this; FAKE_CUDA_CARDS="24,24,16" gives it cards of so many GiB. */
__attribute__((constructor)) static void plant_from_environment(void)
{
    const char *plan = getenv("FAKE_CUDA_FAIL"), *cards = getenv("FAKE_CUDA_CARDS");
    char symbol[64];
    unsigned nth;
    int result;

    if (plan && sscanf(plan, "%63[^:]:%u:%d", symbol, &nth, &result) == 3)
        fake_fail(symbol, nth, result);
    fake_g.cards = cards ? 0 : 1;
    for (char *end; cards && *cards && fake_g.cards < MOST_CARDS; cards = *end ? end + 1 : end)
        fake_g.card[fake_g.cards++].total = strtoul(cards, &end, 10) * GIB;
}

EXPORT void fake_eager(bool eager)
{
    fake_g.eager = eager;
}

EXPORT void fake_cards(int count)
{
    fake_g.cards = count;
}

EXPORT void fake_card_bytes(int card, size_t bytes)
{
    fake_g.card[card].total = bytes;
}

EXPORT void fake_links(bool peers, bool nvlink)
{
    fake_g.peers = peers;
    fake_g.nvlink = nvlink;
}

EXPORT void fake_fail(const char *symbol, unsigned nth, int result)
{
    const char *at = strchr(symbol, '@');

    pthread_mutex_lock(&fake_g.lock);
    for (int i = 0; i < MOST_FAILURES; i++)
        if (fake_g.fail[i].left == 0) {
            size_t n = at ? (size_t)(at - symbol) : strlen(symbol);
            (void)snprintf(fake_g.fail[i].name, sizeof(fake_g.fail[i].name), "%.*s", (int)n,
                           symbol);
            fake_g.fail[i].card = at ? (int)strtol(at + 1, NULL, 10) : -1;
            fake_g.fail[i].left = nth;
            fake_g.fail[i].result = result;
            break;
        }
    pthread_mutex_unlock(&fake_g.lock);
}

EXPORT unsigned fake_calls(const char *symbol)
{
    for (int i = 0; i < MOST_COUNTED; i++)
        if (strcmp(fake_g.counted[i].name, symbol) == 0)
            return fake_g.counted[i].calls;
    return 0;
}

EXPORT size_t fake_used(void)
{
    size_t sum = 0;

    for (int i = 0; i < MOST_CARDS; i++)
        sum += fake_g.card[i].used;
    return sum;
}

EXPORT unsigned long long fake_routes(int card, unsigned *ret_times)
{
    *ret_times = fake_g.card[card].routed;
    return fake_g.card[card].routes;
}

EXPORT size_t fake_card_used(int card)
{
    return fake_g.card[card].used;
}

EXPORT unsigned fake_objects(void)
{
    unsigned n = fake_nccl_alive();

    for (int i = 0; i < MOST_OBJECTS; i++)
        n += (fake_g.range[i].kind != NO_RANGE) + (fake_g.object[i] &&
                                                   fake_g.object[i]->kind != FUNCTION &&
                                                   fake_g.object[i]->kind != FREE);
    return n;
}

/* ---- objects and memory ---- */

struct cu_opaque *fake_object_new(enum object_kind kind)
{
    for (int i = 0; i < MOST_OBJECTS; i++)
        if (!fake_g.object[i]) {
            fake_g.object[i] = calloc(1, sizeof(struct cu_opaque));
            fake_g.object[i]->kind = kind;
            fake_g.object[i]->card = t_card;
            return fake_g.object[i];
        }
    abort();
}

void fake_object_free(struct cu_opaque *o, enum object_kind kind)
{
    for (int i = 0; i < MOST_OBJECTS; i++)
        if (fake_g.object[i] == o) {
            assert(o->kind == kind);
            fake_ops_done(&o->ops);
            fake_ops_done(&o->side);
            free(o);
            fake_g.object[i] = NULL;
            return;
        }
    abort(); /* freed twice, or never made */
}

struct range *fake_range_new(char *at, size_t bytes, int kind)
{
    for (int i = 0; i < MOST_OBJECTS; i++)
        if (fake_g.range[i].kind == NO_RANGE) {
            fake_g.range[i] =
                (struct range){.at = at, .bytes = bytes, .card = t_card, .kind = kind};
            return &fake_g.range[i];
        }
    abort();
}

struct range *fake_range_at(const void *at, int kind)
{
    for (int i = 0; i < MOST_OBJECTS; i++)
        if ((int)fake_g.range[i].kind == kind && fake_g.range[i].at == at)
            return &fake_g.range[i];
    abort(); /* an address that was never given out */
}

bool fake_pinned(const void *at)
{
    for (int i = 0; i < MOST_OBJECTS; i++) {
        const struct range *r = &fake_g.range[i];
        if ((r->kind == PINNED || r->kind == REGISTERED) && (const char *)at >= r->at &&
            (const char *)at < r->at + r->bytes)
            return true;
    }
    return false;
}

/* ---- the driver ---- */

API cuInit(unsigned flags)
{
    ENTER("cuInit");
    (void)flags;
    return fake_leave(fake_g.cards < 0 ? -fake_g.cards : fake_g.cards == 0 ? CU_NO_DEVICE : CU_OK);
}

API cuDriverGetVersion(int *version)
{
    ENTER("cuDriverGetVersion");
    *version = 13000;
    return fake_leave(CU_OK);
}

API cuGetErrorName(int result, const char **name)
{
    *name = result == CU_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return CU_OK;
}

API cuDeviceGetCount(int *count)
{
    ENTER("cuDeviceGetCount");
    *count = fake_g.cards;
    return fake_leave(CU_OK);
}

API cuDeviceGet(int *device, int ordinal)
{
    ENTER("cuDeviceGet");
    *device = ordinal;
    return fake_leave(ordinal >= 0 && ordinal < fake_g.cards ? CU_OK : CU_INVALID_DEVICE);
}

API cuDeviceGetName(char *name, int size, int device)
{
    ENTER("cuDeviceGetName");
    (void)device;
    (void)snprintf(name, (size_t)size, "Fake card");
    return fake_leave(CU_OK);
}

API cuDeviceGetAttribute(int *value, int attr, int device)
{
    ENTER("cuDeviceGetAttribute");
    (void)device;
    *value = attr == CU_ATTR_SM_COUNT                 ? 2
             : attr == CU_ATTR_MAJOR                  ? 9
             : attr == CU_ATTR_VMM                    ? fake_g.vmm
             : attr == CU_ATTR_SHARED_PER_BLOCK_OPTIN ? 99 << 10
                                                      : 0;
    return fake_leave(CU_OK);
}

API cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    ENTER("cuDeviceTotalMem_v2");
    *bytes = fake_g.card[device].total;
    return fake_leave(CU_OK);
}

API cuDevicePrimaryCtxRetain(struct cu_opaque **context, int device)
{
    ENTER("cuDevicePrimaryCtxRetain");
    *context = fake_object_new(CONTEXT);
    (*context)->card = device;
    return fake_leave(CU_OK);
}

API cuDevicePrimaryCtxRelease_v2(int device)
{
    ENTER("cuDevicePrimaryCtxRelease_v2");
    for (int i = 0; i < MOST_OBJECTS; i++)
        if (fake_g.object[i] && fake_g.object[i]->kind == CONTEXT &&
            fake_g.object[i]->card == device) {
            fake_object_free(fake_g.object[i], CONTEXT);
            break;
        }
    return fake_leave(CU_OK);
}

API cuCtxSetCurrent(struct cu_opaque *context)
{
    t_card = context ? context->card : -1;
    return CU_OK;
}

API cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    ENTER("cuDeviceCanAccessPeer");
    *can = fake_g.peers && device != peer;
    return fake_leave(CU_OK);
}

API cuDeviceGetP2PAttribute(int *value, int attr, int device, int peer)
{
    ENTER("cuDeviceGetP2PAttribute");
    *value = attr == CU_P2P_ATOMICS && fake_g.nvlink && device != peer;
    return fake_leave(CU_OK);
}

API cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    ENTER_CARD("cuMemGetInfo_v2");
    const struct card *here = &fake_g.card[t_card];
    *total = here->total;
    *free_bytes = here->total > here->used ? here->total - here->used : 0;
    return fake_leave(CU_OK);
}

API cuModuleLoadData(struct cu_opaque **module, const void *image)
{
    ENTER_CARD("cuModuleLoadData");
    if (!image)
        return fake_leave(CU_INVALID_IMAGE);
    *module = fake_object_new(MODULE);
    return fake_leave(CU_OK);
}

API cuModuleUnload(struct cu_opaque *module)
{
    ENTER("cuModuleUnload");
    fake_object_free(module, MODULE);
    return fake_leave(CU_OK);
}

API cuModuleGetFunction(struct cu_opaque **function, struct cu_opaque *module, const char *name)
{
    ENTER("cuModuleGetFunction");
    size_t bytes;
    int kernel = shim_find(name, &bytes);
    if (kernel < 0 || module->kind != MODULE)
        return fake_leave(CU_NOT_FOUND);
    *function = fake_object_new(FUNCTION);
    **function = (struct cu_opaque){.kind = FUNCTION,
                                    .card = module->card,
                                    .kernel = kernel,
                                    .arg_bytes = bytes,
                                    .dynamic_most = 48 << 10};
    return fake_leave(CU_OK);
}

API cuFuncSetAttribute(struct cu_opaque *function, int attr, int value)
{
    ENTER("cuFuncSetAttribute");
    if (attr != CU_FUNC_MAX_DYNAMIC_SHARED || value > 99 << 10)
        return fake_leave(CU_INVALID_VALUE);
    function->dynamic_most = (unsigned)value;
    return fake_leave(CU_OK);
}

API cuMemAlloc_v2(cu_ptr *at, size_t bytes)
{
    ENTER_CARD("cuMemAlloc_v2");
    NOT_IN_CAPTURE();
    struct card *here = &fake_g.card[t_card];
    if (bytes == 0)
        return fake_leave(CU_INVALID_VALUE);
    if (bytes > here->total - here->used)
        return fake_leave(CU_OUT_OF_MEMORY);
    char *memory = aligned_alloc(512, (bytes + 511) & ~(size_t)511);
    memset(memory, 0xff, bytes);
    (void)fake_range_new(memory, bytes, DEVICE);
    here->used += bytes;
    *at = (cu_ptr)(uintptr_t)memory;
    return fake_leave(CU_OK);
}

API cuMemFree_v2(cu_ptr at)
{
    ENTER("cuMemFree_v2");
    struct range *r = fake_range_at((void *)(uintptr_t)at, DEVICE);
    fake_g.card[r->card].used -= r->bytes;
    free(r->at);
    r->kind = NO_RANGE;
    return fake_leave(CU_OK);
}

API cuMemHostAlloc(void **at, size_t bytes, unsigned flags)
{
    ENTER("cuMemHostAlloc");
    (void)flags;
    *at = aligned_alloc(512, (bytes + 511) & ~(size_t)511);
    memset(*at, 0xff, bytes);
    (void)fake_range_new(*at, bytes, PINNED);
    return fake_leave(CU_OK);
}

API cuMemFreeHost(void *at)
{
    ENTER("cuMemFreeHost");
    fake_range_at(at, PINNED)->kind = NO_RANGE;
    free(at);
    return fake_leave(CU_OK);
}

API cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    ENTER("cuMemHostRegister_v2");
    (void)flags;
    (void)fake_range_new(at, bytes, REGISTERED);
    return fake_leave(CU_OK);
}

API cuMemHostGetDevicePointer_v2(cu_ptr *ret_at, void *at, unsigned flags)
{
    ENTER("cuMemHostGetDevicePointer_v2");
    (void)flags;
    *ret_at = (cu_ptr)(uintptr_t)at;
    return fake_leave(fake_pinned(at) ? CU_OK : CU_INVALID_VALUE);
}

API cuMemHostUnregister(void *at)
{
    ENTER("cuMemHostUnregister");
    fake_range_at(at, REGISTERED)->kind = NO_RANGE;
    return fake_leave(CU_OK);
}
