/* Preloaded by test_bad_files.py: when a file of weights is mapped for the CUT_AT-th time, by
 * whichever of the server's processes, that process waits until the test has cut the file. They
 * share the memory of the file CUT_SHARED: how often it was mapped, whether one waits, whether it
 * may go on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct {
    atomic_int mapped, waits, go;
} * shared;

typedef void *(*mmap_fn)(void *, size_t, int, int, int, off_t);

static mmap_fn next(void)
{
    return (mmap_fn)dlsym(RTLD_NEXT, "mmap");
}

/* Before the server gives the right away to open it. */
__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("CUT_SHARED");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *p = fd >= 0 ? next()(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                      : MAP_FAILED;
    shared = p == MAP_FAILED ? NULL : p;
}

void *mmap(void *addr, size_t len, int prot, int flags, int fd, off_t at)
{
    void *p = next()(addr, len, prot, flags, fd, at);
    char link[64], path[4096] = "";
    const char *cut_at = getenv("CUT_AT");
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    if (!shared || !cut_at || fd < 0 || readlink(link, path, sizeof(path) - 1) < 0 ||
        !strstr(path, ".safetensors"))
        return p;
    if (atomic_fetch_add(&shared->mapped, 1) + 1 == atoi(cut_at)) {
        atomic_store(&shared->waits, 1);
        while (!atomic_load(&shared->go))
            (void)sched_yield();
    }
    return p;
}

void *mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t at)
{
    return mmap(addr, len, prot, flags, fd, at);
}
