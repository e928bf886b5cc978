/* Preloaded by test_faults.py: while the file LACKING is there, evenkeeld's waits for events fail
 * for want of memory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static bool lacks(void)
{
    const char *path = getenv("LACKING");
    return path && strcmp(program_invocation_short_name, "evenkeeld") == 0 &&
           access(path, F_OK) == 0;
}

int epoll_wait(int fd, struct epoll_event *events, int most, int timeout)
{
    int (*next)(int, struct epoll_event *, int, int) =
        (int (*)(int, struct epoll_event *, int, int))dlsym(RTLD_NEXT, "epoll_wait");
    if (!lacks())
        return next(fd, events, most, timeout);
    errno = ENOMEM;
    return -1;
}

int epoll_pwait2(int fd, struct epoll_event *events, int most, const struct timespec *timeout,
                 const sigset_t *mask)
{
    int (*next)(int, struct epoll_event *, int, const struct timespec *, const sigset_t *) =
        (int (*)(int, struct epoll_event *, int, const struct timespec *, const sigset_t *))dlsym(
            RTLD_NEXT, "epoll_pwait2");
    if (!lacks())
        return next(fd, events, most, timeout, mask);
    errno = ENOMEM;
    return -1;
}
