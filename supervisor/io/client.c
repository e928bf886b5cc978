/*
 * libcurl under sd-event. curl tells through curl_socket() and curl_timer() what it waits for, and
 * these become sources of the loop. Results are handed out in finish_done() only, after curl has
 * returned: a callback may then start and cancel calls without curl being inside one. A call that
 * was cancelled from a callback is unlinked at once and freed when no callback of it runs.
 */
#include "supervisor/io/client.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "common/buf.h"
#include "common/clock.h"
#include "supervisor/io/run_as.h"

#define HEAD_MOST (64u * 1024) /* bytes of an answer's head and trailers */
/* Of a body. In chunks of a byte each one as long as is taken would cost seconds of a processor. */
#define PIECES_MOST (64u * 1024)

struct client {
    sd_event *event;
    sd_event_source *timer;
    CURLM *multi;
    struct client_call *calls;
};

struct client_call {
    struct client *client;
    struct client_call *next, *prev;
    CURL *easy;
    struct curl_slist *headers;
    struct ek_buf body;
    char *sent, *unix_path;
    int fd; /* of the connection that it made, -1 = none */
    uint64_t start_us;
    size_t head_bytes;
    uint32_t pieces; /* of the body */
    bool too_large;
    client_fn cb;
    void *ctx;
};

static void call_unlink(struct client_call *call)
{
    if (call->next)
        call->next->prev = call->prev;
    if (call->prev)
        call->prev->next = call->next;
    else
        call->client->calls = call->next;
}

static void call_done(struct client_call *call)
{
    if (call->easy) {
        (void)curl_multi_remove_handle(call->client->multi, call->easy); /* may not be in it */
        curl_easy_cleanup(call->easy);
    }
    curl_slist_free_all(call->headers);
    ek_buf_done(&call->body);
    free(call->sent);
    free(call->unix_path);
    free(call);
}

static void call_free(struct client_call *call)
{
    if (!call)
        return;
    call_unlink(call);
    call_done(call);
}

static int code_of(const struct client_call *call, CURLcode code)
{
    if (call->too_large)
        return -EFBIG;
    switch ((int)code) {
    case CURLE_OK: return 0;
    case CURLE_OPERATION_TIMEDOUT: return -ETIMEDOUT;
    case CURLE_COULDNT_CONNECT: return -ECONNREFUSED;
    case CURLE_OUT_OF_MEMORY: return -ENOMEM;
    case CURLE_FILESIZE_EXCEEDED: return -EFBIG;
    }
    return -EIO;
}

/* Hands finished calls to their owners. A callback may start and cancel other calls. */
static void finish_done(struct client *c)
{
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(c->multi, &left));) {
        if (m->msg != CURLMSG_DONE)
            continue;
        struct client_call *call = NULL;
        CURLcode code = m->data.result;
        if (curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&call) != CURLE_OK)
            continue;
        struct client_result res = {.error = code_of(call, code), .body = "", .len = 0};
        if (res.error == 0) {
            (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &res.status);
            if (call->body.data) {
                res.body = call->body.data;
                res.len = call->body.len;
            }
        }
        res.took_s = (double)(ek_now_us() - call->start_us) / 1e6;
        client_fn cb = call->cb;
        void *ctx = call->ctx;
        /* The body must outlive the call, which must be gone before the owner starts the next. */
        struct ek_buf body = call->body;
        call->body = (struct ek_buf){0};
        call_free(call);
        cb(ctx, &res);
        ek_buf_done(&body);
    }
}

static int on_socket(sd_event_source *s, int fd, uint32_t revents, void *ctx)
{
    struct client *c = ctx;
    (void)s;
    int mask = 0, running;
    if (revents & (EPOLLIN | EPOLLHUP))
        mask |= CURL_CSELECT_IN;
    if (revents & EPOLLOUT)
        mask |= CURL_CSELECT_OUT;
    if (revents & EPOLLERR)
        mask |= CURL_CSELECT_ERR;
    (void)curl_multi_socket_action(c->multi, fd, mask, &running); /* results come by info_read */
    finish_done(c);
    return 0;
}

static int client_on_timer(sd_event_source *s, uint64_t usec, void *ctx)
{
    struct client *c = ctx;
    (void)s;
    (void)usec;
    int running;
    (void)curl_multi_socket_action(c->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    finish_done(c);
    return 0;
}

static int curl_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *sockp)
{
    struct client *c = ctx;
    sd_event_source *source = sockp;
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        sd_event_source_disable_unref(source);
        (void)curl_multi_assign(c->multi, fd, NULL); /* the socket is being forgotten anyway */
        return 0;
    }
    uint32_t events = 0;
    if (what & CURL_POLL_IN)
        events |= EPOLLIN;
    if (what & CURL_POLL_OUT)
        events |= EPOLLOUT;
    if (source)
        return sd_event_source_set_io_events(source, events) < 0 ? -1 : 0;
    if (sd_event_add_io(c->event, &source, fd, events, on_socket, c) < 0)
        return -1;
    return curl_multi_assign(c->multi, fd, source) == CURLM_OK ? 0 : -1;
}

static int curl_timer(CURLM *multi, long timeout_ms, void *ctx)
{
    struct client *c = ctx;
    (void)multi;
    if (timeout_ms < 0)
        return sd_event_source_set_enabled(c->timer, SD_EVENT_OFF) < 0 ? -1 : 0;
    if (sd_event_source_set_time(c->timer, ek_now_us() + (uint64_t)timeout_ms * 1000u) < 0)
        return -1;
    return sd_event_source_set_enabled(c->timer, SD_EVENT_ONESHOT) < 0 ? -1 : 0;
}

static size_t curl_body(char *bytes, size_t size, size_t count, void *ctx)
{
    struct client_call *call = ctx;
    size_t len = size * count; /* size is 1 by contract */
    if (++call->pieces > PIECES_MOST || ek_buf_add(&call->body, bytes, len) < 0) {
        call->too_large = true;
        return 0;
    }
    return len;
}

/* Lines of the head, and those behind a body in chunks: libcurl keeps all of them, and bounds the
 * first alone. */
static size_t curl_head(char *bytes, size_t size, size_t count, void *ctx)
{
    struct client_call *call = ctx;
    (void)bytes;
    call->head_bytes += size * count;
    if (call->head_bytes > HEAD_MOST)
        call->too_large = true;
    return call->too_large ? 0 : size * count;
}

int client_new(sd_event *event, struct client **ret_client)
{
    int r = -ENOMEM;
    struct client *c = calloc(1, sizeof(*c));
    if (!c)
        goto out;
    c->event = sd_event_ref(event);
    c->multi = curl_multi_init();
    if (!c->multi)
        goto out;
    r = sd_event_add_time(event, &c->timer, CLOCK_MONOTONIC, 0, 1000, client_on_timer, c);
    if (r < 0)
        goto out;
    r = sd_event_source_set_enabled(c->timer, SD_EVENT_OFF);
    if (r < 0)
        goto out;
    (void)curl_multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, curl_socket);
    (void)curl_multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c);
    (void)curl_multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, curl_timer);
    (void)curl_multi_setopt(c->multi, CURLMOPT_TIMERDATA, c);
    (void)curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, 8L);
    *ret_client = c;
    c = NULL;
    r = 0;
out:
    client_free(c);
    return r;
}

void client_free(struct client *c)
{
    if (!c)
        return;
    for (struct client_call *call = c->calls, *next; call; call = next) {
        next = call->next;
        call_done(call);
    }
    if (c->multi)
        curl_multi_cleanup(c->multi);
    sd_event_source_disable_unref(c->timer);
    sd_event_unref(c->event);
    free(c);
}

static bool add_header(struct client_call *call, const char *line)
{
    struct curl_slist *more = curl_slist_append(call->headers, line);
    if (more)
        call->headers = more;
    return more != NULL;
}

static bool set_headers(struct client_call *call, const struct client_req *req)
{
    char line[CLIENT_KEY_MOST + 32];
    if (req->body && !add_header(call, "Content-Type: application/json"))
        return false;
    if (req->key && *req->key) {
        int n = snprintf(line, sizeof(line), "Authorization: Bearer %s", req->key);
        bool ok = n > 0 && (size_t)n < sizeof(line) && add_header(call, line);
        explicit_bzero(line, sizeof(line));
        if (!ok)
            return false;
    }
    return !call->headers ||
           curl_easy_setopt(call->easy, CURLOPT_HTTPHEADER, call->headers) == CURLE_OK;
}

static bool set_body(struct client_call *call, const struct client_req *req)
{
    if (!set_headers(call, req))
        return false;
    if (!req->body)
        return true;
    call->sent = strdup(req->body);
    return call->sent && curl_easy_setopt(call->easy, CURLOPT_POSTFIELDS, call->sent) == CURLE_OK;
}

static curl_socket_t open_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *at)
{
    struct client_call *call = ctx;
    (void)purpose;
    call->fd = socket(at->family, at->socktype | SOCK_CLOEXEC, at->protocol);
    return call->fd < 0 ? CURL_SOCKET_BAD : call->fd;
}

/* Before a request is sent: not to where a server's link leads (run_as.h). A connection that is
 * used again was looked at when it was made. */
static int on_connected(void *ctx, char *to, char *from, int to_port, int from_port)
{
    const struct client_call *call = ctx;
    (void)to;
    (void)from;
    (void)to_port;
    (void)from_port;
    bool good = call->fd < 0 || run_as_owner_answers(call->fd, call->unix_path);
    return good ? CURL_PREREQFUNC_OK : CURL_PREREQFUNC_ABORT;
}

/* An option that libcurl refuses for lack of memory must not be silently off. */
static bool set_options(struct client_call *call, const struct client_req *req)
{
    CURL *e = call->easy;
    bool ok =
        curl_easy_setopt(e, CURLOPT_URL, req->url) == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_PRIVATE, call) == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, curl_body) == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_WRITEDATA, call) == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, curl_head) == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_HEADERDATA, call) == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)req->timeout_ms) == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L) == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http") == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_PROXY, "") == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_BUFFERSIZE, 65536L) == CURLE_OK &&
        curl_easy_setopt(e, CURLOPT_MAXFILESIZE_LARGE, (curl_off_t)req->most_bytes) == CURLE_OK;
    if (ok && req->unix_path)
        ok = (call->unix_path = strdup(req->unix_path)) &&
             curl_easy_setopt(e, CURLOPT_UNIX_SOCKET_PATH, req->unix_path) == CURLE_OK &&
             curl_easy_setopt(e, CURLOPT_OPENSOCKETFUNCTION, open_socket) == CURLE_OK &&
             curl_easy_setopt(e, CURLOPT_OPENSOCKETDATA, call) == CURLE_OK &&
             curl_easy_setopt(e, CURLOPT_PREREQFUNCTION, on_connected) == CURLE_OK &&
             curl_easy_setopt(e, CURLOPT_PREREQDATA, call) == CURLE_OK;
    if (ok && strcmp(req->method, "GET") != 0)
        /* A write must not meet a connection that died with the server before this one. */
        ok = curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, req->method) == CURLE_OK &&
             curl_easy_setopt(e, CURLOPT_FRESH_CONNECT, 1L) == CURLE_OK;
    return ok && set_body(call, req);
}

int client_start(struct client *c, const struct client_req *req, client_fn cb, void *ctx,
                 struct client_call **ret_call)
{
    struct client_call *call = calloc(1, sizeof(*call));
    if (!call)
        return -ENOMEM;
    call->client = c;
    call->fd = -1;
    call->cb = cb;
    call->ctx = ctx;
    call->body.limit = req->most_bytes;
    call->start_us = ek_now_us();
    call->next = c->calls;
    if (c->calls)
        c->calls->prev = call;
    c->calls = call;
    call->easy = curl_easy_init();
    if (!call->easy || !set_options(call, req)) {
        call_free(call);
        return -ENOMEM;
    }
    if (ret_call)
        *ret_call = call;
    if (curl_multi_add_handle(c->multi, call->easy) != CURLM_OK) {
        if (ret_call)
            *ret_call = NULL;
        call_free(call);
        return -ENOMEM;
    }
    return 0;
}

void client_cancel(struct client_call *call)
{
    call_free(call);
}
