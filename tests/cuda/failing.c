/*
 * A driver whose launches fail when they are told to, in front of the real one: what a server does
 * when the device has no memory for a step can be seen on a card that has enough.
 *
 * EVENKEEL_CUDA_DRIVER names this library and EVENKEEL_FAILING="symbol:count:result:file" what
 * fails: so many calls, each with that result and without having done anything, from when the
 * file's first byte is no longer 0. Symbols are those below. All others are found in libcuda.so.1,
 * which this library depends on: dlsym() looks into what a library depends on when the library
 * itself has no such symbol.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/cuda/driver.h"

#define EXPORT __attribute__((visibility("default")))

static struct {
    char symbol[64];
    const volatile char *begun; /* the file, mapped: a launch must not ask the system */
    atomic_int left;
    int result;
} g_plan;

static int (*g_graph_launch)(cu_handle, cu_handle);
static int (*g_launch)(cu_handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       unsigned, cu_handle, void **, void **);

static void find(const char *symbol, void *ret_function)
{
    void *at = dlsym(RTLD_NEXT, symbol);

    if (!at) {
        (void)fprintf(stderr, "There is no %s behind the failing driver.\n", symbol);
        abort();
    }
    memcpy(ret_function, &at, sizeof(at)); /* ISO C has no such cast */
}

__attribute__((constructor)) static void read_plan(void)
{
    const char *plan = getenv("EVENKEEL_FAILING");
    char path[256];
    int count;

    find("cuGraphLaunch", &g_graph_launch);
    find("cuLaunchKernel", &g_launch);
    if (!plan ||
        sscanf(plan, "%63[^:]:%d:%d:%255s", g_plan.symbol, &count, &g_plan.result, path) != 4)
        return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        (void)fprintf(stderr, "%s, which says when the driver fails, cannot be read.\n", path);
        abort();
    }
    (void)close(fd);
    g_plan.begun = at;
    g_plan.left = count;
}

static int fails(const char *symbol)
{
    if (!g_plan.begun || strcmp(symbol, g_plan.symbol) != 0 || *g_plan.begun == 0)
        return CU_OK;
    return atomic_fetch_sub(&g_plan.left, 1) > 0 ? g_plan.result : CU_OK;
}

EXPORT int cuGraphLaunch(cu_handle graph, cu_handle stream);
EXPORT int cuGraphLaunch(cu_handle graph, cu_handle stream)
{
    const int r = fails("cuGraphLaunch");
    return r != CU_OK ? r : g_graph_launch(graph, stream);
}

EXPORT int cuLaunchKernel(cu_handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                          cu_handle stream, void **args, void **more);
EXPORT int cuLaunchKernel(cu_handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                          cu_handle stream, void **args, void **more)
{
    const int r = fails("cuLaunchKernel");
    return r != CU_OK ? r
                      : g_launch(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                                 shared, stream, args, more);
}
