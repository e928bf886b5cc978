/*
 * Listens for HAProxy's agent checks on behalf of one server (servers/server.c). A connection is
 * accepted, answered from what the server's callback says, and closed in one turn of the loop; it
 * is never read from.
 */
#include "supervisor/io/edge.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/fdpass.h"

#define BACKLOG   16
#define LINE_MOST 128

struct edge {
    int fd;
    sd_event_source *io;
    edge_line_fn fn;
    void *ctx;
};

/* One line fits into a fresh socket's buffer, so nothing has to be kept for a peer. */
static int on_peer(sd_event_source *source, int fd, uint32_t revents, void *ctx)
{
    struct edge *e = ctx;
    char line[LINE_MOST] = "";
    (void)source;
    (void)revents;
    int peer = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (peer < 0)
        return 0; /* it left; or descriptors are short, then it is asked again */
    e->fn(e->ctx, line, sizeof(line));
    (void)send(peer, line, strlen(line), MSG_NOSIGNAL); /* a peer that left asks again */
    (void)shutdown(peer, SHUT_WR);
    close(peer);
    return 0;
}

int edge_new(sd_event *event, const char *address, unsigned port, edge_line_fn fn, void *ctx,
             struct edge **ret_edge)
{
    struct edge *e = calloc(1, sizeof(*e));
    if (!e)
        return -ENOMEM;
    e->fn = fn;
    e->ctx = ctx;
    e->fd = ek_listen_tcp(address, port, BACKLOG, NULL);
    int r = e->fd < 0 ? e->fd : sd_event_add_io(event, &e->io, e->fd, EPOLLIN, on_peer, e);
    if (r < 0) {
        edge_free(e);
        return r;
    }
    *ret_edge = e;
    return 0;
}

void edge_free(struct edge *e)
{
    if (!e)
        return;
    sd_event_source_disable_unref(e->io);
    if (e->fd >= 0)
        close(e->fd);
    free(e);
}
