/*
 * Answers 503 at a server's listening socket while no server has it; a server's struct owns it,
 * servers/ended.c opens it, launch.c ends it when a process comes. A small fixed number of
 * connections is open at a time; while all are taken the listening source is off and clients stay
 * in the backlog. Each is answered on its first bytes, then read until the client closes or its
 * time is over.
 */
#include "supervisor/io/reject_listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "supervisor/io/priority.h"

#define GUESTS_MOST 128 /* further ones wait in the backlog for a moment */
#define STAY_US     2000000u
#define READ_MOST   (64u * 1024) /* of a request; one that sends more is not waited for */

struct guest {
    int fd; /* -1 = free */
    struct reject_listener *listener;
    sd_event_source *io;
    uint64_t until_us;
    size_t got;
    bool answered;
};

struct reject_listener {
    sd_event *event;
    sd_event_source *listening, *timer;
    struct guest guest[GUESTS_MOST];
    uint32_t guests;
    char answer[440];
    size_t len;
};

static void leave(struct guest *g)
{
    g->io = sd_event_source_disable_unref(g->io);
    close(g->fd);
    g->fd = -1;
    g->listener->guests--;
    (void)sd_event_source_set_enabled(g->listener->listening, SD_EVENT_ON);
}

static void reject_answer(struct guest *g)
{
    const struct reject_listener *s = g->listener;
    g->answered = true;
    /* A fresh socket's buffer takes all of it; a client that is gone misses nothing. */
    if (send(g->fd, s->answer, s->len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ||
        shutdown(g->fd, SHUT_WR) < 0)
        g->got = READ_MOST;
}

static int on_guest(sd_event_source *source, int fd, uint32_t revents, void *ctx)
{
    struct guest *g = ctx;
    char part[4096];
    (void)source;
    (void)revents;
    ssize_t n = recv(fd, part, sizeof(part), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    g->got += n > 0 ? (size_t)n : 0;
    if (n > 0 && !g->answered)
        reject_answer(g);
    if (n <= 0 || g->got >= READ_MOST)
        leave(g);
    return 0;
}

static void reject_arm(struct reject_listener *s)
{
    (void)sd_event_source_set_time(s->timer, ek_now_us() + STAY_US / 4);
    (void)sd_event_source_set_enabled(s->timer, SD_EVENT_ONESHOT);
}

static int reject_listener_on_timer(sd_event_source *source, uint64_t usec, void *ctx)
{
    struct reject_listener *s = ctx;
    uint64_t now = ek_now_us();
    (void)source;
    (void)usec;
    for (int i = 0; i < GUESTS_MOST; i++) {
        if (s->guest[i].fd >= 0 && now >= s->guest[i].until_us)
            leave(&s->guest[i]);
    }
    if (s->guests > 0)
        reject_arm(s);
    return sd_event_source_set_enabled(s->listening, SD_EVENT_ON);
}

static int on_listening(sd_event_source *source, int fd, uint32_t revents, void *ctx)
{
    struct reject_listener *s = ctx;
    (void)revents;
    struct guest *g = NULL;
    for (int i = 0; i < GUESTS_MOST && !g; i++)
        g = s->guest[i].fd < 0 ? &s->guest[i] : NULL;
    if (!g)
        return sd_event_source_set_enabled(source, SD_EVENT_OFF);
    /* A server that had this socket may have made it wait, and may take the connection itself. */
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    int peer = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (peer < 0 && ek_error_is_shortage(errno)) {
        reject_arm(s); /* nothing to take it with: in a moment */
        return sd_event_source_set_enabled(source, SD_EVENT_OFF);
    }
    if (peer < 0)
        return 0; /* it left */
    *g = (struct guest){.fd = peer, .listener = s, .until_us = ek_now_us() + STAY_US};
    s->guests++;
    if (sd_event_add_io(s->event, &g->io, peer, EPOLLIN, on_guest, g) < 0 ||
        sd_event_source_set_priority(g->io, PRIORITY_STRANGERS) < 0)
        leave(g);
    else if (s->guests == 1)
        reject_arm(s);
    return 0;
}

int reject_listener_new(sd_event *event, int listen_fd, uint32_t retry_s, const char *why,
                        struct reject_listener **ret_listener)
{
    char body[240];
    (void)snprintf(body, sizeof(body),
                   "{\"error\":{\"message\":\"%.120s\",\"type\":\"service_unavailable\","
                   "\"param\":null,\"code\":503}}",
                   why);
    struct reject_listener *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->event = event;
    for (int i = 0; i < GUESTS_MOST; i++)
        s->guest[i].fd = -1;
    int n = snprintf(s->answer, sizeof(s->answer),
                     "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\nRetry-After: %u\r\nConnection: close\r\n\r\n%s",
                     strlen(body), retry_s, body);
    s->len = n > 0 ? (size_t)n : 0;
    int r =
        sd_event_add_time(event, &s->timer, CLOCK_MONOTONIC, 0, 10000, reject_listener_on_timer, s);
    if (r >= 0)
        r = sd_event_source_set_enabled(s->timer, SD_EVENT_OFF);
    if (r >= 0)
        r = sd_event_add_io(event, &s->listening, listen_fd, EPOLLIN, on_listening, s);
    if (r >= 0)
        r = sd_event_source_set_priority(s->listening, PRIORITY_STRANGERS);
    if (r < 0) {
        reject_listener_free(s);
        return r;
    }
    *ret_listener = s;
    return 0;
}

void reject_listener_free(struct reject_listener *s)
{
    if (!s)
        return;
    for (int i = 0; i < GUESTS_MOST; i++) {
        if (s->guest[i].fd >= 0)
            leave(&s->guest[i]);
    }
    sd_event_source_disable_unref(s->listening);
    sd_event_source_disable_unref(s->timer);
    free(s);
}
