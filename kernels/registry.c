/*
 * Finds a backend by name. The CPU's table is linked in; the CUDA one comes from a plug-in.
 */
#include "kernels/registry.h"
#include "kernels/cpu/cpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/err.h"
#include "kernels/backend.h"
#include "kernels/plugin.h"

#define PLUGIN "libevenkeel-cuda.so"

static const struct ek_backend *find_cuda(struct ek_fault *fault)
{
    char why[256] = "";
    void *handle = ek_plugin_open(PLUGIN, why, sizeof(why));

    if (!handle) {
        ek_fault_set(fault, "device", "The cuda backend cannot be loaded: %s. Use --device cpu.",
                     why);
        return NULL;
    }
    ek_backend_get_fn get = NULL;
    void *symbol = dlsym(handle, EK_BACKEND_SYMBOL);
    memcpy(&get, &symbol, sizeof(get)); /* ISO C has no cast from object to function pointer */
    const struct ek_backend *b = get ? get(EK_BACKEND_ABI) : NULL;
    if (b && b->abi == EK_BACKEND_ABI && b->size >= sizeof(*b))
        return b;
    ek_fault_set(fault, "device", "%s is of another version than this program: install both alike.",
                 PLUGIN);
    dlclose(handle);
    return NULL;
}

const struct ek_backend *ek_backend_find(const char *name, struct ek_fault *fault)
{
    if (strcmp(name, "cpu") == 0)
        return cpu_backend();
    if (strcmp(name, "cuda") == 0)
        return find_cuda(fault);
    if (strcmp(name, "auto") == 0) {
        const struct ek_open_params first = {.device = 0};
        struct ek_device_info info;
        const struct ek_backend *b = find_cuda(NULL);
        return b && b->probe(&first, &info, NULL) == 0 ? b : cpu_backend();
    }
    ek_fault_set(fault, "device", "There is no device \"%s\": use auto, cpu or cuda.", name);
    return NULL;
}

static bool take_card(struct ek_chosen *c, const char **at)
{
    char *end;

    if (**at < '0' || **at > '9' || c->cards == EK_MOST_RANKS)
        return false;
    errno = 0;
    unsigned long n = strtoul(*at, &end, 10);
    if (errno != 0 || n > INT_MAX || (*end != ',' && *end != '\0'))
        return false;
    for (uint32_t i = 0; i < c->cards; i++)
        if (c->card[i] == n)
            return false;
    c->card[c->cards++] = (uint32_t)n;
    *at = *end ? end + 1 : end;
    return *end == '\0' || **at != '\0';
}

int ek_backend_choose(const char *device, struct ek_chosen *ret_chosen, struct ek_fault *fault)
{
    const char *list = strchr(device, ':');
    struct ek_chosen c = {.cards = 0};
    size_t n = list ? (size_t)(list - device) : strlen(device);

    (void)snprintf(c.backend, sizeof(c.backend), "%.*s", (int)n, device);
    bool ok = strcmp(c.backend, "auto") == 0 || strcmp(c.backend, "cpu") == 0;
    if (list || !ok)
        ok = n == 4 && strcmp(c.backend, "cuda") == 0;
    for (const char *at = list ? list + 1 : NULL; ok && at && (*at || c.cards == 0);)
        ok = take_card(&c, &at);
    if (!ok)
        return ek_fault_set(fault, "device",
                            "--device %.80s: write auto, cpu, cuda, or cuda with the numbers of "
                            "its cards, each once, like cuda:0,1",
                            device);
    *ret_chosen = c;
    return 0;
}

void ek_backend_prepare(bool alone)
{
    if (alone) /* then ranks of NCCL find each other by a socket that is not reached from outside */
        (void)setenv("NCCL_SOCKET_IFNAME", "lo", 0); /* no memory: then it chooses one itself */
}

int ek_backend_list(struct ek_buf *text)
{
    static const char *const names[] = {"cpu", "cuda"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const struct ek_open_params first = {.device = 0};
        struct ek_device_info info;
        struct ek_fault fault = {.msg = ""};
        const struct ek_backend *b = ek_backend_find(names[i], &fault);
        int r = b ? b->probe(&first, &info, &fault) : -ENODEV;
        if (r == 0)
            ek_buf_printf(text, "%-5s %s, %.1f GiB\n", names[i], info.name,
                          (double)info.memory_bytes / (double)(1ull << 30));
        else
            ek_buf_printf(text, "%-5s not usable: %s\n", names[i],
                          fault.msg[0] ? fault.msg : ek_strerror(r));
    }
    return ek_buf_ok(text) ? 0 : -ENOMEM;
}
