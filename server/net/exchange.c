/*
 * One HTTP exchange: what comes next, until its answer is sent (exchange.h). Called by
 * libmicrohttpd through worker.c, always on the thread of the exchange's worker.
 *
 * libmicrohttpd calls when it has bytes or wants some: exchange_handle() for the head, each piece
 * of the body (arrive.h) and its end, read_stream() for each piece of a stream. Between these the
 * exchange waits for one of four things, and is suspended meanwhile, so that it costs nothing:
 *
 *   the engine     tokens came: exchange_pump() takes them and resumes when there is something to
 *                  send; a whole answer only when the generation is over
 *   the encoder    a body that takes long to read, or a long answer to be written, is done by
 *                  another thread (encoder.h). From give_away() until it is given back the exchange
 *                  belongs to that thread (`busy`), and everything here leaves it alone
 *   the reader     a stream is rendered no further than BOUND_STREAM_BYTES ahead of it
 *   time           exchange_tick(): a queue that has room again, a sign of life in a silent stream,
 *                  a reader that takes nothing and is cut
 *
 * A suspended connection does not notice that its peer has left, so the worker's own epoll does
 * (watch_peer()), and exchange_leave() ends the request. An encoder that has the exchange is told
 * by `gone` and gives it back.
 *
 * Until the first byte of an answer an error can have its own status; after it a stream ends with
 * an error event. What an answer holds is charged to the server's memory (hold_answer()).
 */
#include "server/net/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "common/clock.h"
#include "common/log.h"
#include "server/api/body.h"
#include "server/api/complete.h"
#include "server/api/openai.h"
#include "server/api/protocols.h"
#include "server/api/reply.h"
#include "server/api/sse.h"
#include "server/net/answer.h"
#include "server/net/arrive.h"
#include "server/net/auth.h"
#include "server/net/conn.h"
#include "server/net/encoder.h"
#include "server/net/guard.h"
#include "server/net/metrics.h"
#include "server/net/render.h"
#include "server/net/request.h"
#include "server/net/send.h"
#include "server/net/spans.h"
#include "server/net/state.h"
#include "server/net/tracer.h"

/* What a handler may take on the worker's thread (units of common/work.h, 20 to 40 ms): where it
 * needs more, an encoder thread begins anew. */
#define QUICK_FUEL  (1u << 21)
#define ERROR_BYTES 1024u /* of the usual refusal */
/* What of an answer is here when an encoder writes it out: some ms, in which this thread's other
 * connections would wait. */
#define RENDER_INLINE (256u << 10)

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
    exchange_drop(x->conn);
    x->conn->exchange = x;
    x->arrival_us = x->sent_us = ek_now_us();
    x->conn->idle_us = 0;
    x->conn->deadline_us = x->arrival_us + (uint64_t)(w->http->p.request_timeout_s * 1e6);
    return x;
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

/* Once: it is among those that run, and our epoll tells when its peer leaves. */
static void begin_running(struct exchange *x)
{
    if (x->linked)
        return;
    link_running(x);
    watch_peer(x);
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

/* Charges what of the answer is here. A stream is bounded by itself; another answer ends when there
 * is no room for more of it. */
static void hold_answer(struct exchange *x)
{
    uint64_t bytes = x->json_bytes + generation_held(x->gen);
    if (x->gen->ask.stream || x->crowded) {
        ek_bill_force(&x->bill, bytes);
        return;
    }
    x->crowded = ek_bill_set(&x->bill, bytes);
    if (x->crowded < 0)
        generation_abort(x->gen);
}

/* Takes news from the engine and renders it. Returns true when there is something to send. */
static bool pump(struct exchange *x)
{
    struct generation *g = x->gen;
    struct api_error err;
    if (g->out.len - g->out_at > BOUND_STREAM_BYTES)
        return true;
    bool news = generation_pump(g);
    if (news) {
        guard_started(x);
        hold_answer(x);
    }
    if (!g->ask.stream)
        return g->over || x->crowded < 0;
    if (news && !(g->over && !g->begun && !x->replied && generation_check(g, &err) < 0))
        sse_render(g);
    if (news && g->closed) {
        render_drop(x);
        hold_answer(x);
    }
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
    if (x->left)
        return;
    if (atomic_load_explicit(&x->busy, memory_order_acquire) == BUSY_RUNNING) {
        atomic_store(&x->gone, true); /* the encoder stops, and gives it back */
        return;
    }
    if (!x->gen) {
        resume(x);
        return;
    }
    if (x->replied && !x->gen->ask.stream)
        return; /* all of it is handed over: whether it was read, its close tells */
    x->left = true;
    generation_abort(x->gen);
    resume(x);
}

bool exchange_is_made(const struct exchange *x)
{
    const struct generation *g = x->gen;
    if (!x->replied || !g || !g->ask.stream)
        return x->replied;
    return (g->closed || g->out.len > g->out_at) && !generation_computes(g);
}

void exchange_cut(struct exchange *x)
{
    atomic_fetch_add(&x->http->slow_readers, 1);
    x->stalled = true;
    exchange_leave(x);
    (void)shutdown(x->conn->fd, SHUT_RDWR); /* MHD waits until it can write, and sees the end */
}

/* Before the first token an error can still have a status of its own: with a deadline for the queue
 * that is worth the silence. */
static bool may_begin_early(const struct exchange *x)
{
    struct limits l;
    engine_limits(x->gen->served->engine, &l);
    return x->replied || l.value[LIMIT_QUEUE_DEADLINE] == 0;
}

/* Whether much has waited for a reader that took nothing of it for too long. One that reads
 * steadily keeps its stream, however far behind it is: no more than STREAM_BYTES is rendered for
 * it. Its kernel opens the window again only when a good part of its buffer is free, so a slow
 * reader's progress comes in steps of some 64 KiB. */
static bool reads_nothing(struct exchange *x, size_t behind, uint64_t now_us)
{
    if (behind < BOUND_SLOW_READER_BYTES || x->slow_us == 0 || x->taken_bytes != x->slow_from) {
        x->slow_us = behind < BOUND_SLOW_READER_BYTES ? 0 : now_us;
        x->slow_from = x->taken_bytes;
        return false;
    }
    return now_us - x->slow_us > BOUND_SLOW_READER_S * EK_US_PER_S;
}

void exchange_tick(struct exchange *x, uint64_t now_us)
{
    if (atomic_load_explicit(&x->busy, memory_order_acquire) != BUSY_NO || !x->gen)
        return;
    struct generation *g = x->gen;
    uint64_t silence_us = (uint64_t)(x->http->p.access.sse_keep_alive_s * 1e6);
    if (generation_tick(g)) /* for room in the queue, which no event tells */
        exchange_pump(x);
    if (!g->ask.stream || x->left)
        return;
    size_t behind = g->out.len - g->out_at;
    if (reads_nothing(x, behind, now_us)) {
        exchange_cut(x);
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
    x->worker->eventless = 0;
    memcpy(to, g->out.data + g->out_at, n);
    g->out_at += n;
    x->taken_bytes += n;
    if (g->out_at == g->out.len) {
        ek_buf_clear(&g->out);
        g->out_at = 0;
    }
    return (ssize_t)n;
}

static enum MHD_Result start_stream(struct exchange *x)
{
    struct answer a = {.status = 200, .type = sse_type(x->gen)};
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, x, NULL);
    if (!r)
        return MHD_NO;
    answer_headers(x, &a, r);
    (void)MHD_add_response_header(r, "Cache-Control", "no-cache");
    (void)MHD_add_response_header(r, "X-Accel-Buffering", "no");
    enum MHD_Result done = MHD_queue_response(x->mhd, 200, r);
    MHD_destroy_response(r);
    x->replied = done == MHD_YES;
    x->status = 200;
    return done;
}

/* Hands the exchange to the encoder, which reads its body or renders its answer. True: it belongs
 * to the encoder until that gives it back. */
static bool give_away(struct exchange *x, bool renders)
{
    x->quick = false;
    x->renders = renders;
    /* Room for an error; a long answer grows, in the memory of the thread that writes it. */
    if (renders || ek_buf_reserve(&x->early.body, ERROR_BYTES) < 0)
        ek_buf_done(&x->early.body);
    atomic_store(&x->busy, BUSY_RUNNING);
    if (encoder_give(x->http->encoder, x) < 0) {
        atomic_store(&x->busy, BUSY_NO);
        return false;
    }
    begin_running(x);
    suspend(x);
    return true;
}

/* A generation is running: answer, begin to stream, or wait on. */
static enum MHD_Result carry_on(struct exchange *x)
{
    struct generation *g = x->gen;
    struct answer a = ANSWER_JSON;
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
    if (!g->over && x->crowded == 0) {
        suspend(x);
        return MHD_YES;
    }
    if (x->crowded == 0 && generation_check(g, &err) < 0)
        generation_answer_error(&a, g->ask.api, &err);
    else if (generation_held(g) > RENDER_INLINE && give_away(x, true))
        return MHD_YES;
    else {
        render_whole(x, &a);
        render_end(x, &a);
    }
    return answer_send(x, &a);
}

/* Gives its key's places back at once; what its body became may take longer. */
static void end_generation(struct exchange *x)
{
    if (!x->gen)
        return;
    generation_end(x->gen);
    (void)ek_bill_set(&x->bill, x->json_bytes); /* lower: it does not fail */
    encoder_drop(x->http->encoder, x->gen, &x->bill);
    x->gen = NULL;
}

/* Hands what the handler has made to the engine. HTTP_WAIT, or 0 with an answer. */
static int exchange_submit(struct exchange *x, struct answer *a)
{
    struct api_error err;
    if (generation_submit(x->gen, &err) == 0)
        return HTTP_WAIT;
    generation_answer_error(a, x->gen->ask.api, &err);
    end_generation(x);
    return 0;
}

/* The handler said so. */
static enum MHD_Result go_on(struct exchange *x, int rc, struct answer *a)
{
    if (rc == HTTP_WAIT)
        rc = exchange_submit(x, a);
    if (rc != HTTP_WAIT) { /* the JSON is gone, its answer is here */
        x->json_bytes = 0;
        arrive_read(x);
        ek_bill_force(&x->bill, a->body.cap);
        return answer_send(x, a);
    }
    ek_buf_done(&a->body);
    arrive_read(x);
    begin_running(x);
    return carry_on(x);
}

static enum MHD_Result take_back(struct exchange *x)
{
    struct answer a = x->early;
    x->early.body = (struct ek_buf){0};
    atomic_store(&x->busy, BUSY_NO);
    if (atomic_load(&x->gone) && (x->early_rc == HTTP_WAIT || x->renders)) {
        ek_buf_done(&a.body);
        x->left = true;
        return MHD_NO;
    }
    if (x->renders) {
        render_end(x, &a);
        return answer_send(x, &a);
    }
    return go_on(x, x->early_rc, &a);
}

/* Runs the route's handler with so much fuel. HTTP_ELSEWHERE, with an answer as before, also where
 * the exchange is quick and what it may take was what the handler lacked. */
static int run_handler(struct exchange *x, uint64_t fuel, struct answer *a)
{
    x->work = (struct ek_work){.fuel = fuel};
    int rc = x->route->fn(x, a);
    if (rc == HTTP_WAIT || a->status < 400 || !x->quick || !ek_work_stopped(&x->work))
        return rc;
    ek_buf_done(&a->body);
    *a = ANSWER_JSON;
    return HTTP_ELSEWHERE;
}

/* The body is there: run the route's handler. */
static enum MHD_Result finish_request(struct exchange *x)
{
    struct answer a = ANSWER_JSON;
    x->conn->deadline_us = 0;
    if (x->refused) {
        a = x->late;
        x->late.body = (struct ek_buf){0};
        return answer_send(x, &a);
    }
    if (x->too_large)
        return arrive_too_large(x);
    if (!x->conn->local && !(x->route->flags & ROUTE_HEALTH)) {
        x->counted = true;
        atomic_fetch_add(&x->http->active, 1);
    }
    if (!guard_begin(x, &a))
        return answer_send(x, &a);
    bool large = x->body.len > BOUND_BODY_INLINE || x->head.gzipped;
    if (large && give_away(x, false))
        return MHD_YES;
    x->quick = !large;
    if (!arrive_json(x, &a))
        return answer_send(x, &a);
    int rc = run_handler(x, x->quick ? QUICK_FUEL : openai_fuel(x->body.len), &a);
    if (rc == HTTP_ELSEWHERE && give_away(x, false))
        return MHD_YES;
    if (rc ==
        HTTP_ELSEWHERE) { /* no other thread can: anew, with what was charged for it forgotten */
        if (!arrive_json(x, &a))
            return answer_send(x, &a);
        rc = run_handler(x, openai_fuel(x->body.len), &a);
    }
    return go_on(x, rc, &a);
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
        return arrive_head(x, url, method, version);
    if (x->replied)
        return MHD_YES;
    if (atomic_load_explicit(&x->busy, memory_order_acquire) == BUSY_DONE)
        return take_back(x);
    if (x->gen)
        return carry_on(x);
    if (*upload_size)
        return arrive_body(x, upload, upload_size);
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
           x->stalled ? ", ended because the client did not read"
           : x->left  ? ", client left"
                      : "");
}

static void trace(struct exchange *x)
{
    struct span_request s;
    if (!x->http->tracer || !x->sampled || !x->begun ||
        (x->route && x->route->flags & ROUTE_HEALTH))
        return;
    spans_of(x, &s);
    tracer_put(x->http->tracer, &s);
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
    if (x->gen && x->gen->taken == 0 && !x->gen->over) { /* the engine never had it */
        atomic_fetch_add(&h->aborted, 1);
        end_generation(x);
    }
    if (why == MHD_REQUEST_TERMINATED_CLIENT_ABORT || why == MHD_REQUEST_TERMINATED_WITH_ERROR)
        x->left |= x->gen != NULL;
    if (x->gen)
        generation_abort(x->gen); /* a write failed half way */
    if (h->p.log_requests && x->begun && !(x->route && x->route->flags & ROUTE_HEALTH))
        log_request(x);
    trace(x);
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK && x->gen)
        atomic_fetch_add(&h->aborted, 1);
    metrics_count(h, x->route, x->status);
    if (x->counted)
        atomic_fetch_sub(&h->active, 1);
    end_generation(x);
    guard_end(x);
    arrive_done(x);
    ek_buf_done(&x->late.body);
    ek_buf_done(&x->early.body);
    x->conn->exchange = NULL;
    if (why == MHD_REQUEST_TERMINATED_COMPLETED_OK && recv(x->conn->fd, &byte, 1, flags) == 0)
        (void)shutdown(x->conn->fd, SHUT_RDWR); /* MHD does not notice an end that came before */
    x->conn->idle_us = ek_now_us();
    x->conn->deadline_us =
        x->conn->idle_us + (uint64_t)((h->p.keep_alive_s + h->p.request_timeout_s) * 1e6);
    free(x);
}

void exchange_drop(struct conn *c)
{
    void *left = c->exchange;
    if (left)
        exchange_close(NULL, c->exchange->mhd, &left, MHD_REQUEST_TERMINATED_WITH_ERROR);
}
