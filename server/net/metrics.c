/*
 * Writes the page (metrics.h): the figures of HTTP, keys and the process are made here, those of
 * the engine and its devices by metrics_engine.c. Called for each reading of /metrics, off the
 * engine's thread.
 */
#include "server/net/metrics.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/log.h"
#include "server/api/past.h"
#include "server/net/auth.h"
#include "server/net/conn.h"
#include "server/net/metric_names.h"
#include "server/net/metrics_engine.h"
#include "server/net/metrics_rows.h"
#include "server/net/process.h"
#include "server/net/request.h"
#include "server/net/state.h"
#include "server/net/tls.h"
#include "server/net/tracer.h"

static const int codes[HTTP_CODES] = {0,   200, 400, 404, 405, 408, 409, 413,
                                      429, 500, 501, 503, 401, 403, 422, -1};

static size_t code_slot(int status)
{
    size_t i = 0;
    while (i < HTTP_CODES - 1 && codes[i] != status)
        i++;
    return i;
}

void metrics_count(struct http *h, const struct route *route, int status)
{
    size_t row = route ? (size_t)(route - route_table) : route_count() - 1;
    atomic_fetch_add_explicit(&h->counts[row][code_slot(status)], 1, memory_order_relaxed);
}

static void write_traces(struct ek_expo *e, struct tracer *t)
{
    if (!t)
        return;
    struct tracer_stats s = tracer_stats(t);
    METRICS_ROWS(e, M_TRACES, "result", {"sent", (double)s.sent}, {"failed", (double)s.failed},
                 {"dropped", (double)s.dropped});
}

static double count_role(struct http *h, enum http_role role)
{
    double n = 0;
    for (uint32_t i = 0; i < h->workers; i++)
        n += h->worker[i].role == role ? (double)atomic_load(&h->worker[i].load) : 0;
    return n;
}

static void write_routes(struct ek_expo *e, struct http *h)
{
    char text[160], status[16];
    uint32_t most = route_count();
    ek_expo_family(e, &metrics_table[M_ROUTES]);
    for (uint32_t i = 0; i < most; i++) {
        const struct route *r = i + 1 < most ? &route_table[i] : NULL;
        for (size_t c = 0; c < HTTP_CODES; c++) {
            unsigned long long n = atomic_load(&h->counts[i][c]);
            if (n == 0)
                continue;
            (void)snprintf(status, sizeof(status), codes[c] > 0 ? "%d" : "none", codes[c]);
            (void)snprintf(text, sizeof(text), "route=\"%s%s%s\",code=\"%s\"", r ? r->method : "",
                           r ? " " : "", r ? r->path : "other", codes[c] < 0 ? "other" : status);
            ek_expo_value(e, text, (double)n);
        }
    }
}

/* By class of status, and without the routes that vLLM leaves out. */
static void write_routes_as_vllm(struct ek_expo *e, struct http *h)
{
    char text[160];
    ek_expo_family(e, &metrics_table[M_HTTP_VLLM]);
    for (uint32_t i = 0; i + 1 < route_count(); i++) {
        const struct route *r = &route_table[i];
        double class[6] = {0};
        if (r->flags & (ROUTE_HEALTH | ROUTE_LOCAL))
            continue;
        for (size_t c = 0; c < HTTP_CODES; c++) {
            if (codes[c] > 0)
                class[codes[c] / 100] += (double)atomic_load(&h->counts[i][c]);
        }
        for (int k = 2; k < 6; k++) {
            if (class[k] == 0)
                continue;
            (void)snprintf(text, sizeof(text), "handler=\"%s\",method=\"%s\",status=\"%dxx\"",
                           r->path, r->method, k);
            ek_expo_value(e, text, class[k]);
        }
    }
}

static void key_row(struct ek_expo *e, const char *key, const char *label, const char *is, double v)
{
    struct ek_buf l = {0};
    ek_expo_label(&l, "key", key);
    if (label)
        ek_expo_label(&l, label, is);
    ek_expo_value(e, l.data, v);
    ek_buf_done(&l);
}

/* What one key has of one metric; `t` is what the engine has counted for it. */
static void write_key_figure(struct ek_expo *e, int m, const struct auth_stat *s,
                             const struct tenant_stat *t)
{
    if (m == M_KEY_REFUSED) {
        key_row(e, s->name, "reason", "concurrency", (double)s->refused_concurrency);
        key_row(e, s->name, "reason", "queue", (double)s->refused_queue);
    } else if (m == M_KEY_TOKENS) {
        key_row(e, s->name, "kind", "prompt", (double)t->prompts);
        key_row(e, s->name, "kind", "answer", (double)t->outputs);
    } else {
        key_row(e, s->name, NULL, NULL,
                m == M_KEY_REQUESTS  ? (double)s->requests
                : m == M_KEY_ACTIVE  ? s->active
                : m == M_KEY_WAITING ? s->waiting
                : m == M_KEY_AHEAD   ? (double)t->ahead
                : m == M_KEY_WEIGHT  ? s->weight
                : m == M_KEY_POISON  ? (double)t->poisons
                : m == M_KEY_MASKS   ? (double)t->masks
                                     : (double)t->preemptions);
    }
}

/* `st` is NULL before there is an engine. */
static void write_keys(struct ek_expo *e, struct http *h, const struct engine_stats *st, bool whole)
{
    struct auth_stat s;
    if (!h->auth) /* before keys are read */
        return;
    if (h->tls)
        metrics_one(e, M_CERTIFICATE, (double)tls_expires_s(h->tls));
    metrics_one(e, M_KEYS, auth_count(h->auth));
    metrics_one(e, M_OPEN, atomic_load(&h->open_without_key));
    METRICS_ROWS(e, M_SANDBOX, "part", {"files", atomic_load(&h->confined_files)},
                 {"calls", atomic_load(&h->confined_calls)},
                 {"memory", atomic_load(&h->confined_memory)});
    metrics_one(e, M_UNAUTHORIZED, (double)atomic_load(&h->unauthorized));
    for (int m = M_KEY_REQUESTS; m <= M_KEY_PREEMPTIONS && whole; m++) {
        ek_expo_family(e, &metrics_table[m]);
        for (uint32_t i = 0; i < AUTH_SLOTS; i++) {
            if (!auth_stat(h->auth, i, &s))
                continue;
            const struct tenant_stat none = {0};
            const struct tenant_stat *t = st ? &st->tenant[s.tenant.place] : &none;
            write_key_figure(e, m, &s, t->stamp == s.tenant.stamp ? t : &none);
        }
    }
}

static void write_stored(struct ek_expo *e, struct http *h)
{
    const struct served *s = http_served(h);
    struct past_stat stat = {0};
    if (s && s->pasts)
        past_stat(s->pasts, &stat);
    metrics_one(e, M_RESPONSES, (double)stat.pasts);
    METRICS_ROWS(e, M_RESPONSES_MEMORY, "figure", {"held", (double)stat.bytes},
                 {"bound", (double)stat.bound_bytes});
    metrics_one(e, M_RESPONSES_EVICTED, (double)stat.evicted);
}

static void write_http(struct ek_expo *e, struct http *h, const struct engine_stats *st, bool whole)
{
    METRICS_ROWS(e, M_CONNECTIONS, "role", {"api", count_role(h, HTTP_API)},
                 {"health", count_role(h, HTTP_HEALTH)}, {"control", count_role(h, HTTP_CONTROL)},
                 {"parked", atomic_load(&h->parked)});
    metrics_one(e, M_ACCEPTED, (double)atomic_load(&h->accepted));
    write_routes(e, h);
    metrics_one(e, M_HTTP_ACTIVE, atomic_load(&h->active));
    metrics_one(e, M_HTTP_ABORTED, (double)atomic_load(&h->aborted));
    metrics_one(e, M_HTTP_TIMEOUTS, (double)atomic_load(&h->timeouts));
    metrics_one(e, M_SLOW, (double)atomic_load(&h->slow_readers));
    METRICS_ROWS(e, M_HTTP_MEMORY, "figure", {"held", (double)ek_account_held(&h->memory)},
                 {"high", (double)atomic_load(&h->memory.high)},
                 {"bound", (double)atomic_load(&h->memory.most)});
    metrics_one(e, M_HTTP_MEMORY_REFUSED, (double)atomic_load(&h->memory.refused));
    write_stored(e, h);
    metrics_one(e, M_PEER_REFUSALS, (double)atomic_load(&h->peer_refusals));
    write_traces(e, h->tracer);
    write_routes_as_vllm(e, h);
    write_keys(e, h, st, whole);
}

static void write_process(struct ek_expo *e, const struct http *h)
{
    struct rusage u;
    struct rlimit l;
    uint64_t read_us = atomic_load(&h->reloaded_wall_us);
    metrics_one(e, M_RELOAD_OK, !atomic_load(&h->reload_failed));
    metrics_one(e, M_RELOADED, (double)(read_us ? read_us : h->started_wall_us) / 1e6);
    metrics_one(e, M_UPTIME, (double)(ek_now_us() - h->started_us) / 1e6);
    metrics_one(e, M_LOG_DROPPED, (double)ek_log_dropped());
    metrics_one(e, M_START, (double)h->started_wall_us / 1e6);
    metrics_one(e, M_RSS, (double)process_resident_bytes());
    if (getrusage(RUSAGE_SELF, &u) == 0)
        metrics_one(e, M_CPU,
                    (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                        (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6);
    metrics_one(e, M_FDS, process_open_fds());
    if (getrlimit(RLIMIT_NOFILE, &l) == 0)
        metrics_one(e, M_MAX_FDS, (double)l.rlim_cur);
}

static void write_build(struct ek_expo *e, const struct served *s)
{
    struct ek_buf l = {0};
    ek_expo_label(&l, "version", EK_VERSION);
    if (s) {
        ek_expo_label(&l, "backend", s->backend->name);
        ek_expo_label(&l, "device", s->device_name);
        ek_expo_label(&l, "dtype", s->dtype);
        struct ek_device_stats now = {0};
        s->backend->stats(s->device, &now);
        const char *products = now.products ? now.products : "";
        char name[32]; /* without the file */
        (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(products, "("), products);
        name[strlen(name) - (name[0] && name[strlen(name) - 1] == ' ')] = '\0';
        ek_expo_label(&l, "products", name);
        ek_expo_label(&l, "collectives", now.collectives ? now.collectives : "");
    }
    ek_expo_family(e, &metrics_table[M_BUILD]);
    ek_expo_value(e, l.data, 1);
    ek_buf_done(&l);
}

int metrics_write(struct http *h, enum ek_expo_format format, bool whole, struct ek_buf *out)
{
    const struct served *s = http_served(h);
    struct ek_buf base = {0};
    struct ek_expo e = {
        .out = out, .format = format, .epoch_us = h->started_wall_us - h->started_us};
    struct engine_stats st;
    if (s) {
        engine_stats(s->engine, &st);
        ek_expo_label(&base, "engine", "0");
        ek_expo_label(&base, "model_name", s->name[0]);
        if (!ek_buf_ok(&base))
            return -ENOMEM;
        e.base_labels = base.data;
        metrics_engine_write(&e, h, s, &st);
        e.base_labels = NULL;
    }
    write_http(&e, h, s ? &st : NULL, whole);
    write_build(&e, s);
    write_process(&e, h);
    ek_buf_done(&base);
    return ek_expo_end(&e);
}

int metrics_reference(struct ek_buf *out)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    for (const struct ek_metric *m = metrics_table; m->name; m++)
        (void)ek_buf_printf(out, "%s %s %s%s%s%s\n", m->name, types[m->type],
                            m->labels[0] ? "{" : "", m->labels, m->labels[0] ? "} " : "", m->help);
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
