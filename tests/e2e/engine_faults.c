/* Preloaded by tests of an engine's process: while the file $ENGINE_FAULTS/hold is there, an engine
 * that loads waits before it opens weights, so that it can be ended just then. With no-memory there
 * a memfd cannot have its pages. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static bool is_engine(void)
{
    char name[16] = "";

    return prctl(PR_GET_NAME, name) == 0 && strcmp(name, "evenkeel-engine") == 0;
}

/* Whether $ENGINE_FAULTS has a file of that name. */
static bool asked(const char *what)
{
    const char *folder = getenv("ENGINE_FAULTS");
    char path[4096];

    if (!folder)
        return false;
    (void)snprintf(path, sizeof(path), "%s/%s", folder, what);
    return access(path, F_OK) == 0;
}

int fallocate(int fd, int mode, off_t from, off_t bytes)
{
    int (*next)(int, int, off_t, off_t) =
        (int (*)(int, int, off_t, off_t))dlsym(RTLD_NEXT, "fallocate");

    errno = ENOSPC;
    return asked("no-memory") ? -1 : next(fd, mode, from, bytes);
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
    while (end && strcmp(end, ".safetensors") == 0 && is_engine() && asked("hold"))
        (void)usleep(1000);
    return next(AT_FDCWD, path, flags, mode);
}
