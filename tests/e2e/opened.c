/* Preloaded by test_sandbox.py: each file of a model that is opened to be read is a line of stderr,
 * with the process that does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int open(const char *path, int flags, ...)
{
    int (*next)(int, const char *, int, ...) =
        (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat");
    va_list list;
    va_start(list, flags);
    int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, int) : 0;
    va_end(list);
    int fd = next(AT_FDCWD, path, flags, mode);
    const char *name = strrchr(path, '/');
    const char *dot = name ? strrchr(name, '.') : NULL;
    if (fd >= 0 && !(flags & O_PATH) && dot &&
        (strcmp(dot, ".json") == 0 || strcmp(dot, ".jinja") == 0 ||
         strcmp(dot, ".safetensors") == 0))
        (void)dprintf(STDERR_FILENO, "opened %d %s\n", (int)getpid(), name + 1);
    return fd;
}

int open64(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, int) : 0;
    va_end(list);
    return open(path, flags, mode);
}
