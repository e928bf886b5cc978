/*
 * Load on any OpenAI-style server, as its clients see it: one thread, libcurl's multi interface,
 * one handle for each request that is under way.
 *
 * A closed loop keeps `clients` requests under way; an open loop sends each when its time has come,
 * whether the server keeps up or not, and counts its waiting from that time. Times are taken when
 * the bytes arrive here, so the client's own work is in them.
 */
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "server/bench/bench.h"
#include "server/bench/events.h"
#include "server/bench/load.h"
#include "server/bench/options.h"
#include "server/bench/picture.h"
#include "server/bench/progress.h"
#include "server/bench/rows.h"
#include "server/bench/samples.h"
#include "server/bench/summary.h"

#define MOST_UNDER_WAY 20000u

struct serve;

struct call {
    struct serve *s;
    CURL *curl;
    uint32_t index;
    struct ek_buf body;
    struct events events;
    double last_s;
    struct call *next; /* of those that are free */
};

struct serve {
    const struct bench_options *o;
    struct load load;
    CURLM *multi;
    struct curl_slist *headers;
    struct call *calls, *spare; /* [room] */
    uint32_t room, sent, ended, running;
    char url[2300], model[256];
    uint64_t start_us;
    struct bench_answer *answers; /* [load.count] */
    struct samples gaps;
    uint32_t *per_second, seconds;
    char error[256]; /* of the first request that failed */
    bool unreached, no_memory;
};

static double now_s(const struct serve *s)
{
    return (double)(ek_now_us() - s->start_us) / (double)EK_US_PER_S;
}

static void note_second(struct serve *s, double at, uint32_t tokens)
{
    uint32_t second = at > 0.0 ? (uint32_t)at : 0;

    if (second >= s->seconds) {
        uint32_t *more = realloc(s->per_second, (second + 64) * sizeof(*more));
        if (!more) {
            s->no_memory = true;
            return;
        }
        memset(more + s->seconds, 0, (second + 64 - s->seconds) * sizeof(*more));
        s->per_second = more;
        s->seconds = second + 64;
    }
    s->per_second[second] += tokens;
}

static size_t on_bytes(char *bytes, size_t size, size_t count, void *ctx)
{
    struct call *c = ctx;
    struct bench_answer *a = &c->s->answers[c->index];
    double now = now_s(c->s);

    if (c->events.pieces == 0 && c->events.line.len == 0 && bytes[0] == '{')
        (void)snprintf(c->events.error, sizeof(c->events.error), "%.*s",
                       (int)(size * count < 150 ? size * count : 150), bytes); /* no stream */
    uint32_t before = c->events.pieces, tokens = events_feed(&c->events, bytes, size * count);
    if (tokens > 0) {
        if (before == 0)
            a->first_s = now;
        else
            samples_push(&c->s->gaps, now - c->last_s);
        for (uint32_t i = 1; i < tokens; i++)
            samples_push(&c->s->gaps, 0.0);
        c->last_s = now;
        note_second(c->s, now, tokens);
    }
    return c->events.broken ? 0 : size * count;
}

static int send_request(struct serve *s, uint32_t index)
{
    struct call *c = s->spare;

    s->spare = c->next;
    c->index = index;
    ek_buf_clear(&c->body);
    load_body(&s->load, s->o, s->model, index, &c->body);
    if (!ek_buf_ok(&c->body))
        return -ENOMEM;
    events_free(&c->events);
    c->events = (struct events){0};
    curl_easy_setopt(c->curl, CURLOPT_POSTFIELDS, c->body.data);
    curl_easy_setopt(c->curl, CURLOPT_POSTFIELDSIZE, (long)c->body.len);
    /* an open loop's request has been waiting since its time came */
    s->answers[index] =
        (struct bench_answer){.begin_s = s->load.open ? s->load.request[index].at_s : now_s(s)};
    s->running++;
    return curl_multi_add_handle(s->multi, c->curl) == CURLM_OK ? 0 : -ENOMEM;
}

static void note_error(struct serve *s, const char *said)
{
    if (s->error[0] == '\0')
        (void)snprintf(s->error, sizeof(s->error), "%s", said);
}

static void end_request(struct serve *s, struct call *c, CURLcode code)
{
    struct bench_answer *a = &s->answers[c->index];
    long status = 0;
    char said[200];

    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    a->end_s = c->last_s > a->first_s && c->events.pieces > 0 ? c->last_s : now_s(s);
    a->pieces = c->events.pieces;
    a->tokens = c->events.tokens > 0 ? c->events.tokens : c->events.pieces;
    a->ok = code == CURLE_OK && status == 200 && c->events.pieces > 0 && c->events.done &&
            !c->events.broken && c->events.error[0] == '\0';
    s->unreached = s->unreached || code == CURLE_COULDNT_CONNECT;
    if (!a->ok) {
        if (c->events.error[0])
            (void)snprintf(said, sizeof(said), "status %ld: %s", status, c->events.error);
        else if (code != CURLE_OK)
            (void)snprintf(said, sizeof(said), "%s", curl_easy_strerror(code));
        else
            (void)snprintf(said, sizeof(said), "status %ld, %u tokens, the stream ended early",
                           status, a->tokens);
        note_error(s, said);
    }
    c->next = s->spare;
    s->spare = c;
    s->running--;
    s->ended++;
}

static int open_calls(struct serve *s)
{
    const uint32_t most = s->load.open ? MOST_UNDER_WAY : (uint32_t)s->o->clients;

    s->room = most < s->load.count ? most : s->load.count;
    s->calls = calloc(s->room, sizeof(*s->calls));
    s->answers = calloc(s->load.count, sizeof(*s->answers));
    if (!s->calls || !s->answers)
        return -ENOMEM;
    curl_multi_setopt(s->multi, CURLMOPT_MAXCONNECTS, (long)s->room);
    for (uint32_t i = 0; i < s->room; i++) {
        struct call *c = &s->calls[i];
        *c = (struct call){.s = s, .curl = curl_easy_init(), .next = s->spare};
        if (!c->curl)
            return -ENOMEM;
        s->spare = c;
        curl_easy_setopt(c->curl, CURLOPT_URL, s->url);
        curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, s->headers);
        curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, on_bytes);
        curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, c);
        curl_easy_setopt(c->curl, CURLOPT_PRIVATE, c);
        curl_easy_setopt(c->curl, CURLOPT_TIMEOUT_MS, (long)(s->o->timeout * 1000.0));
        curl_easy_setopt(c->curl, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(c->curl, CURLOPT_TCP_NODELAY, 1L);
    }
    return 0;
}

/* Sends what is due; *ret_wait_ms: until the next is. */
static int send_due(struct serve *s, int *ret_wait_ms)
{
    int r = 0;

    *ret_wait_ms = 1000;
    while (r == 0 && s->sent < s->load.count && s->spare) {
        double wait = s->load.open ? s->load.request[s->sent].at_s - now_s(s) : 0.0;
        if (wait > 0.0) {
            *ret_wait_ms = wait < 1.0 ? (int)(wait * 1000.0) + 1 : 1000;
            break;
        }
        r = send_request(s, s->sent++);
    }
    return r;
}

static int run_load(struct serve *s)
{
    struct progress p = {0};
    int r = 0, wait_ms, running, left;
    char what[64];

    s->start_us = ek_now_us();
    while (s->ended < s->load.count && r == 0) {
        r = send_due(s, &wait_ms);
        if (r == 0 && curl_multi_perform(s->multi, &running) != CURLM_OK)
            r = -EIO;
        for (CURLMsg *m; (m = curl_multi_info_read(s->multi, &left));) {
            struct call *c = NULL;
            if (m->msg != CURLMSG_DONE)
                continue;
            CURL *curl = m->easy_handle;
            CURLcode code = m->data.result;
            curl_easy_getinfo(curl, CURLINFO_PRIVATE, (char **)&c);
            curl_multi_remove_handle(s->multi, curl);
            end_request(s, c, code);
            wait_ms = 0; /* there may be something to send */
        }
        if (s->unreached && s->ended == s->sent && s->running == 0)
            r = -ECONNREFUSED;
        (void)snprintf(what, sizeof(what), "%u of %u answers, %u under way", s->ended,
                       s->load.count, s->running);
        progress_show(&p, what, (double)s->ended / s->load.count);
        if (r == 0 && wait_ms > 0)
            (void)curl_multi_poll(s->multi, NULL, 0, wait_ms, NULL);
    }
    progress_end(&p);
    return r == 0 && (s->no_memory || s->gaps.failed) ? -ENOMEM : r;
}

static size_t on_text(char *bytes, size_t size, size_t count, void *ctx)
{
    struct ek_buf *text = ctx;
    return ek_buf_add(text, bytes, size * count) == 0 ? size * count : 0;
}

/* The first model that the server lists. */
static int find_model(struct serve *s, struct ek_fault *fault)
{
    struct ek_buf text = {.limit = 1u << 20};
    char url[2200];
    CURL *curl = curl_easy_init();
    CURLcode code = CURLE_OUT_OF_MEMORY;
    int r = 0;

    (void)snprintf(url, sizeof(url), "%s/v1/models", s->o->url);
    if (curl) {
        curl_easy_setopt(curl, CURLOPT_URL, url);
        curl_easy_setopt(curl, CURLOPT_HTTPHEADER, s->headers);
        curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_text);
        curl_easy_setopt(curl, CURLOPT_WRITEDATA, &text);
        curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, 10000L);
        curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
        code = curl_easy_perform(curl);
        curl_easy_cleanup(curl);
    }
    json_t *o = code == CURLE_OK && text.data ? json_loads(text.data, 0, NULL) : NULL;
    const char *id =
        json_string_value(json_object_get(json_array_get(json_object_get(o, "data"), 0), "id"));
    if (code != CURLE_OK) {
        ek_fault_write(fault, "url", "%.200s cannot be reached: %s.", url,
                       curl_easy_strerror(code));
        r = -ECONNREFUSED;
    } else if (!id) {
        r = ek_fault_set(fault, "served-model",
                         "%.200s lists no model; name one with --served-model (and a key in "
                         "OPENAI_API_KEY if the server wants one).",
                         url);
    } else {
        (void)snprintf(s->model, sizeof(s->model), "%s", id);
    }
    json_decref(o);
    ek_buf_done(&text);
    return r;
}

/* One after the other, forgotten at once. */
static int warm_up(struct serve *s, struct ek_fault *fault)
{
    struct bench_options few = *s->o;
    struct serve warm = {.o = &few, .multi = s->multi, .headers = s->headers};

    if (s->o->warmup == 0)
        return 0;
    few.requests = s->o->warmup;
    few.clients = 1;
    few.rate = 0.0;
    few.trace = NULL;
    memcpy(warm.url, s->url, sizeof(warm.url));
    memcpy(warm.model, s->model, sizeof(warm.model));
    int r = load_make(&few, load_random(s->load.seed, 1u << 30), &warm.load, fault);
    if (r == 0)
        r = open_calls(&warm);
    if (r == 0)
        r = run_load(&warm);
    if (r == -ECONNREFUSED)
        ek_fault_write(fault, "url", "%.200s cannot be reached: %s.", s->o->url, warm.error);
    for (uint32_t i = 0; warm.calls && i < warm.room; i++) {
        curl_easy_cleanup(warm.calls[i].curl);
        ek_buf_done(&warm.calls[i].body);
        events_free(&warm.calls[i].events);
    }
    free(warm.calls);
    free(warm.answers);
    samples_done(&warm.gaps);
    free(warm.per_second);
    load_free(&warm.load);
    return r;
}

static int open_serve(struct serve *s, struct ek_fault *fault)
{
    const char *key = getenv("OPENAI_API_KEY");
    char header[1100];

    if (strlen(s->o->url) > 2000 || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return ek_fault_set(fault, "url", "--url is longer than 2000 bytes.");
    (void)snprintf(s->url, sizeof(s->url), "%s/v1/%s", s->o->url,
                   strcmp(s->o->endpoint, "chat") == 0 ? "chat/completions" : "completions");
    s->headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (key && *key && strlen(key) <= 1000) {
        (void)snprintf(header, sizeof(header), "Authorization: Bearer %s", key);
        struct curl_slist *more = curl_slist_append(s->headers, header);
        s->headers = more ? more : s->headers;
    }
    s->multi = curl_multi_init();
    if (!s->headers || !s->multi)
        return -ENOMEM;
    if (!s->o->served_model)
        return find_model(s, fault);
    (void)snprintf(s->model, sizeof(s->model), "%s", s->o->served_model);
    return 0;
}

static int write_picture(struct serve *s, const struct slo *slo, struct ek_fault *fault)
{
    struct ek_buf out = {0};
    char title[300];
    uint32_t seconds = s->seconds;

    while (seconds > 0 && s->per_second[seconds - 1] == 0)
        seconds--;
    if (s->load.open)
        (void)snprintf(title, sizeof(title), "%.120s: %u requests, open loop", s->model,
                       s->load.count);
    else
        (void)snprintf(title, sizeof(title), "%.120s: %u requests, %u clients", s->model,
                       s->load.count, s->room);
    picture_draw(&(struct picture){.title = title,
                                   .answers = s->answers,
                                   .count = s->load.count,
                                   .gaps = s->gaps.at,
                                   .gap_count = s->gaps.count,
                                   .tokens = s->per_second,
                                   .seconds = seconds,
                                   .slo = slo},
                 &out);
    FILE *f = ek_buf_ok(&out) ? fopen(s->o->picture, "we") : NULL;
    bool ok = f && fwrite(out.data, 1, out.len, f) == out.len;
    ok = f && fclose(f) == 0 && ok;
    ek_buf_done(&out);
    return ok ? 0
              : ek_fault_set(fault, "picture", "The picture %.200s cannot be written: %s.",
                             s->o->picture, strerror(errno));
}

static int report(struct serve *s, unsigned *ret_failed, struct ek_fault *fault)
{
    const struct slo slo = {s->o->slo_ttft, s->o->slo_gap};
    struct summary sum;
    json_t *rows = json_array();

    int r = rows ? summarize(s->answers, s->load.count, s->gaps.at, s->gaps.count, &slo, &sum)
                 : -ENOMEM;
    if (r == 0) {
        printf("%s at %s, %s, ", s->model, s->o->url, s->load.open ? "open loop" : "closed loop");
        r = summary_print(&sum, &slo);
        *ret_failed = sum.failed;
    }
    if (r == 0 && sum.failed > 0)
        printf("\nThe first failure: %s\n", s->error);
    if (r == 0 && s->o->picture)
        r = write_picture(s, &slo, fault);
    if (r == 0 && s->o->report)
        r = summary_rows(&sum, "serve", rows);
    if (r == 0 && s->o->report)
        r = rows_write(s->o->report, "bench-serve", s->o->commit, rows_machine(), rows, fault);
    json_decref(rows);
    return r;
}

static void close_serve(struct serve *s)
{
    for (uint32_t i = 0; s->calls && i < s->room; i++) {
        struct call *c = &s->calls[i];
        if (c->curl) {
            (void)curl_multi_remove_handle(s->multi, c->curl); /* fine where it is not in it */
            curl_easy_cleanup(c->curl);
        }
        ek_buf_done(&c->body);
        events_free(&c->events);
    }
    (void)curl_multi_cleanup(s->multi);
    curl_slist_free_all(s->headers);
    load_free(&s->load);
    free(s->calls);
    free(s->answers);
    samples_done(&s->gaps);
    free(s->per_second);
    curl_global_cleanup();
}

int bench_serve(const struct bench_options *o, unsigned *ret_failed, struct ek_fault *fault)
{
    struct serve s = {.o = o};
    uint64_t seed = o->seed ? o->seed : load_random(ek_now_us(), ek_wall_us());

    int r = open_serve(&s, fault);
    if (r == 0)
        r = load_make(o, seed, &s.load, fault);
    if (r == 0)
        r = warm_up(&s, fault);
    if (r == 0)
        r = open_calls(&s);
    if (r == 0)
        r = run_load(&s);
    if (r == -ECONNREFUSED && !fault->msg[0])
        ek_fault_write(fault, "url", "%.200s cannot be reached: %s.", o->url, s.error);
    if (r == 0)
        r = report(&s, ret_failed, fault);
    close_serve(&s);
    return r;
}
