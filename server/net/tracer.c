/*
 * The thread that sends traces to a collector (tracer.h). exchange.c gives it requests that are
 * over.
 */
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
#include "common/hex.h"
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
    uint64_t stop_us;           /* when it is over, once it is ending */
    struct span_request *batch; /* [TRACER_BATCH], the thread's */
    struct ek_buf body;
    atomic_ullong sent, dropped, failed;
    bool said; /* that they are not taken; the thread's */
};

int tracer_check(const char *endpoint, struct ek_fault *f)
{
    const char *host = strncmp(endpoint, "http://", 7) == 0    ? endpoint + 7
                       : strncmp(endpoint, "https://", 8) == 0 ? endpoint + 8
                                                               : "";
    bool good = *host && *host != '/' && *host != ':';
    for (const char *c = host; *c; c++)
        good = good && *c > ' ' && *c < 0x7f && *c != '@';
    return good && strlen(endpoint) + sizeof("/v1/traces") <= URL_MOST
               ? 0
               : ek_fault_set(f, "otlp-traces-endpoint",
                              "--otlp-traces-endpoint: this is no address of OTLP by HTTP; one "
                              "looks like http://localhost:4318/v1/traces (port 4317 is gRPC's; "
                              "a token belongs into OTEL_EXPORTER_OTLP_TRACES_HEADERS)");
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

/* "name=value" with %XX for what a header's list could not have; false: it cannot be used. */
static bool tracer_header(struct ek_buf *line, const char *at, size_t len)
{
    size_t name = 0, i;
    while (name < len && at[name] != '=')
        name++;
    if (name == 0 || name == len)
        return false;
    (void)ek_buf_add(line, at, name);
    (void)ek_buf_puts(line, ": ");
    for (i = name + 1; i < len && at[i] == ' '; i++)
        ;
    for (; i < len; i++) {
        bool coded = at[i] == '%' && i + 2 < len && ek_hex_digit(at[i + 1]) >= 0 &&
                     ek_hex_digit(at[i + 2]) >= 0;
        char c = coded ? (char)(ek_hex_digit(at[i + 1]) << 4 | ek_hex_digit(at[i + 2])) : at[i];
        i += coded ? 2 : 0;
        if ((unsigned char)c < ' ')
            return false;
        (void)ek_buf_add(line, &c, 1);
    }
    return true;
}

/* "name=value,name=value", as OpenTelemetry's variable has it. */
static int tracer_headers(struct tracer *t, struct ek_fault *f)
{
    const char *list = getenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS");
    struct ek_buf line = {0};
    int r = tracer_add_header(t, "Content-Type: application/x-protobuf");

    list = list ? list : getenv("OTEL_EXPORTER_OTLP_HEADERS");
    for (const char *at = list; r == 0 && at && *at;) {
        at += strspn(at, " ");
        size_t len = strcspn(at, ",");
        ek_buf_clear(&line);
        if (len > 0 && !tracer_header(&line, at, len))
            r = ek_fault_set(f, "otlp-traces-endpoint",
                             "OTEL_EXPORTER_OTLP_TRACES_HEADERS: write name=value,name=value, with "
                             "%%2C for a comma in a value");
        else if (len > 0)
            r = ek_buf_ok(&line) ? tracer_add_header(t, line.data) : -ENOMEM;
        at += len + (at[len] == ',');
    }
    ek_buf_done(&line);
    return r;
}

static size_t tracer_ignore(char *data, size_t size, size_t count, void *ctx)
{
    (void)data;
    (void)ctx;
    return size * count;
}

/* How long a post may take: while the server ends, what is left of the time for it. */
static long tracer_post_ms(struct tracer *t, bool *ret_ending)
{
    pthread_mutex_lock(&t->lock);
    uint64_t now = ek_now_us(), until = t->stop_us;
    *ret_ending = t->ending;
    pthread_mutex_unlock(&t->lock);
    return !*ret_ending ? POST_S * 1000 : until > now ? (long)((until - now) / 1000) + 1 : 1;
}

/* Ends a post that began before the server's end. */
static int tracer_cut(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    struct tracer *t = ctx;
    (void)a, (void)b, (void)c, (void)d;
    pthread_mutex_lock(&t->lock);
    bool ending = t->ending;
    pthread_mutex_unlock(&t->lock);
    return ending;
}

/* One try: 0, -EAGAIN when it may be tried again, -EIO. */
static int tracer_post(struct tracer *t, CURL *curl, long most_ms, bool last, char *why,
                       size_t why_size)
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
    if (!last) {
        (void)t->curl->easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
        (void)t->curl->easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, tracer_cut);
        (void)t->curl->easy_setopt(curl, CURLOPT_XFERINFODATA, t);
    }
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
    t->resource.wall_offset_us = (int64_t)ek_wall_us() - (int64_t)ek_now_us(); /* it may be set */
    uint32_t spans = otlp_write(&t->body, &t->resource, t->batch, count);

    for (int i = 0; curl && ek_buf_ok(&t->body) && i < TRIES; i++) {
        bool last;
        long most_ms = tracer_post_ms(t, &last);
        r = tracer_post(t, curl, most_ms, last, why, sizeof(why));
        if (r != -EAGAIN || last)
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

    (void)pthread_setname_np(pthread_self(), "traces");
    while (!ending || t->stop_us > ek_now_us()) { /* which is set before `ending` */
        uint32_t count = tracer_take(t, &ending);
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
    t->resource = (struct otlp_resource){
        .service = t->service, .instance = t->instance, .version = EK_VERSION};
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
        r = tracer_headers(t, fault);
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
    t->stop_us = ek_now_us() + LAST_POST_MS * 1000;
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
