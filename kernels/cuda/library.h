/*
 * Finding a library of CUDA's that is optional: cuBLASLt, NCCL. Neither is linked, and machines
 * have them in different places: the linker's own, the toolkit's folder, or the Python packages
 * that came with an installed PyTorch (nvidia-cublas, nvidia-nccl-cu13).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct cuda_library {
    const char *env;             /* names one file and nothing else is tried; "off" = none */
    const char *const *names;    /* for dlopen, best first, then NULL */
    const char *const *packages; /* patterns (glob) of files below site-packages, then NULL */
};

/* The first one that opens and that `take` accepts, or NULL. It stays open: it may hold state of
 * the driver. ret_where [size] is its file, or when there is none the places that were looked at,
 * in words; size at least 1.
 *
 * Python packages are looked for in $EVENKEEL_PYTHON_PACKAGES (folders, ':' between), in
 * $VIRTUAL_ENV, and below /usr/local, /usr and /opt/conda; a file that others than root and this
 * user can write is left out. */
void *cuda_library_find(const struct cuda_library *wanted, bool (*take)(void *ctx, void *library),
                        void *ctx, char *ret_where, size_t size);
