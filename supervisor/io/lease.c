/*
 * flock() on the lease file, taken by servers/upkeep.c before a planned restart and held as an open
 * descriptor until that is over; a new evenkeeld that goes on with such a restart takes it again
 * (servers/life.c). The holder's name in the file is for the message to the one that has to wait;
 * only the lock counts.
 */
#include "supervisor/io/lease.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

int lease_take(const char *path, const char *who, int *ret_fd, char *ret_holder, size_t size)
{
    char text[96];
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    if (fd < 0)
        return -errno;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        int r = errno == EWOULDBLOCK ? -EAGAIN : -errno;
        ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        text[strcspn(text, "\n")] = '\0';
        (void)snprintf(ret_holder, size, "%s", text[0] ? text : "another");
        close(fd);
        return r;
    }
    int n = snprintf(text, sizeof(text), "%.60s (process %d)\n", who, (int)getpid());
    if (ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)n, 0) < 0) {
        /* The name is only for people; the lock is held. */
    }
    *ret_fd = fd;
    return 0;
}
