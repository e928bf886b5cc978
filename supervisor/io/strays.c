/*
 * Counts or kills what is left in an ended server's session, called by child.c where there was no
 * cgroup to kill. A process is opened by pidfd first and its session read again, so that a pid that
 * was given away in between is not hit.
 */
#include "supervisor/io/strays.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "supervisor/io/process_tree.h"

/* Whether it runs in that session; a zombie does not. */
static bool is_in(pid_t pid, pid_t session)
{
    struct process_row row;
    return process_row_read(pid, &row) && row.state != 'Z' && row.session == session;
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
