/* The documents that the API answers with, see api.h; what changes something is in api_write.c. */
#include "supervisor/web/api.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "supervisor/io/aside.h"
#include "supervisor/io/peers.h"
#include "supervisor/servers/fleet.h"
#include "supervisor/servers/server_past.h"
#include "supervisor/web/api_parts.h"
#include "supervisor/web/api_postmortem.h"
#include "supervisor/web/key_table.h"

#define PREFIX "/api/v1/servers"

int api_error(struct ek_buf *out, int status, const char *field, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap); /* a longer sentence is cut */
    va_end(ap);
    (void)ek_buf_puts(out, "{\"error\":{\"message\":\"");
    (void)ek_buf_json(out, text, strlen(text));
    (void)ek_buf_puts(out, "\",\"field\":\"");
    (void)ek_buf_json(out, field, strlen(field));
    (void)ek_buf_puts(out, "\"}}");
    return ek_buf_ok(out) ? status : -ENOMEM;
}

static void api_put_number(struct ek_buf *out, const char *key, uint32_t v)
{
    if (v)
        (void)ek_buf_printf(out, "\"%s\":%u", key, v);
    else
        (void)ek_buf_printf(out, "\"%s\":null", key);
}

void api_put_limits(const struct server *s, struct ek_buf *out)
{
    struct policy_params p = server_params(s);
    const uint32_t min[KNOB_COUNT] = {p.seqs_min, p.tokens_min};
    const uint32_t max[KNOB_COUNT] = {p.seqs_max, p.tokens_max};
    (void)ek_buf_puts(out, "{");
    for (int k = 0; k < KNOB_COUNT; k++) {
        (void)ek_buf_printf(out, "%s\"%s\":{", k ? "," : "", knob_name((enum knob)k));
        uint32_t ceiling = server_ceiling(s, (enum knob)k);
        bool shown = s->law.policy && (ceiling || server_limits_live(s) || s->config->edge);
        api_put_number(out, "value", shown ? policy_limit(s->law.policy, (enum knob)k) : 0);
        (void)ek_buf_puts(out, ",");
        api_put_number(out, "ceiling", ceiling);
        (void)ek_buf_puts(out, ",");
        api_put_number(out, "max", max[k]);
        (void)ek_buf_printf(out, ",\"min\":%u,\"pinned\":%s}", min[k],
                            s->law.policy && policy_pinned(s->law.policy, (enum knob)k) ? "true"
                                                                                        : "false");
    }
    (void)ek_buf_puts(out, "}");
}

/* What running out of memory taught, null where nothing of it is in force. */
static void put_learned(const struct server *s, struct ek_buf *out)
{
    char text[REPAIR_TEXT];
    double left_s = repair_learned(s, text, sizeof(text));
    if (left_s > 0) {
        (void)ek_buf_puts(out, "{\"flags\":\"");
        (void)ek_buf_json(out, text, strlen(text));
        (void)ek_buf_printf(out, "\",\"left_s\":%.0f}", left_s);
    } else {
        (void)ek_buf_puts(out, "null");
    }
}

/* Read once a minute; null where it is not known. */
static void api_put_memory(const struct server *s, struct ek_buf *out)
{
    const struct memory_figures *m = &s->memory.now;
    const struct {
        const char *name;
        double bytes;
    } figures[] = {{"resident_bytes", m->resident},
                   {"cgroup_bytes", m->cgroup},
                   {"cgroup_most_bytes", m->most}};
    const struct gpus *g = figures_gpus(s->with->figures);
    (void)ek_buf_puts(out, "\"memory\":{");
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++) {
        if (memory_known(s) && isfinite(figures[i].bytes) && figures[i].bytes > 0)
            (void)ek_buf_printf(out, "\"%s\":%.0f,", figures[i].name, figures[i].bytes);
        else
            (void)ek_buf_printf(out, "\"%s\":null,", figures[i].name);
    }
    (void)ek_buf_puts(out, "\"devices\":[");
    const char *comma = "";
    for (uint32_t i = 0; g->error == 0 && i < g->count; i++) {
        if (g->at[i].total == 0 || !gpus_has(s->config->device_set, i))
            continue;
        (void)ek_buf_printf(out, "%s{\"index\":%u,\"used_bytes\":%llu,\"total_bytes\":%llu", comma,
                            i, (unsigned long long)g->at[i].used,
                            (unsigned long long)g->at[i].total);
        if (g->at[i].busy_percent >= 0)
            (void)ek_buf_printf(out, ",\"busy\":%.2f}", g->at[i].busy_percent / 100.0);
        else
            (void)ek_buf_puts(out, ",\"busy\":null}");
        comma = ",";
    }
    (void)ek_buf_puts(out, "]}");
}

static const char *mode_name(enum policy_mode m)
{
    switch (m) {
    case MODE_OBSERVE: return "observe";
    case MODE_ADVISE: return "advise";
    case MODE_ACT: return "act";
    }
    return "";
}

static void put_path(struct ek_buf *out, const char *key, const char *path)
{
    (void)ek_buf_printf(out, "\"%s\":%s", key, path && *path ? "\"" : "null,");
    if (path && *path) {
        (void)ek_buf_json(out, path, strlen(path));
        (void)ek_buf_puts(out, "\",");
    }
}

/* A restart that comes later, or that was to come and does not. */
static void put_restart(const struct server *s, struct ek_buf *out)
{
    bool turn = s->upkeep.asked;
    if (turn || s->drain.restart_waits)
        (void)ek_buf_printf(out, "\"restart_waits\":\"%s\",",
                            turn ? "for its turn" : "until it is ready");
    if (!s->drain.refused[0])
        return;
    (void)ek_buf_puts(out, "\"restart_refused\":\"");
    (void)ek_buf_json(out, s->drain.refused, strlen(s->drain.refused));
    (void)ek_buf_puts(out, "\",");
}

/* Of an engine in a process of its own, as it was read last. */
static void put_engine_process(const struct server *s, struct ek_buf *out)
{
    struct engine_figures f;
    if (server_engine_figures(s, &f))
        (void)ek_buf_printf(out,
                            "\"engine_process\":{\"state\":\"%s\",\"planned\":%.0f,"
                            "\"lost\":%.0f,\"pause_s\":%.3f},",
                            f.state, f.planned, f.lost, f.pause_s);
}

/* What it is and what its process does. */
static void put_life(const struct server *s, struct ek_buf *out)
{
    const struct server_config *c = s->config;
    bool runs = s->process.child.pid > 0;
    double uptime = runs ? (double)(ek_now_us() - s->process.started_us) / 1e6 : 0;
    (void)ek_buf_printf(out, "\"name\":\"%s\",\"engine\":\"%s\",\"state\":\"%s\",\"model\":\"",
                        c->name, c->engine, server_state_name(s->state));
    (void)ek_buf_json(out, s->address.model, strlen(s->address.model));
    (void)ek_buf_printf(out,
                        "\",\"pid\":%d,\"uptime_s\":%.1f,\"ready\":%s,\"halted\":%s,"
                        "\"adopted\":%s,",
                        (int)s->process.child.pid, uptime, s->probe.ready ? "true" : "false",
                        s->watch.halted_us ? "true" : "false",
                        s->process.adopted ? "true" : "false");
    (void)ek_buf_printf(out, "\"mode\":\"%s\",\"policy_state\":\"%s\",\"restarts\":%llu,",
                        mode_name(c->policy.mode),
                        policy_state_name(s->law.policy ? policy_state(s->law.policy) : POL_INIT),
                        (unsigned long long)past_restarts(s));
    (void)ek_buf_printf(out, "\"url\":\"%s\",\"poll_s\":%g,\"usage_high\":%g,\"signal_good\":%s,",
                        s->address.url, c->poll_s, c->policy.usage_high,
                        s->watch.sample.good ? "true" : "false");
    if (c->edge)
        (void)ek_buf_printf(out, "\"edge\":\"%s\",", c->edge);
    if (s->prove.needs[0]) {
        (void)ek_buf_puts(out, "\"needs_restart\":\"");
        (void)ek_buf_json(out, s->prove.needs, strlen(s->prove.needs));
        (void)ek_buf_puts(out, "\",");
    }
    put_restart(s, out);
    put_engine_process(s, out);
    (void)ek_buf_printf(out, "\"open_without_key\":%s,", server_is_open(s) ? "true" : "false");
    put_path(out, "config_file", c->file);
    put_path(out, "log_file", s->process.log.path[0] ? s->process.log.path : c->log_file);
}

/* `,"key":` and the decision, or null. */
static int put_decision(const struct server *s, const char *key, const struct decision *d,
                        struct ek_buf *out)
{
    (void)ek_buf_printf(out, ",\"%s\":", key);
    if (d)
        return decision_json(d, s->config->name, out);
    (void)ek_buf_puts(out, "null");
    return 0;
}

int api_server(const struct server *s, struct ek_buf *out)
{
    const bool waits = s->law.waits.reason != REASON_NONE;
    (void)ek_buf_puts(out, "{");
    put_life(s, out);
    api_put_memory(s, out);
    (void)ek_buf_printf(
        out, ",\"live_limits\":%s,\"limits\":", server_limits_live(s) ? "true" : "false");
    api_put_limits(s, out);
    (void)ek_buf_puts(out, ",\"learned\":");
    put_learned(s, out);
    (void)ek_buf_puts(out, ",\"signals\":");
    int r = view_json(&s->watch.view, out);
    (void)ek_buf_printf(out, ",\"waiting_why\":%s", s->watch.waiting_why[0] ? "\"" : "null");
    if (s->watch.waiting_why[0]) {
        (void)ek_buf_json(out, s->watch.waiting_why, strlen(s->watch.waiting_why));
        (void)ek_buf_puts(out, "\"");
    }
    (void)ek_buf_puts(out, ",");
    key_table_json(s, false, out);
    if (r == 0)
        r = put_decision(s, "waits_for", waits ? &s->law.waits : NULL, out);
    if (r == 0)
        r = put_decision(s, "last_decision", decisions_at(&s->law.decisions, 0), out);
    (void)ek_buf_puts(out, "}");
    return r < 0 ? r : ek_buf_ok(out) ? 0 : -ENOMEM;
}

void api_hint(const struct fleet *all, struct ek_buf *out)
{
    const char *dirs = all->config->servers_dir;
    if (dirs && *dirs)
        (void)ek_buf_printf(
            out,
            "No server is configured. Put a file NAME.yaml with `model: DIR` and "
            "`port: 8000` into %.*s and run: systemctl reload evenkeeld. A model to "
            "try: apt install evenkeel-model-tiny.",
            (int)strcspn(dirs, ":"), dirs);
    else
        (void)ek_buf_puts(out, "No server is configured. Add one below `servers:` in evenkeeld's "
                               "configuration and run: evenkeelctl reload.");
}

static int put_servers(const struct fleet *all, struct ek_buf *out)
{
    int r = 0;
    (void)ek_buf_printf(out, "{\"version\":\"%s\",\"pid\":%d,\"listen\":\"%s\",", EK_VERSION,
                        (int)getpid(), all->config->listen ? all->config->listen : "off");
    put_path(out, "config_file", all->config->file);
    (void)ek_buf_puts(out, "\"servers\":[");
    for (uint32_t i = 0; i < all->count && r == 0; i++) {
        if (i > 0)
            (void)ek_buf_puts(out, ",");
        r = api_server(all->servers[i], out);
    }
    (void)ek_buf_puts(out, "]");
    if (all->count == 0) {
        (void)ek_buf_puts(out, ",\"hint\":\"");
        struct ek_buf hint = {0};
        api_hint(all, &hint);
        (void)ek_buf_json(out, hint.data ? hint.data : "", hint.len);
        (void)ek_buf_puts(out, "\"");
        ek_buf_done(&hint);
    }
    (void)ek_buf_puts(out, "}");
    return r < 0 ? r : ek_buf_ok(out) ? 200 : -ENOMEM;
}

bool api_split_path(const char *path, char ret_name[40], char ret_verb[24])
{
    ret_name[0] = ret_verb[0] = '\0';
    if (strncmp(path, PREFIX "/", sizeof(PREFIX)) != 0)
        return false;
    path += sizeof(PREFIX);
    size_t len = strcspn(path, "/");
    if (len == 0 || len >= 40)
        return false;
    memcpy(ret_name, path, len);
    ret_name[len] = '\0';
    path += len;
    if (*path == '\0')
        return true;
    path++;
    if (!*path || strlen(path) >= 24)
        return false;
    memcpy(ret_verb, path, strlen(path) + 1);
    return true;
}

static bool query_number(api_query_fn query, void *ctx, const char *name, unsigned long long def,
                         unsigned long long most, unsigned long long *ret)
{
    const char *text = query(ctx, name);
    *ret = def;
    if (!text)
        return true;
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 18 || text[digits])
        return false;
    *ret = strtoull(text, NULL, 10);
    return *ret <= most;
}

int api_no_server(const struct fleet *all, const char *name, struct ek_buf *out)
{
    return api_error(out, 404, "server", "there is no server '%s'; %s %u, the first is '%s'", name,
                     all->count == 1 ? "there is" : "there are", all->count,
                     all->count ? all->servers[0]->config->name : "");
}

/* Decisions of long ago are read from the disk, in a thread. */
struct past_job {
    struct past_query query;
    const char *comma;
    struct ek_buf out; /* the answer, begun with those that the server holds */
    int error;
    api_fn cb;
    void *ctx;
};

static void drop_past(void *ctx)
{
    struct past_job *j = ctx;
    ek_buf_done(&j->out);
    free(j);
}

static void read_past(void *ctx)
{
    struct past_job *j = ctx;
    j->error = past_decisions(&j->query, j->comma, &j->out);
    (void)ek_buf_puts(&j->out, "]}");
}

static void on_past(void *ctx)
{
    struct past_job *j = ctx;
    struct ek_buf failed = {0};
    if (j->error == 0 && ek_buf_ok(&j->out)) {
        j->cb(j->ctx, 200, j->out.data, j->out.len);
    } else {
        (void)api_error(&failed, 500, "since", "the incident log cannot be read: %s",
                        ek_strerror(j->error ? j->error : -ENOMEM));
        j->cb(j->ctx, 500, failed.data ? failed.data : "", failed.len);
    }
    ek_buf_done(&failed);
    drop_past(j);
}

/* Takes what `out` has. 0: cb follows. */
static int put_past(const struct server *s, const struct past_query *query, const char *comma,
                    api_fn cb, void *ctx, struct ek_buf *out)
{
    struct past_job *j = malloc(sizeof(*j));
    if (!j)
        return -ENOMEM;
    *j = (struct past_job){.query = *query, .comma = comma, .out = *out, .cb = cb, .ctx = ctx};
    *out = (struct ek_buf){0};
    int r = aside_run(s->with->aside, read_past, on_past, drop_past, j);
    if (r == 0)
        return 0;
    drop_past(j);
    return r == -ENOMEM
               ? r
               : api_error(out, 503, "since", "the history is being read for %u others; try again",
                           ASIDE_MOST);
}

/* The newest that it holds; when asked for a time, those before them from the disk, too. */
static int put_decisions(const struct server *s, uint64_t since_us, uint32_t limit, api_fn cb,
                         void *ctx, struct ek_buf *out)
{
    uint32_t n = 0;
    struct past_query query;
    const struct decision *d;
    while (n < limit && (d = decisions_at(&s->law.decisions, n)) && d->wall_us >= since_us)
        n++;
    (void)ek_buf_puts(out, "{\"decisions\":");
    int r = decisions_json(&s->law.decisions, s->config->name, n, out);
    if (r == 0 && since_us > 0 && n == s->law.decisions.count &&
        past_ask(s, since_us, limit - n, &query)) {
        out->len--; /* the bracket: the list goes on */
        return put_past(s, &query, n ? "," : "", cb, ctx, out);
    }
    (void)ek_buf_puts(out, "}");
    return r < 0 ? r : 200;
}

static int read_server(const struct server *s, const char *verb, api_query_fn query, void *ctx,
                       api_fn cb, void *cb_ctx, struct ek_buf *out)
{
    unsigned long long limit, since, every, end;
    int r;
    if (!*verb) {
        r = api_server(s, out);
    } else if (strcmp(verb, "decisions") == 0) {
        if (!query_number(query, ctx, "limit", 50, API_DECISIONS_MOST, &limit))
            return api_error(out, 400, "limit", "limit must be a number from 0 to %d",
                             API_DECISIONS_MOST);
        if (!query_number(query, ctx, "since", 0, UINT32_MAX, &since))
            return api_error(out, 400, "since", "since must be a time in seconds since 1970");
        r = put_decisions(s, since * EK_US_PER_S, (uint32_t)limit, cb, cb_ctx, out);
        if (r != 200)
            return r;
    } else if (strcmp(verb, "failures") == 0) {
        if (!query_number(query, ctx, "limit", FAILURES_KEPT, FAILURES_KEPT, &limit))
            return api_error(out, 400, "limit", "limit must be a number from 0 to %d",
                             FAILURES_KEPT);
        (void)ek_buf_puts(out, "{\"failures\":");
        r = failures_json(&s->ends.failures, (uint32_t)limit, out);
        (void)ek_buf_puts(out, "}");
    } else if (strcmp(verb, "history") == 0) {
        if (!query_number(query, ctx, "since", 0, UINT32_MAX, &since))
            return api_error(out, 400, "since", "since must be a time in seconds since 1970");
        if (!query_number(query, ctx, "every", 1, HISTORY_ROWS, &every))
            return api_error(out, 400, "every", "every must be a number from 1 to %d",
                             HISTORY_ROWS);
        r = history_json(s->watch.history, (uint32_t)since, (uint32_t)every, out);
    } else if (strcmp(verb, "postmortem") == 0) {
        if (!query_number(query, ctx, "end", 1, 1000, &end) || end == 0)
            return api_error(out, 400, "end", "end must be a number from 1, the newest, to 1000");
        return api_postmortem(s, (unsigned)end, cb, cb_ctx, out);
    } else if (!strcmp(verb, "limits") || !strcmp(verb, "drain") || !strcmp(verb, "resume") ||
               !strcmp(verb, "restart") || !strcmp(verb, "roll") || !strcmp(verb, "forget")) {
        return api_error(out, 405, "", "%s is for %s", verb,
                         strcmp(verb, "limits") ? "POST" : "PATCH");
    } else {
        return api_error(out, 404, "",
                         "there is no %s; there are decisions, failures, history, "
                         "postmortem and, over the Unix socket, keys",
                         verb);
    }
    return r < 0 ? r : ek_buf_ok(out) ? 200 : -ENOMEM;
}

/* For evenkeelds of other machines: peers.h. */
static int put_lease(const struct fleet *all, struct ek_buf *out)
{
    struct peers_card card = peers_own(all->with.peers);
    uint32_t known = 0;
    for (uint32_t i = 0; i < all->count; i++) {
        const struct server *s = all->servers[i];
        card.ready = card.ready && (s->want != WANT_RUN || s->probe.ready);
        if (sample_has(&s->watch.sample, SIG_KV_USAGE)) {
            card.usage += s->watch.sample.value[SIG_KV_USAGE];
            known++;
        }
    }
    card.usage = known ? card.usage / known : 0;
    return peers_card_json(&card, out) < 0 ? -ENOMEM : 200;
}

int api_read(const struct fleet *all, const char *path, api_query_fn query, void *query_ctx,
             api_fn cb, void *ctx, struct ek_buf *out)
{
    char name[40], verb[24];
    if (strcmp(path, PREFIX) == 0)
        return put_servers(all, out);
    if (strcmp(path, "/api/v1/lease") == 0)
        return put_lease(all, out);
    if (!api_split_path(path, name, verb))
        return api_error(out, 404, "", "there is nothing at this path; see /api/v1/servers");
    const struct server *s = fleet_find(all, name);
    return s ? read_server(s, verb, query, query_ctx, cb, ctx, out) : api_no_server(all, name, out);
}
