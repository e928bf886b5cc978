/*
 * Listens for HAProxy's agent checks on behalf of one server (servers/server.c). A connection is
 * accepted, answered from what the server's callback says, and closed in one turn of the loop; it
 * is never read from. While descriptors are short the listening source is off, since it would wake
 * the loop at once again and again.
 */
#include "supervisor/io/edge.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/fdpass.h"
#include "supervisor/io/priority.h"

#define BACKLOG   16
#define LINE_MOST 128
#define PAUSE_US  500000u /* until it is looked whether there are descriptors again */

struct edge {
    int fd;
    sd_event_source *io, *timer;
    edge_line_fn fn;
    void *ctx;
};

static int edge_on_timer(sd_event_source *source, uint64_t usec, void *ctx)
{
    struct edge *e = ctx;
    (void)source;
    (void)usec;
    return sd_event_source_set_enabled(e->io, SD_EVENT_ON);
}

static int edge_pause(struct edge *e)
{
    int r = sd_event_source_set_time(e->timer, ek_now_us() + PAUSE_US);
    if (r >= 0)
        r = sd_event_source_set_enabled(e->timer, SD_EVENT_ONESHOT);
    return r < 0 ? r : sd_event_source_set_enabled(e->io, SD_EVENT_OFF);
}

/* One line fits into a fresh socket's buffer, so nothing has to be kept for a peer. */
static int on_peer(sd_event_source *source, int fd, uint32_t revents, void *ctx)
{
    struct edge *e = ctx;
    char line[LINE_MOST] = "";
    (void)source;
    (void)revents;
    int peer = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (peer < 0 && ek_error_is_shortage(errno))
        return edge_pause(e);
    if (peer < 0)
        return 0; /* it left */
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
    if (r >= 0)
        r = sd_event_source_set_priority(e->io, PRIORITY_STRANGERS);
    if (r >= 0)
        r = sd_event_add_time(event, &e->timer, CLOCK_MONOTONIC, 0, 10000, edge_on_timer, e);
    if (r >= 0)
        r = sd_event_source_set_enabled(e->timer, SD_EVENT_OFF);
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
    sd_event_source_disable_unref(e->timer);
    if (e->fd >= 0)
        close(e->fd);
    free(e);
}
