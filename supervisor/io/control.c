/*
 * Builds the requests of a server's control socket and reads the answers; servers/action.c, ramp.c,
 * drain.c and upkeep.c call it. A write is three steps, POST, its answer and a GET, chained through
 * callbacks in on_written() and on_read(): a limit that does not read back as asked is reported as
 * an error with what was found.
 */
#include "supervisor/io/control.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "supervisor/io/client.h"

#define CONFIG_URL "http://localhost/v1/runtime_config"

struct control_call {
    struct control *control;
    struct control_call *next, **link;
    struct client_call *http;
    struct control_change want; /* of a write */
    bool writing, verb;         /* verb: drain or resume, no limits in the answer */
    uint32_t timeout_ms;
    control_fn cb;
    void *ctx;
};

struct control {
    struct client *client;
    char *path;
    struct control_call *calls;
};

/* Out of the list; the analyzer sees better when taking and freeing are apart. */
static void call_unlink(struct control_call *c)
{
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
}

static void call_done(struct control_call *c)
{
    client_cancel(c->http);
    free(c);
}

static void call_free(struct control_call *c)
{
    call_unlink(c);
    call_done(c);
}

int control_new(struct client *client, const char *path, struct control **ret_control)
{
    struct control *c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    c->client = client;
    c->path = strdup(path);
    if (!c->path) {
        free(c);
        return -ENOMEM;
    }
    *ret_control = c;
    return 0;
}

void control_free(struct control *c)
{
    if (!c)
        return;
    for (struct control_call *call = c->calls, *next; call; call = next) {
        next = call->next;
        call_done(call);
    }
    free(c->path);
    free(c);
}

static uint32_t control_number_in(const json_t *j)
{
    json_int_t v = json_is_integer(j) ? json_integer_value(j) : 0;
    return v > 0 && v <= UINT32_MAX ? (uint32_t)v : 0;
}

static double seconds_in(const json_t *j)
{
    double v = json_number_value(j);
    return v > 0 && v < 1e8 ? v : 0;
}

static double share_in(const json_t *j)
{
    double v = json_number_value(j);
    return v > 0 && v <= 1 ? v : 0;
}

/* {"max_num_running_seqs": N, ..., "generation": G, "ceiling": {...}, "floor": {...}} */
int control_parse(const char *json, size_t len, struct control_limits *ret_limits)
{
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(root)) {
        json_decref(root);
        return -EBADMSG;
    }
    struct control_limits l = {0};
    json_int_t generation = json_integer_value(json_object_get(root, "generation"));
    l.generation = generation > 0 ? (uint64_t)generation : 0;
    for (int k = 0; k < KNOB_COUNT; k++) {
        const char *name = knob_name((enum knob)k);
        l.knob[k].value = control_number_in(json_object_get(root, name));
        l.knob[k].known = l.knob[k].value > 0;
        l.knob[k].ceiling =
            control_number_in(json_object_get(json_object_get(root, "ceiling"), name));
        l.knob[k].floor = control_number_in(json_object_get(json_object_get(root, "floor"), name));
    }
    const json_t *deadline = json_object_get(root, "queue_deadline_s");
    l.has_deadline = json_is_number(deadline);
    l.deadline_s = seconds_in(deadline);
    l.deadline_start_s =
        seconds_in(json_object_get(json_object_get(root, "start"), "queue_deadline_s"));
    l.reserve = share_in(json_object_get(root, "watermark"));
    l.reserve_start = share_in(json_object_get(json_object_get(root, "start"), "watermark"));
    json_decref(root);
    *ret_limits = l;
    return 0;
}

/* The server's own sentence, when it gave one. */
static void error_text(const struct client_result *res, char *ret_text, size_t size)
{
    json_t *root = json_loadb(res->body, res->len, 0, NULL);
    const json_t *error = json_object_get(root, "error");
    const char *said = json_string_value(json_object_get(error, "message"));
    (void)snprintf(ret_text, size, "%s", said ? said : "no reason given");
    json_decref(root);
}

static void control_finish(struct control_call *c, const struct control_result *res)
{
    control_fn cb = c->cb;
    void *ctx = c->ctx;
    call_free(c);
    cb(ctx, res);
}

static void control_fail(struct control_call *c, int error, const char *text)
{
    struct control_result out = {.error = error};
    (void)snprintf(out.text, sizeof(out.text), "%s", text);
    control_finish(c, &out);
}

static int control_ask(struct control_call *c, const char *method, const char *url,
                       const char *body, client_fn cb)
{
    struct client_req req = {.unix_path = c->control->path,
                             .method = method,
                             .url = url,
                             .body = body,
                             .timeout_ms = c->timeout_ms,
                             .most_bytes = 65536};
    return client_start(c->control->client, &req, cb, c, &c->http);
}

static bool reads_back(const struct control_call *c, const struct control_limits *l)
{
    if (c->writing && c->want.set_deadline && fabs(l->deadline_s - c->want.deadline_s) > 0.001)
        return false;
    if (c->writing && c->want.set_reserve && fabs(l->reserve - c->want.reserve) > 0.0005)
        return false;
    for (int k = 0; k < KNOB_COUNT; k++) {
        if (c->writing && c->want.value[k] && l->knob[k].value != c->want.value[k])
            return false;
    }
    return true;
}

static void on_read(void *ctx, const struct client_result *res)
{
    struct control_call *c = ctx;
    struct control_result out = {0};
    c->http = NULL;
    if (res->error < 0) {
        control_fail(c, res->error, ek_strerror(res->error));
    } else if (res->status != 200) {
        (void)snprintf(out.text, sizeof(out.text), "status %ld", res->status);
        control_fail(c, -EIO, out.text);
    } else if (control_parse(res->body, res->len, &out.limits) < 0) {
        control_fail(c, -EIO, "the answer is no runtime configuration");
    } else if (!reads_back(c, &out.limits)) {
        control_fail(c, -EIO, "the limit was accepted but reads back differently");
    } else {
        control_finish(c, &out);
    }
}

static void on_written(void *ctx, const struct client_result *res)
{
    struct control_call *c = ctx;
    char text[CONTROL_TEXT];
    c->http = NULL;
    if (res->error < 0) {
        control_fail(c, res->error, ek_strerror(res->error));
        return;
    }
    if (res->status / 100 != 2) {
        error_text(res, text, sizeof(text));
        int stale = res->status == 409 || res->status == 412;
        control_fail(c,
                     stale                    ? EK_ESTALE
                     : res->status == 503     ? -EBUSY
                     : res->status / 100 == 4 ? -EBADMSG
                                              : -EIO,
                     text);
        return;
    }
    if (c->verb) {
        struct control_result out = {0};
        control_finish(c, &out);
    } else if (control_ask(c, "GET", CONFIG_URL, NULL, on_read) < 0) {
        control_fail(c, -ENOMEM, "out of memory");
    }
}

static struct control_call *call_new(struct control *c, control_fn cb, void *ctx)
{
    struct control_call *call = calloc(1, sizeof(*call));
    if (!call)
        return NULL;
    call->control = c;
    call->timeout_ms = CONTROL_DEADLINE_MS;
    call->cb = cb;
    call->ctx = ctx;
    call->next = c->calls;
    call->link = &c->calls;
    if (c->calls)
        c->calls->link = &call->next;
    c->calls = call;
    return call;
}

int control_read(struct control *c, control_fn cb, void *ctx)
{
    struct control_call *call = call_new(c, cb, ctx);
    int r = call ? control_ask(call, "GET", CONFIG_URL, NULL, on_read) : -ENOMEM;
    if (call && r < 0)
        call_free(call);
    return r;
}

int control_write(struct control *c, const struct control_change *change, control_fn cb, void *ctx)
{
    struct control_call *call = call_new(c, cb, ctx);
    struct ek_buf body = {0};
    int r = -ENOMEM;
    if (!call)
        return r;
    call->writing = true;
    call->want = *change;
    (void)ek_buf_puts(&body, "{\"origin\":\"");
    (void)ek_buf_json(&body, change->origin, strlen(change->origin));
    (void)ek_buf_puts(&body, "\",\"reason\":\"");
    (void)ek_buf_json(&body, change->reason, strlen(change->reason));
    (void)ek_buf_puts(&body, "\"");
    if (change->generation)
        (void)ek_buf_printf(&body, ",\"generation\":%llu", (unsigned long long)change->generation);
    for (int k = 0; k < KNOB_COUNT; k++) {
        if (change->value[k])
            (void)ek_buf_printf(&body, ",\"%s\":%u", knob_name((enum knob)k), change->value[k]);
    }
    if (change->set_deadline)
        (void)ek_buf_printf(&body, ",\"queue_deadline_s\":%.3f", change->deadline_s);
    if (change->set_reserve)
        (void)ek_buf_printf(&body, ",\"watermark\":%.3f", change->reserve);
    if (change->set_cached)
        (void)ek_buf_printf(&body, ",\"cached_share\":%.3f", change->cached_share);
    (void)ek_buf_puts(&body, "}");
    if (ek_buf_ok(&body))
        r = control_ask(call, "PATCH", CONFIG_URL, body.data, on_written);
    ek_buf_done(&body);
    if (r < 0)
        call_free(call);
    return r;
}

static int verb_within(struct control *c, const char *url, const char *body, uint32_t timeout_ms,
                       control_fn cb, void *ctx)
{
    struct control_call *call = call_new(c, cb, ctx);
    if (!call)
        return -ENOMEM;
    call->verb = true;
    call->timeout_ms = timeout_ms;
    int r = control_ask(call, "POST", url, body, on_written);
    if (r < 0)
        call_free(call);
    return r;
}

static int verb(struct control *c, const char *url, const char *body, control_fn cb, void *ctx)
{
    return verb_within(c, url, body, CONTROL_DEADLINE_MS, cb, ctx);
}

int control_drain(struct control *c, double deadline_s, bool hold, bool leave, control_fn cb,
                  void *ctx)
{
    char body[120];
    (void)snprintf(body, sizeof(body), "{\"deadline_s\":%.3f,\"mode\":\"%s\",\"exit\":%s}",
                   deadline_s, hold ? "hold" : "refuse", leave ? "true" : "false");
    return verb(c, "http://localhost/drain", body, cb, ctx);
}

int control_resume(struct control *c, control_fn cb, void *ctx)
{
    return verb(c, "http://localhost/resume", "{}", cb, ctx);
}

int control_engine(struct control *c, const char *word, control_fn cb, void *ctx)
{
    char url[64];
    (void)snprintf(url, sizeof(url), "http://localhost/v1/engine/%s", word);
    return verb_within(c, url, "{}", CONTROL_ENGINE_MS, cb, ctx);
}

int control_trim(struct control *c, control_fn cb, void *ctx)
{
    return verb(c, "http://localhost/trim", "{}", cb, ctx);
}
