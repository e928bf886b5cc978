/* Free memory by NVML (nvml.h). Called by table.c's probe. */
#include "kernels/cuda/nvml.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libnvidia-ml.so.1"
#define ALIKE                                                                                      \
    20 /* the driver's total is less than NVML's by what it keeps, a twentieth at most             \
        */

/* As its stable interface has them. */
typedef struct nvml_opaque *nvml_card;
struct nvml_bytes {
    unsigned long long total, free, used;
};
struct nvml_calls {
    int (*init)(void);
    int (*find)(const char *bus, nvml_card *ret_card);
    int (*memory)(nvml_card card, struct nvml_bytes *ret_bytes);
    int (*shutdown)(void);
};

/* ISO C has no conversion from an object pointer to a function's. */
static bool nvml_take(void *lib, const char *name, void *to, size_t size)
{
    void *at = dlsym(lib, name);

    memcpy(to, &at, size);
    return at != NULL;
}

static uint64_t ask(const struct nvml_calls *n, const struct cuda_bus *at, uint64_t total_bytes)
{
    struct nvml_bytes m = {0};
    nvml_card card = NULL;
    char bus[32];

    (void)snprintf(bus, sizeof(bus), "%08x:%02x:%02x.0", at->domain, at->bus, at->device);
    if (n->find(bus, &card) != 0 || n->memory(card, &m) != 0)
        return 0;
    if (m.total < total_bytes || m.total - total_bytes > m.total / ALIKE)
        return 0;
    const uint64_t bytes = m.free < total_bytes ? m.free : total_bytes;
    return bytes > 0 ? bytes : 1; /* 0 says that it is not known */
}

uint64_t cuda_nvml_free(const struct cuda_bus *at, uint64_t total_bytes)
{
    struct nvml_calls n;
    uint64_t free_bytes = 0;
    void *lib = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

    if (!lib)
        return 0;
    const bool all = nvml_take(lib, "nvmlInit_v2", &n.init, sizeof(n.init)) &&
                     nvml_take(lib, "nvmlDeviceGetHandleByPciBusId_v2", &n.find, sizeof(n.find)) &&
                     nvml_take(lib, "nvmlDeviceGetMemoryInfo", &n.memory, sizeof(n.memory)) &&
                     nvml_take(lib, "nvmlShutdown", &n.shutdown, sizeof(n.shutdown));
    if (all && n.init() == 0) {
        free_bytes = ask(&n, at, total_bytes);
        (void)n.shutdown();
    }
    (void)dlclose(lib);
    return free_bytes;
}
