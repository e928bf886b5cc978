/*
 * The clock that reads one server's metrics page; servers/watch.c gets a sample after each reading.
 * The client bounds time and size, engines/ parses; here is only when to ask, and what kind of
 * failure it was.
 */
#include "supervisor/io/scrape.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/clock.h"
#include "supervisor/io/client.h"

#define SCRAPE_DEADLINE_MS 2000u
#define SCRAPE_MOST_BYTES  (4u << 20)

struct scrape {
    struct client *client;
    struct scrape_setup setup;
    sd_event_source *timer;
    struct client_call *call;
    struct sample prev;
    bool has_prev, on;
    uint64_t begun_us;
    scrape_fn cb;
    void *ctx;
};

const char *scrape_result_name(enum scrape_result r)
{
    switch (r) {
    case SCRAPE_OK: return "ok";
    case SCRAPE_TIMEOUT: return "timeout";
    case SCRAPE_REFUSED: return "refused";
    case SCRAPE_STATUS: return "status";
    case SCRAPE_TOO_LARGE: return "too_large";
    case SCRAPE_BAD: return "bad_page";
    case SCRAPE_ERROR: return "error";
    case SCRAPE_RESULTS: break;
    }
    return "";
}

static enum scrape_result result_of(const struct client_result *res)
{
    switch (res->error) {
    case 0: return res->status == 200 ? SCRAPE_OK : SCRAPE_STATUS;
    case -ETIMEDOUT: return SCRAPE_TIMEOUT;
    case -ECONNREFUSED: return SCRAPE_REFUSED;
    case -EFBIG: return SCRAPE_TOO_LARGE;
    }
    return SCRAPE_ERROR;
}

static void scrape_arm(struct scrape *s, uint64_t at_us)
{
    (void)sd_event_source_set_time(s->timer, at_us); /* our own live timer */
    (void)sd_event_source_set_enabled(s->timer, SD_EVENT_ONESHOT);
}

static void on_page(void *ctx, const struct client_result *res)
{
    struct scrape *s = ctx;
    s->call = NULL;
    uint64_t now = ek_now_us();
    struct scrape_reading r = {.result = result_of(res), .took_s = res->took_s};
    if (r.result == SCRAPE_OK) {
        r.page = res->body;
        r.len = res->len;
        sample_parse(s->setup.dialect, r.page, r.len, now, &r.sample);
        if (!r.sample.good)
            r.result = SCRAPE_BAD;
    } else {
        sample_missing(now, &r.sample);
    }
    sample_compare(&r.sample, s->has_prev ? &s->prev : NULL);
    if (r.sample.good) {
        s->prev = r.sample;
        s->has_prev = true;
    }
    uint64_t next = s->begun_us + s->setup.poll_us;
    scrape_arm(s, next > now ? next : now);
    s->cb(s->ctx, &r); /* may stop or free the scrape */
}

static int scrape_on_timer(sd_event_source *source, uint64_t usec, void *ctx)
{
    struct scrape *s = ctx;
    (void)source;
    (void)usec;
    if (!s->on || s->call)
        return 0;
    struct client_req req = {.unix_path = s->setup.unix_path,
                             .method = "GET",
                             .url = s->setup.url,
                             .key = s->setup.key,
                             .timeout_ms = SCRAPE_DEADLINE_MS,
                             .most_bytes = SCRAPE_MOST_BYTES};
    s->begun_us = ek_now_us();
    if (client_start(s->client, &req, on_page, s, &s->call) < 0)
        scrape_arm(s, s->begun_us + s->setup.poll_us); /* out of memory: the next one may do */
    return 0;
}

int scrape_new(sd_event *event, struct client *client, const struct scrape_setup *setup,
               scrape_fn cb, void *ctx, struct scrape **ret_scrape)
{
    struct scrape *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->client = client;
    s->setup = *setup;
    s->cb = cb;
    s->ctx = ctx;
    int r = sd_event_add_time(event, &s->timer, CLOCK_MONOTONIC, 0, 1000, scrape_on_timer, s);
    if (r >= 0)
        r = sd_event_source_set_enabled(s->timer, SD_EVENT_OFF);
    if (r < 0) {
        scrape_free(s);
        return r;
    }
    *ret_scrape = s;
    return 0;
}

void scrape_free(struct scrape *s)
{
    if (!s)
        return;
    client_cancel(s->call);
    sd_event_source_disable_unref(s->timer);
    free(s);
}

void scrape_point(struct scrape *s, const struct scrape_setup *setup)
{
    s->setup = *setup;
}

void scrape_start(struct scrape *s)
{
    s->has_prev = false;
    s->on = true;
    if (!s->call)
        scrape_arm(s, ek_now_us());
}

void scrape_stop(struct scrape *s)
{
    s->on = false;
    client_cancel(s->call);
    s->call = NULL;
}

void scrape_interval(struct scrape *s, uint64_t poll_us)
{
    s->setup.poll_us = poll_us;
}
