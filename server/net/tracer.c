/* The thread that sends traces, see tracer.h. */
#include "server/net/tracer.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "server/net/curl_calls.h"
#include "server/net/otlp.h"

#define TRIES        3
#define POST_S       10L        /* of one try, as the SDKs have it */
#define LAST_POST_MS 2000L      /* of one while the server ends */
#define BODY_MOST    (8u << 20) /* of a batch */
#define URL_MOST     1024u

struct tracer {
    const struct curl_calls *curl;
    char url[URL_MOST];
    struct curl_slist *headers;
    struct otlp_resource resource;
    char service[128], instance[160];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t news;
    struct span_request *queue; /* [TRACER_QUEUE], a ring under lock, as what follows */
    uint32_t first, count;
    bool ending;
    struct span_request *batch; /* [TRACER_BATCH], the thread's */
    struct ek_buf body;
    atomic_ullong sent, dropped, failed;
    bool said; /* that nobody takes them; the thread's */
};

int tracer_check(const char *endpoint, struct ek_fault *f)
{
    const char *host = strncmp(endpoint, "http://", 7) == 0    ? endpoint + 7
                       : strncmp(endpoint, "https://", 8) == 0 ? endpoint + 8
                                                               : "";
    bool good = *host && *host != '/' && *host != ':';
    for (const char *c = host; *c; c++)
        good = good && *c > ' ' && *c < 0x7f;
    return good && strlen(endpoint) + sizeof("/v1/traces") <= URL_MOST
               ? 0
               : ek_fault_set(f, "otlp-traces-endpoint",
                              "--otlp-traces-endpoint: '%.80s' is no address of OTLP by HTTP; one "
                              "looks like http://localhost:4318/v1/traces (port 4317 is gRPC's)",
                              endpoint);
}

static void tracer_url(struct tracer *t, const char *endpoint)
{
    const char *host = strstr(endpoint, "://"), *path = host ? strchr(host + 3, '/') : NULL;
    bool bare = !path || strcmp(path, "/") == 0;
    (void)snprintf(t->url, sizeof(t->url), "%s%s", endpoint,
                   !bare  ? ""
                   : path ? "v1/traces"
                          : "/v1/traces");
}

static int tracer_add_header(struct tracer *t, const char *line)
{
    struct curl_slist *more = t->curl->slist_append(t->headers, line);
    if (!more)
        return -ENOMEM;
    t->headers = more;
    return 0;
}

/* "name=value,name=value", as OpenTelemetry's variable has it. */
static int tracer_headers(struct tracer *t)
{
    const char *list = getenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS");
    char line[1024];
    int r = tracer_add_header(t, "Content-Type: application/x-protobuf");

    list = list ? list : getenv("OTEL_EXPORTER_OTLP_HEADERS");
    for (const char *at = list; r == 0 && at && *at;) {
        size_t len = strcspn(at, ","), name = strcspn(at, "=");
        if (name > 0 && name < len && len < sizeof(line) - 2 && !memchr(at, '\n', len)) {
            (void)snprintf(line, sizeof(line), "%.*s: %.*s", (int)name, at, (int)(len - name - 1),
                           at + name + 1);
            r = tracer_add_header(t, line);
        }
        at += len + (at[len] == ',');
    }
    return r;
}

static size_t tracer_ignore(char *data, size_t size, size_t count, void *ctx)
{
    (void)data;
    (void)ctx;
    return size * count;
}

/* One try: 0, -EAGAIN when it may be tried again, -EIO. */
static int tracer_post(struct tracer *t, CURL *curl, long most_ms, char *why, size_t why_size)
{
    long status = 0;
    t->curl->easy_reset(curl);
    (void)t->curl->easy_setopt(curl, CURLOPT_URL, t->url);
    (void)t->curl->easy_setopt(curl, CURLOPT_HTTPHEADER, t->headers);
    (void)t->curl->easy_setopt(curl, CURLOPT_POSTFIELDS, t->body.data);
    (void)t->curl->easy_setopt(curl, CURLOPT_POSTFIELDSIZE, (long)t->body.len);
    (void)t->curl->easy_setopt(curl, CURLOPT_WRITEFUNCTION, tracer_ignore);
    (void)t->curl->easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    (void)t->curl->easy_setopt(curl, CURLOPT_TIMEOUT_MS, most_ms);
    CURLcode code = t->curl->easy_perform(curl);
    if (code != CURLE_OK) {
        (void)snprintf(why, why_size, "%s", t->curl->easy_strerror(code));
        return -EAGAIN;
    }
    (void)t->curl->easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    if (status >= 200 && status < 300)
        return 0;
    (void)snprintf(why, why_size, "status %ld", status);
    return status == 429 || status == 502 || status == 503 || status == 504 ? -EAGAIN : -EIO;
}

static bool tracer_is_ending(struct tracer *t)
{
    pthread_mutex_lock(&t->lock);
    bool ending = t->ending;
    pthread_mutex_unlock(&t->lock);
    return ending;
}

/* Waits for the end of the server or `seconds`. */
static void tracer_pause(struct tracer *t, int seconds)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    pthread_mutex_lock(&t->lock);
    while (!t->ending && pthread_cond_timedwait(&t->news, &t->lock, &until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&t->lock);
}

static void tracer_send(struct tracer *t, CURL *curl, uint32_t count)
{
    char why[160] = "out of memory";
    int r = -ENOMEM;
    ek_buf_clear(&t->body);
    uint32_t spans = otlp_write(&t->body, &t->resource, t->batch, count);

    for (int i = 0; curl && ek_buf_ok(&t->body) && i < TRIES; i++) {
        bool ending = tracer_is_ending(t);
        r = tracer_post(t, curl, ending ? LAST_POST_MS : POST_S * 1000, why, sizeof(why));
        if (r != -EAGAIN || ending)
            break;
        if (i + 1 < TRIES)
            tracer_pause(t, 1 << i);
    }
    if (r == 0) {
        atomic_fetch_add(&t->sent, spans);
        t->said = false;
        return;
    }
    atomic_fetch_add(&t->failed, spans);
    if (!t->said)
        ek_log(EK_LOG_WARNING, "Traces are not taken by %s: %s; what cannot be sent is left out",
               t->url, why);
    t->said = true;
}

/* What waits, at most a batch of it; waits for TRACER_BATCH, the end, or TRACER_WAIT_S. */
static uint32_t tracer_take(struct tracer *t, bool *ret_ending)
{
    struct timespec until;
    uint32_t count;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += TRACER_WAIT_S;
    pthread_mutex_lock(&t->lock);
    while (!t->ending && t->count < TRACER_BATCH &&
           pthread_cond_timedwait(&t->news, &t->lock, &until) != ETIMEDOUT)
        ;
    count = t->count < TRACER_BATCH ? t->count : TRACER_BATCH;
    for (uint32_t i = 0; i < count; i++)
        t->batch[i] = t->queue[(t->first + i) % TRACER_QUEUE];
    t->first = (t->first + count) % TRACER_QUEUE;
    t->count -= count;
    *ret_ending = t->ending;
    pthread_mutex_unlock(&t->lock);
    return count;
}

static void *tracer_run(void *ctx)
{
    struct tracer *t = ctx;
    CURL *curl = t->curl->easy_init();
    bool ending = false;
    uint64_t stop_us = 0;

    (void)pthread_setname_np(pthread_self(), "traces");
    while (!ending || stop_us > ek_now_us()) {
        uint32_t count = tracer_take(t, &ending);
        if (ending && stop_us == 0)
            stop_us = ek_now_us() + LAST_POST_MS * 1000;
        if (count > 0)
            tracer_send(t, curl, count);
        else if (ending)
            break;
    }
    t->curl->easy_cleanup(curl);
    return NULL;
}

static void tracer_describe(struct tracer *t)
{
    char host[96] = "";
    const char *service = getenv("OTEL_SERVICE_NAME");
    (void)gethostname(host, sizeof(host) - 1);
    (void)snprintf(t->service, sizeof(t->service), "%s",
                   service && *service ? service : "evenkeel-server");
    (void)snprintf(t->instance, sizeof(t->instance), "%s:%d", host, (int)getpid());
    t->resource =
        (struct otlp_resource){.service = t->service,
                               .instance = t->instance,
                               .version = EK_VERSION,
                               .wall_offset_us = (int64_t)ek_wall_us() - (int64_t)ek_now_us()};
}

static void tracer_done(struct tracer *t)
{
    t->curl->slist_free_all(t->headers);
    ek_buf_done(&t->body);
    free(t->queue);
    free(t->batch);
    free(t);
}

int tracer_new(const char *endpoint, struct tracer **ret_tracer, struct ek_fault *fault)
{
    pthread_condattr_t attr;
    int r = tracer_check(endpoint, fault);
    if (r < 0)
        return r;
    const struct curl_calls *curl = curl_calls();
    if (!curl)
        return ek_fault_set(fault, "otlp-traces-endpoint",
                            "--otlp-traces-endpoint needs libcurl, which is not installed (Debian: "
                            "libcurl4; Fedora: libcurl)");
    struct tracer *t = calloc(1, sizeof(*t));
    if (!t)
        return -ENOMEM;
    t->curl = curl;
    t->queue = calloc(TRACER_QUEUE, sizeof(*t->queue));
    t->batch = calloc(TRACER_BATCH, sizeof(*t->batch));
    t->body.limit = BODY_MOST;
    tracer_url(t, endpoint);
    tracer_describe(t);
    r = !t->queue || !t->batch ? -ENOMEM : 0;
    if (r == 0)
        r = tracer_headers(t);
    if (r < 0) {
        tracer_done(t);
        return r;
    }
    (void)pthread_mutex_init(&t->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&t->news, &attr);
    (void)pthread_condattr_destroy(&attr);
    r = -pthread_create(&t->thread, NULL, tracer_run, t);
    if (r < 0) {
        tracer_done(t);
        return r;
    }
    ek_log(EK_LOG_INFO, "Traces are sent to %s", t->url);
    *ret_tracer = t;
    return 0;
}

void tracer_free(struct tracer *t)
{
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    t->ending = true;
    pthread_cond_broadcast(&t->news);
    pthread_mutex_unlock(&t->lock);
    (void)pthread_join(t->thread, NULL);
    (void)pthread_mutex_destroy(&t->lock);
    (void)pthread_cond_destroy(&t->news);
    tracer_done(t);
}

void tracer_put(struct tracer *t, const struct span_request *s)
{
    pthread_mutex_lock(&t->lock);
    bool room = t->count < TRACER_QUEUE;
    if (room)
        t->queue[(t->first + t->count++) % TRACER_QUEUE] = *s;
    if (t->count == TRACER_BATCH)
        pthread_cond_signal(&t->news);
    pthread_mutex_unlock(&t->lock);
    if (!room)
        atomic_fetch_add(&t->dropped, 1);
}

struct tracer_stats tracer_stats(struct tracer *t)
{
    return (struct tracer_stats){.sent = atomic_load(&t->sent),
                                 .dropped = atomic_load(&t->dropped),
                                 .failed = atomic_load(&t->failed)};
}
