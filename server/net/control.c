/*
 * The control socket's routes (through the table of routes), and the verbs that pass descriptors
 * before any HTTP (by listen.c); see control.h.
 */
#include "server/net/control.h"

#include <errno.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/fdpass.h"
#include "common/log.h"
#include "server/api/error.h"
#include "server/api/openai.h"
#include "server/engine/limits.h"
#include "server/net/answer.h"
#include "server/net/request.h"
#include "server/net/state.h"

#define LIMIT_MOST 1e12 /* of any number in a change: times a scale it still fits 64 bits */

/* sock: the connection that it came by. */
static const char *put_listener(struct http *h, int sock, int fd)
{
    const char *answer = "OK\n";
    if (fd < 0)
        return "ERR no descriptor came with it\n";
    if (!ek_is_listener(fd)) {
        (void)close(fd);
        return "ERR the descriptor is no listening stream socket\n";
    }
    pthread_mutex_lock(&h->lock);
    if (h->listen_fd >= 0 || h->handed_fd >= 0) {
        (void)close(fd);
        answer = "ERR there is a listening socket already\n";
    } else {
        h->handed_fd = fd;
        keeper_set(&h->keeper, sock);
        (void)eventfd_write(h->listen_event, 1);
    }
    pthread_mutex_unlock(&h->lock);
    return answer;
}

/* Sent as it is, under the lock: a duplicate would need a descriptor, which may be what lacks. */
static int give_listener(struct http *h, int sock)
{
    pthread_mutex_lock(&h->lock);
    int fd = h->listen_fd >= 0 ? h->listen_fd : h->handed_fd;
    int r = ek_fd_send(sock, fd >= 0 ? "OK\n" : "ERR there is no listening socket\n", fd);
    if (fd >= 0 && r == 0)
        keeper_set(&h->keeper, sock);
    pthread_mutex_unlock(&h->lock);
    return r;
}

void control_verb(struct http *h, int fd)
{
    char line[128];
    int got = -1, r;
    const char *answer = "ERR unknown verb; put listen, get listen and put losses are known\n";
    int n = ek_fd_recv(fd, line, sizeof(line), &got);
    if (n <= 0)
        return;
    if (strcmp(line, EK_FD_PREFIX "put listen\n") == 0) {
        answer = put_listener(h, fd, got);
        got = -1;
    }
    if (strcmp(line, EK_FD_PREFIX "put losses\n") == 0) {
        const char *refused = losses_put(&h->losses, got);
        answer = refused ? refused : "OK\n";
        got = -1;
    }
    if (strcmp(line, EK_FD_PREFIX "get listen\n") == 0)
        r = give_listener(h, fd);
    else
        r = ek_fd_send(fd, answer, -1);
    if (r < 0)
        ek_log(EK_LOG_DEBUG, "control: a peer left before it had its answer");
    if (got >= 0)
        (void)close(got);
}

static double control_outside(const struct limit_info *info, uint64_t value)
{
    return (double)value / info->scale;
}

static void put_row(struct ek_buf *out, const char *head, const uint64_t *value)
{
    (void)ek_buf_puts(out, head);
    for (int i = 0; i < LIMIT_COUNT; i++)
        (void)ek_buf_printf(out, "%s\"%s\":%.12g", i ? "," : "", limit_table[i].name,
                            control_outside(&limit_table[i], value[i]));
}

static void control_put_text(struct ek_buf *out, const char *key, const char *text)
{
    (void)ek_buf_printf(out, ",\"%s\":\"", key);
    (void)ek_buf_json(out, text, strlen(text));
    (void)ek_buf_puts(out, "\"");
}

/* Seconds between two times, null when one of them is none. */
static void put_seconds(struct ek_buf *out, uint64_t from_us, uint64_t to_us)
{
    if (from_us == 0 || to_us == 0)
        (void)ek_buf_puts(out, "null");
    else
        (void)ek_buf_printf(out, "%.3f", to_us > from_us ? (double)(to_us - from_us) / 1e6 : 0.0);
}

void control_write_limits(const struct limits *l, uint64_t now_us, struct ek_buf *out)
{
    put_row(out, "{", l->value);
    (void)ek_buf_printf(out, ",\"generation\":%llu", (unsigned long long)l->generation);
    control_put_text(out, "origin", l->origin);
    control_put_text(out, "reason", l->reason);
    (void)ek_buf_puts(out, ",\"expires_in_s\":");
    put_seconds(out, now_us, limits_next_expiry(l));
    put_row(out, ",\"ceiling\":{", l->ceiling);
    put_row(out, "},\"floor\":{", l->floor);
    put_row(out, "},\"start\":{", l->start);
    (void)ek_buf_puts(out, "},\"changed_s_ago\":{");
    for (int i = 0; i < LIMIT_COUNT; i++) {
        (void)ek_buf_printf(out, "%s\"%s\":", i ? "," : "", limit_table[i].name);
        put_seconds(out, l->changed_us[i], now_us);
    }
    (void)ek_buf_puts(out, "},\"expiring_in_s\":{");
    for (int i = 0; i < LIMIT_COUNT; i++) {
        (void)ek_buf_printf(out, "%s\"%s\":", i ? "," : "", limit_table[i].name);
        put_seconds(out, now_us, l->expires_us[i]);
    }
    (void)ek_buf_puts(out, "}}");
}

static int control_read_text(const json_t *body, const char *name, char *to, size_t size,
                             struct api_error *err)
{
    const json_t *v = json_object_get(body, name);
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_string(v) || json_string_length(v) >= size)
        return api_refuse(err, 400, name, "`%s` must be a string shorter than %zu bytes.", name,
                          size);
    (void)snprintf(to, size, "%s", json_string_value(v));
    return 0;
}

static int read_limit(const char *name, const json_t *v, struct limits_change *c,
                      struct api_error *err)
{
    for (int i = 0; i < LIMIT_COUNT; i++) {
        const struct limit_info *info = &limit_table[i];
        if (strcmp(name, info->name) != 0)
            continue;
        double d = json_number_value(v);
        if (!json_is_number(v) || !(d >= 0 && d <= LIMIT_MOST) || (info->whole && d != floor(d)))
            return api_refuse(err, 400, name, "`%s` must be a %s from 0 to %.0f.", name,
                              info->whole ? "whole number" : "number", LIMIT_MOST);
        c->set |= 1u << i;
        c->value[i] = (uint64_t)llround(d * info->scale);
        return 0;
    }
    return api_refuse(err, 400, name,
                      "There is no limit `%.40s`; GET /v1/runtime_config shows them all.", name);
}

static int control_read_number(const json_t *v, const char *name, double scale, uint64_t *at,
                               struct api_error *err)
{
    double d = json_number_value(v);
    if (json_is_null(v))
        return 0;
    if (!json_is_number(v) || !(d >= 0 && d <= LIMIT_MOST))
        return api_refuse(err, 400, name, "`%s` must be a number from 0 to %.0f.", name,
                          LIMIT_MOST);
    *at = (uint64_t)llround(d * scale);
    return 0;
}

static int parse_fields(json_t *body, struct limits_change *c, struct api_error *err)
{
    const char *key;
    json_t *v;
    json_object_foreach(body, key, v)
    {
        int r;
        if (strcmp(key, "origin") == 0)
            r = control_read_text(body, key, c->origin, sizeof(c->origin), err);
        else if (strcmp(key, "reason") == 0)
            r = control_read_text(body, key, c->reason, sizeof(c->reason), err);
        else if (strcmp(key, "generation") == 0)
            r = control_read_number(v, key, 1, &c->generation, err);
        else if (strcmp(key, "expires_in_s") == 0)
            r = control_read_number(v, key, 1e6, &c->expires_in_us, err);
        else
            r = read_limit(key, v, c, err);
        if (r < 0)
            return r;
    }
    if (c->set == 0)
        return api_refuse(err, 400, "", "The body names no limit, for example {\"%s\": 8}.",
                          limit_table[LIMIT_RUNNING_SEQS].name);
    return 0;
}

int control_parse_limits(const char *bytes, size_t len, struct limits_change *ret_change,
                         struct api_error *err)
{
    struct limits_change c = {0};
    json_t *body = openai_load(bytes, len, err);
    if (!body)
        return -EBADMSG;
    int r = parse_fields(body, &c, err);
    json_decref(body);
    if (r == 0)
        *ret_change = c;
    return r;
}

int control_get_limits(struct exchange *x, struct answer *a)
{
    struct limits l;
    engine_limits(http_served(x->http)->engine, &l);
    control_write_limits(&l, ek_now_us(), &a->body);
    return 0;
}

int control_patch_limits(struct exchange *x, struct answer *a)
{
    struct limits_change c;
    struct limits now;
    struct api_error err;
    struct ek_fault fault = {0};
    if (control_parse_limits(x->body.data, x->body.len, &c, &err) < 0) {
        answer_error(a, &err);
        return 0;
    }
    int r = engine_limits_apply(http_served(x->http)->engine, &c, &now, &fault);
    if (r < 0) {
        int status = r == EK_ESTALE                                                      ? 409
                     : r == EK_EDEVMEM || r == -ENOMEM || r == -EBUSY || r == -ESHUTDOWN ? 503
                                                                                         : 400;
        answer_fault(a, status, fault.field, fault.msg[0] ? fault.msg : ek_strerror(r));
        return 0;
    }
    for (int i = 0; i < LIMIT_COUNT; i++) {
        if (c.set & (1u << i))
            ek_log(EK_LOG_NOTICE, "Limit %s is now %.12g (%s%s%s)", limit_table[i].name,
                   control_outside(&limit_table[i], now.value[i]),
                   c.origin[0] ? c.origin : "control socket", c.reason[0] ? ": " : "", c.reason);
    }
    control_write_limits(&now, ek_now_us(), &a->body);
    return 0;
}

static void answer_drain(struct exchange *x, struct answer *a)
{
    static const char *const states[] = {"serving", "draining", "drained"};
    const struct served *served = http_served(x->http); /* NULL while the model loads */
    struct engine_stats s = {.drain =
                                 atomic_load(&x->http->drain) ? ENGINE_DRAINING : ENGINE_SERVING};
    if (served)
        engine_stats(served->engine, &s);
    (void)ek_buf_printf(&a->body, "{\"state\":\"%s\",\"running\":%u,\"waiting\":%u,\"open\":%u}",
                        states[s.drain], s.running, s.waiting, atomic_load(&x->http->active));
}

int control_drain(struct exchange *x, struct answer *a)
{
    double deadline = x->http->p.shutdown_timeout_s;
    enum http_drain_mode mode = x->http->p.drain_mode;
    struct api_error err = {0};
    bool leave = false;
    json_t *body = NULL;
    if (x->body.len) {
        body = openai_load(x->body.data, x->body.len, &err);
        const json_t *d = json_object_get(body, "deadline_s"), *m = json_object_get(body, "mode");
        const json_t *e = json_object_get(body, "exit");
        const char *name = json_string_value(m);
        if (!body)
            ;
        else if (d &&
                 !(json_is_number(d) && json_number_value(d) >= 0 && json_number_value(d) <= 86400))
            (void)api_refuse(&err, 400, "deadline_s", "`deadline_s` must be 0 to 86400.");
        else if (m && !(name && (strcmp(name, "refuse") == 0 || strcmp(name, "hold") == 0)))
            (void)api_refuse(&err, 400, "mode", "`mode` must be refuse or hold.");
        else if (e && !json_is_boolean(e))
            (void)api_refuse(&err, 400, "exit", "`exit` must be true or false.");
        else {
            deadline = d ? json_number_value(d) : deadline;
            leave = json_is_true(e);
            if (m)
                mode = strcmp(name, "hold") == 0 ? HTTP_DRAIN_HOLD : HTTP_DRAIN_REFUSE;
        }
        json_decref(body);
    }
    if (err.status) {
        answer_error(a, &err);
        return 0;
    }
    x->http->p.drain(x->http->p.ctx, deadline, mode, leave);
    answer_drain(x, a);
    return 0;
}

int control_resume(struct exchange *x, struct answer *a)
{
    x->http->p.resume(x->http->p.ctx);
    answer_drain(x, a);
    return 0;
}

int control_reset_prefix_cache(struct exchange *x, struct answer *a)
{
    engine_reset_prefix_cache(http_served(x->http)->engine);
    ek_log(EK_LOG_NOTICE, "The prefix cache is reset");
    (void)ek_buf_puts(&a->body, "{}");
    return 0;
}

/* What the C library holds and does not use goes back to the system; the KV pool is not touched. */
int control_trim(struct exchange *x, struct answer *a)
{
    (void)x;
    bool gave = malloc_trim(0) == 1;
    ek_log(EK_LOG_NOTICE, "Trimmed: %s", gave ? "memory was given back" : "nothing to give back");
    (void)ek_buf_printf(&a->body, "{\"gave_back\":%s}", gave ? "true" : "false");
    return 0;
}
