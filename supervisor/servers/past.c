/*
 * Both sides of the incident log: what the running evenkeeld appends at each decision, failure and
 * end, and what a new one makes of it. load_log() keeps only the last records of each server as
 * text while it reads; they are parsed when the file is through, so a long log costs little. loop.c
 * calls it once at the start, servers at each event.
 */
#include "supervisor/servers/server_past.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "supervisor/io/charts.h"
#include "supervisor/io/incidents.h"
#include "supervisor/servers/server_inside.h"

/* Writing */

static void past_append(struct incidents *log, const char *kind, struct ek_buf *json)
{
    if (ek_buf_ok(json)) /* out of memory: this record is missing */
        incidents_append(log, kind, json->data, json->len);
    ek_buf_done(json);
}

void past_watch(const struct services *with, const char *what)
{
    struct ek_buf json = {0};
    (void)ek_buf_printf(&json,
                        "{\"pid\":%d,\"version\":\"" EK_VERSION "\",\"at_s\":%.6f,\"what\":\"%s\"}",
                        (int)getpid(), (double)ek_wall_us() * 1e-6, what);
    past_append(with->incidents, "watch", &json);
}

void past_decision(const struct server *s, const struct decision *d)
{
    struct ek_buf json = {0};
    if (!s->with->incidents)
        return;
    if (decision_json(d, s->config->name, &json) < 0)
        json.failed = true;
    past_append(s->with->incidents, "decision", &json);
}

void past_failure(const struct server *s, const struct failure *f)
{
    struct ek_buf json = {0};
    (void)ek_buf_printf(&json, "{\"server\":\"%s\",", s->config->name);
    failure_json(f, &json);
    past_append(s->with->incidents, "failure", &json);
}

void past_runs(const struct server *s)
{
    struct ek_buf json = {0};
    if (!s->with->incidents)
        return;
    (void)ek_buf_printf(
        &json, "{\"server\":\"%s\",\"pid\":%d,\"start\":%llu,\"boot\":\"%016llx\",\"at_s\":%.6f}",
        s->config->name, (int)s->process.child.pid, child_start_ticks(s->process.child.pid),
        (unsigned long long)s->with->boot, (double)ek_wall_us() * 1e-6);
    past_append(s->with->incidents, "life", &json);
}

void past_ended(struct server *s)
{
    struct ek_buf json = {0};
    s->past.pid = 0;
    (void)ek_buf_printf(&json, "{\"server\":\"%s\",\"pid\":%d,\"at_s\":%.6f}", s->config->name,
                        (int)s->process.child.pid, (double)ek_wall_us() * 1e-6);
    past_append(s->with->incidents, "end", &json);
}

uint64_t past_restarts(const struct server *s)
{
    uint64_t n = s->past.restarts;
    for (int i = 0; i < RESTART_CAUSES; i++)
        n += s->ends.restarts[i];
    return n;
}

void past_restarted(const struct server *s)
{
    struct ek_buf json = {0};
    (void)ek_buf_printf(&json, "{\"server\":\"%s\",\"restarts\":%llu,\"since_s\":%.6f}",
                        s->config->name, (unsigned long long)past_restarts(s),
                        (double)(s->past.since_us ? s->past.since_us : ek_wall_us()) * 1e-6);
    past_append(s->with->incidents, "counts", &json);
}

/* Reading */

struct slice {
    const char *json;
    size_t len;
};

/* The last records of one server; parsed when all are known. */
struct past_ring {
    struct slice *at;
    uint32_t size, count, next;
};

struct past_load {
    struct server *const *servers;
    uint32_t count;
    struct past_ring *decisions, *failures; /* by server */
    uint64_t last_us;                       /* of any record */
    struct {
        bool known;
        int pid;
        uint64_t at_us;
        char version[32], what[16];
    } watch;
};

static void ring_push(struct past_ring *r, const char *json, size_t len)
{
    r->at[r->next] = (struct slice){json, len};
    r->next = (r->next + 1) % r->size;
    r->count += r->count < r->size;
}

static uint64_t time_of(const json_t *j, const char *key)
{
    double s = json_number_value(json_object_get(j, key));
    return s > 0 && s < 1e11 ? (uint64_t)(s * 1e6 + 0.5) : 0;
}

static void past_copy(const json_t *j, const char *key, char *ret_text, size_t size)
{
    const char *text = json_string_value(json_object_get(j, key));
    (void)snprintf(ret_text, size, "%s", text ? text : ""); /* a longer one is cut */
}

static double real(const json_t *j, const char *key)
{
    const json_t *v = json_object_get(j, key);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

/* What is rare: processes, counts, evenkeelds. */
static void take_small(struct past_load *l, const char *kind, const char *json, size_t len)
{
    json_t *j = json_loadb(json, len, 0, NULL);
    const char *name = json_string_value(json_object_get(j, "server"));
    uint64_t at_us = time_of(j, "at_s");
    char boot[24];
    if (at_us > l->last_us)
        l->last_us = at_us;
    if (strcmp(kind, "watch") == 0) {
        l->watch.known = true;
        l->watch.at_us = at_us;
        l->watch.pid = (int)json_integer_value(json_object_get(j, "pid"));
        past_copy(j, "version", l->watch.version, sizeof(l->watch.version));
        past_copy(j, "what", l->watch.what, sizeof(l->watch.what));
    }
    for (uint32_t i = 0; name && i < l->count; i++) {
        struct server *s = l->servers[i];
        if (strcmp(s->config->name, name) != 0)
            continue;
        if (strcmp(kind, "life") == 0) {
            s->past.pid = (pid_t)json_integer_value(json_object_get(j, "pid"));
            s->past.start = (uint64_t)json_integer_value(json_object_get(j, "start"));
            past_copy(j, "boot", boot, sizeof(boot));
            s->past.boot = strtoull(boot, NULL, 16);
        } else if (strcmp(kind, "end") == 0) {
            s->past.pid = 0;
        } else {
            json_int_t n = json_integer_value(json_object_get(j, "restarts"));
            s->past.restarts = n > 0 ? (uint64_t)n : 0;
            s->past.since_us = time_of(j, "since_s");
        }
    }
    json_decref(j);
}

static void take_record(void *ctx, const char *kind, const char *json, size_t len)
{
    struct past_load *l = ctx;
    bool decision = strcmp(kind, "decision") == 0;
    if (!decision && strcmp(kind, "failure") != 0) {
        if (strcmp(kind, "life") == 0 || strcmp(kind, "end") == 0 || strcmp(kind, "counts") == 0 ||
            strcmp(kind, "watch") == 0)
            take_small(l, kind, json, len);
        return;
    }
    for (uint32_t i = 0; i < l->count; i++) {
        uint64_t at_us = incidents_when(json, len, l->servers[i]->config->name);
        if (at_us == 0)
            continue;
        ring_push(decision ? &l->decisions[i] : &l->failures[i], json, len);
        if (at_us > l->last_us)
            l->last_us = at_us;
        return;
    }
}

/* False for a reason that this version does not know. */
static bool parse_decision(const json_t *j, struct decision *ret_d)
{
    static const enum knob knobs[] = {KNOB_SEQS, KNOB_TOKENS, KNOB_DEADLINE, KNOB_RESERVE};
    char reason[40], action[16], knob[40];
    past_copy(j, "reason", reason, sizeof(reason));
    past_copy(j, "action", action, sizeof(action));
    past_copy(j, "knob", knob, sizeof(knob));
    enum reason r = reason_find(reason);
    enum action_kind k = action_find(action);
    if (r == REASON_NONE || r == REASON_COUNT || k == ACTION_COUNT)
        return false;
    struct decision d = {.kind = k,
                         .reason = r,
                         .from = (uint32_t)json_integer_value(json_object_get(j, "from")),
                         .to = (uint32_t)json_integer_value(json_object_get(j, "to")),
                         .measured = real(j, "measured"),
                         .limit = real(j, "limit"),
                         .harm = real(j, "harm"),
                         .held_s = real(j, "held_s"),
                         .applied = !json_is_false(json_object_get(j, "applied")),
                         .wall_us = time_of(j, "at_s")};
    for (size_t i = 0; i < sizeof(knobs) / sizeof(knobs[0]); i++) {
        if (strcmp(knob_name(knobs[i]), knob) == 0)
            d.knob = knobs[i];
    }
    past_copy(j, "why", d.why, sizeof(d.why));
    past_copy(j, "signature", d.signature, sizeof(d.signature));
    *ret_d = d;
    return true;
}

static bool parse_failure(const json_t *j, struct failure *ret_f)
{
    char name[40], phase[16], answer[40];
    const json_t *list = json_object_get(j, "questions");
    int c = 0;
    past_copy(j, "class", name, sizeof(name));
    past_copy(j, "phase", phase, sizeof(phase));
    while (c < CRASH_COUNT && strcmp(crash_name((enum crash_class)c), name) != 0)
        c++;
    if (c == CRASH_COUNT)
        return false;
    double up_s = real(j, "uptime_s");
    struct failure f = {.wall_us = time_of(j, "at_s"),
                        .cls = (enum crash_class)c,
                        .starting = strcmp(phase, "starting") == 0,
                        .uptime_s = up_s >= 0 ? up_s : 0,
                        .asked = json_array_size(list) == DOCTOR_QUESTIONS};
    past_copy(j, "why", f.why, sizeof(f.why));
    past_copy(j, "next", f.next, sizeof(f.next));
    past_copy(j, "remedy", f.kept_remedy, sizeof(f.kept_remedy));
    for (size_t i = 0; f.asked && i < DOCTOR_QUESTIONS; i++) {
        const json_t *q = json_array_get(list, i);
        past_copy(q, "answer", answer, sizeof(answer));
        past_copy(q, "rests_on", f.rests_on[i], sizeof(f.rests_on[i]));
        f.steps[i].answer = strcmp(answer, doctor_answer(REPLY_YES, LANG_EN)) == 0  ? REPLY_YES
                            : strcmp(answer, doctor_answer(REPLY_NO, LANG_EN)) == 0 ? REPLY_NO
                                                                                    : REPLY_UNKNOWN;
    }
    *ret_f = f;
    return true;
}

static void refill(struct server *s, const struct past_ring *decisions,
                   const struct past_ring *failures)
{
    struct decision d;
    struct failure f;
    for (uint32_t i = 0; i < decisions->count; i++) {
        uint32_t at = (decisions->next + decisions->size - decisions->count + i) % decisions->size;
        json_t *j = json_loadb(decisions->at[at].json, decisions->at[at].len, 0, NULL);
        if (parse_decision(j, &d))
            decisions_refill(&s->law.decisions, &d);
        json_decref(j);
    }
    for (uint32_t i = 0; i < failures->count; i++) {
        uint32_t at = (failures->next + failures->size - failures->count + i) % failures->size;
        json_t *j = json_loadb(failures->at[at].json, failures->at[at].len, 0, NULL);
        if (parse_failure(j, &f))
            failures_push(&s->ends.failures, &f);
        json_decref(j);
    }
}

/* Since when it was not watched; 0: it is not known that it ever was. */
static uint64_t unwatched_since(const struct past_load *l)
{
    uint64_t last = l->last_us;
    if (!l->watch.known || strcmp(l->watch.what, "begin") != 0)
        return l->watch.known ? l->watch.at_us : 0;
    for (uint32_t i = 0; i < l->count; i++) { /* a chart has a row a second */
        const struct history *h = l->servers[i]->watch.history;
        uint32_t newest = h->count ? h->at_s[(h->next + HISTORY_ROWS - 1) % HISTORY_ROWS] : 0;
        if (newest * EK_US_PER_S > last)
            last = newest * EK_US_PER_S;
    }
    return last;
}

static void span(double seconds, char *ret_text, size_t size)
{
    if (seconds < 1)
        (void)snprintf(ret_text, size, "less than a second");
    else if (seconds < 120)
        (void)snprintf(ret_text, size, "%.0f s", seconds);
    else if (seconds < 7200)
        (void)snprintf(ret_text, size, "%.0f min", seconds / 60);
    else
        (void)snprintf(ret_text, size, "%.1f h", seconds / 3600);
}

/* How the evenkeeld before ended, for each server that it had. */
static void tell_gap(const struct past_load *l, uint64_t since_us)
{
    char how[160], gap[40];
    uint64_t now = ek_wall_us();
    if (since_us == 0)
        return;
    if (strcmp(l->watch.what, "begin") == 0)
        (void)snprintf(how, sizeof(how),
                       "The evenkeeld before (process %d, version %s) ended without a word, as by "
                       "kill -9 or a loss of power",
                       l->watch.pid, l->watch.version);
    else if (strcmp(l->watch.version, EK_VERSION) != 0)
        (void)snprintf(how, sizeof(how), "evenkeeld " EK_VERSION " goes on for %s",
                       l->watch.version);
    else if (strcmp(l->watch.what, "stop") == 0)
        (void)snprintf(how, sizeof(how), "evenkeeld was stopped and started again");
    else
        (void)snprintf(how, sizeof(how), "evenkeeld was replaced by another of the same version");
    span(now > since_us ? (double)(now - since_us) / 1e6 : 0, gap, sizeof(gap));
    for (uint32_t i = 0; i < l->count; i++) {
        struct server *s = l->servers[i];
        s->past.unwatched_us = since_us;
        if (s->law.decisions.count > 0)
            server_note(s, ACT_NOTE, REASON_UNWATCHED, "%s; nobody watched for %s", how, gap);
    }
}

static void load_log(const struct services *with, struct past_load *l)
{
    struct ek_buf text = {0};
    struct incidents_count count = {0};
    const char *dir = with->config->state_dir;
    int r = incidents_read(dir, &text);
    if (r < 0)
        ek_log(EK_LOG_WARNING, "the incident log in %s cannot be read: %s", dir, ek_strerror(r));
    else
        incidents_parse(text.data ? text.data : "", text.len, take_record, l, &count);
    if (count.damaged)
        ek_log(EK_LOG_WARNING,
               "%llu damaged records of the incident log in %s are skipped, of %llu",
               (unsigned long long)count.damaged, dir,
               (unsigned long long)count.damaged + (unsigned long long)count.records);
    for (uint32_t i = 0; i < l->count; i++)
        refill(l->servers[i], &l->decisions[i], &l->failures[i]);
    ek_buf_done(&text);
}

static void load_charts(const struct services *with, struct server *s)
{
    uint32_t damaged = 0;
    int r = charts_open(with->behind, with->config->state_dir, s->config->name, ek_wall_us(),
                        s->watch.history, &s->watch.charts, &damaged);
    if (r < 0 && r != -EROFS) /* that was said of the directory */
        ek_log(EK_LOG_WARNING, "%s: its charts cannot be kept in %s: %s", s->config->name,
               with->config->state_dir, ek_strerror(r));
    if (damaged)
        ek_log(EK_LOG_WARNING, "%s: %u damaged seconds of its charts are skipped", s->config->name,
               damaged);
}

void past_load(const struct services *with, struct server *const *servers, uint32_t count,
               bool begins)
{
    if (!with->behind || count == 0)
        return;
    struct past_load l = {.servers = servers, .count = count};
    struct slice *slices =
        calloc((size_t)count * (DECISIONS_KEPT + FAILURES_KEPT), sizeof(*slices));
    l.decisions = calloc(2 * (size_t)count, sizeof(*l.decisions));
    if (slices && l.decisions) {
        l.failures = l.decisions + count;
        for (uint32_t i = 0; i < count; i++) {
            struct slice *at = slices + (size_t)i * (DECISIONS_KEPT + FAILURES_KEPT);
            l.decisions[i] = (struct past_ring){.at = at, .size = DECISIONS_KEPT};
            l.failures[i] = (struct past_ring){.at = at + DECISIONS_KEPT, .size = FAILURES_KEPT};
        }
        load_log(with, &l);
    } else {
        ek_log(EK_LOG_WARNING, "out of memory: the incident log is not read");
    }
    for (uint32_t i = 0; i < count; i++)
        load_charts(with, servers[i]);
    for (uint32_t i = 0; i < count && !begins; i++)
        servers[i]->past.pid = 0; /* whatever became of it, it was not for want of an evenkeeld */
    if (begins)
        tell_gap(&l, unwatched_since(&l));
    free(l.decisions);
    free(slices);
}

/* A process that ended meanwhile */

void past_settle(struct server *s)
{
    char gap[40];
    pid_t pid = s->past.pid;
    uint64_t now = ek_wall_us(), since = s->past.unwatched_us;
    if (pid <= 0)
        return;
    s->past.pid = 0;
    bool same = s->past.boot == s->with->boot;
    if (same &&
        (s->process.child.pid == pid || (s->past.start && child_start_ticks(pid) == s->past.start)))
        return;
    span(since && now > since ? (double)(now - since) / 1e6 : 0, gap, sizeof(gap));
    server_note(s, ACT_NOTE, REASON_UNWATCHED, "Process %d ended %s while nobody watched (%s)%s",
                (int)pid,
                same ? "of a cause that is not known" : "with the machine, which was booted", gap,
                same && s->process.adopted ? "; somebody else had started another" : "");
}

/* Decisions of long ago */

struct since {
    const struct past_query *q;
    struct past_ring ring;
};

bool past_ask(const struct server *s, uint64_t since_us, uint32_t most, struct past_query *ret_q)
{
    const struct decision *oldest =
        s->law.decisions.count ? decisions_at(&s->law.decisions, s->law.decisions.count - 1) : NULL;
    *ret_q = (struct past_query){
        .from_us = since_us, .before_us = oldest ? oldest->wall_us : UINT64_MAX, .most = most};
    (void)snprintf(ret_q->server, sizeof(ret_q->server), "%s", s->config->name);
    (void)snprintf(ret_q->dir, sizeof(ret_q->dir), "%s", s->with->config->state_dir);
    return most > 0 && s->with->incidents && ret_q->before_us > since_us;
}

static void take_since(void *ctx, const char *kind, const char *json, size_t len)
{
    struct since *l = ctx;
    if (strcmp(kind, "decision") != 0)
        return;
    uint64_t at_us = incidents_when(json, len, l->q->server);
    if (at_us >= l->q->from_us && at_us < l->q->before_us && at_us > 0)
        ring_push(&l->ring, json, len);
}

int past_decisions(const struct past_query *q, const char *comma, struct ek_buf *out)
{
    struct ek_buf text = {0};
    struct incidents_count count;
    struct since l = {.q = q, .ring = {.size = q->most}};
    int r = incidents_read(q->dir, &text);
    l.ring.at = calloc(q->most, sizeof(*l.ring.at));
    if (!l.ring.at)
        r = -ENOMEM;
    if (r == 0)
        incidents_parse(text.data ? text.data : "", text.len, take_since, &l, &count);
    for (uint32_t i = 0; r == 0 && i < l.ring.count; i++) {
        const struct slice *one = &l.ring.at[(l.ring.next + q->most - 1 - i) % q->most];
        (void)ek_buf_puts(out, comma);
        (void)ek_buf_add(out, one->json, one->len);
        comma = ",";
    }
    free(l.ring.at);
    ek_buf_done(&text);
    return r == 0 && !ek_buf_ok(out) ? -ENOMEM : r;
}
