/*
 * Answers health, version, load and the list of models (health.h). Called through the table of
 * routes.
 */
#include "server/net/health.h"

#include <errno.h>
#include <string.h>

#include <zlib.h>

#include "common/clock.h"
#include "server/api/openai.h"
#include "server/api/served.h"
#include "server/net/accept.h"
#include "server/net/answer.h"
#include "server/net/conn.h"
#include "server/net/encoder.h"
#include "server/net/metrics.h"
#include "server/net/request.h"
#include "server/net/state.h"

static void health_say(struct answer *a, int status, const char *state, const char *why)
{
    a->status = status;
    if (status == 503)
        a->retry_after_s = 2;
    (void)ek_buf_printf(&a->body, "{\"status\":\"%s\"", state);
    if (why) {
        (void)ek_buf_puts(&a->body, ",\"reason\":\"");
        (void)ek_buf_json(&a->body, why, strlen(why));
        (void)ek_buf_puts(&a->body, "\"");
    }
}

static void say_loading(struct http *h, struct answer *a)
{
    const char *what = atomic_load(&h->loading_what);
    double done = (double)atomic_load(&h->loading_done);
    double total = (double)atomic_load(&h->loading_total);
    health_say(a, 503, "loading", what ? what : "starting");
    (void)ek_buf_printf(&a->body, ",\"progress\":%.3f}", total > 0 ? done / total : 0.0);
}

/* True when it has answered: the server does not serve yet, or any more. */
static bool not_serving(struct http *h, struct answer *a)
{
    switch ((enum http_phase)atomic_load(&h->phase)) {
    case HTTP_LOADING: say_loading(h, a); return true;
    case HTTP_FAILED:
        health_say(a, 503, "failed", h->why);
        (void)ek_buf_puts(&a->body, "}");
        return true;
    case HTTP_STOPPING:
        health_say(a, 503, "stopping", "the server is ending");
        (void)ek_buf_puts(&a->body, "}");
        return true;
    case HTTP_SERVING: break;
    }
    return false;
}

/* For how long the engine has not come back; true when that is past the deadline of a step. */
static bool is_stuck(const struct served *s, struct engine_stats *ret_stats, double *ret_age_s)
{
    uint64_t now = ek_now_us();
    engine_stats(s->engine, ret_stats);
    uint64_t age = engine_stuck_us(ret_stats, now);
    *ret_age_s = (double)age / 1e6;
    return s->step_deadline_us && age > s->step_deadline_us;
}

/* Alive: the engine, the encoder and what compiles forms make progress, or have nothing to do.
 * Loading is alive. */
int health_livez(struct exchange *x, struct answer *a)
{
    struct http *h = x->http;
    struct engine_stats st;
    double age = 0;
    if (atomic_load(&h->phase) == HTTP_LOADING) {
        say_loading(h, a);
        a->status = 200;
        a->retry_after_s = 0;
        return 0;
    }
    if (not_serving(h, a))
        return 0;
    const struct served *s = http_served(h);
    bool stuck = is_stuck(s, &st, &age);
    uint64_t now = ek_now_us();
    double body = (double)encoder_busy_us(h->encoder, now) / 1e6;
    double form = (double)encoder_compile_us(s->grammars, now) / 1e6;
    /* It does not see its own deadline. */
    stuck |= encoder_reading_us(h->encoder, s->grammars, now) >
             (ENCODER_RUN_S + ENCODER_CPU_S) * EK_US_PER_S;
    health_say(a, stuck ? 503 : 200, stuck ? "stuck" : "ok", NULL);
    (void)ek_buf_printf(&a->body,
                        ",\"step_age_s\":%.3f,\"encoder_age_s\":%.3f,\"compile_age_s\":%.3f}", age,
                        body, form);
    return 0;
}

int health_readyz(struct exchange *x, struct answer *a)
{
    struct engine_stats st;
    double age = 0;
    if (not_serving(x->http, a))
        return 0;
    if (is_stuck(http_served(x->http), &st, &age))
        health_say(a, 503, "stuck",
                   "the engine has not come back for longer than the step deadline");
    else if (atomic_load(&x->http->drain))
        health_say(a, 503, "draining", "running requests finish, new ones are not taken");
    else if (st.released)
        health_say(a, 503, "released",
                   "the engine is released: requests wait until it is acquired");
    else if (st.away_long)
        health_say(a, 503, "engine", "there is no engine, for longer than requests wait for one");
    else
        health_say(a, 200, "ready", NULL);
    (void)ek_buf_puts(&a->body, "}");
    return 0;
}

int health_health(struct exchange *x, struct answer *a)
{
    return health_readyz(x, a);
}

int health_version(struct exchange *x, struct answer *a)
{
    (void)x;
    (void)ek_buf_puts(&a->body, "{\"version\":\"" EK_VERSION "\"}");
    return 0;
}

/* It never sleeps: memory is given back by the live limits instead. */
int health_is_sleeping(struct exchange *x, struct answer *a)
{
    (void)x;
    (void)ek_buf_puts(&a->body, "{\"is_sleeping\":false}");
    return 0;
}

int health_load(struct exchange *x, struct answer *a)
{
    (void)ek_buf_printf(&a->body, "{\"server_load\":%u}", atomic_load(&x->http->active));
    return 0;
}

/* As gzip, when there is memory for it; else the body stays as it is. */
static void compress_body(struct answer *a)
{
    struct ek_buf out = {0};
    z_stream z = {0};
    if (deflateInit2(&z, 1, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return;
    size_t most = deflateBound(&z, a->body.len);
    if (a->body.len <= UINT32_MAX && most <= UINT32_MAX && ek_buf_reserve(&out, most) == 0) {
        z.next_in = (Bytef *)a->body.data;
        z.avail_in = (uInt)a->body.len;
        z.next_out = (Bytef *)out.data;
        z.avail_out = (uInt)most;
        if (deflate(&z, Z_FINISH) == Z_STREAM_END) {
            out.len = z.total_out;
            ek_buf_done(&a->body);
            a->body = out;
            a->encoding = "gzip";
            out = (struct ek_buf){0};
        }
    }
    (void)deflateEnd(&z); /* an error says only that it was not finished */
    ek_buf_done(&out);
}

int health_metrics(struct exchange *x, struct answer *a)
{
    const char *accept = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Accept");
    const char *coding = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Accept-Encoding");
    /* Without a key the names of keys are not shown, nor ids of requests (exemplars). */
    bool whole = x->conn->local || x->key >= 0 || auth_count(x->http->auth) == 0;
    bool open = whole && accept_has(accept, "application/openmetrics-text");
    a->vary = "Accept, Accept-Encoding";
    a->type = open ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                   : "text/plain; version=0.0.4; charset=utf-8";
    if (metrics_write(x->http, open ? EK_EXPO_OPENMETRICS : EK_EXPO_TEXT, whole, &a->body) < 0)
        a->body.failed = true;
    else if (accept_has(coding, "gzip"))
        compress_body(a);
    return 0;
}

static void put_card(const struct served *s, uint32_t i, uint64_t created_s, struct ek_buf *out)
{
    (void)ek_buf_puts(out, "{\"id\":\"");
    (void)ek_buf_json(out, s->name[i], strlen(s->name[i]));
    (void)ek_buf_printf(out, "\",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"evenkeel\",",
                        (unsigned long long)created_s);
    (void)ek_buf_puts(out, "\"root\":\"");
    (void)ek_buf_json(out, s->root, strlen(s->root));
    (void)ek_buf_printf(out,
                        "\",\"parent\":null,\"max_model_len\":%u,\"tool_call_parser\":\"%s\","
                        "\"reasoning_parser\":\"%s\",\"permission\":[{\"id\":\"modelperm-%u\","
                        "\"object\":\"model_permission\",\"created\":%llu,",
                        s->max_model_len, s->tool_parser ? s->tool_parser : "none",
                        s->reasoning_parser ? s->reasoning_parser : "none", i,
                        (unsigned long long)created_s);
    (void)ek_buf_puts(out, "\"allow_create_engine\":false,\"allow_sampling\":true,"
                           "\"allow_logprobs\":true,\"allow_search_indices\":false,"
                           "\"allow_view\":true,\"allow_fine_tuning\":false,"
                           "\"organization\":\"*\",\"group\":null,\"is_blocking\":false}]}");
}

int models_list(struct exchange *x, struct answer *a)
{
    const struct served *s = http_served(x->http);
    (void)ek_buf_puts(&a->body, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < s->names; i++) {
        if (i > 0)
            (void)ek_buf_puts(&a->body, ",");
        put_card(s, i, x->http->started_wall_us / EK_US_PER_S, &a->body);
    }
    (void)ek_buf_puts(&a->body, "]}");
    return 0;
}

int models_get(struct exchange *x, struct answer *a)
{
    const struct served *s = http_served(x->http);
    const char *name = x->path + strlen("/v1/models/");
    const size_t n = strlen(name);
    char less[256]; /* without the slash at its end, as in route_matches() */
    struct api_error err;
    uint32_t at = served_place(s, name);
    if (at >= s->names && n > 1 && n < sizeof(less) && name[n - 1] == '/') {
        (void)snprintf(less, sizeof(less), "%.*s", (int)n - 1, name);
        at = served_place(s, less);
    }
    if (at < s->names) {
        put_card(s, at, x->http->started_wall_us / EK_US_PER_S, &a->body);
        return 0;
    }
    (void)served_model(s, name, &err);
    answer_error(a, &err);
    return 0;
}
