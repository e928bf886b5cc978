/*
 * The driver and the NCCL for tests below the CUDA backend: found beside the test program, steered
 * by functions in it. With EVENKEEL_GPU set the tests run on the card of this machine instead,
 * through the built plug-in; what steers or looks into the driver then does nothing. With
 * SHIM_RACES set kernels run under the race checker (tests/cuda/races.h). Header only.
 */
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
    bool real; /* a card */
    void (*card)(size_t bytes, bool vmm);
    void (*plant)(const char *symbol, unsigned nth, int result);
    void (*cards)(int count);
    unsigned (*calls)(const char *symbol);
    size_t (*used)(void);
    unsigned (*objects)(void);
    void (*card_bytes)(int card, size_t bytes);
    size_t (*card_used)(int card);
    void (*costs)(size_t context_bytes, size_t graph_bytes);
    void (*others)(int card, size_t bytes);
    void (*links)(bool peers, bool nvlink);
    void (*stall)(int rank);
    void (*spoil)(int rank);
    void (*nccl_version)(int version);
    void (*eager)(bool eager);
    unsigned long long (*routes)(int card, unsigned *ret_times);
    void (*forgive)(bool forgives);
    const char *(*said)(void);
    void (*capability)(int capability);
    void (*lame)(const char *part);
    unsigned (*algorithm)(void);
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

static inline void fake_no_card(size_t bytes, bool vmm)
{
    (void)bytes;
    (void)vmm;
}

/* A file of the build; the test program lies in <build>/tests/unit/cuda. */
static inline void fake_path(const char *name, char *path, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", path, size - 64);

    path[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(path, '/');
    (void)snprintf(slash ? slash : path, 64, "/../../%s", name);
}

/* The backend to test. */
static inline const struct ek_backend *cuda_backend(void)
{
    char path[4096];
    const struct ek_backend *(*get)(uint32_t) = NULL;

    if (!getenv("EVENKEEL_GPU"))
        return ek_backend_get(EK_BACKEND_ABI);
    fake_path("../libevenkeel-cuda.so", path, sizeof(path));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        (void)fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    void *at = fake_symbol(library, EK_BACKEND_SYMBOL);
    memcpy(&get, &at, sizeof(at));
    return get(EK_BACKEND_ABI);
}

/* Puts it under the backend. */
static inline void fake_open(struct fake_card *f)
{
    char path[4096];

    if (getenv("EVENKEEL_GPU")) {
        *f = (struct fake_card){.real = true, .card = fake_no_card};
        return;
    }
    fake_path(getenv("SHIM_RACES") ? "cuda/libfake-cuda-races.so" : "cuda/libfake-cuda.so", path,
              sizeof(path));
    setenv("EVENKEEL_CUDA_DRIVER", path, 1);
    setenv("EVENKEEL_NCCL", path, 1);
    setenv("EVENKEEL_CUBLASLT", "off", 1);
    setenv("EVENKEEL_WGMMA", "off", 1); /* tests of it say otherwise */
    f->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!f->library) {
        (void)fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    const struct {
        const char *name;
        void *to;
    } wanted[] = {{"fake_card", &f->card},
                  {"fake_fail", &f->plant},
                  {"fake_cards", &f->cards},
                  {"fake_calls", &f->calls},
                  {"fake_used", &f->used},
                  {"fake_objects", &f->objects},
                  {"fake_card_bytes", &f->card_bytes},
                  {"fake_card_used", &f->card_used},
                  {"fake_costs", &f->costs},
                  {"fake_others", &f->others},
                  {"fake_links", &f->links},
                  {"fake_stall", &f->stall},
                  {"fake_spoil", &f->spoil},
                  {"fake_nccl_version", &f->nccl_version},
                  {"fake_eager", &f->eager},
                  {"fake_routes", &f->routes},
                  {"fake_forgive", &f->forgive},
                  {"fake_said", &f->said},

                  {"fake_capability", &f->capability},
                  {"fake_lame", &f->lame},
                  {"fake_lt_algorithm", &f->algorithm}};
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *at = fake_symbol(f->library, wanted[i].name);
        memcpy(wanted[i].to, &at, sizeof(at));
    }
}

/* The driver of a test program, and its group's set-up that puts it there. */
static struct fake_card g_fake;

static inline int fake_setup(void **state)
{
    (void)state;
    fake_open(&g_fake);
    return 0;
}
