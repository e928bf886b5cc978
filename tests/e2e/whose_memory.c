/*
 * Preloaded into a server by test_attack.py: counts how often a thread that serves others frees or
 * grows memory that an encoder's thread has allocated. The allocator has a lock for each thread's
 * memory, and an encoder that is not running may have its own. The count is the first word of the
 * file WHOSE_MEMORY.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PLACES (1u << 22)

static _Atomic(void *) place[PLACES]; /* what encoders have allocated */
static atomic_uint *count, *seen;     /* in the file: such frees, and allocations of encoders */
static void *(*real_malloc)(size_t), *(*real_calloc)(size_t, size_t),
    *(*real_realloc)(void *, size_t);
static void (*real_free)(void *);
static char early[4096]; /* for dlsym() itself */
static size_t early_used;

enum who { UNKNOWN, ENCODER, SERVES, OTHER };

/* Threads are named at their beginning, so a name that is not known yet is asked for again. */
static enum who self(void)
{
    static _Thread_local enum who who;
    char name[16] = "";
    if (who != UNKNOWN)
        return who;
    (void)prctl(PR_GET_NAME, name);
    if (strcmp(name, "encoder") == 0)
        who = ENCODER;
    else if (strcmp(name, "http") == 0 || strcmp(name, "engine") == 0)
        who = SERVES;
    return who != UNKNOWN ? who : OTHER;
}

static uint32_t first_place(const void *p)
{
    return (uint32_t)(((uintptr_t)p >> 4) * 2654435761u) % PLACES;
}

static void note(void *p)
{
    if (!p || self() != ENCODER)
        return;
    atomic_fetch_add(seen, 1);
    for (uint32_t i = first_place(p), tries = 0; tries < 64; i = (i + 1) % PLACES, tries++) {
        void *none = NULL;
        if (atomic_compare_exchange_strong(&place[i], &none, p))
            return;
    }
}

/* Small pieces stay with the thread that frees them, without a lock, until it has some of each
 * size. */
static void forget(void *p)
{
    if (!p || !count)
        return;
    for (uint32_t i = first_place(p), tries = 0; tries < 64; i = (i + 1) % PLACES, tries++) {
        void *is = p;
        if (!atomic_compare_exchange_strong(&place[i], &is, NULL))
            continue;
        if (self() == SERVES)
            atomic_fetch_add(count, 1);
        return;
    }
}

__attribute__((constructor)) static void begin(void)
{
    static atomic_uint unused[2];
    const char *path = getenv("WHOSE_MEMORY");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    count = map == MAP_FAILED ? unused : map;
    seen = count + 1;
    if (fd >= 0)
        close(fd);
}

static void find(void)
{
    real_malloc = dlsym(RTLD_NEXT, "malloc");
    real_realloc = dlsym(RTLD_NEXT, "realloc");
    real_free = dlsym(RTLD_NEXT, "free");
    real_calloc = dlsym(RTLD_NEXT, "calloc");
}

void *malloc(size_t n)
{
    if (!real_malloc)
        find();
    void *p = real_malloc(n);
    if (count)
        note(p);
    return p;
}

void *calloc(size_t n, size_t each)
{
    if (!real_calloc) {
        void *p = early + early_used;
        early_used += (n * each + 15) & ~(size_t)15;
        return early_used <= sizeof(early) ? p : NULL;
    }
    void *p = real_calloc(n, each);
    if (count)
        note(p);
    return p;
}

void *realloc(void *old, size_t n)
{
    if (!real_realloc)
        find();
    forget(old);
    void *p = real_realloc(old, n);
    if (count)
        note(p);
    return p;
}

void free(void *p)
{
    if ((char *)p >= early && (char *)p < early + sizeof(early))
        return;
    if (!real_free)
        find();
    forget(p);
    real_free(p);
}
