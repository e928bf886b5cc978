/*
 * Passes a listening socket to a server and back, for servers/server.c, launch.c and drain.c, and
 * the end of a socket pair for loss_line.c. A struct handoff lives for one exchange: connect, send
 * with SCM_RIGHTS, wait for the answer or the deadline, call back once, free.
 */
#include "supervisor/io/handoff.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/fdpass.h"
#include "supervisor/io/run_as.h"

struct handoff {
    int sock;
    enum handoff_verb verb;
    struct ucred peer;
    sd_event_source *io, *timer;
    handoff_fn cb;
    void *ctx;
};

static void handoff_free(struct handoff *h)
{
    if (!h)
        return;
    sd_event_source_disable_unref(h->io);
    sd_event_source_disable_unref(h->timer);
    if (h->sock >= 0)
        close(h->sock);
    free(h);
}

void handoff_cancel(struct handoff *h)
{
    handoff_free(h);
}

static void handoff_finish(struct handoff *h, int error, int fd, const char *text)
{
    struct handoff_result res = {
        .error = error, .fd = fd, .peer = h->peer.pid, .peer_uid = h->peer.uid};
    (void)snprintf(res.text, sizeof(res.text), "%s", text);
    res.text[strcspn(res.text, "\r\n")] = '\0';
    handoff_fn cb = h->cb;
    void *ctx = h->ctx;
    handoff_free(h);
    cb(ctx, &res);
}

static int on_answer(sd_event_source *s, int sock, uint32_t revents, void *ctx)
{
    struct handoff *h = ctx;
    char text[256];
    int fd = -1;
    (void)s;
    (void)revents;
    int n = ek_fd_recv(sock, text, sizeof(text), &fd);
    if (n == -EAGAIN || n == -EINTR)
        return 0;
    bool ok = n > 0 && strncmp(text, "OK", 2) == 0;
    if (ok && (h->verb == HANDOFF_PUT || fd >= 0)) {
        if (h->verb == HANDOFF_PUT && fd >= 0) {
            close(fd); /* not asked for */
            fd = -1;
        }
        handoff_finish(h, 0, fd, "");
        return 0;
    }
    if (fd >= 0)
        close(fd);
    if (ok) { /* without what it says: we had no descriptor free for it */
        handoff_finish(h, -EMFILE, -1, "no descriptor is free for the socket");
        return 0;
    }
    handoff_finish(h, n > 0 ? -EPROTO : -EIO, -1, n > 0 ? text : "connection closed");
    return 0;
}

static int on_timeout(sd_event_source *s, uint64_t usec, void *ctx)
{
    (void)s;
    (void)usec;
    handoff_finish(ctx, -ETIMEDOUT, -1, "no answer in time");
    return 0;
}

/* A Unix socket connects at once or not at all. */
static int connect_now(const char *path, struct ucred *ret_peer)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(sa.sun_path))
        return -ENAMETOOLONG;
    memcpy(sa.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    socklen_t len = sizeof(*ret_peer);
    if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, ret_peer, &len) < 0) {
        int r = -errno;
        close(fd);
        return r;
    }
    if (!run_as_owner_answers(fd, path)) {
        close(fd);
        return -EPERM;
    }
    return fd;
}

int handoff_start(sd_event *event, const struct handoff_ask *ask, handoff_fn cb, void *ctx,
                  struct handoff **ret_handoff)
{
    struct handoff *h = calloc(1, sizeof(*h));
    if (!h)
        return -ENOMEM;
    h->verb = ask->verb;
    h->cb = cb;
    h->ctx = ctx;
    int r = connect_now(ask->path, &h->peer);
    h->sock = r;
    if (r < 0)
        goto out;

    char line[80];
    (void)snprintf(line, sizeof(line), EK_FD_PREFIX "%s %s\n",
                   ask->verb == HANDOFF_PUT ? "put" : "get", ask->name);
    r = ek_fd_send(h->sock, line, ask->verb == HANDOFF_PUT ? ask->fd : -1);
    if (r < 0)
        goto out;
    r = sd_event_add_io(event, &h->io, h->sock, EPOLLIN, on_answer, h);
    if (r < 0)
        goto out;
    r = sd_event_add_time(event, &h->timer, CLOCK_MONOTONIC,
                          ek_now_us() + (uint64_t)ask->timeout_ms * 1000u, 1000, on_timeout, h);
    if (r < 0)
        goto out;
    *ret_handoff = h;
    h = NULL;
    r = 0;
out:
    handoff_free(h);
    return r;
}
