#include "supervisor/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <systemd/sd-journal.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/fdpass.h"
#include "common/log.h"
#include "supervisor/client.h"
#include "supervisor/dialect.h"
#include "supervisor/exit_file.h"
#include "supervisor/handoff.h"
#include "supervisor/journal.h"
#include "supervisor/record.h"
#include "supervisor/server_inside.h"

#define PROBE_S        0.05 /* between two tries while it starts */
#define PROBE_MS       1000u
#define HANDOFF_MS     2000u
#define LISTEN_BACKLOG 1024
#define LOG_TAIL_BYTES 65536u
#define OOM_SCORE_ADJ  200 /* rather the server than evenkeeld */

static const char *const state_names[SERVER_STATES] = {
    [SRV_STOPPED] = "stopped",   [SRV_ADOPTING] = "adopting", [SRV_STARTING] = "starting",
    [SRV_READY] = "ready",       [SRV_DRAINING] = "draining", [SRV_DRAINED] = "drained",
    [SRV_STOPPING] = "stopping", [SRV_BACKOFF] = "backoff",   [SRV_BREAKER] = "breaker_open",
};

const char *server_state_name(enum server_state st)
{
    return (unsigned)st < SERVER_STATES ? state_names[st] : "";
}

const char *restart_cause_name(enum restart_cause c)
{
    static const char *const names[RESTART_CAUSES] = {"crash", "start_failed", "hang", "operator"};
    return (unsigned)c < RESTART_CAUSES ? names[c] : "";
}

void server_record(struct server *s, struct decision *d)
{
    if (!d->at_us)
        d->at_us = ek_now_us();
    d->wall_us = ek_wall_us();
    decisions_push(&s->decisions, d);
    journal_decision(s->config->name, d);
}

void server_note(struct server *s, enum action_kind kind, enum reason reason, const char *fmt, ...)
{
    struct decision d = {.kind = kind, .reason = reason, .applied = true};
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(d.why, sizeof(d.why), fmt, ap); /* a longer sentence is cut */
    va_end(ap);
    server_record(s, &d);
}

void server_arm(struct server *s, double seconds)
{
    if (seconds < 0) {
        (void)sd_event_source_set_enabled(s->timer, SD_EVENT_OFF); /* our own live timer */
        return;
    }
    (void)sd_event_source_set_time(s->timer, ek_now_us() + (uint64_t)(seconds * 1e6));
    (void)sd_event_source_set_enabled(s->timer, SD_EVENT_ONESHOT);
}

static void arm_probe(struct server *s, double seconds)
{
    (void)sd_event_source_set_time(s->probe_timer, ek_now_us() + (uint64_t)(seconds * 1e6));
    (void)sd_event_source_set_enabled(s->probe_timer, SD_EVENT_ONESHOT);
}

void server_signal(struct server *s, int sig)
{
    int r = sig == SIGKILL ? child_kill(&s->child) : child_signal(&s->child, sig);
    if (r < 0 && r != -ESRCH)
        ek_log(EK_LOG_ERR, "%s: could not send signal %d to process %d: %s", s->config->name, sig,
               (int)s->child.pid, ek_strerror(r));
}

/* Addresses */

static void set_urls(struct server *s)
{
    const char *host = s->config->host;
    if (!*host || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0)
        host = "127.0.0.1";
    bool v6 = strchr(host, ':') != NULL;
    (void)snprintf(s->url, sizeof(s->url), "http://%s%s%s:%u", v6 ? "[" : "", host, v6 ? "]" : "",
                   s->port);
    (void)snprintf(s->where, sizeof(s->where), "%s/metrics",
                   s->control_path[0] ? "http://localhost" : s->url);
}

static void take_port(struct server *s)
{
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);
    if (s->listen_fd < 0 || getsockname(s->listen_fd, (struct sockaddr *)&sa, &len) < 0)
        return;
    if (sa.ss_family == AF_INET)
        s->port = ntohs(((struct sockaddr_in *)(void *)&sa)->sin_port);
    else if (sa.ss_family == AF_INET6)
        s->port = ntohs(((struct sockaddr_in6 *)(void *)&sa)->sin6_port);
    set_urls(s);
}

void server_give_fd(struct server *s, int fd)
{
    if (s->listen_fd >= 0 || !s->config->dialect->control_socket) {
        close(fd);
        return;
    }
    s->listen_fd = fd;
    take_port(s);
}

static int bind_listen(struct server *s)
{
    if (s->listen_fd >= 0 || !s->config->dialect->control_socket)
        return 0;
    unsigned port = 0;
    int fd = ek_listen_tcp(*s->config->host ? s->config->host : NULL,
                           s->port ? s->port : (unsigned)s->config->port, LISTEN_BACKLOG, &port);
    if (fd < 0)
        return fd;
    s->listen_fd = fd;
    take_port(s);
    s->with->keep_fd(s->with->ctx, s->config->name, fd);
    return 0;
}

/* The end */

static void forget_process(struct server *s)
{
    watch_stop(s);
    action_stop(s);
    handoff_cancel(s->handoff);
    s->handoff = NULL;
    client_cancel(s->probe);
    s->probe = NULL;
    s->exit_io = sd_event_source_disable_unref(s->exit_io);
    (void)sd_event_source_set_enabled(s->probe_timer, SD_EVENT_OFF);
    server_arm(s, -1);
    child_done(&s->child);
    s->ready = s->handed = s->taking = s->adopted = false;
}

static struct crash_verdict judge(struct server *s, const struct child_exit *e)
{
    struct ek_buf tail = {.limit = LOG_TAIL_BYTES * 2};
    struct crash_evidence ev = {
        .signaled = e->known && e->signaled,
        .status = e->code,
        .phase = s->state == SRV_STARTING                              ? PHASE_STARTING
                 : s->state == SRV_DRAINING || s->state == SRV_DRAINED ? PHASE_DRAINING
                                                                       : PHASE_READY,
        .asked = s->want != WANT_RUN,
        .killed_for_hang = s->hang_killed,
        .killed_unready = s->start_killed,
        .exit0_is_failure = true, /* nobody asked for it */
        .uptime_s = (double)(ek_now_us() - s->started_us) / 1e6,
        .oom_kills = child_oom_kills(&s->child) - s->oom_kills,
    };
    if (s->log.path[0] && logtail_read(&s->log, LOG_TAIL_BYTES, &tail) == 0 && tail.data) {
        ev.log = tail.data;
        ev.log_len = tail.len;
    }
    struct crash_verdict v = crash_classify(&ev);
    ek_buf_done(&tail);
    return v;
}

static void plan_restart(struct server *s, const struct crash_verdict *v, bool starting)
{
    struct backoff_plan plan = backoff_exit(&s->backoff, v, starting, ek_now_us());
    s->cause = starting ? CAUSE_START : v->cls == CRASH_HANG_KILLED ? CAUSE_HANG : CAUSE_CRASH;
    s->state = plan.open ? SRV_BREAKER : SRV_BACKOFF;
    size_t len = strlen(v->why);
    int why = (int)(len > 0 && v->why[len - 1] == '.' ? len - 1 : len); /* more of it follows */
    if (plan.open)
        server_note(s, plan.opened ? ACT_NOTE : ACT_RESTART, REASON_BREAKER_OPEN,
                    "%s: %.*s; not started again for %.0f min unless an operator says restart",
                    crash_name(v->cls), why, v->why, plan.wait_s / 60);
    else
        server_note(s, ACT_RESTART, REASON_CRASH, "%s: %.*s; starting again in %.1f s",
                    crash_name(v->cls), why, v->why, plan.wait_s);
    server_arm(s, plan.wait_s);
}

static void ended(struct server *s, struct child_exit e)
{
    if (!e.known) /* adopted: its own word is all there is */
        exit_file_read(s->control_path, s->child.pid, &e);
    bool starting = s->state == SRV_STARTING;
    struct crash_verdict v = judge(s, &e);
    s->exits[v.cls]++;
    journal_crash(s->config->name, &v, e.code, e.signaled);
    (void)child_kill(&s->child); /* what it left behind in its cgroup */
    forget_process(s);
    s->hang_killed = s->start_killed = false;
    switch (s->want) {
    case WANT_RUN: plan_restart(s, &v, starting); break;
    case WANT_RESTART:
        s->want = WANT_RUN;
        s->cause = CAUSE_OPERATOR;
        server_launch(s);
        break;
    case WANT_DRAINED: s->state = SRV_STOPPED; break;
    case WANT_STOP:
        s->state = SRV_STOPPED;
        s->with->stopped(s->with->ctx);
        break;
    }
}

void server_check_exit(struct server *s)
{
    struct child_exit e;
    if (s->child.pid > 0 && child_reap(&s->child, &e) == 1)
        ended(s, e);
}

static int on_exit_io(sd_event_source *source, int fd, uint32_t revents, void *ctx)
{
    (void)source;
    (void)fd;
    (void)revents;
    server_check_exit(ctx);
    return 0;
}

static bool watch_exit(struct server *s)
{
    return sd_event_add_io(s->with->event, &s->exit_io, s->child.pidfd, EPOLLIN, on_exit_io, s) >=
           0;
}

/* Readiness */

static void became_ready(struct server *s)
{
    bool first = !s->ready;
    s->ready = true;
    if (!first)
        return;
    s->ready_us = ek_now_us();
    backoff_ready(&s->backoff, s->ready_us);
    if (s->state == SRV_STARTING) {
        s->state = SRV_READY;
        server_arm(s, -1);
        if (s->adopted)
            server_note(s, ACT_NOTE, REASON_READY, "Ready at %s", s->url);
        else
            server_note(s, ACT_NOTE, REASON_READY, "Ready after %.1f s at %s",
                        (double)(s->ready_us - s->started_us) / 1e6, s->url);
    }
    watch_ready(s);
}

static void on_probe(void *ctx, const struct client_result *res)
{
    struct server *s = ctx;
    s->probe = NULL;
    if (res->error == 0 && res->status == 200)
        became_ready(s);
    else if (s->state != SRV_STARTING)
        s->ready = false;
    if (s->state == SRV_STARTING)
        arm_probe(s, s->adopted ? PROBE_S * 4 : PROBE_S);
}

void server_probe(struct server *s)
{
    const struct dialect *d = s->config->dialect;
    char url[240];
    (void)snprintf(url, sizeof(url), "%s%s", d->control_socket ? "http://localhost" : s->url,
                   d->ready_path);
    struct client_req req = {.unix_path = d->control_socket ? s->control_path : NULL,
                             .method = "GET",
                             .url = url,
                             .timeout_ms = PROBE_MS,
                             .most_bytes = 65536};
    s->probed_us = ek_now_us();
    if (!s->probe && client_start(s->with->client, &req, on_probe, s, &s->probe) < 0)
        arm_probe(s, 1.0);
}

/* The listening socket, either way */

static void on_handed(void *ctx, const struct handoff_result *res)
{
    struct server *s = ctx;
    s->handoff = NULL;
    if (res->error == 0) {
        if (res->fd >= 0)
            server_give_fd(s, res->fd);
        s->handed = true;
        s->taking = false;
    } else if (res->error == -EPROTO && s->taking) {
        s->taking = false; /* it has none: it gets ours */
    } else {
        ek_log(EK_LOG_DEBUG, "%s: handing the socket over: %s", s->config->name, res->text);
    }
    arm_probe(s, res->error == 0 ? 0 : PROBE_S * 4);
}

/* Tries once; what fails is tried again by the probe timer. */
static void hand_over(struct server *s)
{
    int r = s->taking ? 0 : bind_listen(s);
    struct handoff_ask ask = {.path = s->control_path,
                              .verb = s->taking ? HANDOFF_GET : HANDOFF_PUT,
                              .name = "listen",
                              .fd = s->listen_fd,
                              .timeout_ms = HANDOFF_MS};
    if (r == 0)
        r = handoff_start(s->with->event, &ask, on_handed, s, &s->handoff);
    if (r < 0)
        arm_probe(s, PROBE_S);
}

static int on_probe_timer(sd_event_source *source, uint64_t usec, void *ctx)
{
    struct server *s = ctx;
    (void)source;
    (void)usec;
    server_bound_log(s); /* it may write a lot without ever becoming ready */
    if (s->child.pid == 0 || s->handoff)
        return 0;
    if (s->config->dialect->control_socket && !s->handed)
        hand_over(s);
    else
        server_probe(s);
    return 0;
}

/* Start */

void server_bound_log(struct server *s)
{
    if (s->log.path[0] && logtail_bound(&s->log) == 1)
        ek_log(EK_LOG_INFO, "%s: rotated %s", s->config->name, s->log.path);
}

static int open_output(struct server *s)
{
    const struct server_config *c = s->config;
    s->log.most_bytes = c->log_max_bytes;
    s->log.path[0] = '\0';
    if (!c->log_file && s->with->journal)
        return sd_journal_stream_fd(c->name, EK_LOG_INFO, 1);
    int n = c->log_file ? snprintf(s->log.path, sizeof(s->log.path), "%s", c->log_file)
                        : snprintf(s->log.path, sizeof(s->log.path), "%s/%s.log",
                                   s->with->config->state_dir, c->name);
    if (n < 0 || (size_t)n >= sizeof(s->log.path)) {
        s->log.path[0] = '\0';
        return -ENAMETOOLONG;
    }
    server_bound_log(s); /* what the one before wrote after the last look */
    return logtail_open(&s->log);
}

static uint64_t hash_text(const char *text)
{
    uint64_t h = 14695981039346656037ull;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 1099511628211ull;
    return h;
}

/* Two evenkeelds on one machine have different run directories; their cgroups must differ too. */
static void cgroup_name(const struct server *s, char *ret_name, size_t size)
{
    (void)snprintf(ret_name, size, "evenkeel-%s-%08x", s->config->name,
                   (unsigned)hash_text(s->with->config->run_dir));
}

static void pid_path(const struct server *s, char *ret_path, size_t size)
{
    (void)snprintf(ret_path, size, "%s/%s/pid", s->with->config->run_dir, s->config->name);
}

/* A start that did not even begin is an exit of its own kind. */
static void start_failed(struct server *s, enum crash_class cls, bool retry, const char *what,
                         int r)
{
    struct crash_verdict v = {.cls = cls, .retry = retry, .remedy = crash_remedy(cls)};
    (void)snprintf(v.why, sizeof(v.why), "%s: %s", what, ek_strerror(r));
    s->exits[cls]++;
    journal_crash(s->config->name, &v, -r, false);
    forget_process(s);
    plan_restart(s, &v, true);
}

static void started(struct server *s, const char *how, enum reason reason)
{
    char path[300];
    s->state = SRV_STARTING;
    s->started_us = ek_now_us() - (s->adopted ? (uint64_t)(child_age_s(&s->child) * 1e6) : 0);
    s->oom_kills = child_oom_kills(&s->child);
    s->model[0] = '\0';
    pid_path(s, path, sizeof(path));
    int r = child_note_pid(&s->child, path);
    if (r < 0)
        ek_log(EK_LOG_WARNING, "%s: cannot write %s: %s", s->config->name, path, ek_strerror(r));
    if (!watch_exit(s)) {
        server_signal(s, SIGKILL);
        start_failed(s, CRASH_UNKNOWN, true, "could not watch the process", -ENOMEM);
        return;
    }
    server_note(s, ACT_NOTE, reason, "%s process %d%s", how, (int)s->child.pid,
                s->child.cgroup >= 0 ? " in a cgroup of its own" : "");
    server_arm(s, s->config->start_deadline_s);
    arm_probe(s, 0);
}

/* At every start: who cleans /tmp or /run may have taken it, and the server needs it. */
static void make_run_dir(const struct server *s)
{
    char path[300];
    int n = snprintf(path, sizeof(path), "%s/%s", s->with->config->run_dir, s->config->name);
    if (n < 0 || (size_t)n >= sizeof(path))
        return; /* the control socket's path was checked to be shorter */
    if (mkdir(path, 0700) == 0 || errno == EEXIST)
        return;
    if (errno == ENOENT && mkdir(s->with->config->run_dir, 0755) == 0 && mkdir(path, 0700) == 0)
        return;
    ek_log(EK_LOG_WARNING, "%s: cannot make %s: %s", s->config->name, path, ek_strerror(-errno));
}

void server_launch(struct server *s)
{
    const struct server_config *c = s->config;
    char name[64], what[160];
    int r = bind_listen(s);
    if (r < 0) {
        (void)snprintf(what, sizeof(what), "cannot listen on %s port %u", c->host,
                       s->port ? s->port : (unsigned)c->port);
        start_failed(s, r == -EADDRINUSE ? CRASH_PORT : CRASH_CONFIG, r == -EADDRINUSE, what, r);
        return;
    }
    set_urls(s);
    make_run_dir(s);
    int out = open_output(s);
    if (out < 0) {
        (void)snprintf(what, sizeof(what), "cannot open its output %.100s", s->log.path);
        start_failed(s, CRASH_DISK, true, what, out);
        return;
    }
    cgroup_name(s, name, sizeof(name));
    struct child_spec spec = {.argv = c->argv,
                              .env = c->env.at,
                              .out_fd = out,
                              .cgroup_name = name,
                              .oom_score_adj = OOM_SCORE_ADJ};
    r = child_spawn(&s->child, &spec);
    close(out);
    if (r < 0) {
        (void)snprintf(what, sizeof(what), "cannot run %.120s", c->argv[0]);
        start_failed(s, CRASH_CONFIG, r == -ENOMEM || r == -EAGAIN, what, r);
        return;
    }
    if (s->cause != RESTART_CAUSES)
        s->restarts[s->cause]++;
    s->cause = CAUSE_CRASH;
    started(s, "Started", REASON_STARTED);
}

/* Adoption */

static void adopt(struct server *s, pid_t pid)
{
    char name[64];
    cgroup_name(s, name, sizeof(name));
    int r = child_adopt(&s->child, pid, name);
    if (r < 0) {
        ek_log(EK_LOG_ERR, "%s: process %d answers but cannot be watched: %s", s->config->name,
               (int)pid, ek_strerror(r));
        s->state = SRV_BACKOFF;
        s->cause = RESTART_CAUSES;
        server_arm(s, 1.0);
        return;
    }
    s->adopted = true;
    s->cause = CAUSE_CRASH;
    set_urls(s);
    int out = open_output(s);
    if (out >= 0)
        close(out); /* the server has its own */
    if (s->log.path[0])
        logtail_mark(&s->log);
    started(s, "Adopted", REASON_ADOPTED);
}

static void on_found(void *ctx, const struct handoff_result *res)
{
    struct server *s = ctx;
    s->handoff = NULL;
    if (res->error == 0) {
        server_give_fd(s, res->fd);
        s->handed = true;
    }
    s->taking = res->error < 0 && res->error != -EPROTO;
    adopt(s, res->peer);
}

void server_begin(struct server *s)
{
    char path[300];
    pid_t pid;
    s->want = WANT_RUN;
    s->state = SRV_ADOPTING;
    s->cause = RESTART_CAUSES; /* the first start is no restart */
    make_run_dir(s);
    if (!s->config->dialect->control_socket) {
        pid_path(s, path, sizeof(path));
        if (child_find_pid(path, &pid) == 0)
            adopt(s, pid);
        else
            server_launch(s);
        return;
    }
    struct handoff_ask ask = {.path = s->control_path,
                              .verb = HANDOFF_GET,
                              .name = "listen",
                              .fd = -1,
                              .timeout_ms = HANDOFF_MS};
    int r = handoff_start(s->with->event, &ask, on_found, s, &s->handoff);
    if (r < 0)
        server_launch(s);
}

/* Time is over */

static int on_timer(sd_event_source *source, uint64_t usec, void *ctx)
{
    struct server *s = ctx;
    (void)source;
    (void)usec;
    switch (s->state) {
    case SRV_STARTING:
        server_note(s, ACT_NOTE, REASON_CRASH, "Not ready within %.0f s; ending it",
                    s->config->start_deadline_s);
        s->start_killed = true;
        server_signal(s, SIGKILL);
        break;
    case SRV_BACKOFF:
        if (s->cause == RESTART_CAUSES)
            server_begin(s);
        else
            server_launch(s);
        break;
    case SRV_BREAKER: server_launch(s); break;
    case SRV_DRAINING:
        server_note(s, ACT_DRAIN, REASON_DRAIN_DEADLINE, "Still busy after %.0f s; ending it",
                    s->config->drain_deadline_s);
        s->state = SRV_STOPPING;
        server_signal(s, SIGTERM);
        server_arm(s, 15.0);
        break;
    case SRV_STOPPING: server_signal(s, SIGKILL); break;
    case SRV_STOPPED:
    case SRV_ADOPTING:
    case SRV_READY:
    case SRV_DRAINED:
    case SERVER_STATES: break;
    }
    return 0;
}

/* Life */

static int add_timer(struct server *s, sd_event_time_handler_t fn, sd_event_source **ret)
{
    int r = sd_event_add_time(s->with->event, ret, CLOCK_MONOTONIC, 0, 1000, fn, s);
    return r < 0 ? r : sd_event_source_set_enabled(*ret, SD_EVENT_OFF);
}

int server_new(const struct services *with, const struct server_config *config,
               struct server **ret_server)
{
    int r = -ENOMEM;
    struct server *s = calloc(1, sizeof(*s));
    if (!s)
        goto out;
    s->with = with;
    s->config = config;
    s->listen_fd = -1;
    s->port = (unsigned)config->port;
    child_init(&s->child);
    if (config->dialect->control_socket) /* its length was checked with the configuration */
        (void)snprintf(s->control_path, sizeof(s->control_path), "%s", config->control_socket);
    set_urls(s);
    r = add_timer(s, on_timer, &s->timer);
    if (r >= 0)
        r = add_timer(s, on_probe_timer, &s->probe_timer);
    if (r >= 0 && config->dialect->control_socket)
        r = control_new(with->client, s->control_path, &s->control);
    if (r >= 0)
        r = watch_open(s);
    if (r < 0)
        goto out;
    *ret_server = s;
    s = NULL;
    r = 0;
out:
    server_free(s);
    return r;
}

void server_free(struct server *s)
{
    if (!s)
        return;
    client_cancel(s->probe);
    client_cancel(s->canary);
    handoff_cancel(s->handoff);
    scrape_free(s->scrape);
    record_close(s->record);
    control_free(s->control);
    policy_free(s->policy);
    sd_event_source_disable_unref(s->exit_io);
    sd_event_source_disable_unref(s->timer);
    sd_event_source_disable_unref(s->probe_timer);
    if (s->child.pidfd >= 0)
        close(s->child.pidfd);
    if (s->child.cgroup >= 0)
        close(s->child.cgroup);
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    free(s->history);
    free(s);
}
