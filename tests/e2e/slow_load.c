/* Preloaded by test_api.py and test_engine_process.py: once the process listens, opening the
 * weights takes SLOW_LOAD_S seconds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool listens(void)
{
    for (int fd = 0; fd < 64; fd++) {
        int on = 0;
        socklen_t len = sizeof(on);
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &len) == 0 && on)
            return true;
    }
    return false;
}

int open(const char *path, int flags, ...)
{
    int (*next)(int, const char *, int, ...) =
        (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat");
    const char *seconds = getenv("SLOW_LOAD_S");
    va_list list;
    va_start(list, flags);
    int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, int) : 0;
    va_end(list);
    unsigned left = seconds && strstr(path, "/model.safetensors") && listens()
                        ? (unsigned)strtoul(seconds, NULL, 10)
                        : 0;
    while (left > 0)
        left = sleep(left);
    return next(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, int) : 0;
    va_end(list);
    return open(path, flags, mode);
}
