/*
 * Loads the CUDA back end for kernels/registry.c and the MPI module for kernels/mpi/cluster.c, only
 * where they are wanted, so that a machine without their libraries can run the programs. A file
 * beside the program comes first: a build tree uses its own plug-ins, not those that are installed.
 */
#include "kernels/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void *ek_plugin_open(const char *file, char *ret_why, size_t size)
{
    static const char *const places[] = {"", "../lib/evenkeel/"};
    char dir[PATH_MAX], path[PATH_MAX + 64];

    ssize_t n = readlink("/proc/self/exe", dir, sizeof(dir) - 1);
    dir[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(dir, '/');
    for (size_t i = 0; slash && i < sizeof(places) / sizeof(places[0]); i++) {
        slash[1] = '\0';
        (void)snprintf(path, sizeof(path), "%s%s%.40s", dir, places[i], file);
        if (access(path, F_OK) != 0)
            continue;
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!handle)
            (void)snprintf(ret_why, size, "%s", dlerror());
        return handle;
    }
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        (void)snprintf(ret_why, size, "%s", dlerror());
    return handle;
}
