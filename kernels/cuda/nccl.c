/*
 * Opening NCCL: where it is looked for, and what is said when it is not there.
 */
#include "kernels/cuda/nccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "kernels/cuda/library.h"

#define LEAST 21900 /* 2.19, the first in which one thread may abort what another one began */

static int cannot(struct ek_fault *fault, uint32_t ranks, const char *why)
{
    ek_fault_write(fault, "tensor-parallel-size",
                   "%u ranks: cards reach each other by NCCL, and %s. Install libnccl2 (Debian, "
                   "Ubuntu) or libnccl (RPM) of NVIDIA's repository, or the Python package "
                   "nvidia-nccl-cu13, or name the library in EVENKEEL_NCCL.",
                   ranks, why);
    return -ENODEV;
}

static bool opens(void *ctx, void *library)
{
    (void)ctx;
    return library != NULL;
}

static void *open_library(char *ret_where, size_t size)
{
    static const char *const names[] = {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2",
                                        "/usr/local/cuda/lib/libnccl.so.2", NULL};
    static const char *const packages[] = {"nvidia/nccl/lib/libnccl.so.2",
                                           "nvidia/cu1[0-9]/lib/libnccl.so.2", NULL};
    static const struct cuda_library wanted = {"EVENKEEL_NCCL", names, packages};
    return cuda_library_find(&wanted, opens, NULL, ret_where, size);
}

/* The name of a function that is not there, or NULL. */
static const char *find_functions(struct nccl *n)
{
    struct {
        const char *name;
        void *at;
    } const wanted[] = {
#define NCCL_WANTED(type, field, symbol, args) {#symbol, &n->field},
        NCCL_FUNCTIONS(NCCL_WANTED)
#undef NCCL_WANTED
    };

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *symbol = dlsym(n->library, wanted[i].name);
        if (!symbol)
            return wanted[i].name;
        memcpy(wanted[i].at, &symbol, sizeof(symbol)); /* ISO C has no such cast */
    }
    return NULL;
}

int nccl_open(struct nccl *ret_nccl, uint32_t ranks, struct ek_fault *fault)
{
    char where[256];
    struct nccl n = {.library = open_library(where, sizeof(where))};
    struct ek_fault why = {.msg = ""};
    int version = 0;

    if (!n.library) {
        ek_fault_write(&why, "", "it cannot be loaded (looked at %.200s)", where);
        return cannot(fault, ranks, why.msg);
    }
    const char *missing = find_functions(&n);
    if (missing) {
        ek_fault_write(&why, "", "this one is too old: it has no %s", missing);
        return cannot(fault, ranks, why.msg);
    }
    if (n.version(&version) != NCCL_OK || version < LEAST) {
        ek_fault_write(&why, "", "version %d.%d is too old: 2.19 is needed", version / 10000,
                       version % 10000 / 100);
        return cannot(fault, ranks, why.msg);
    }
    *ret_nccl = n;
    return 0;
}
