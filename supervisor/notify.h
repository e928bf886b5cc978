/* What evenkeeld tells systemd, and what systemd keeps for it. The loop's thread only. */
#pragma once

struct fleet;
struct loop;

/* Has systemd keep a server's listening socket, fd = -1: keep it no longer. A service of servers
 * (struct services), ctx is not used. */
void notify_keep_fd(void *ctx, const char *server, int fd);
/* Gives the servers the sockets that systemd kept since the last evenkeeld, and closes those that
 * no server wants. Once, before they begin. */
void notify_take_kept_fds(const struct fleet *f);
/* The line of status, when it changed. */
void notify_status(struct loop *l);
/* READY once each server answers or was tried; until then more time to start. */
void notify_ready(struct loop *l);
