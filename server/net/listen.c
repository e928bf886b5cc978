/*
 * Accepts connections of a listening socket and gives them to workers (listen.h). Called by
 * worker.c and http.c.
 */
#include "server/net/listen.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/fdpass.h"
#include "common/log.h"
#include "server/net/bounds.h"
#include "server/net/conn.h"
#include "server/net/control.h"
#include "server/net/peers.h"
#include "server/net/state.h"

#define ACCEPT_ONCE 64
#define LOOK_BYTES  32
#define SILENT_US   500000u /* a client that was accepted has sent its request by then */

struct peek {
    enum watched watch;
    int fd;
    bool parked, health; /* health: it goes to the health thread once there is room */
    uint64_t deadline_us;
    struct peek *prev, *next;
};

struct http_listener {
    enum watched on_listener;
    struct worker *worker;
    int fd;
    bool local, listening;
    atomic_bool waits; /* something waits for a connection to end */
    uint64_t retry_us; /* after a failed accept */
    struct peek *peeks;
    uint32_t count, parked;
};

int listener_new(struct worker *w, int listen_fd, bool local, struct http_listener **ret_listener)
{
    struct http_listener *d = calloc(1, sizeof(*d));
    if (!d) {
        (void)close(listen_fd);
        return -ENOMEM;
    }
    d->on_listener = WATCH_LISTENER;
    d->worker = w;
    d->fd = listen_fd;
    d->local = local;
    *ret_listener = d;
    return 0;
}

static void listen_again(struct http_listener *d)
{
    if (d->listening)
        return;
    if (worker_watch(d->worker, d->fd, EPOLLIN | EPOLLEXCLUSIVE, &d->on_listener) == 0)
        d->listening = true;
    if (!d->local)
        atomic_store(&d->worker->http->taking, d->listening);
}

static void listen_not(struct http_listener *d)
{
    if (d->listening)
        (void)epoll_ctl(d->worker->epoll, EPOLL_CTL_DEL, d->fd, NULL);
    d->listening = false;
    if (!d->local)
        atomic_store(&d->worker->http->taking, false);
}

int listener_open(struct http_listener *d)
{
    listen_again(d);
    return d->listening ? 0 : -EIO;
}

static void listen_drop(struct http_listener *d, struct peek *p, bool close_it)
{
    (void)epoll_ctl(d->worker->epoll, EPOLL_CTL_DEL, p->fd, NULL);
    if (close_it)
        peers_close(d->worker->http->peers, p->fd);
    if (p->prev)
        p->prev->next = p->next;
    else
        d->peeks = p->next;
    if (p->next)
        p->next->prev = p->prev;
    d->count--;
    if (!d->local)
        atomic_fetch_sub(&d->worker->http->peeked, 1);
    d->parked -= p->parked;
    free(p);
}

/* Whether text begins with, may still become, or is not `word`: 1, 0, -1. */
static int listen_begins(const char *text, size_t n, const char *word)
{
    size_t len = strlen(word), k = n < len ? n : len;
    if (memcmp(text, word, k) != 0)
        return -1;
    return n >= len;
}

/* The same for any of them: the best. */
static int begins_any(const char *text, size_t n, const char *const *words, size_t count)
{
    int best = -1;
    for (size_t i = 0; i < count; i++) {
        int is = listen_begins(text, n, words[i]);
        best = is > best ? is : best;
    }
    return best;
}

enum peek_kind { KIND_WAIT, KIND_API, KIND_HEALTH, KIND_VERB, KIND_CONTROL };

static enum peek_kind listen_classify(const struct http_listener *d, const char *text, size_t n)
{
    static const char *const health[] = {"GET /health", "GET /livez", "GET /readyz", "GET /metrics",
                                         "GET /ping",   "GET /load",  "GET /version"};
    /* others that do not wait for the model; later they are like the rest of their API */
    static const char *const early[] = {"GET /api/version", "GET /openapi.json",
                                        "GET /is_sleeping", "POST /ping",
                                        "GET / ",           "GET /docs"};
    if (d->worker->http->tls &&
        !d->local) /* what it wants cannot be seen; loading answers itself */
        return atomic_load(&d->worker->http->phase) == HTTP_LOADING ? KIND_HEALTH : KIND_API;
    if (d->local) {
        int is = listen_begins(text, n, EK_FD_PREFIX);
        return is > 0 ? KIND_VERB : is == 0 ? KIND_WAIT : KIND_CONTROL;
    }
    int is = begins_any(text, n, health, sizeof(health) / sizeof(health[0]));
    if (is <= 0 && atomic_load(&d->worker->http->phase) == HTTP_LOADING) {
        int other = begins_any(text, n, early, sizeof(early) / sizeof(early[0]));
        is = other > is ? other : is;
    }
    return is > 0 ? KIND_HEALTH : is == 0 ? KIND_WAIT : KIND_API;
}

/* The API thread with the fewest connections; NULL before there is one. */
static struct worker *least_loaded(struct http *h)
{
    struct worker *best = NULL;
    for (uint32_t i = 0; i < h->workers; i++) {
        struct worker *w = &h->worker[i];
        if (w->role == HTTP_API && atomic_load(&w->started) &&
            (!best || atomic_load(&w->load) < atomic_load(&best->load)))
            best = w;
    }
    return best;
}

/* Parked connections are no longer looked at, but must be seen to leave. */
static void park(struct http_listener *d, struct peek *p)
{
    struct epoll_event e = {.events = EPOLLRDHUP, .data.ptr = p};
    if (p->parked)
        return;
    p->parked = true;
    p->deadline_us = 0;
    d->parked++;
    atomic_store(&d->waits, true);
    (void)epoll_ctl(d->worker->epoll, EPOLL_CTL_MOD, p->fd, &e);
}

static int give_api(struct http *h, struct worker *to, int fd)
{
    bool counts = to->role == HTTP_API;
    atomic_fetch_add(&h->api_conns, counts);
    int r = worker_give(to, fd);
    if (r < 0)
        atomic_fetch_sub(&h->api_conns, counts);
    return r;
}

/* Gives it to an API thread if there is room. After a start that failed there is none, and the
 * health thread refuses what waited for it. */
static void admit(struct http_listener *d, struct peek *p)
{
    struct http *h = d->worker->http;
    struct worker *to = least_loaded(h);
    if (!to && atomic_load(&h->phase) == HTTP_FAILED)
        to = d->worker;
    bool drain = atomic_load(&h->drain) != 0; /* then they are answered 503 at once */
    bool full = atomic_load(&h->api_conns) >= h->p.max_connections && !drain;
    if (!to || full || atomic_load(&h->phase) == HTTP_LOADING) {
        park(d, p);
        return;
    }
    (void)epoll_ctl(d->worker->epoll, EPOLL_CTL_DEL, p->fd, NULL);
    if (give_api(h, to, p->fd) < 0) {
        struct epoll_event e = {.events = EPOLLRDHUP, .data.ptr = p};
        (void)epoll_ctl(d->worker->epoll, EPOLL_CTL_ADD, p->fd, &e);
        park(d, p);
        return;
    }
    listen_drop(d, p, false);
}

/* Whether the health thread may have one more. */
static bool has_place(const struct http_listener *d)
{
    return atomic_load(&d->worker->load) < http_health_places(d->worker->http);
}

/* Its own thread serves it. */
static void listen_keep(struct http_listener *d, struct peek *p)
{
    (void)epoll_ctl(d->worker->epoll, EPOLL_CTL_DEL, p->fd, NULL);
    int fd = p->fd;
    if (worker_give(d->worker, fd) < 0)
        peers_close(d->worker->http->peers, fd);
    listen_drop(d, p, false);
}

static void listen_look(struct http_listener *d, struct peek *p)
{
    char text[LOOK_BYTES];
    ssize_t n = recv(p->fd, text, sizeof(text), MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        listen_drop(d, p, true);
        return;
    }
    switch (listen_classify(d, text, (size_t)n)) {
    case KIND_WAIT: return;
    case KIND_API: admit(d, p); return;
    case KIND_HEALTH:
        p->health = true;
        if (has_place(d))
            listen_keep(d, p);
        else /* an address that holds all of these is no reason to count more */
            admit(d, p);
        return;
    case KIND_CONTROL: listen_keep(d, p); return;
    case KIND_VERB:
        control_verb(d->worker->http, p->fd);
        listen_drop(d, p, true);
        return;
    }
}

void listener_peek(struct http_listener *d, enum watched *what)
{
    struct peek *p = (struct peek *)(void *)what;
    if (p->parked)
        listen_drop(d, p, true); /* only its end is watched */
    else
        listen_look(d, p);
}

/* The control socket is for our own user, root, and the evenkeeld that started us. */
static bool may_enter(const struct http *h, int fd)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
        return false;
    return cred.uid == 0 || cred.uid == geteuid() ||
           (h->p.control_uid != (uid_t)-1 && cred.uid == h->p.control_uid);
}

/* Whether a peer of the API may have one connection more. */
static bool may_have(struct http *h, int fd, const struct sockaddr_storage *a)
{
    if (peers_take(h->peers, fd, a))
        return true;
    atomic_fetch_add(&h->peer_refusals, 1);
    return false;
}

static void enter(struct http_listener *d, int fd, const struct sockaddr_storage *a)
{
    struct http *h = d->worker->http;
    bool good = d->local ? may_enter(h, fd) : may_have(h, fd, a);
    struct peek *p = good ? calloc(1, sizeof(*p)) : NULL;
    atomic_fetch_add(&h->accepted, 1);
    if (!p) {
        peers_close(h->peers, fd);
        return;
    }
    p->watch = WATCH_PEEK;
    p->fd = fd;
    p->deadline_us = ek_now_us() + (uint64_t)(h->p.request_timeout_s * 1e6);
    p->next = d->peeks;
    if (p->next)
        p->next->prev = p;
    d->peeks = p;
    d->count++;
    if (!d->local)
        atomic_fetch_add(&h->peeked, 1);
    /* Edge: bytes that are too few to decide must not wake us again and again. */
    if (worker_watch(d->worker, fd, EPOLLIN | EPOLLRDHUP | EPOLLET, &p->watch) < 0)
        listen_drop(d, p, true);
    else
        listen_look(d, p);
}

static bool is_full(const struct http_listener *d)
{
    struct http *h = d->worker->http;
    if (d->local)
        return d->count + atomic_load(&d->worker->load) >= BOUND_CONTROL_CONNECTIONS;
    uint32_t most = h->p.max_connections + BOUND_PARKED;
    uint32_t used = d->count + atomic_load(&h->api_conns);
    if (h->p.max_sockets && used + atomic_load(&d->worker->load) >= h->p.max_sockets)
        return true;
    return used >= most;
}

/* The oldest of those that have sent nothing for a moment; its place goes to one that sends. */
static struct peek *silent(const struct http_listener *d, uint64_t now)
{
    uint64_t timeout = (uint64_t)(d->worker->http->p.request_timeout_s * 1e6);
    struct peek *found = NULL;
    for (struct peek *p = d->local ? NULL : d->peeks; p; p = p->next) {
        if (!p->parked && p->deadline_us && now + timeout >= p->deadline_us + SILENT_US)
            found = p;
    }
    return found;
}

void listener_accept(struct http_listener *d)
{
    for (int i = 0; i < ACCEPT_ONCE; i++) {
        struct peek *quiet = is_full(d) ? silent(d, ek_now_us()) : NULL;
        if (quiet) {
            atomic_fetch_add(&d->worker->http->timeouts, 1);
            listen_drop(d, quiet, true);
        }
        if (is_full(d)) {
            atomic_store(&d->waits, true);
            listen_not(d);
            return;
        }
        struct sockaddr_storage a = {0};
        socklen_t len = sizeof(a);
        int fd = accept4(d->fd, (struct sockaddr *)&a, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && ek_error_is_shortage(errno)) {
            ek_log(EK_LOG_WARNING, "Cannot accept connections for the moment: %s", strerror(errno));
            d->retry_us = ek_now_us() + EK_US_PER_S;
            listen_not(d);
            return;
        }
        if (fd < 0)
            return;
        enter(d, fd, &a);
    }
}

static void listen_expire(struct http_listener *d, uint64_t now)
{
    for (struct peek *p = d->peeks, *next; p; p = next) {
        next = p->next;
        if (p->deadline_us && now >= p->deadline_us) {
            atomic_fetch_add(&d->worker->http->timeouts, 1);
            listen_drop(d, p, true);
        }
    }
}

/* The one that waits longest is at the end of the list. */
static void admit_parked(struct http_listener *d)
{
    struct peek *p = d->peeks;
    bool full = false; /* for the API */
    while (p && p->next)
        p = p->next;
    while (p) {
        struct peek *before = p->prev;
        uint32_t parked = d->parked;
        if (p->parked && p->health && has_place(d))
            listen_keep(d, p);
        else if (p->parked && !full) {
            admit(d, p);
            full = d->parked == parked;
        }
        p = before;
    }
}

void listener_tick(struct http_listener *d, uint64_t now_us)
{
    struct http *h = d->worker->http;
    listen_expire(d, now_us);
    if (d->parked)
        admit_parked(d);
    atomic_store(&h->parked, d->local ? atomic_load(&h->parked) : d->parked);
    bool hold = !d->local && atomic_load(&h->drain) == HTTP_DRAIN_HOLD + 1;
    if (hold || now_us < d->retry_us || (is_full(d) && !silent(d, now_us))) {
        listen_not(d);
        return;
    }
    listen_again(d);
    atomic_store(&d->waits, d->parked > 0);
}

bool listener_waits(struct http_listener *d)
{
    return d && atomic_load(&d->waits);
}

void listener_free(struct http_listener *d)
{
    if (!d)
        return;
    while (d->peeks)
        listen_drop(d, d->peeks, true);
    (void)close(d->fd);
    free(d);
}
