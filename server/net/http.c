/*
 * Starts and ends the HTTP side, and answers what other threads ask of it (http.h). Called by
 * main.c and the stack.
 */
#include "server/net/http.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/fdpass.h"
#include "common/log.h"
#include "server/net/auth.h"
#include "server/net/bounds.h"
#include "server/net/conn.h"
#include "server/net/encoder.h"
#include "server/net/guard.h"
#include "server/net/listen.h"
#include "server/net/pages.h"
#include "server/net/peers.h"
#include "server/net/request.h"
#include "server/net/state.h"
#include "server/net/tls.h"
#include "server/net/tracer.h"
#include "server/net/worker.h"

#define CONTROL_MODE    0600
#define CONTROL_SHARED  0666 /* peers are checked (listen.c), and the directory is closed */
#define CONTROL_BACKLOG 64
#define WORKER_CPU_US   (5 * EK_US_PER_S) /* for bodies of 64 KiB at most */
#define SETTLE_STEP_US  200
#define FDS_EXTRA       4096u /* descriptors that are no connections of the API */

static int init_worker(struct http *h, enum http_role role)
{
    struct worker *w = &h->worker[h->workers];
    w->http = h;
    w->role = role;
    w->index = h->workers++;
    w->epoll = w->event = -1;
    return -pthread_mutex_init(&w->lock, NULL);
}

static int start_control(struct http *h, struct ek_fault *fault)
{
    if (!h->p.control_path)
        return 0;
    struct worker *w = worker_find(h, HTTP_CONTROL);
    if (snprintf(h->control_path, sizeof(h->control_path), "%s", h->p.control_path) >=
        (int)sizeof(h->control_path))
        return ek_fault_set(fault, "control-socket", "--control-socket: the path is too long");
    int fd = ek_listen_unix(h->control_path,
                            h->p.control_uid == (uid_t)-1 ? CONTROL_MODE : CONTROL_SHARED,
                            CONTROL_BACKLOG);
    if (fd < 0) {
        (void)ek_fault_set(fault, "control-socket", "--control-socket: cannot listen on %s: %s%s",
                           h->control_path, ek_strerror(fd),
                           fd == -EADDRINUSE ? "; another server owns it" : "");
        h->control_path[0] = '\0'; /* not ours: it stays */
        return -EBADMSG;
    }
    int r = listener_new(w, fd, true, &w->listener);
    if (r == 0)
        r = worker_start(w);
    if (r < 0)
        return ek_fault_set(fault, "", "cannot start the control thread: %s", ek_strerror(r));
    return 0;
}

static void wake_all(struct http *h)
{
    for (uint32_t i = 0; i < h->workers; i++) {
        if (h->worker[i].started)
            worker_wake(&h->worker[i]);
    }
}

int http_new(const struct http_params *p, struct http **ret_http, struct ek_fault *fault)
{
    int r = -ENOMEM;
    struct http *h = calloc(1, sizeof(*h));
    if (!h)
        goto out;
    h->p = *p;
    h->handed_fd = h->listen_fd = h->listen_event = -1;
    h->losses.fresh = h->losses.fd = -1;
    keeper_init(&h->keeper);
    ek_account_init(&h->memory, (uint64_t)BOUND_MEMORY * BOUND_BODY_LOADING,
                    (uint64_t)BOUND_MEMORY * BOUND_BODY_LOADING);
    h->started_us = ek_now_us();
    h->started_wall_us = ek_wall_us();
    if (getrandom(h->id_base, sizeof(h->id_base), GRND_NONBLOCK) != (ssize_t)sizeof(h->id_base))
        h->id_base[0] = h->started_wall_us;
    r = losses_init(&h->losses);
    if (r == 0)
        r = -pthread_mutex_init(&h->lock, NULL);
    for (uint32_t i = 0; i < p->threads && r == 0; i++)
        r = init_worker(h, HTTP_API);
    if (r == 0)
        r = init_worker(h, HTTP_HEALTH);
    if (r == 0)
        r = init_worker(h, HTTP_CONTROL);
    if (r < 0)
        goto out;
    r = auth_new(&p->access.keys, &h->auth, fault);
    if (r == 0)
        r = tls_new(&p->access.tls, &h->tls, fault);
    if (r < 0)
        goto out;
    r = -ENOMEM;
    if (p->access.each_peer &&
        peers_new(p->max_connections + FDS_EXTRA, p->access.each_peer, &h->peers) < 0)
        goto out;
    if (p->access.web && (r = pages_new(&h->pages)) < 0)
        goto out;
    if (p->traces_endpoint && (r = tracer_new(p->traces_endpoint, &h->tracer, fault)) < 0)
        goto out;
    r = -ENOMEM;
    h->counts = calloc(route_count(), sizeof(*h->counts));
    h->listen_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!h->counts || h->listen_event < 0)
        goto out;
    r = start_control(h, fault);
    if (r < 0)
        goto out;
    *ret_http = h;
    h = NULL;
out:
    http_free(h);
    return r;
}

void http_progress(struct http *h, const char *what, uint64_t done, uint64_t total)
{
    atomic_store(&h->loading_done, done);
    atomic_store(&h->loading_total, total);
    atomic_store(&h->loading_what, what);
}

void http_confined(struct http *h, bool files, bool calls, bool memory)
{
    atomic_store(&h->confined_files, files);
    atomic_store(&h->confined_calls, calls);
    atomic_store(&h->confined_memory, memory);
}

bool http_has_keys(const struct http *h)
{
    return auth_count(h->auth) > 0;
}

void http_secret(const struct http *h, uint8_t ret_secret[AUTH_SECRET])
{
    auth_secret(h->auth, ret_secret);
}

void http_take_secret(struct http *h, const uint8_t secret[AUTH_SECRET])
{
    auth_take_secret(h->auth, secret);
}

int http_listen(struct http *h, int listen_fd, struct ek_fault *fault)
{
    struct worker *health = worker_find(h, HTTP_HEALTH);
    int flags = fcntl(listen_fd, F_GETFL);
    /* It may come from elsewhere: accept() must never block. */
    if (flags < 0 || fcntl(listen_fd, F_SETFL, flags | O_NONBLOCK) < 0) {
        (void)close(listen_fd);
        return ek_fault_set(fault, "", "cannot use the listening socket");
    }
    int r = guard_address(h, listen_fd, fault);
    if (r < 0) {
        (void)close(listen_fd);
        return r;
    }
    pthread_mutex_lock(&h->lock);
    h->listen_fd = fcntl(listen_fd, F_DUPFD_CLOEXEC, 0); /* for `get listen` */
    pthread_mutex_unlock(&h->lock);
    r = listener_new(health, listen_fd, false, &health->listener);
    if (r == 0)
        r = worker_start(health);
    if (r < 0)
        return ek_fault_set(fault, "", "cannot start to listen: %s", ek_strerror(r));
    return 0;
}

/* By what is served, and by whether there are keys. */
static void bound_memory(struct http *h)
{
    const struct served *s = http_served(h);
    uint64_t body = s ? s->body_most : BOUND_BODY_LOADING;
    bool keys = auth_count(h->auth) > 0;
    ek_account_bound(&h->memory, BOUND_MEMORY * body,
                     (keys ? BOUND_MEMORY_KEY : BOUND_MEMORY) * body);
}

int http_serve(struct http *h, const struct served *s, struct ek_fault *fault)
{
    int r = encoder_new(&h->encoder);
    atomic_store_explicit(&h->served, s, memory_order_release);
    bound_memory(h);
    for (uint32_t i = 0; i < h->workers && r == 0; i++) {
        if (h->worker[i].role == HTTP_API)
            r = worker_start(&h->worker[i]);
    }
    if (r < 0)
        return ek_fault_set(fault, "", "cannot start HTTP threads: %s", ek_strerror(r));
    atomic_store(&h->phase, HTTP_SERVING);
    wake_all(h); /* what was parked is let in */
    return 0;
}

int http_reload(struct http *h, struct ek_fault *fault)
{
    struct tls_chain *fresh = NULL;
    int r = tls_read(h->tls, &fresh, fault);
    if (r == 0)
        r = auth_reload(h->auth, fault);
    if (r == 0)
        tls_take(h->tls, fresh);
    if (r == 0)
        bound_memory(h);
    else
        tls_chain_free(fresh);
    atomic_store(&h->reload_failed, r < 0);
    if (r == 0)
        atomic_store(&h->reloaded_wall_us, ek_wall_us());
    return r;
}

int http_listen_fd(struct http *h)
{
    int fd = -EAGAIN;
    eventfd_t count;
    pthread_mutex_lock(&h->lock);
    (void)eventfd_read(h->listen_event, &count);
    if (h->handed_fd >= 0) {
        fd = h->handed_fd;
        h->handed_fd = -1;
    }
    pthread_mutex_unlock(&h->lock);
    return fd;
}

int http_listen_event(struct http *h)
{
    return h->listen_event;
}

struct losses *http_losses(struct http *h)
{
    return &h->losses;
}

void http_deliver(void *ctx, uint32_t worker)
{
    struct http *h = ctx;
    if (worker < h->workers)
        worker_wake(&h->worker[worker]);
}

void http_drain(struct http *h, enum http_drain_mode mode)
{
    atomic_store(&h->drain, (int)mode + 1);
    wake_all(h);
}

void http_undrain(struct http *h)
{
    atomic_store(&h->drain, 0);
    wake_all(h);
}

void http_fail(struct http *h, const char *why)
{
    (void)snprintf(h->why, sizeof(h->why), "%s", why);
    atomic_store(&h->phase, HTTP_FAILED);
    wake_all(h);
}

uint32_t http_active(const struct http *h)
{
    return atomic_load(&h->active);
}

uint32_t http_waiting(struct http *h)
{
    const struct worker *health = worker_find(h, HTTP_HEALTH);
    return atomic_load(&h->peeked) + (health ? atomic_load(&health->load) : 0);
}

uint32_t http_parked(const struct http *h)
{
    return atomic_load(&h->parked);
}

uint32_t http_watched(struct http *h, struct http_thread *at, uint32_t most)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < h->workers && n < most; i++) {
        struct worker *w = &h->worker[i];
        if (atomic_load(&w->started))
            at[n++] = (struct http_thread){.thread = w->thread,
                                           .what = "HTTP",
                                           .rounds = atomic_load(&w->rounds),
                                           .cpu_most_us = WORKER_CPU_US};
    }
    if (atomic_load(&h->phase) == HTTP_SERVING)
        n += encoder_threads(h->encoder, at + n, most - n);
    return n;
}

uint32_t http_open(const struct http *h)
{
    return atomic_load(&h->api_conns) + atomic_load(&h->peeked) + atomic_load(&h->taking);
}

/* Two rounds of each thread's loop: what it does in one may be seen by the next. */
static bool settle_once(struct http *h, uint64_t end_us)
{
    uint64_t from[ENGINE_WORKERS_MOST];
    bool all = false;
    for (uint32_t i = 0; i < h->workers; i++)
        from[i] = atomic_load(&h->worker[i].rounds);
    while (!all && ek_now_us() < end_us) {
        all = true;
        for (uint32_t i = 0; i < h->workers; i++) {
            struct worker *w = &h->worker[i];
            if (atomic_load(&w->started) && atomic_load(&w->rounds) < from[i] + 2) {
                worker_wake(w);
                all = false;
            }
        }
        if (!all)
            (void)usleep(SETTLE_STEP_US);
    }
    return all;
}

bool http_settle(struct http *h, uint64_t most_us)
{
    uint64_t end = ek_now_us() + most_us;
    bool all = settle_once(h, end);
    return all && settle_once(h, end); /* what the listener gave away is read by the others */
}

bool http_kept(struct http *h)
{
    pthread_mutex_lock(&h->lock);
    bool kept = keeper_lives(&h->keeper);
    pthread_mutex_unlock(&h->lock);
    return kept;
}

void http_stop(struct http *h)
{
    if (!h)
        return;
    atomic_store(&h->phase, HTTP_STOPPING);
    encoder_stop(h->encoder); /* first: no other thread has what it has */
    struct worker *health = worker_find(h, HTTP_HEALTH);
    if (health)
        worker_stop(health); /* first: it gives connections to the others */
    for (uint32_t i = 0; i < h->workers; i++) {
        if (&h->worker[i] != health)
            worker_stop(&h->worker[i]);
    }
    for (uint32_t i = 0; i < h->workers; i++) {
        listener_free(h->worker[i].listener);
        h->worker[i].listener = NULL;
    }
    if (h->control_path[0])
        (void)unlink(h->control_path);
    h->control_path[0] = '\0';
}

void http_free(struct http *h)
{
    if (!h)
        return;
    http_stop(h);
    for (uint32_t i = 0; i < h->workers; i++) {
        struct worker *w = &h->worker[i];
        if (w->epoll >= 0)
            (void)close(w->epoll);
        if (w->event >= 0)
            (void)close(w->event);
        pthread_mutex_destroy(&w->lock);
    }
    int fds[] = {h->handed_fd, h->listen_fd, h->listen_event};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
        if (fds[i] >= 0)
            (void)close(fds[i]);
    }
    keeper_done(&h->keeper);
    losses_done(&h->losses);
    pthread_mutex_destroy(&h->lock);
    encoder_free(h->encoder);
    pages_free(h->pages);
    peers_free(h->peers);
    tracer_free(h->tracer);
    tls_free(h->tls);
    auth_free(h->auth);
    free(h->counts);
    free(h);
}
