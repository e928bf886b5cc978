/* One HTTP exchange, see exchange.h. */
#include "server/http/exchange.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "common/log.h"
#include "server/http/auth.h"
#include "server/http/complete.h"
#include "server/http/cors.h"
#include "server/http/encoder.h"
#include "server/http/forms.h"
#include "server/http/guard.h"
#include "server/http/inside.h"
#include "server/http/metrics.h"
#include "server/http/reply.h"
#include "server/http/sse.h"

void answer_error(struct answer *a, const struct api_error *err)
{
    a->status = err->status;
    a->type = "application/json";
    a->retry_after_s = err->retry_after_s;
    ek_buf_clear(&a->body);
    reply_error(&a->body, err);
}

void generation_answer_error(struct answer *a, enum openai_api api, const struct api_error *err)
{
    answer_error(a, err);
    if (api != API_MESSAGES)
        return;
    ek_buf_clear(&a->body);
    anthropic_error(&a->body, err);
}

void answer_fault(struct answer *a, int status, const char *param, const char *msg)
{
    struct api_error err;
    (void)api_refuse(&err, status, param, "%s", msg);
    answer_error(a, &err);
}

void *exchange_open(void *cls, const char *uri, struct MHD_Connection *mhd)
{
    struct worker *w = cls;
    struct exchange *x = calloc(1, sizeof(*x));
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    if (!x || !info || !info->socket_context) {
        free(x);
        return NULL;
    }
    x->http = w->http;
    x->worker = w;
    x->mhd = mhd;
    x->key = AUTH_NOBODY;
    head_target(&x->head, uri); /* MHD cuts it up after this */
    x->conn = info->socket_context;
    x->conn->exchange = x;
    x->arrival_us = x->sent_us = ek_now_us();
    x->conn->deadline_us = x->arrival_us + (uint64_t)(w->http->p.request_timeout_s * 1e6);
    return x;
}

static void add_headers(struct exchange *x, const struct answer *a, struct MHD_Response *r)
{
    char number[16];
    /* A header that cannot be added for lack of memory is left out: the answer matters more. */
    (void)MHD_add_response_header(r, "Content-Type", a->type ? a->type : "application/json");
    (void)MHD_add_response_header(r, "X-Request-Id", x->id);
    if (a->retry_after_s) {
        (void)snprintf(number, sizeof(number), "%u", a->retry_after_s);
        (void)MHD_add_response_header(r, "Retry-After", number);
    }
    if (a->encoding)
        (void)MHD_add_response_header(r, "Content-Encoding", a->encoding);
    if (a->vary)
        (void)MHD_add_response_header(r, "Vary", a->vary);
    if (a->allow)
        (void)MHD_add_response_header(r, "Allow", a->allow);
    if (a->challenge)
        (void)MHD_add_response_header(r, "WWW-Authenticate", a->challenge);
    cors_headers(x, r);
    if (a->close || (!x->conn->local && atomic_load(&x->http->drain)))
        (void)MHD_add_response_header(r, "Connection", "close");
}

/* Sends a whole answer and frees it. */
static enum MHD_Result send_answer(struct exchange *x, struct answer *a)
{
    if (!ek_buf_ok(&a->body)) {
        ek_buf_done(&a->body);
        a->status = 503;
        a->retry_after_s = 1;
    }
    struct MHD_Response *r =
        MHD_create_response_from_buffer(a->body.len, a->body.data, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        ek_buf_done(&a->body);
        return MHD_NO;
    }
    add_headers(x, a, r);
    enum MHD_Result done = MHD_queue_response(x->mhd, (unsigned)a->status, r);
    MHD_destroy_response(r);
    x->replied = done == MHD_YES;
    x->status = a->status;
    return done;
}

static size_t body_most(const struct exchange *x)
{
    const struct http_served *s = http_served(x->http);
    return s ? s->body_most : BOUND_BODY_LOADING;
}

/* What follows cannot be told from the next request: answered at once, then closed. */
static enum MHD_Result refuse(struct exchange *x, int status, const char *param, const char *msg)
{
    struct answer a = {.close = true};
    answer_fault(&a, status, param, msg);
    return send_answer(x, &a);
}

/* Most clients read no answer before they have sent their body: closing on them would look like a
 * broken connection. So the answer waits for the body, unless it is far too large, or the client
 * asks first. */
static enum MHD_Result refuse_late(struct exchange *x, struct answer *a)
{
    bool asks = x->head.expect != NULL;
    a->close = asks || x->length / BOUND_BODY_SWALLOW > body_most(x);
    if (a->close || (x->length == 0 && !x->chunked))
        return send_answer(x, a);
    x->refused = true;
    x->late = *a;
    return MHD_YES;
}

/* The client's x-request-id when it is harmless, else a fresh one. */
static void name_request(struct exchange *x)
{
    const char *given = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "X-Request-Id");
    size_t n = given ? strlen(given) : 0;
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)given[i]) && !strchr("-_.:", given[i]))
            n = 0;
    }
    if (n > 0 && n < sizeof(x->id))
        memcpy(x->id, given, n + 1);
    else
        (void)snprintf(
            x->id, sizeof(x->id), "%016llx%016llx", (unsigned long long)x->http->id_base[0],
            (unsigned long long)(x->http->id_base[1] + atomic_fetch_add(&x->http->next_id, 1)));
}

static bool is_json(const struct exchange *x)
{
    const char *type = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Content-Type");
    size_t n = type ? strcspn(type, "; \t") : 0;
    return n == 16 && strncasecmp(type, "application/json", 16) == 0;
}

static enum MHD_Result refuse_route(struct exchange *x, const char *allow)
{
    struct answer a = {.allow = allow};
    char msg[256];
    if (allow)
        (void)snprintf(msg, sizeof(msg), "Method %s is not allowed for %.100s; use %s.", x->method,
                       x->path, allow);
    else
        (void)snprintf(msg, sizeof(msg), "There is no %.100s.", x->path);
    answer_fault(&a, allow ? 405 : 404, "", msg);
    return refuse_late(x, &a);
}

/* Before the model is loaded, or after the engine has failed. */
static enum MHD_Result refuse_phase(struct exchange *x)
{
    struct answer a = {0};
    bool loading = atomic_load(&x->http->phase) == HTTP_LOADING;
    struct api_error err;
    (void)api_refuse(&err, 503, "", "%s",
                     loading ? "The model is being loaded." : "The server is ending.");
    err.retry_after_s = 2;
    answer_error(&a, &err);
    return refuse_late(x, &a);
}

static enum MHD_Result refuse_type(struct exchange *x)
{
    struct answer a = {0};
    answer_fault(&a, 400, "", "Content-Type must be application/json.");
    return refuse_late(x, &a);
}

static enum MHD_Result refuse_key(struct exchange *x)
{
    struct answer a = {0};
    guard_refuse(x, &a);
    return refuse_late(x, &a);
}

static enum MHD_Result refuse_size(struct exchange *x)
{
    char msg[160];
    (void)snprintf(msg, sizeof(msg),
                   "The body has %llu bytes; at most %zu are accepted (--max-body-bytes).",
                   (unsigned long long)(x->length ? x->length : x->body_bytes), body_most(x));
    return refuse(x, 413, "", msg);
}

static enum MHD_Result refuse_host(struct exchange *x)
{
    struct answer a = {0};
    answer_fault(&a, 400, "", "This server does not answer to the name in Host (--allowed-hosts).");
    return refuse_late(x, &a);
}

static enum MHD_Result refuse_head(struct exchange *x, const struct api_error *err)
{
    struct answer a = {.close = true};
    answer_error(&a, err);
    return send_answer(x, &a);
}

/* Headers are complete: everything that can be refused without the body is refused here. */
static enum MHD_Result begin(struct exchange *x, const char *url, const char *method,
                             const char *version)
{
    const char *allow = NULL;
    struct api_error err;
    struct answer a = {0};
    x->begun = true;
    name_request(x);
    if (guard_head(x, method, version, &err) < 0)
        return refuse_head(x, &err);
    if (!guard_client(x))
        return refuse(x, 403, "", "A client certificate is needed that --ssl-ca-certs knows.");
    x->chunked = x->head.coding != NULL;
    x->length = x->head.body_bytes;
    x->path = guard_path(x, url);
    x->preflight = cors_preflight(x, &a);
    if (x->preflight)
        return refuse_late(x, &a);
    x->route = route_find(x->method, x->path, &allow);
    if (x->route && (x->route->flags & ROUTE_LOCAL) && !x->conn->local)
        x->route = NULL;
    if (!guard_host(x))
        return refuse_host(x);
    if (!guard_key(x))
        return refuse_key(x);
    if (!x->route)
        return refuse_route(x, allow);
    if (!(x->route->flags & ROUTE_EARLY) && atomic_load(&x->http->phase) != HTTP_SERVING)
        return refuse_phase(x);
    if ((x->route->flags & ROUTE_JSON) && !is_json(x))
        return refuse_type(x);
    if (x->length <= body_most(x))
        return MHD_YES;
    x->too_large = true;
    bool asks = x->head.expect != NULL;
    return asks || x->length / BOUND_BODY_SWALLOW > body_most(x) ? refuse_size(x) : MHD_YES;
}

static enum MHD_Result take_body(struct exchange *x, const char *upload, size_t *size)
{
    size_t most = body_most(x);
    x->body_bytes += *size;
    x->body.limit = most;
    if (x->body_bytes > most)
        x->too_large = true;
    if (x->too_large || x->refused)
        ek_buf_done(&x->body);
    else if (ek_buf_add(&x->body, upload, *size) < 0)
        return MHD_NO;
    *size = 0;
    return x->body_bytes / BOUND_BODY_SWALLOW > most ? MHD_NO : MHD_YES;
}

static void link_running(struct exchange *x)
{
    struct worker *w = x->worker;
    x->linked = true;
    x->next = w->running;
    if (w->running)
        w->running->prev = x;
    w->running = x;
}

static void unlink_running(struct exchange *x)
{
    struct worker *w = x->worker;
    if (x->prev)
        x->prev->next = x->next;
    else
        w->running = x->next;
    if (x->next)
        x->next->prev = x->prev;
    x->prev = x->next = NULL;
}

/* A suspended connection does not notice that its peer has left: our epoll does. */
static void watch_peer(struct exchange *x)
{
    struct conn *c = x->conn;
    struct epoll_event e = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = c};
    int op = c->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(x->worker->epoll, op, c->fd, &e) == 0)
        c->watched = true;
}

static void suspend(struct exchange *x)
{
    x->suspended = true;
    MHD_suspend_connection(x->mhd);
}

static void resume(struct exchange *x)
{
    if (!x->suspended)
        return;
    x->suspended = false;
    MHD_resume_connection(x->mhd);
}

static bool is_broken(const struct generation *g)
{
    return !ek_buf_ok(&g->out);
}

/* Takes news from the engine and renders it. Returns true when there is something to send. */
static bool pump(struct exchange *x)
{
    struct generation *g = x->gen;
    struct api_error err;
    if (g->out.len - g->out_at > BOUND_STREAM_BYTES)
        return true;
    bool news = generation_pump(g);
    if (news)
        guard_started(x);
    if (!g->ask.stream)
        return g->over;
    if (news && !(g->over && !g->begun && !x->replied && generation_check(g, &err) < 0))
        sse_render(g);
    return news || g->out.len > g->out_at || g->over;
}

void exchange_pump(struct exchange *x)
{
    int busy = atomic_load_explicit(&x->busy, memory_order_acquire);
    if (busy == BUSY_DONE)
        resume(x);
    if (busy != BUSY_NO || !x->gen)
        return;
    if (pump(x))
        resume(x);
}

void exchange_leave(struct exchange *x)
{
    if (atomic_load_explicit(&x->busy, memory_order_acquire) == BUSY_RUNNING || x->left)
        return; /* it is noticed when the encoder is through */
    if (!x->gen) {
        resume(x);
        return;
    }
    x->left = true;
    generation_abort(x->gen);
    resume(x);
}

/* Before the first token an error can still have a status of its own: with a deadline for the queue
 * that is worth the silence. */
static bool may_begin_early(const struct exchange *x)
{
    struct limits l;
    engine_limits(x->gen->served->engine, &l);
    return x->replied || l.value[LIMIT_QUEUE_DEADLINE] == 0;
}

void exchange_tick(struct exchange *x, uint64_t now_us)
{
    if (atomic_load_explicit(&x->busy, memory_order_acquire) != BUSY_NO || !x->gen)
        return;
    struct generation *g = x->gen;
    uint64_t silence_us = (uint64_t)(x->http->p.shell.sse_keep_alive_s * 1e6);
    if (!g->ask.stream || x->left)
        return;
    size_t behind = g->out.len - g->out_at;
    if (behind < BOUND_SLOW_READER_BYTES)
        x->slow_us = 0;
    else if (x->slow_us == 0)
        x->slow_us = now_us;
    else if (now_us - x->slow_us > BOUND_SLOW_READER_S * EK_US_PER_S) {
        atomic_fetch_add(&x->http->slow_readers, 1);
        exchange_leave(x);
        (void)shutdown(x->conn->fd, SHUT_RDWR); /* MHD waits until it can write */
        return;
    }
    if (silence_us && behind == 0 && !g->closed && now_us - x->sent_us >= silence_us &&
        may_begin_early(x)) {
        x->sent_us = now_us;
        sse_ping(g);
        resume(x);
    }
}

/* MHD wants bytes of a stream. */
static ssize_t read_stream(void *cls, uint64_t at, char *to, size_t most)
{
    struct exchange *x = cls;
    struct generation *g = x->gen;
    (void)at;
    if (x->left || is_broken(g))
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (g->out_at == g->out.len && !g->closed)
        (void)pump(x);
    size_t n = g->out.len - g->out_at;
    if (n == 0 && g->closed)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (n == 0) {
        suspend(x);
        return 0;
    }
    if (n > most)
        n = most;
    x->sent_us = ek_now_us();
    memcpy(to, g->out.data + g->out_at, n);
    g->out_at += n;
    if (g->out_at == g->out.len) {
        ek_buf_clear(&g->out);
        g->out_at = 0;
    }
    return (ssize_t)n;
}

static enum MHD_Result start_stream(struct exchange *x)
{
    struct answer a = {.status = 200, .type = "text/event-stream; charset=utf-8"};
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, x, NULL);
    if (!r)
        return MHD_NO;
    add_headers(x, &a, r);
    (void)MHD_add_response_header(r, "Cache-Control", "no-cache");
    (void)MHD_add_response_header(r, "X-Accel-Buffering", "no");
    enum MHD_Result done = MHD_queue_response(x->mhd, 200, r);
    MHD_destroy_response(r);
    x->replied = done == MHD_YES;
    x->status = 200;
    return done;
}

/* A generation is running: answer, begin to stream, or wait on. */
static enum MHD_Result carry_on(struct exchange *x)
{
    struct generation *g = x->gen;
    struct answer a = {.status = 200, .type = "application/json"};
    struct api_error err;
    if (x->left)
        return MHD_NO;
    bool ready = pump(x);
    if (!ready) {
        suspend(x);
        return MHD_YES;
    }
    if (g->ask.stream && (g->begun || g->out.len > 0))
        return start_stream(x);
    if (!g->over) {
        suspend(x);
        return MHD_YES;
    }
    if (generation_check(g, &err) < 0)
        generation_answer_error(&a, g->ask.api, &err);
    else
        reply_generation(&a.body, g);
    return send_answer(x, &a);
}

/* The handler said so. */
static enum MHD_Result go_on(struct exchange *x, int rc, struct answer *a)
{
    if (rc != HTTP_WAIT)
        return send_answer(x, a);
    ek_buf_done(&x->body);
    if (!x->linked) {
        link_running(x);
        watch_peer(x);
    }
    return carry_on(x);
}

/* To the encoder: true when it is his for a while. */
static bool give_away(struct exchange *x)
{
    atomic_store(&x->busy, BUSY_RUNNING);
    if (encoder_give(x->http->encoder, x) < 0) {
        atomic_store(&x->busy, BUSY_NO);
        return false;
    }
    link_running(x);
    watch_peer(x);
    suspend(x);
    return true;
}

static enum MHD_Result take_back(struct exchange *x)
{
    struct answer a = x->early;
    x->early.body = (struct ek_buf){0};
    atomic_store(&x->busy, BUSY_NO);
    return go_on(x, x->early_rc, &a);
}

/* The body is there: run the route's handler. */
static enum MHD_Result finish_request(struct exchange *x)
{
    struct answer a = {.status = 200, .type = "application/json"};
    x->conn->deadline_us = 0;
    if (x->refused) {
        a = x->late;
        x->late.body = (struct ek_buf){0};
        return send_answer(x, &a);
    }
    if (x->too_large)
        return refuse_size(x);
    if (!x->conn->local && !(x->route->flags & ROUTE_HEALTH)) {
        x->counted = true;
        atomic_fetch_add(&x->http->active, 1);
    }
    if (!guard_begin(x, &a))
        return send_answer(x, &a);
    if (x->body.len > BOUND_BODY_INLINE && give_away(x))
        return MHD_YES;
    return go_on(x, x->route->fn(x, &a), &a);
}

enum MHD_Result exchange_handle(void *cls, struct MHD_Connection *mhd, const char *url,
                                const char *method, const char *version, const char *upload,
                                size_t *upload_size, void **con_cls)
{
    struct exchange *x = *con_cls;
    (void)cls;
    (void)mhd;
    if (!x)
        return MHD_NO;
    if (!x->begun)
        return begin(x, url, method, version);
    if (x->replied)
        return MHD_YES;
    if (atomic_load_explicit(&x->busy, memory_order_acquire) == BUSY_DONE)
        return take_back(x);
    if (x->gen)
        return carry_on(x);
    if (*upload_size)
        return take_body(x, upload, upload_size);
    return finish_request(x);
}

/* Ids, sizes and times; the route's pattern, not the path: nothing that a client wrote. */
static void log_request(const struct exchange *x)
{
    char line[320], name[KEY_NAME] = "";
    double all_s = (double)(ek_now_us() - x->arrival_us) / 1e6;
    if (x->key >= 0)
        auth_name(x->http->auth, x->key, name);
    (void)snprintf(line, sizeof(line), "%s%s%s, status %d, %llu bytes%s%s%s%s",
                   x->route ? x->route->method : "other", x->route ? " " : "",
                   x->route ? x->route->path : "", x->status, (unsigned long long)x->body_bytes,
                   name[0] ? ", key " : "", name, x->trace[0] ? ", trace " : "", x->trace);
    if (!x->gen) {
        ek_log(EK_LOG_INFO, "Request %s: %s, all in %.3f s", x->id, line, all_s);
        return;
    }
    const struct generation *g = x->gen;
    const struct choice *c = &g->choice[0];
    uint64_t first = c->req->first_token_us;
    ek_log(EK_LOG_INFO,
           "Request %s: %s, %u prompt tokens (%u cached), %u tokens, %s, first after %.3f s, all "
           "in %.3f s%s",
           g->id, line, generation_prompt_tokens(g), c->req->cached_tokens, generation_seen(g),
           request_finish_name(c->finish),
           first > x->arrival_us ? (double)(first - x->arrival_us) / 1e6 : 0.0, all_s,
           x->left ? ", client left" : "");
}

void exchange_close(void *cls, struct MHD_Connection *mhd, void **con_cls,
                    enum MHD_RequestTerminationCode why)
{
    struct exchange *x = *con_cls;
    const int flags = MSG_PEEK | MSG_DONTWAIT;
    char byte;
    (void)cls;
    (void)mhd;
    if (!x)
        return;
    struct http *h = x->http;
    *con_cls = NULL;
    if (x->linked)
        unlink_running(x);
    if (x->gen)
        generation_abort(x->gen); /* a write failed half way */
    if (h->p.log_requests && x->begun && !(x->route && x->route->flags & ROUTE_HEALTH))
        log_request(x);
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK && x->gen)
        atomic_fetch_add(&h->aborted, 1);
    metrics_count(h, x->route, x->status);
    if (x->counted)
        atomic_fetch_sub(&h->active, 1);
    guard_end(x);
    generation_free(x->gen);
    ek_buf_done(&x->body);
    ek_buf_done(&x->late.body);
    ek_buf_done(&x->early.body);
    x->conn->exchange = NULL;
    if (why == MHD_REQUEST_TERMINATED_COMPLETED_OK && recv(x->conn->fd, &byte, 1, flags) == 0)
        (void)shutdown(x->conn->fd, SHUT_RDWR); /* MHD does not notice an end that came before */
    x->conn->deadline_us =
        ek_now_us() + (uint64_t)((h->p.keep_alive_s + h->p.request_timeout_s) * 1e6);
    free(x);
}
