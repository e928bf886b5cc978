/* What NVML says, see nvml.h. The library is looked for each time: it may be installed later. */
#include "supervisor/io/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Types of nvml.h, whose binary interface does not change within a version suffix. */
typedef struct nvmlDevice_st *nvml_device;
struct nvml_memory {
    unsigned long long total, free, used;
};
struct nvml_utilization {
    unsigned gpu, memory; /* percent */
};
struct nvml_process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
#define NVML_NOT_SUPPORTED 3
#define NVML_NO_PERMISSION 4
#define NVML_SHORT         7 /* the array is too small */
#define NVML_UNCORRECTED   1
#define NVML_SINCE_POWERED 0

struct nvml {
    int (*init)(void);
    int (*count)(unsigned *ret);
    int (*device)(unsigned index, nvml_device *ret);
    int (*memory)(nvml_device d, struct nvml_memory *ret);
    int (*processes)(nvml_device d, unsigned *count, struct nvml_process *list);
    int (*utilization)(nvml_device d, struct nvml_utilization *ret);
    int (*ecc)(nvml_device d, int kind, int counter, unsigned long long *ret);
    const char *(*error)(int code);
    int (*shutdown)(void);
};

/* ISO C has no conversion from an object pointer to a function's. */
static bool nvml_find(void *lib, const char *name, void *to, size_t size)
{
    void *at = dlsym(lib, name);
    memcpy(to, &at, size);
    return at != NULL;
}

#define FIND(lib, name, to) nvml_find(lib, name, &(to), sizeof(to))

static int open_nvml(struct nvml *n, struct gpus *g)
{
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!lib) {
        (void)snprintf(g->text, sizeof(g->text), "there is no libnvidia-ml.so.1");
        return -ENOENT;
    }
    bool all = FIND(lib, "nvmlInit_v2", n->init) && FIND(lib, "nvmlDeviceGetCount_v2", n->count) &&
               FIND(lib, "nvmlDeviceGetHandleByIndex_v2", n->device) &&
               FIND(lib, "nvmlDeviceGetMemoryInfo", n->memory) &&
               FIND(lib, "nvmlErrorString", n->error);
    if (!FIND(lib, "nvmlDeviceGetComputeRunningProcesses_v3", n->processes))
        (void)FIND(lib, "nvmlDeviceGetComputeRunningProcesses_v2", n->processes);
    (void)FIND(lib, "nvmlDeviceGetUtilizationRates", n->utilization);
    (void)FIND(lib, "nvmlDeviceGetTotalEccErrors", n->ecc); /* not every device counts */
    (void)FIND(lib, "nvmlShutdown", n->shutdown);
    if (all)
        return 0;
    (void)snprintf(g->text, sizeof(g->text),
                   "libnvidia-ml.so.1 lacks functions: update the driver");
    return -EIO;
}

/* Memory is not said of a device that has the host's (GB10), nor in a container of one that is cut
 * up (MIG): all else is. */
static int read_device(const struct nvml *n, unsigned index, struct gpu *g)
{
    nvml_device d = NULL;
    struct nvml_memory m = {0};
    struct nvml_process list[64];
    unsigned count = sizeof(list) / sizeof(list[0]);
    int r = n->device(index, &d);
    if (r == 0)
        r = n->memory(d, &m);
    if (r == NVML_NOT_SUPPORTED || r == NVML_NO_PERMISSION)
        m = (struct nvml_memory){0};
    else if (r != 0)
        return r;
    g->total = m.total;
    g->used = m.used;
    int said = n->processes ? n->processes(d, &count, list) : -1;
    if (said != 0 && said != NVML_SHORT)
        count = 0; /* not allowed to know */
    g->processes = count;
    for (unsigned i = 0; said == 0 && i < count && i < GPUS_PROCESSES; i++) {
        g->pid[i] = (pid_t)list[i].pid;
        g->bytes[i] = list[i].used == ~0ull ? 0 : list[i].used;
    }
    struct nvml_utilization u = {0};
    bool busy = n->utilization && n->utilization(d, &u) == 0 && u.gpu <= 100; /* not with MIG */
    g->busy_percent = busy ? (int32_t)u.gpu : -1;
    unsigned long long errors = 0;
    if (n->ecc && n->ecc(d, NVML_UNCORRECTED, NVML_SINCE_POWERED, &errors) == 0)
        g->ecc_errors = errors;
    return 0;
}

void nvml_read(struct gpus *ret_gpus)
{
    struct nvml n = {0};
    struct gpus *g = ret_gpus;
    unsigned count = 0;
    *g = (struct gpus){0};
    g->error = open_nvml(&n, g);
    if (g->error < 0)
        return;
    int r = n.init();
    bool begun = r == 0;
    if (r == 0)
        r = n.count(&count);
    for (unsigned i = 0; r == 0 && i < count && i < GPUS_MOST; i++) {
        int said = read_device(&n, i, &g->at[i]);
        g->count = i + 1;
        g->at[i].lost = said != 0; /* the others are not */
        if (said != 0)
            (void)snprintf(g->text, sizeof(g->text), "NVML: %.100s", n.error(said));
    }
    if (r != 0) {
        g->error = -EIO;
        (void)snprintf(g->text, sizeof(g->text), "NVML: %.100s", n.error(r));
    }
    if (begun && n.shutdown)
        (void)n.shutdown(); /* keeps no device open until the next time */
}
