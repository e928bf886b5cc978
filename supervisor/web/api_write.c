/*
 * The verbs of the API: changes of limits, what starts and ends servers, reading the configuration
 * again. Each checks its body, asks the server or the loop, and answers at once or by the callback
 * when what was asked has ended. See api.h.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "supervisor/servers/fleet.h"
#include "supervisor/web/api.h"
#include "supervisor/web/api_parts.h"

static int api_write_bad(char *text, size_t text_size, char *field, size_t field_size,
                         const char *name, const char *what)
{
    (void)snprintf(field, field_size, "%s", name);
    (void)snprintf(text, text_size, "%.60s %s", name, what);
    return -EBADMSG;
}

/* Reads the body of PATCH limits. 0, or -EBADMSG with text and field. */
static int api_parse_change(const char *body, size_t len, struct server_change *ret_change,
                            char *text, size_t text_size, char *field, size_t field_size)
{
    struct server_change c = {0};
    int r = 0, named = 0;
    json_error_t e;
    json_t *root = json_loadb(body, len, JSON_REJECT_DUPLICATES, &e);
    if (!json_is_object(root)) {
        char what[240] = "must be a JSON object";
        if (!root && len > 0)
            (void)snprintf(what, sizeof(what), "is not valid JSON: %s (line %d, column %d)", e.text,
                           e.line, e.column);
        json_decref(root);
        return api_write_bad(text, text_size, field, field_size, "body", what);
    }
    for (void *i = json_object_iter(root); i && r == 0; i = json_object_iter_next(root, i)) {
        const char *key = json_object_iter_key(i);
        const json_t *v = json_object_iter_value(i);
        int k = 0;
        while (k < KNOB_COUNT && strcmp(key, knob_name((enum knob)k)) != 0)
            k++;
        if (k < KNOB_COUNT) {
            if (!json_is_integer(v) || json_integer_value(v) < 1 ||
                json_integer_value(v) > UINT32_MAX)
                r = api_write_bad(text, text_size, field, field_size, key,
                                  "must be a whole number from 1");
            else
                c.value[k] = (uint32_t)json_integer_value(v);
            c.named[k] = true;
            named++;
        } else if (strcmp(key, "pin") == 0) {
            c.has_pin = true;
            c.pin = json_is_true(v);
            if (!json_is_boolean(v))
                r = api_write_bad(text, text_size, field, field_size, key, "must be true or false");
        } else if (strcmp(key, "reason") == 0) {
            if (!json_is_string(v))
                r = api_write_bad(text, text_size, field, field_size, key, "must be text");
            else
                (void)snprintf(c.reason, sizeof(c.reason), "%s", json_string_value(v));
        } else {
            r = api_write_bad(
                text, text_size, field, field_size, key,
                "is no limit; there are max_num_running_seqs and max_num_batched_tokens");
        }
    }
    json_decref(root);
    if (r == 0 && named == 0 && !c.has_pin)
        r = api_write_bad(text, text_size, field, field_size, "body", "names no limit and no pin");
    if (r < 0)
        return r;
    for (int k = 0; named == 0 && k < KNOB_COUNT; k++)
        c.named[k] = true; /* a bare pin is for all */
    *ret_change = c;
    return 0;
}

struct api_writing {
    const struct server *server;
    api_fn cb;
    void *ctx;
};

static int status_of(int error)
{
    switch (error) {
    case -EBADMSG: return 400;
    case -EBUSY: return 409;
    case EK_ESTALE: return 409;
    case -EINVAL: return 501;
    case -ETIMEDOUT: return 504;
    }
    return 502;
}

static void on_limits_set(void *ctx, int error, const char *text)
{
    struct api_writing *w = ctx;
    struct ek_buf out = {0};
    int status = 200;
    if (error < 0) {
        status = api_error(&out, status_of(error), "limits", "%s", text);
    } else {
        (void)ek_buf_puts(&out, "{\"limits\":");
        api_put_limits(w->server, &out);
        (void)ek_buf_puts(&out, "}");
    }
    bool ok = ek_buf_ok(&out) && status > 0;
    w->cb(w->ctx, ok ? status : 500, ok ? out.data : "", ok ? out.len : 0);
    ek_buf_done(&out);
    free(w);
}

static int write_limits(struct server *s, const char *body, size_t len, api_fn cb, void *ctx,
                        struct ek_buf *out)
{
    struct server_change change;
    char text[300], field[64];
    int r = api_parse_change(body, len, &change, text, sizeof(text), field, sizeof(field));
    if (r < 0)
        return api_error(out, 400, field, "%s", text);
    (void)snprintf(change.who, sizeof(change.who), "%s", s->with->who ? s->with->who : "");
    struct api_writing *w = malloc(sizeof(*w));
    if (!w)
        return -ENOMEM;
    *w = (struct api_writing){.server = s, .cb = cb, .ctx = ctx};
    r = server_set_limits(s, &change, on_limits_set, w, text, sizeof(text));
    if (r == 0)
        return 0;
    free(w);
    for (int k = 0; k < KNOB_COUNT; k++) {
        if (change.value[k])
            (void)snprintf(field, sizeof(field), "%s", knob_name((enum knob)k));
    }
    return api_error(out, status_of(r), r == -EBADMSG ? field : "limits", "%s", text);
}

static void on_verb_done(void *ctx, int error, const char *text)
{
    struct api_writing *w = ctx;
    struct ek_buf out = {0};
    int status = error < 0 ? api_error(&out, status_of(error), "", "%s", text) : 202;
    if (error == 0 && api_server(w->server, &out) < 0)
        status = -ENOMEM;
    bool ok = ek_buf_ok(&out) && status > 0;
    w->cb(w->ctx, ok ? status : 500, ok ? out.data : "", ok ? out.len : 0);
    ek_buf_done(&out);
    free(w);
}

/* Restart and roll prove first what would be started, and an order to the engine's process is the
 * server's to refuse (`engine`, else NULL): the answer may come later. */
static int write_later(struct server *s, const struct trial *trial, const char *engine, api_fn cb,
                       void *ctx, char *text, size_t size)
{
    struct api_writing *w = malloc(sizeof(*w));
    if (!w)
        return -ENOMEM;
    *w = (struct api_writing){.server = s, .cb = cb, .ctx = ctx};
    int r = engine  ? server_engine(s, engine, on_verb_done, w, text, size)
            : trial ? server_restart(s, trial, on_verb_done, w, text, size)
                    : server_roll(s, on_verb_done, w, text, size);
    if (r <= 0)
        free(w);
    return r;
}

static bool api_engine_word(const char *word)
{
    return !strcmp(word, "restart") || !strcmp(word, "release") || !strcmp(word, "acquire");
}

static int write_verb(struct server *s, const char *verb, const char *body, size_t len, api_fn cb,
                      void *ctx, struct ek_buf *out)
{
    char text[600] = "";
    struct trial trial;
    const char *field = "";
    int r;
    if (strcmp(verb, "drain") == 0)
        r = server_drain(s, text, sizeof(text));
    else if (strcmp(verb, "resume") == 0)
        r = server_resume(s, text, sizeof(text));
    else if (strcmp(verb, "restart") == 0)
        r = trial_parse(body, len, &trial, text, sizeof(text), &field) < 0
                ? -EBADMSG
                : write_later(s, &trial, NULL, cb, ctx, text, sizeof(text));
    else if (strcmp(verb, "roll") == 0)
        r = write_later(s, NULL, NULL, cb, ctx, text, sizeof(text));
    else if (strncmp(verb, "engine-", 7) == 0 && api_engine_word(verb + 7))
        r = write_later(s, NULL, verb + 7, cb, ctx, text, sizeof(text));
    else if (strcmp(verb, "forget") == 0)
        r = server_forget(s, text, sizeof(text));
    else
        return api_error(out, 404, "",
                         "there is no verb %s; there are limits, drain, resume, restart, "
                         "roll, forget, engine-restart, engine-release and engine-acquire",
                         verb);
    if (r > 0)
        return 0; /* cb follows */
    if (r < 0)
        return api_error(out, status_of(r), field, "%s", text);
    r = api_server(s, out);
    return r < 0 ? r : 202;
}

/* What was read, and which servers need a restart for it. */
static int put_reloaded(const struct fleet *all, struct ek_buf *out)
{
    const char *comma = "";
    (void)ek_buf_printf(out, "{\"servers\":%u,\"restart\":[", all->count);
    for (uint32_t i = 0; i < all->count; i++) {
        const struct server *s = all->servers[i];
        if (!s->prove.needs[0])
            continue;
        (void)ek_buf_printf(out, "%s{\"server\":\"%s\",\"for\":\"", comma, s->config->name);
        (void)ek_buf_json(out, s->prove.needs, strlen(s->prove.needs));
        (void)ek_buf_puts(out, "\"}");
        comma = ",";
    }
    (void)ek_buf_puts(out, "]}");
    return ek_buf_ok(out) ? 200 : -ENOMEM;
}

struct reload_wait {
    const struct fleet *all;
    api_fn cb;
    void *ctx;
};

static int answer_reload(const struct fleet *all, int r, const char *text, struct ek_buf *out)
{
    if (r < 0)
        return api_error(out,
                         r == -ENOMEM  ? 500
                         : r == -EBUSY ? 409
                                       : 400,
                         "config", "the configuration stays as it was: %s", text);
    return put_reloaded(all, out);
}

static void on_reloaded(void *ctx, int error, const char *text)
{
    struct reload_wait *w = ctx;
    struct ek_buf out = {0};
    int status = answer_reload(w->all, error, text, &out);
    bool ok = ek_buf_ok(&out) && status > 0;
    w->cb(w->ctx, ok ? status : 500, ok ? out.data : "", ok ? out.len : 0);
    ek_buf_done(&out);
    free(w);
}

static int write_reload(const struct fleet *all, const char *method, api_fn cb, void *ctx,
                        struct ek_buf *out)
{
    char text[640] = "";
    if (strcmp(method, "POST") != 0)
        return api_error(out, 405, "", "reload wants POST");
    struct reload_wait *w = malloc(sizeof(*w));
    if (!w)
        return -ENOMEM;
    *w = (struct reload_wait){.all = all, .cb = cb, .ctx = ctx};
    int r = all->with.reload(all->with.ctx, on_reloaded, w, text, sizeof(text));
    if (r > 0)
        return 0; /* cb follows */
    free(w);
    return answer_reload(all, r, text, out);
}

static int write_debug(const struct fleet *all, const char *method, const char *body, size_t len,
                       struct ek_buf *out)
{
    json_t *root = json_loadb(body, len, JSON_REJECT_DUPLICATES, NULL);
    const json_t *v = json_object_get(root, "for_s");
    double for_s = json_number_value(v);
    bool good =
        json_is_number(v) && json_object_size(root) == 1 && for_s >= 0 && for_s <= API_DEBUG_MOST_S;
    json_decref(root);
    if (strcmp(method, "POST") != 0)
        return api_error(out, 405, "", "debug wants POST");
    if (!good)
        return api_error(out, 400, "for_s", "for_s must be a number of seconds from 0 to %d",
                         API_DEBUG_MOST_S);
    all->with.debug(all->with.ctx, for_s);
    return ek_buf_printf(out, "{\"for_s\":%.0f}", for_s) < 0 ? -ENOMEM : 200;
}

int api_write(const struct fleet *all, const char *method, const char *path, const char *body,
              size_t len, api_fn cb, void *ctx, struct ek_buf *out)
{
    char name[40], verb[24];
    if (strcmp(path, "/api/v1/reload") == 0)
        return write_reload(all, method, cb, ctx, out);
    if (strcmp(path, "/api/v1/debug") == 0)
        return write_debug(all, method, body, len, out);
    if (!api_split_path(path, name, verb) || !*verb)
        return api_error(out, 404, "", "there is nothing to write at this path");
    struct server *s = fleet_find(all, name);
    if (!s)
        return api_no_server(all, name, out);
    bool limits = strcmp(verb, "limits") == 0;
    if (strcmp(method, limits ? "PATCH" : "POST") != 0)
        return api_error(out, 405, "", "%s wants %s", verb, limits ? "PATCH" : "POST");
    return limits ? write_limits(s, body, len, cb, ctx, out)
                  : write_verb(s, verb, body, len, cb, ctx, out);
}
