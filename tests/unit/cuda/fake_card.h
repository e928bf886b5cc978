/* The driver for tests below the CUDA backend: found beside the test program, steered by functions
 * in it. Header only. */
#pragma once

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/backend.h"

struct fake_card {
    void *library;
    void (*card)(size_t bytes, bool vmm);
    void (*plant)(const char *symbol, unsigned nth, int result);
    void (*cards)(int count);
    unsigned (*calls)(const char *symbol);
    size_t (*used)(void);
    unsigned (*objects)(void);
};

const struct ek_backend *ek_backend_get(uint32_t abi); /* kernels/cuda/table.c */

static inline void *fake_symbol(void *library, const char *name)
{
    void *at = dlsym(library, name);
    if (!at) {
        (void)fprintf(stderr, "%s is missing: %s\n", name, dlerror());
        abort();
    }
    return at;
}

/* Puts it under the backend. The test program lies in <build>/tests/unit/cuda. */
static inline void fake_open(struct fake_card *f)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 64);

    path[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(path, '/');
    (void)snprintf(slash ? slash : path, 64, "/../../cuda/libfake-cuda.so");
    setenv("EVENKEEL_CUDA_DRIVER", path, 1);
    setenv("EVENKEEL_CUBLASLT", "off", 1);
    f->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!f->library) {
        (void)fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    const struct {
        const char *name;
        void *to;
    } wanted[] = {{"fake_card", &f->card},   {"fake_fail", &f->plant},
                  {"fake_cards", &f->cards}, {"fake_calls", &f->calls},
                  {"fake_used", &f->used},   {"fake_objects", &f->objects}};
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *at = fake_symbol(f->library, wanted[i].name);
        memcpy(wanted[i].to, &at, sizeof(at));
    }
}
