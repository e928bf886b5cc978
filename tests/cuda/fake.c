/* A CUDA driver for tests: see fake.h. Cards, contexts and modules, and the failures that a test
 * plants. */
#include "tests/cuda/fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda/fake_inner.h"
#include "tests/cuda/shim_run.h"

#define DEFAULT_CARD ((size_t)8 << 30)
#define GIB          ((size_t)1 << 30)

/* without asking; of sm_86, 89, 120; of sm_90 */
enum { STATIC_SHARED = 48 << 10, LEAST_SHARED = 99 << 10, MOST_SHARED = 227 << 10 };

struct fake_state fake_g = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .vmm = true,
    .peers = true,
    .nvlink = true,
    .cards = 1,
    .capability = 90,
    .card = {{.total = DEFAULT_CARD}},
};

static __thread int t_card = -1;
static __thread unsigned t_generation; /* of the card's context */

int fake_current(void)
{
    const struct card *c = t_card >= 0 ? &fake_g.card[t_card] : NULL;
    return c && c->retained > 0 && c->generations == t_generation ? t_card : -1;
}

/* ---- steering ---- */

/* After these nothing works in the process any more; others of the seven hundreds say no. */
static bool is_sticky(int result)
{
    return result == CU_ECC_UNCORRECTABLE || result == CU_ILLEGAL_ADDRESS ||
           result == CU_LAUNCH_TIMEOUT || result == 710 ||
           (result >= CU_HARDWARE_STACK_ERROR && result <= CU_LAUNCH_FAILED);
}

int fake_enter(const char *symbol)
{
    struct card *here = t_card >= 0 ? &fake_g.card[t_card] : NULL;

    pthread_mutex_lock(&fake_g.lock);
    if (!fake_g.begun && strcmp(symbol, "cuDriverGetVersion") != 0)
        return fake_broken(CU_NOT_INITIALIZED, "%s before cuInit", symbol);
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
        fake_planted();
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
            free(r->base);
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
            fake_g.card[i] =
                (struct card){.total = bytes, .generations = fake_g.card[i].generations};
        fake_g.cards = 1;
        fake_g.peers = fake_g.nvlink = true;
        fake_g.context_bytes = fake_g.graph_bytes = 0;
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

EXPORT void fake_lame(const char *part)
{
    (void)snprintf(fake_g.lame, sizeof(fake_g.lame), "%s", part);
}

EXPORT void fake_cards(int count)
{
    fake_g.cards = count;
}

EXPORT void fake_capability(int capability)
{
    fake_g.capability = capability;
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
    abort(); /* the callers have looked */
}

/* ---- the driver ---- */

API cuInit(unsigned flags)
{
    fake_g.begun = true;
    ENTER("cuInit");
    RULE(flags == 0, CU_INVALID_VALUE, "cuInit with flags");
    /* A driver opens this file, too, and ends where it cannot. */
    int name = open("/proc/thread-self/comm", O_RDWR | O_CLOEXEC);
    if (name < 0)
        return fake_leave(CU_OPERATING_SYSTEM);
    (void)close(name);
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

static bool is_card(int device)
{
    return device >= 0 && device < fake_g.cards;
}

API cuDeviceGetName(char *name, int size, int device)
{
    ENTER("cuDeviceGetName");
    RULE(is_card(device), CU_INVALID_DEVICE, "cuDeviceGetName of no card");
    (void)snprintf(name, (size_t)size, "Fake card");
    return fake_leave(CU_OK);
}

API cuDeviceGetAttribute(int *value, int attr, int device)
{
    ENTER("cuDeviceGetAttribute");
    RULE(is_card(device), CU_INVALID_DEVICE, "cuDeviceGetAttribute of no card");
    switch (attr) {
    case CU_ATTR_SM_COUNT: *value = 2; break;
    case CU_ATTR_PCI_DOMAIN: *value = 0; break;
    case CU_ATTR_PCI_BUS: *value = 16 + device; break;
    case CU_ATTR_PCI_DEVICE: *value = 0; break;
    case CU_ATTR_MAJOR: *value = fake_g.capability / 10; break;
    case CU_ATTR_MINOR: *value = fake_g.capability % 10; break;
    case CU_ATTR_VMM: *value = fake_g.vmm; break;
    case CU_ATTR_SHARED_PER_BLOCK_OPTIN: *value = LEAST_SHARED; break;
    default: return fake_leave(fake_broken(CU_INVALID_VALUE, "no attribute %d of a card", attr));
    }
    return fake_leave(CU_OK);
}

API cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    ENTER("cuDeviceTotalMem_v2");
    RULE(is_card(device), CU_INVALID_DEVICE, "cuDeviceTotalMem of no card");
    *bytes = fake_g.card[device].total;
    return fake_leave(CU_OK);
}

API cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    ENTER("cuDeviceCanAccessPeer");
    RULE(is_card(device) && is_card(peer), CU_INVALID_DEVICE, "cuDeviceCanAccessPeer of no card");
    *can = fake_g.peers && device != peer;
    return fake_leave(CU_OK);
}

API cuDeviceGetP2PAttribute(int *value, int attr, int device, int peer)
{
    ENTER("cuDeviceGetP2PAttribute");
    RULE(is_card(device) && is_card(peer) && device != peer && attr == CU_P2P_ATOMICS,
         CU_INVALID_DEVICE, "cuDeviceGetP2PAttribute of no two cards, or another attribute");
    *value = fake_g.nvlink;
    return fake_leave(CU_OK);
}

/* ---- contexts ---- */

/* One for each card and process, counted. */
API cuDevicePrimaryCtxRetain(struct cu_opaque **context, int device)
{
    ENTER("cuDevicePrimaryCtxRetain");
    RULE(is_card(device), CU_INVALID_DEVICE, "cuDevicePrimaryCtxRetain of no card");
    struct card *c = &fake_g.card[device];
    if (c->retained++ == 0) {
        c->context = fake_object_new(CONTEXT);
        c->context->card = device;
        c->generations++;
    }
    *context = c->context;
    return fake_leave(CU_OK);
}

API cuDevicePrimaryCtxRelease_v2(int device)
{
    ENTER("cuDevicePrimaryCtxRelease_v2");
    RULE(is_card(device) && fake_g.card[device].retained > 0, INVALID_CONTEXT,
         "a context is released more often than it was retained");
    struct card *c = &fake_g.card[device];
    if (--c->retained == 0) {
        RULE(!fake_busy(device), INVALID_CONTEXT, "a context ends while work waits in it");
        fake_object_free(c->context, CONTEXT);
        c->context = NULL;
    }
    return fake_leave(CU_OK);
}

API cuCtxSetCurrent(struct cu_opaque *context)
{
    pthread_mutex_lock(&fake_g.lock);
    RULE(!context || fake_is(context, CONTEXT), INVALID_CONTEXT,
         "a context is made current that has ended");
    t_card = context ? context->card : -1;
    t_generation = context ? fake_g.card[t_card].generations : 0;
    return fake_leave(CU_OK);
}

/* ---- modules ---- */

API cuModuleLoadData(struct cu_opaque **module, const void *image)
{
    ENTER_SAFE("cuModuleLoadData");
    RULE(image, CU_INVALID_VALUE, "cuModuleLoadData of nothing");
    *module = fake_object_new(MODULE);
    return fake_leave(CU_OK);
}

/* Its functions go with it. */
API cuModuleUnload(struct cu_opaque *module)
{
    ENTER_SAFE("cuModuleUnload");
    RULE(fake_is(module, MODULE), INVALID_HANDLE, "cuModuleUnload of no module");
    RULE(!fake_busy(module->card), CU_INVALID_VALUE, "a module is unloaded while work waits");
    for (int i = 0; i < MOST_OBJECTS; i++)
        if (fake_g.object[i] && fake_g.object[i]->kind == FUNCTION &&
            fake_g.object[i]->module == module) {
            free(fake_g.object[i]);
            fake_g.object[i] = NULL;
        }
    fake_object_free(module, MODULE);
    return fake_leave(CU_OK);
}

/* Kernels may be loaded only here, so not in a capture. */
API cuModuleGetFunction(struct cu_opaque **function, struct cu_opaque *module, const char *name)
{
    ENTER_SAFE("cuModuleGetFunction");
    RULE(fake_is(module, MODULE), INVALID_HANDLE, "cuModuleGetFunction of no module");
    size_t bytes;
    int kernel = shim_find(name, &bytes);
    if (kernel < 0)
        return fake_leave(CU_NOT_FOUND);
    *function = fake_object_new(FUNCTION);
    (*function)->card = module->card;
    (*function)->module = module;
    (*function)->kernel = kernel;
    (*function)->arg_bytes = bytes;
    (*function)->dynamic_most = STATIC_SHARED;
    /* what every card has; those of wgmma have more */
    (*function)->dynamic_limit = strstr(name, "wgmma") ? MOST_SHARED : LEAST_SHARED;
    (*function)->lame = fake_g.lame[0] && strstr(name, fake_g.lame);
    return fake_leave(CU_OK);
}

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *ret_blocks, struct cu_opaque *function,
                                                int threads, size_t dynamic)
{
    ENTER_CARD("cuOccupancyMaxActiveBlocksPerMultiprocessor");
    RULE(fake_is(function, FUNCTION), INVALID_HANDLE, "the occupancy of no function");
    RULE(threads > 0 && dynamic <= function->dynamic_most, CU_INVALID_VALUE,
         "%d threads, %zu bytes", threads, dynamic);
    *ret_blocks = 3;
    return fake_leave(CU_OK);
}

API cuFuncSetAttribute(struct cu_opaque *function, int attr, int value)
{
    ENTER_CARD("cuFuncSetAttribute");
    RULE(fake_is(function, FUNCTION), INVALID_HANDLE, "cuFuncSetAttribute of no function");
    if (attr == CU_FUNC_CARVEOUT) {
        RULE(value >= -1 && value <= 100, CU_INVALID_VALUE,
             "%d percent of a cache as shared memory", value);
        return fake_leave(CU_OK);
    }
    RULE(attr == CU_FUNC_MAX_DYNAMIC_SHARED && value >= 0 && value <= (int)function->dynamic_limit,
         CU_INVALID_VALUE, "%d bytes of shared memory are more than every card has", value);
    function->dynamic_most = (unsigned)value;
    return fake_leave(CU_OK);
}
