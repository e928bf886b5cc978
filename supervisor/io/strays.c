#include "supervisor/io/strays.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Whether it runs in that session; a zombie does not. */
static bool is_in(pid_t pid, pid_t session)
{
    char file[64], text[512] = {0}, state = 0;
    int sid = 0;
    (void)snprintf(file, sizeof(file), "/proc/%d/stat", (int)pid);
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    const char *end = n > 0 ? strrchr(text, ')') : NULL; /* a name may hold anything */
    return end && sscanf(end + 1, " %c %*d %*d %d", &state, &sid) == 2 && state != 'Z' &&
           sid == session;
}

static void end_one(pid_t pid, pid_t session)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        return;
    if (is_in(pid, session)) /* it still has that number: the descriptor is its */
        (void)syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0); /* or it has just ended */
    close(fd);
}

unsigned strays_of(pid_t session, bool end)
{
    unsigned count = 0;
    if (session <= 1 || kill(session, 0) == 0 || errno != ESRCH)
        return 0;
    DIR *proc = opendir("/proc");
    if (!proc)
        return 0;
    for (struct dirent *e; (e = readdir(proc));) {
        char *rest;
        long pid = strtol(e->d_name, &rest, 10);
        if (pid <= 1 || *rest || !is_in((pid_t)pid, session))
            continue;
        count++;
        if (end)
            end_one((pid_t)pid, session);
    }
    (void)closedir(proc); /* it was only read */
    return count;
}
