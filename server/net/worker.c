/* An HTTP thread with its connections (worker.h). Started by http.c. */
#include "server/net/worker.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "server/api/complete.h"
#include "server/net/bounds.h"
#include "server/net/conn.h"
#include "server/net/exchange.h"
#include "server/net/listen.h"
#include "server/net/peers.h"
#include "server/net/request.h"
#include "server/net/state.h"
#include "server/net/tls.h"

#define EVENTS        64
#define SCAN_US       250000u /* how often deadlines are looked at */
#define ROOM          64u     /* places to free where those that wait are still in the kernel */
#define STOP_ROUNDS   200     /* of 1 ms: what is in progress may end */
#define SOCKETS_EXTRA 1024u   /* of one daemon beyond the API's limit */
#define EAGER_ROUNDS  16u     /* that MHD asks for at once though nothing has happened, */
#define SENDING_MOST  1024u   /* and while an answer is sent, a record of TLS in each; then they */
#define EAGER_MS      2       /* come after so long */

struct worker *worker_find(struct http *h, enum http_role role)
{
    for (uint32_t i = 0; i < h->workers; i++) {
        if (h->worker[i].role == role)
            return &h->worker[i];
    }
    return NULL;
}

/* The thread whose listener has connections that wait for others to end, or NULL. */
static struct worker *somebody_waits(struct http *h)
{
    struct worker *w = worker_find(h, HTTP_HEALTH);

    /* started: its listener is made */
    return w && atomic_load(&w->started) && listener_waits(w->listener) ? w : NULL;
}

/* One connection less: a listener may accept another. */
static void let_in(struct worker *w)
{
    struct http *h = w->http;
    atomic_fetch_sub(&w->load, 1);
    if (w->role == HTTP_API)
        atomic_fetch_sub(&h->api_conns, 1);
    struct worker *waits = somebody_waits(h);
    if (waits)
        worker_wake(waits);
}

static void set_option(int fd, int level, int option, int value)
{
    (void)setsockopt(fd, level, option, &value, sizeof(value)); /* the kernel's default will do */
}

/* Small pieces go out at once; a peer that is gone or does not read is noticed. The kernel ends
 * a peer whose window stays closed, too: after the server has, which knows and counts why. */
static void tune(int fd)
{
    static_assert((int)BOUND_UNACKED_S >= 2 * (int)BOUND_SLOW_READER_S, "the kernel is the last");
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, BOUND_UNACKED_S * 1000);
    set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, BOUND_UNSENT_BYTES);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, BOUND_UNACKED_S / 2);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, BOUND_UNACKED_S / 6);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

static void take_over(struct worker *w, int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(a);
    if (getpeername(fd, (struct sockaddr *)&a, &len) < 0) {
        peers_close(w->http->peers, fd); /* it left already */
        let_in(w);
        return;
    }
    if (a.ss_family != AF_UNIX)
        tune(fd);
    /* MHD closes the socket if it does not take it. */
    if (MHD_add_connection(w->daemon, fd, (struct sockaddr *)&a, len) != MHD_YES) {
        peers_give(w->http->peers, fd);
        let_in(w);
    }
}

static void empty_inbox(struct worker *w)
{
    int fds[HTTP_INBOX];
    pthread_mutex_lock(&w->lock);
    uint32_t n = w->inbox_count;
    memcpy(fds, w->inbox, n * sizeof(fds[0]));
    w->inbox_count = 0;
    pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 0; i < n; i++)
        take_over(w, fds[i]);
}

/* MHD_OPTION_NOTIFY_CONNECTION */
static void on_connection(void *cls, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct worker *w = cls;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct conn *c = calloc(1, sizeof(*c));
        if (!c || !info) { /* without one every request on it is refused */
            free(c);
            *context = NULL;
            return;
        }
        *c = (struct conn){.watch = WATCH_CONN,
                           .fd = info->connect_fd,
                           .local = w->role == HTTP_CONTROL,
                           .worker = w,
                           .next = w->conns,
                           .deadline_us =
                               ek_now_us() + (uint64_t)(w->http->p.request_timeout_s * 1e6)};
        if (c->next)
            c->next->prev = c;
        w->conns = c;
        *context = c;
        return;
    }
    struct conn *c = *context;
    if (c) {
        exchange_drop(c);
        peers_give(w->http->peers, c->fd);
        if (c->watched)
            (void)epoll_ctl(w->epoll, EPOLL_CTL_DEL, c->fd, NULL);
        if (c->prev)
            c->prev->next = c->next;
        else
            w->conns = c->next;
        if (c->next)
            c->next->prev = c->prev;
        free(c);
    }
    let_in(w);
}

/* Whether an answer has waited long enough for its reader: it is made, and nothing but its reading
 * holds the process, however it is read and over which kind of socket; or it is being made, and
 * nothing of it is taken. */
static bool waits_too_long(struct conn *c, uint64_t now)
{
    const uint64_t most_us = BOUND_DRAIN_READER_S * EK_US_PER_S;
    struct exchange *x = c->exchange;
    if (exchange_is_made(x)) {
        if (x->made_us == 0)
            x->made_us = now;
        return now - x->made_us > most_us;
    }
    x->made_us = 0;
    struct unread_now at = unread_look(c->fd);
    return unread_stalls(&c->unread, &at, now, most_us);
}

/* While it drains: the reader of an answer does not hold the process, for which new connections may
 * wait in the listening socket. */
static void cut_unread(struct worker *w, bool drains, uint64_t now)
{
    for (struct conn *c = w->conns; c; c = c->next) {
        struct exchange *x = c->exchange;
        if (!drains) {
            c->unread = (struct unread){0};
            if (x)
                x->made_us = 0;
        } else if (!c->local && x && x->replied && !x->stalled && waits_too_long(c, now)) {
            exchange_cut(x);
        }
    }
}

/* For how long its place has been of no use: no request is on it, one does not get there, or of the
 * health thread's an answer is not read. */
static uint64_t holds_for_nothing(const struct worker *w, const struct conn *c, uint64_t now)
{
    const struct exchange *x = c->exchange;
    uint64_t since = c->idle_us, most_us = BOUND_ARRIVE_S * EK_US_PER_S;
    char byte;
    if (c->deadline_us == 0)
        return 0; /* it is being answered */
    if (since)
        most_us = BOUND_IDLE_MS * 1000u;
    else if (!x) /* the first request, behind a handshake it may be */
        since = c->deadline_us - (uint64_t)(w->http->p.request_timeout_s * 1e6);
    else if (!x->replied)
        since = x->arrival_us;
    else if (w->role == HTTP_HEALTH)
        since = c->deadline_us - BOUND_ANSWER_S * EK_US_PER_S;
    else
        return 0;
    if (now < since + most_us || (c->idle_us && recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0))
        return 0;
    return now - since;
}

/* How many of its places are wanted by others. */
static uint32_t places_wanted(const struct worker *w)
{
    struct http *h = w->http;
    uint32_t parked = atomic_load(&h->parked);
    if (w->role == HTTP_API)
        return somebody_waits(h) ? (parked ? parked : ROOM) / h->workers + 1 : 0;
    return http_health_is_busy(w) ? atomic_load(&w->load) - http_health_places(h) / 2 : 0;
}

/* While connections wait for a place, those that use theirs for nothing give it up; none that has
 * done so half as long as another one. */
static void worker_make_room(struct worker *w, uint64_t now)
{
    uint32_t most = places_wanted(w);
    uint64_t longest = 0;
    for (const struct conn *c = w->conns; c && most > 0; c = c->next) {
        uint64_t held = holds_for_nothing(w, c, now);
        longest = held > longest ? held : longest;
    }
    for (struct conn *c = w->conns; c && longest > 0 && most > 0; c = c->next) {
        if (holds_for_nothing(w, c, now) <= longest / 2)
            continue;
        c->deadline_us = 0; /* MHD sees the end and closes */
        (void)shutdown(c->fd, SHUT_RDWR);
        atomic_fetch_add(&w->http->timeouts, 1);
        most--;
    }
}

static void scan_deadlines(struct worker *w, uint64_t now)
{
    for (struct conn *c = w->conns; c; c = c->next) {
        if (c->deadline_us == 0 || now < c->deadline_us)
            continue;
        c->deadline_us = 0;
        if (c->exchange && c->exchange->replied) { /* its answer is not read */
            exchange_cut(c->exchange);
            continue;
        }
        atomic_fetch_add(&w->http->timeouts, 1);
        (void)shutdown(c->fd, SHUT_RDWR); /* MHD sees the end and closes */
    }
    worker_make_room(w, now);
    cut_unread(w, atomic_load(&w->http->drain), now);
    for (struct exchange *x = w->running; x; x = x->next)
        exchange_tick(x, now);
}

/* An answer that is no stream: MHD says nothing while it sends one. A stream says so itself, with
 * each piece that is read of it. */
static bool is_sending(const struct worker *w)
{
    for (const struct conn *c = w->conns; c; c = c->next) {
        const struct exchange *x = c->exchange;
        if (x && x->replied && !(x->gen && x->gen->ask.stream))
            return true;
    }
    return false;
}

/* While a TLS handshake waits for its client, MHD asks to be run again at once, for as long as that
 * takes: a client that sends half of one would have a core of ours. What does happen, also to that
 * connection, wakes this thread from the wait. */
static bool asks_in_vain(const struct worker *w)
{
    return w->http->tls &&
           (w->eventless > SENDING_MOST || (w->eventless > EAGER_ROUNDS && !is_sending(w)));
}

static int next_wait_ms(struct worker *w)
{
    MHD_UNSIGNED_LONG_LONG ms;
    int least = w->conns || w->listener ? (int)(SCAN_US / 1000) : 10000;
    if (MHD_get_timeout(w->daemon, &ms) == MHD_YES && ms < (MHD_UNSIGNED_LONG_LONG)least)
        least = (int)ms;
    return least == 0 && asks_in_vain(w) ? EAGER_MS : least;
}

static void handle_events(struct worker *w, struct epoll_event *events, int n)
{
    eventfd_t count;
    for (int i = 0; i < n; i++) {
        enum watched *what = events[i].data.ptr;
        switch (*what) {
        case WATCH_EVENT:
            (void)eventfd_read(w->event, &count);
            empty_inbox(w);
            for (struct exchange *x = w->running, *next; x; x = next) {
                next = x->next;
                exchange_pump(x);
            }
            break;
        case WATCH_DAEMON: break; /* MHD_run() below */
        case WATCH_LISTENER: listener_accept(w->listener); break;
        case WATCH_PEEK: listener_peek(w->listener, what); break;
        case WATCH_CONN: {
            struct conn *c = (struct conn *)(void *)what;
            if (c->exchange)
                exchange_leave(c->exchange);
            break;
        }
        }
    }
}

static void end_all(struct worker *w)
{
    for (int i = 0; i < STOP_ROUNDS && w->running; i++) {
        for (struct exchange *x = w->running; x; x = x->next)
            exchange_leave(x);
        (void)MHD_run(w->daemon);
        if (w->running)
            (void)usleep(1000);
    }
}

static void *worker_run(void *arg)
{
    struct worker *w = arg;
    struct epoll_event events[EVENTS];

    (void)pthread_setname_np(pthread_self(), "http"); /* for top and debuggers */
    tls_enter(w->http->tls);
    while (!atomic_load(&w->stop)) {
        int wait_ms = next_wait_ms(w);
        int n = epoll_wait(w->epoll, events, EVENTS, wait_ms);
        w->eventless = n > 0 || wait_ms > EAGER_MS ? 0 : w->eventless + 1;
        atomic_fetch_add_explicit(&w->rounds, 1, memory_order_relaxed);
        handle_events(w, events, n > 0 ? n : 0);
        (void)MHD_run(w->daemon);
        uint64_t now = ek_now_us();
        if (w->listener)
            listener_tick(w->listener, now);
        if (now >= w->next_scan_us) {
            scan_deadlines(w, now);
            w->next_scan_us = now + SCAN_US;
        }
    }
    end_all(w);
    return NULL;
}

/* MHD's own lines: about clients that misbehave, so debug. */
static void on_log(void *cls, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void on_log(void *cls, const char *fmt, va_list ap)
{
    char line[256];
    (void)cls;
    (void)vsnprintf(line, sizeof(line), fmt, ap);
    line[strcspn(line, "\n")] = '\0';
    ek_log(EK_LOG_DEBUG, "http: %s", line);
}

/* Paths are compared as they came: no %2f becomes a slash. */
static size_t keep_escapes(void *cls, struct MHD_Connection *mhd, char *s)
{
    (void)cls;
    (void)mhd;
    return strlen(s);
}

/* With a certificate the API speaks TLS; the control socket never does. */
static void tls_options(struct tls *t, struct MHD_OptionItem *o)
{
    *o++ = (struct MHD_OptionItem){MHD_OPTION_HTTPS_CERT_CALLBACK, 0, (void *)tls_certificate};
    *o++ =
        (struct MHD_OptionItem){MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)TLS_PRIORITIES};
    if (tls_ca(t))
        *o++ = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_TRUST, 0, (void *)(uintptr_t)tls_ca(t)};
    *o = (struct MHD_OptionItem){MHD_OPTION_END, 0, NULL};
}

static struct MHD_Daemon *start_daemon(struct worker *w)
{
    const struct http_params *p = &w->http->p;
    struct MHD_OptionItem tls[4] = {{MHD_OPTION_END, 0, NULL}};
    unsigned flags =
        MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    if (w->http->tls && w->role != HTTP_CONTROL) {
        flags |= MHD_USE_TLS;
        tls_options(w->http->tls, tls);
    }
    return MHD_start_daemon(
        flags, 0, NULL, NULL, exchange_handle, w, MHD_OPTION_EXTERNAL_LOGGER, on_log, w,
        MHD_OPTION_CONNECTION_LIMIT, p->max_connections + SOCKETS_EXTRA,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)BOUND_CONNECTION_BYTES,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)p->keep_alive_s, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_URI_LOG_CALLBACK, exchange_open, w, MHD_OPTION_NOTIFY_COMPLETED, exchange_close,
        w, MHD_OPTION_NOTIFY_CONNECTION, on_connection, w, MHD_OPTION_UNESCAPE_CALLBACK,
        keep_escapes, w, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_ARRAY, tls,
        MHD_OPTION_END);
}

int worker_start(struct worker *w)
{
    int r;
    w->on_event = WATCH_EVENT;
    w->on_daemon = WATCH_DAEMON;
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->epoll < 0 || w->event < 0)
        return -errno;
    w->daemon = start_daemon(w);
    if (!w->daemon)
        return -ENOMEM;
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(w->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    r = info ? worker_watch(w, info->epoll_fd, EPOLLIN, &w->on_daemon) : -EINVAL;
    if (r == 0)
        r = worker_watch(w, w->event, EPOLLIN, &w->on_event);
    if (r == 0 && w->listener)
        r = listener_open(w->listener);
    if (r < 0)
        return r;
    w->started = true;
    r = -pthread_create(&w->thread, NULL, worker_run, w);
    if (r < 0)
        w->started = false;
    return r;
}

void worker_stop(struct worker *w)
{
    if (w->started) {
        atomic_store(&w->stop, true);
        worker_wake(w);
        (void)pthread_join(w->thread, NULL);
    }
    pthread_mutex_lock(&w->lock);
    w->started = false;
    for (uint32_t i = 0; i < w->inbox_count; i++)
        peers_close(w->http->peers, w->inbox[i]);
    w->inbox_count = 0;
    pthread_mutex_unlock(&w->lock);
    if (w->daemon)
        MHD_stop_daemon(w->daemon);
    w->daemon = NULL;
}
