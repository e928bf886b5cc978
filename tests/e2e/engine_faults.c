/*
 * Preloaded by tests of an engine's process: does what the 32 words of the file $ENGINE_FAULTS say,
 * which the test writes while all runs (engine_faults.py). The file is mapped at the start, so that
 * no sandbox is in the way, and is shared by server and engine.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "common/err.h"
#include "kernels/apart.h"
#include "kernels/step.h"

enum what { NOTHING, ABORT, SEGV, LOST, SHORT, HOST_SHORT, HANG };

static struct faults {
    atomic_int hold;      /* 1: an engine that loads waits before its weights; 2: its host tier */
    atomic_int no_memory; /* a memfd cannot have its pages */
    atomic_int after;     /* steps, then `what` is done once, at `place` */
    atomic_int place, what;
    atomic_int poison, poison_what; /* a step with this token, each time; 0 = none */
    atomic_int done;                /* counts all of them */
} none, *faults = &none;

/* SIGUSR2 to a thread of an engine (a rank's): it does nothing any more. */
static void stand_still(int sig)
{
    (void)sig;
    for (;;)
        (void)nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
}

/* One function: constructors without a priority come in no order. */
__attribute__((constructor)) static void begin(void)
{
    const struct sigaction a = {.sa_handler = stand_still};
    const char *path = getenv("ENGINE_FAULTS");
    int fd = path ? openat(AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
    void *at = MAP_FAILED;

    if (fd >= 0) {
        at = mmap(NULL, sizeof(*faults), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        (void)close(fd);
    }
    if (at == MAP_FAILED)
        return;
    faults = at;
    (void)sigaction(SIGUSR2, &a, NULL);
}

static bool is_engine(void)
{
    char name[16] = "";

    return prctl(PR_GET_NAME, name) == 0 && strcmp(name, "evenkeel-engine") == 0;
}

static int do_fault(enum what what)
{
    atomic_fetch_add(&faults->done, 1);
    switch (what) {
    case NOTHING: break;
    case ABORT: abort();
    case SEGV: *(volatile int *)8 = 1; break;
    case LOST: return EK_EDEVICE;
    case SHORT: return EK_EDEVMEM;
    case HOST_SHORT: return -ENOMEM;
    case HANG:
        for (;;)
            (void)nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    }
    return 0;
}

static bool has_poison(const struct ek_step *step, int32_t token)
{
    const int32_t *row = ek_step_tokens(step);

    for (uint32_t i = 0; i < step->rows; i++)
        if (row[i] == token)
            return true;
    return false;
}

__attribute__((visibility("default"))) int ek_apart_test(enum ek_apart_place place,
                                                         const struct ek_step *step);
int ek_apart_test(enum ek_apart_place place, const struct ek_step *step)
{
    const int poison = atomic_load(&faults->poison);

    if (poison != 0 && place == EK_APART_COMPUTED && has_poison(step, poison))
        return do_fault((enum what)atomic_load(&faults->poison_what));
    if ((int)place != atomic_load(&faults->place) || atomic_load(&faults->what) == NOTHING ||
        atomic_fetch_sub(&faults->after, 1) > 0)
        return 0;
    return do_fault((enum what)atomic_exchange(&faults->what, NOTHING));
}

int fallocate(int fd, int mode, off_t from, off_t bytes)
{
    int (*next)(int, int, off_t, off_t) =
        (int (*)(int, int, off_t, off_t))dlsym(RTLD_NEXT, "fallocate");

    errno = ENOSPC;
    return atomic_load(&faults->no_memory) ? -1 : next(fd, mode, from, bytes);
}

/* What nobody else maps so is the host tier, which a card would pin now. */
void *mmap(void *near, size_t bytes, int rights, int flags, int fd, off_t from)
{
    void *(*next)(void *, size_t, int, int, int, off_t) =
        (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");

    if ((flags & MAP_SHARED) != 0 && (flags & MAP_NORESERVE) != 0 && is_engine() &&
        atomic_load(&faults->hold) == 2) {
        atomic_fetch_add(&faults->done, 1);
        while (atomic_load(&faults->hold) == 2)
            (void)usleep(1000);
    }
    return next(near, bytes, rights, flags, fd, from);
}

int open(const char *path, int flags, ...)
{
    int (*next)(int, const char *, int, ...) =
        (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat");
    va_list list;
    va_start(list, flags);
    int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, int) : 0;
    va_end(list);
    const char *end = strrchr(path, '.');
    while (end && strcmp(end, ".safetensors") == 0 && is_engine() &&
           atomic_load(&faults->hold) == 1)
        (void)usleep(1000);
    return next(AT_FDCWD, path, flags, mode);
}
