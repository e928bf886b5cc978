/*
 * Who else keeps the listening socket, and whether it still lives (keeper.h). Called by control.c
 * when a socket is handed over, and by http.c at a drain.
 */
#include "server/net/keeper.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

void keeper_init(struct keeper *k)
{
    *k = (struct keeper){.fd = -1};
}

void keeper_set(struct keeper *k, int sock)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);

    keeper_done(k);
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
        return;
    k->known = true;
    k->pid = cred.pid;
    k->fd = cred.pid > 0 ? (int)syscall(SYS_pidfd_open, cred.pid, 0) : -1;
}

bool keeper_lives(const struct keeper *k)
{
    struct pollfd p = {.fd = k->fd, .events = POLLIN};

    if (k->fd >= 0)
        return poll(&p, 1, 0) == 0;
    return k->known && (k->pid <= 0 || kill(k->pid, 0) == 0 || errno != ESRCH);
}

void keeper_done(struct keeper *k)
{
    if (k->fd >= 0)
        (void)close(k->fd);
    keeper_init(k);
}
