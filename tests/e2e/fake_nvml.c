/*
 * A FAKE libnvidia-ml.so.1 for tests: devices are lines "TOTAL USED PID BYTES" in MiB of the file
 * that $FAKE_NVML names; the word "hang" blocks like a sick device, "fail" is a driver's error;
 * behind the numbers "unsaid" is a device that keeps its memory to itself, "lost" one that is gone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct memory {
    unsigned long long total, free, used;
};
struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

static struct {
    unsigned long long total, used, bytes;
    unsigned pid;
    char word[8];
} at[8];
static unsigned devices;

int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
    char line[128];
    const char *path = getenv("FAKE_NVML");
    devices = 0;
    FILE *f = path ? fopen(path, "r") : NULL;
    while (f && devices < 8 && fgets(line, sizeof(line), f)) {
        if (strncmp(line, "hang", 4) == 0)
            (void)sleep(1000);
        if (strncmp(line, "fail", 4) == 0)
            return 9;
        at[devices].word[0] = '\0';
        if (sscanf(line, "%llu %llu %u %llu %7s", &at[devices].total, &at[devices].used,
                   &at[devices].pid, &at[devices].bytes, at[devices].word) >= 2)
            devices++;
    }
    if (f)
        (void)fclose(f);
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *ret);
int nvmlDeviceGetCount_v2(unsigned *ret)
{
    *ret = devices;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **ret);
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **ret)
{
    *ret = &at[i];
    return 0;
}

/* The first one is at bus 0x10, as a simulated card of tests/cuda is. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **ret);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **ret)
{
    unsigned domain = 1, at_bus = 0, device = 1;
    if (sscanf(bus, "%x:%x:%x.0", &domain, &at_bus, &device) != 3 || domain || device ||
        at_bus < 16 || at_bus - 16 >= devices)
        return 6;
    *ret = &at[at_bus - 16];
    return 0;
}

static unsigned index_of(const void *d)
{
    return (unsigned)((const char *)d - (const char *)at) / (unsigned)sizeof(at[0]);
}

int nvmlDeviceGetMemoryInfo(void *d, struct memory *m);
int nvmlDeviceGetMemoryInfo(void *d, struct memory *m)
{
    unsigned i = index_of(d);
    if (strcmp(at[i].word, "unsaid") == 0)
        return 3;
    if (strcmp(at[i].word, "lost") == 0)
        return 15;
    m->total = at[i].total << 20;
    m->used = at[i].used << 20;
    m->free = m->total - m->used;
    return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *count, struct process *list);
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *count, struct process *list)
{
    unsigned i = index_of(d);
    *count = at[i].pid != 0;
    if (at[i].pid)
        list[0] = (struct process){.pid = at[i].pid, .used = at[i].bytes << 20};
    return 0;
}

struct utilization {
    unsigned gpu, memory;
};
int nvmlDeviceGetUtilizationRates(void *d, struct utilization *u);
int nvmlDeviceGetUtilizationRates(void *d, struct utilization *u)
{
    *u = (struct utilization){.gpu = 37 + index_of(d), .memory = 5};
    return 0;
}

const char *nvmlErrorString(int code);
const char *nvmlErrorString(int code)
{
    return code == 9 ? "Driver Not Loaded" : code == 15 ? "GPU is lost" : "Unknown Error";
}

int nvmlShutdown(void);
int nvmlShutdown(void)
{
    return 0;
}
