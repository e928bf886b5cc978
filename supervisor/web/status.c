/*
 * evenkeeld's listeners and routes: it takes a request apart, decides whether the caller may read
 * or write, and calls api.c, page.c, runbook.c or expo.c. A request that waits is suspended in
 * libmicrohttpd and resumed in on_written(); since that may be called inside another request, the
 * library is run in the next turn of the loop, never from there. loop.c opens one listener for TCP
 * and one for the Unix socket.
 *
 * The loop's thread also watches the servers, which must not wait for readers: what is pending
 * for them goes first (priority.h), and a turn here lasts TURN_US and one answer more. Requests
 * beyond it stand in line, suspended, and are answered in the order in which they came.
 */
#include "supervisor/web/status.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/hostname.h"
#include "common/log.h"
#include "supervisor/io/asker.h"
#include "supervisor/io/priority.h"
#include "supervisor/servers/fleet.h"
#include "supervisor/web/api.h"
#include "supervisor/web/expo.h"
#include "supervisor/web/key_table.h"
#include "supervisor/web/page.h"
#include "supervisor/web/runbook.h"

#define BODY_MOST        65536u
#define CONNECTIONS_MOST 256u
#define PEER_PART        4u  /* one address has a quarter of them, */
#define PEER_LEAST       16u /* or so many, or all where there are fewer */
#define OWN_FDS          32u /* what evenkeeld opens besides, */
#define SERVER_FDS       16u /* and for each server */
#define FEW              64u /* connections: then a quiet one keeps its place briefly */
#define QUIET_S          5u  /* before the first request, and between two */
#define HEAD_S           10u /* from there to the end of a head, however it trickles */
#define BODY_S           15u
#define ANSWER_S         30u /* until its last byte is taken */
/* libmicrohttpd does not listen while it lacks descriptors or has its most connections, and looks
 * for their end only when it is run: nothing else would wake it. */
#define LOOK_MS      1000u
#define TURN_US      10000u       /* of the loop, for answers of one listener */
#define MEMORY_BYTES (16u * 1024) /* of one connection: request line and headers */

/* A connection: libmicrohttpd's own timeout begins again with each byte, `late_us` does not. */
struct caller {
    struct caller *next, **link;
    int fd;
    uint64_t late_us; /* then it is closed; 0 = it waits for evenkeeld */
};

struct status_listener {
    struct status *status;
    struct MHD_Daemon *daemon;
    struct caller *callers;
    sd_event_source *io, *timer;
    uint64_t until_us; /* of this turn */
    bool local;        /* the Unix socket */
    bool loopback;     /* a TCP address of this machine alone */
    bool again;        /* a late answer is there: run it soon */
};

struct status {
    const struct fleet *all;
    struct status_listener tcp, local;
    struct status_request *requests;
    unsigned quiet_s; /* before the first request of a connection, and between two */
    bool ending;      /* no request is begun any more */
};

/* One request, from its first line to its last byte. */
struct status_request {
    struct status_request *next, **link;
    struct status_listener *listener;
    struct MHD_Connection *connection;
    struct caller *caller;
    struct ek_buf body, answer;
    int status; /* of a late answer, 0 = none yet */
    bool suspended, waits, too_large;
    bool in_line, had_turn;
};

static void caller_give(struct caller *c, unsigned seconds)
{
    c->late_us = ek_now_us() + seconds * EK_US_PER_S;
}

/* MHD_OPTION_NOTIFY_CONNECTION */
static void on_connection(void *cls, struct MHD_Connection *mhd, void **ctx,
                          enum MHD_ConnectionNotificationCode what)
{
    struct status_listener *d = cls;
    struct caller *c = *ctx;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
        c = info ? calloc(1, sizeof(*c)) : NULL;
        *ctx = c;
        if (!c) /* its requests are refused */
            return;
        c->fd = info->connect_fd;
        caller_give(c, d->status->quiet_s + HEAD_S);
        c->link = &d->callers;
        c->next = d->callers;
        if (c->next)
            c->next->link = &c->next;
        d->callers = c;
        return;
    }
    if (!c)
        return;
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    free(c);
}

/* libmicrohttpd sees the end of those that are late, and closes; what they have not read is dropped
 * (neither call can fail in a way that matters: the peer may have left). */
static void end_late(struct status_listener *d)
{
    const struct linger drop = {.l_onoff = 1};
    uint64_t now = ek_now_us();
    for (struct caller *c = d->callers; c; c = c->next) {
        if (c->late_us == 0 || now < c->late_us)
            continue;
        c->late_us = 0;
        (void)setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &drop, sizeof(drop));
        (void)shutdown(c->fd, SHUT_RDWR);
    }
}

/* Of those in line the one that came first: the list begins with the newest. */
static struct status_request *first_in_line(const struct status_listener *d)
{
    struct status_request *first = NULL;
    for (struct status_request *q = d->status->requests; q; q = q->next) {
        if (q->listener == d && q->in_line)
            first = q;
    }
    return first;
}

/* What fails in libmicrohttpd is one connection, and is closed by it. */
static void answer_line(struct status_listener *d)
{
    d->until_us = ek_now_us() + TURN_US;
    (void)MHD_run(d->daemon);
    for (struct status_request *q; ek_now_us() < d->until_us && (q = first_in_line(d));) {
        q->in_line = q->suspended = false;
        q->had_turn = true;
        MHD_resume_connection(q->connection);
        (void)MHD_run(d->daemon);
    }
}

static void status_run(struct status_listener *d)
{
    end_late(d);
    answer_line(d);
    MHD_UNSIGNED_LONG_LONG ms;
    if (MHD_get_timeout(d->daemon, &ms) != MHD_YES || ms > LOOK_MS)
        ms = LOOK_MS;
    if (d->again || first_in_line(d))
        ms = 0;
    d->again = false;
    (void)sd_event_source_set_time(d->timer, ek_now_us() + (uint64_t)ms * 1000u);
    (void)sd_event_source_set_enabled(d->timer, SD_EVENT_ONESHOT);
}

static int on_io(sd_event_source *s, int fd, uint32_t revents, void *ctx)
{
    (void)s;
    (void)fd;
    (void)revents;
    status_run(ctx);
    return 0;
}

static int status_on_timer(sd_event_source *s, uint64_t usec, void *ctx)
{
    (void)s;
    (void)usec;
    status_run(ctx);
    return 0;
}

/* Answers */

struct answer_kind {
    const char *type;
    const char *csp; /* NULL = nothing may be loaded */
};

/* The bytes become the library's. */
static struct MHD_Response *take_bytes(struct ek_buf *bytes)
{
    static char nothing[1];
    const bool any = bytes->data != NULL;
    struct MHD_Response *r =
        MHD_create_response_from_buffer(bytes->len, any ? bytes->data : nothing,
                                        any ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    if (r)
        *bytes = (struct ek_buf){0};
    return r;
}

static enum MHD_Result send_bytes(struct status_request *q, int status,
                                  const struct answer_kind *kind, struct ek_buf *bytes)
{
    caller_give(q->caller, ANSWER_S);
    struct MHD_Response *r = take_bytes(bytes);
    if (!r)
        return MHD_NO;
    bool ok = MHD_add_response_header(r, "Content-Type", kind->type) == MHD_YES &&
              MHD_add_response_header(r, "Cache-Control", "no-store") == MHD_YES &&
              MHD_add_response_header(r, "X-Content-Type-Options", "nosniff") == MHD_YES &&
              MHD_add_response_header(r, "Referrer-Policy", "no-referrer") == MHD_YES &&
              MHD_add_response_header(
                  r, "Content-Security-Policy",
                  kind->csp ? kind->csp : "default-src 'none'; frame-ancestors 'none'") == MHD_YES;
    enum MHD_Result done = ok ? MHD_queue_response(q->connection, (unsigned)status, r) : MHD_NO;
    MHD_destroy_response(r);
    return done;
}

static const struct answer_kind json_kind = {.type = "application/json"};

static enum MHD_Result send_json(struct status_request *q, int status, struct ek_buf *out)
{
    if (status < 0) { /* out of memory: this request ends, nothing else */
        ek_buf_done(out);
        return MHD_NO;
    }
    return send_bytes(q, status, &json_kind, out);
}

/* `runbook`: that page instead of the status. */
static enum MHD_Result send_page(struct status_request *q, bool runbook)
{
    uint8_t random[16];
    char nonce[2 * sizeof(random) + 1], csp[400];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return MHD_NO;
    for (size_t i = 0; i < sizeof(random); i++)
        (void)snprintf(nonce + 2 * i, 3, "%02x", random[i]);
    (void)snprintf(csp, sizeof(csp),
                   "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src "
                   "'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors "
                   "'none'",
                   nonce, nonce);
    struct answer_kind kind = {.type = "text/html; charset=utf-8", .csp = csp};
    int r = runbook ? runbook_write(nonce, &q->answer)
                    : page_write(q->listener->status->all, nonce, &q->answer);
    if (r < 0)
        return MHD_NO;
    return send_bytes(q, 200, &kind, &q->answer);
}

static enum MHD_Result send_metrics(struct status_request *q)
{
    const char *accept =
        MHD_lookup_connection_value(q->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT);
    bool open = accept && strstr(accept, "application/openmetrics-text");
    struct answer_kind kind = {
        .type = open ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                     : "text/plain; version=0.0.4; charset=utf-8"};
    if (expo_write(q->listener->status->all, open ? EK_EXPO_OPENMETRICS : EK_EXPO_TEXT,
                   &q->answer) < 0)
        return MHD_NO;
    return send_bytes(q, 200, &kind, &q->answer);
}

/* Routes */

static const char *status_query(void *ctx, const char *name)
{
    struct status_request *q = ctx;
    return MHD_lookup_connection_value(q->connection, MHD_GET_ARGUMENT_KIND, name);
}

/* Whether the peer may write, and then its name for the history. */
static bool may_write(struct status_request *q)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(q->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct ucred cred;
    socklen_t len = sizeof(cred);
    if (!q->listener->local || !info ||
        getsockopt(info->connect_fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0 ||
        (cred.uid != 0 && cred.uid != geteuid()))
        return false;
    char name[WHO_BYTES - 3];
    asker_name(&cred, name, sizeof(name));
    (void)snprintf(q->listener->status->all->with.who, WHO_BYTES, " (%s)", name);
    return true;
}

/* Called from anywhere, from inside a request too, which may be the one that ends this one's wait:
 * libmicrohttpd, which would call that one again, runs in the next turn of the loop. */
static void on_written(void *ctx, int status, const char *body, size_t len)
{
    struct status_request *q = ctx;
    q->waits = false;
    q->status = status;
    (void)ek_buf_add(&q->answer, body, len); /* an answer cut short is tested when it is sent */
    if (q->suspended) {
        q->suspended = false;
        MHD_resume_connection(q->connection);
        q->listener->again = true; /* where it runs now, it sees that before it ends */
        (void)sd_event_source_set_time(q->listener->timer, ek_now_us());
        (void)sd_event_source_set_enabled(q->listener->timer, SD_EVENT_ONESHOT);
    }
}

/* At once, or when the answer has come: then this is called again. */
static enum MHD_Result answer_api(struct status_request *q, const char *method, const char *path)
{
    const struct fleet *all = q->listener->status->all;
    bool reads = strcmp(method, "GET") == 0;
    if (q->status == 0) {
        struct ek_buf out = {0};
        q->waits = true;
        int status = reads ? api_read(all, path, status_query, q, on_written, q, &out)
                           : api_write(all, method, path, q->body.data ? q->body.data : "",
                                       q->body.len, on_written, q, &out);
        all->with.who[0] = '\0';
        if (status != 0) {
            q->waits = false;
            q->answer = out;
            return send_json(q, status, &q->answer);
        }
        ek_buf_done(&out);
        if (q->waits) {
            q->caller->late_us = 0; /* each thing that is waited for has a deadline of its own */
            q->suspended = true;
            MHD_suspend_connection(q->connection);
            return MHD_YES;
        }
    }
    return send_json(q, ek_buf_ok(&q->answer) ? q->status : -ENOMEM, &q->answer);
}

/* A page whose name was made to resolve to this machine (DNS rebinding) sends that name. */
static bool is_foreign(const struct status_request *q)
{
    const struct ek_strings *names = &q->listener->status->all->config->allowed_hosts;
    const char *host = MHD_lookup_connection_value(q->connection, MHD_HEADER_KIND, "Host");
    const char *origin = MHD_lookup_connection_value(q->connection, MHD_HEADER_KIND, "Origin");
    if (q->listener->local)
        return false;
    if (names->count > 0)
        return !ek_host_listed(host ? host : "", (const char *const *)names->at, names->count);
    return q->listener->loopback &&
           ((host && !ek_host_is_literal(host)) || (origin && !ek_origin_is_literal(origin)));
}

static enum MHD_Result answer_read(struct status_request *q, const char *path)
{
    if (strcmp(path, "/") == 0)
        return send_page(q, false);
    if (strcmp(path, "/runbook") == 0)
        return send_page(q, true);
    if (strcmp(path, "/metrics") == 0)
        return send_metrics(q);
    if (strcmp(path, "/health") == 0 || strcmp(path, "/livez") == 0) {
        (void)ek_buf_puts(&q->answer, "{\"status\":\"ok\"}");
        return send_json(q, 200, &q->answer);
    }
    int named = q->listener->local ? key_table_read(q->listener->status->all, path, &q->answer) : 0;
    return named != 0 ? send_json(q, named, &q->answer) : answer_api(q, "GET", path);
}

static enum MHD_Result answer_write(struct status_request *q, const char *method, const char *path)
{
    if (!may_write(q))
        return send_json(q,
                         api_error(&q->answer, 403, "",
                                   "writing is for root and the user of evenkeeld, over its Unix "
                                   "socket (evenkeelctl does that)"),
                         &q->answer);
    return answer_api(q, method, path);
}

/* The turn is over, or others came before; whether evenkeeld is alive is said at once. */
static bool stands_in_line(struct status_request *q, const char *path)
{
    if (q->had_turn || q->status || strcmp(path, "/health") == 0 || strcmp(path, "/livez") == 0 ||
        (ek_now_us() < q->listener->until_us && !first_in_line(q->listener)))
        return false;
    q->caller->late_us = 0; /* it waits for evenkeeld */
    q->in_line = q->suspended = true;
    MHD_suspend_connection(q->connection);
    return true;
}

static enum MHD_Result status_answer(struct status_request *q, const char *method, const char *path)
{
    if (q->listener->status->ending && q->status == 0)
        return send_json(q, api_error(&q->answer, 503, "", "evenkeeld ends"), &q->answer);
    if (stands_in_line(q, path))
        return MHD_YES;
    if (is_foreign(q))
        return send_json(q,
                         api_error(&q->answer, 400, "",
                                   "evenkeeld's page does not answer to the name in Host or Origin "
                                   "(allowed_hosts)"),
                         &q->answer);
    if (q->too_large)
        return send_json(
            q, api_error(&q->answer, 413, "body", "the body is larger than %u bytes", BODY_MOST),
            &q->answer);
    if (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0)
        return answer_read(q, path);
    if (strcmp(method, "PATCH") == 0 || strcmp(method, "POST") == 0)
        return answer_write(q, method, path);
    return send_json(q, api_error(&q->answer, 405, "", "the method is not known"), &q->answer);
}

static struct status_request *request_new(struct status_listener *d, struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct status_request *q = info && info->socket_context ? calloc(1, sizeof(*q)) : NULL;
    if (!q)
        return NULL;
    q->listener = d;
    q->connection = c;
    q->caller = info->socket_context;
    caller_give(q->caller, BODY_S);
    q->body.limit = BODY_MOST;
    q->next = d->status->requests;
    q->link = &d->status->requests;
    if (q->next)
        q->next->link = &q->next;
    d->status->requests = q;
    return q;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_size, void **ctx)
{
    struct status_request *q = *ctx;
    (void)version;
    if (!q) {
        q = request_new(cls, c);
        *ctx = q;
        (void)MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, ANSWER_S);
        return q ? MHD_YES : MHD_NO;
    }
    if (*upload_size > 0) {
        if (ek_buf_add(&q->body, upload, *upload_size) < 0)
            q->too_large = true;
        *upload_size = 0;
        return MHD_YES;
    }
    return status_answer(q, method, url);
}

static void on_done(void *cls, struct MHD_Connection *c, void **ctx,
                    enum MHD_RequestTerminationCode why)
{
    struct status_request *q = *ctx;
    (void)cls;
    if (!q)
        return;
    if (why == MHD_REQUEST_TERMINATED_COMPLETED_OK) /* a quiet client holds its place briefly */
        (void)MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT,
                                        q->listener->status->quiet_s);
    caller_give(q->caller, q->listener->status->quiet_s + HEAD_S);
    *q->link = q->next;
    if (q->next)
        q->next->link = q->link;
    ek_buf_done(&q->body);
    ek_buf_done(&q->answer);
    free(q);
    *ctx = NULL;
}

/* Life */

/* Most connections of one listener: below a low limit of descriptors (ulimit -n) both together
 * leave what evenkeeld needs to look after its servers. */
static unsigned connections_most(const struct fleet *all)
{
    struct rlimit r;
    uint64_t own = OWN_FDS + (uint64_t)SERVER_FDS * all->config->count;
    if (getrlimit(RLIMIT_NOFILE, &r) < 0 || r.rlim_cur >= own + 2u * CONNECTIONS_MOST)
        return CONNECTIONS_MOST;
    unsigned most = r.rlim_cur > own ? (unsigned)((r.rlim_cur - own) / 2) : 0;
    return most < 4 ? 4 : most;
}

static int open_listener(struct status *st, struct status_listener *d, sd_event *event, int fd,
                         bool local)
{
    d->status = st;
    d->local = local;
    if (fd < 0)
        return 0;
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(a);
    d->loopback = getsockname(fd, (struct sockaddr *)&a, &len) == 0 && ek_address_is_loopback(&a);
    unsigned most = connections_most(st->all);
    unsigned peer = most / PEER_PART < PEER_LEAST ? PEER_LEAST : most / PEER_PART;
    st->quiet_s = most < FEW ? 1 : QUIET_S;
    d->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, d,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, most,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, local || peer > most ? 0u : peer,
        MHD_OPTION_CONNECTION_TIMEOUT, st->quiet_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)MEMORY_BYTES, MHD_OPTION_NOTIFY_COMPLETED, on_done, NULL,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, d, MHD_OPTION_END);
    if (!d->daemon) {
        close(fd);
        return -ENOMEM;
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(d->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    if (!info)
        return -EINVAL;
    int r = sd_event_add_io(event, &d->io, info->epoll_fd, EPOLLIN, on_io, d);
    if (r >= 0)
        r = sd_event_add_time(event, &d->timer, CLOCK_MONOTONIC, 0, 1000, status_on_timer, d);
    if (r >= 0)
        r = sd_event_source_set_enabled(d->timer, SD_EVENT_OFF);
    if (r >= 0)
        r = sd_event_source_set_priority(d->io, PRIORITY_STRANGERS);
    if (r >= 0)
        r = sd_event_source_set_priority(d->timer, PRIORITY_STRANGERS);
    return r < 0 ? r : 0;
}

/* What is answered but not sent goes now, as far as it does without waiting. */
static void close_listener(struct status_listener *d)
{
    sd_event_source_disable_unref(d->io);
    sd_event_source_disable_unref(d->timer);
    if (!d->daemon)
        return;
    (void)MHD_run(d->daemon);
    MHD_stop_daemon(d->daemon);
}

int status_new(const struct fleet *all, sd_event *event, int tcp_fd, int unix_fd,
               struct status **ret_status)
{
    struct status *st = calloc(1, sizeof(*st));
    if (!st) {
        if (tcp_fd >= 0)
            close(tcp_fd);
        if (unix_fd >= 0)
            close(unix_fd);
        return -ENOMEM;
    }
    st->all = all;
    int r = open_listener(st, &st->tcp, event, tcp_fd, false);
    int r2 = open_listener(st, &st->local, event, unix_fd, true);
    if (r == 0)
        r = r2;
    if (r < 0) {
        status_free(st);
        return r;
    }
    *ret_status = st;
    return 0;
}

void status_free(struct status *st)
{
    if (!st)
        return;
    st->ending = true;
    for (struct status_request *q = st->requests; q; q = q->next) {
        if (q->suspended) { /* libmicrohttpd wants none suspended when it stops */
            q->suspended = false;
            MHD_resume_connection(q->connection);
        }
    }
    close_listener(&st->tcp);
    close_listener(&st->local);
    free(st);
}
