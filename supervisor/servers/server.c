/*
 * The middle of the state machine of server.h: probes until the server is ready, hand-over of the
 * listening socket, deadlines of each state, and the timers for them. The other files of the folder
 * do the transitions: launch.c begins a process, ended.c judges its end, drain.c stops it, watch.c
 * reads samples. One timer wakes the machine (server_arm()), another probes; every handler first
 * looks at `state`, since what it was set for may be over.
 */
#include "supervisor/servers/server.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/behind.h"
#include "supervisor/io/charts.h"
#include "supervisor/io/client.h"
#include "supervisor/io/edge.h"
#include "supervisor/io/handoff.h"
#include "supervisor/io/journal.h"
#include "supervisor/io/reject_listener.h"
#include "supervisor/io/unit.h"
#include "supervisor/law/window.h"
#include "supervisor/servers/record.h"
#include "supervisor/servers/server_inside.h"
#include "supervisor/servers/server_past.h"

#define PROBE_S        0.05 /* between two tries while it starts */
#define PROBE_MS       1000u
#define FIRST_TOKEN_MS 60000u /* an engine may compile something first */
#define MISSES_MOST    3      /* then somebody else's server counts as gone, and is waited for */
#define HANDOFF_MS     2000u
#define CHARTS_MS      1000u
#define GIVES_US       2000000u  /* a starting server takes its socket within milliseconds, */
#define GIVES_WAIT_US  30000000u /* a pause before a start that is longer is not waited for */
#define GIVES_SLOW_US                                                                              \
    120000000u /* a vLLM when Python has read it, on a busy machine in a minute                    \
                */

const char *server_state_name(enum server_state st)
{
    return life_state_name(st);
}

const char *restart_cause_name(enum restart_cause c)
{
    static const char *const names[RESTART_CAUSES] = {"crash", "start_failed", "hang", "operator",
                                                      "planned"};
    return (unsigned)c < RESTART_CAUSES ? names[c] : "";
}

void server_record(struct server *s, struct decision *d)
{
    if (!d->at_us)
        d->at_us = ek_now_us();
    d->wall_us = ek_wall_us();
    ek_text_unknown(d->why); /* of a sample that is missing */
    ek_text_clean(d->why);   /* it may quote the server */
    decisions_push(&s->law.decisions, d);
    past_decision(s, d);
    journal_decision(s->config->name, d);
}

static void servers_server_note(struct server *s, struct decision *d, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));
static void servers_server_note(struct server *s, struct decision *d, const char *fmt, va_list ap)
{
    int n = vsnprintf(d->why, sizeof(d->why), fmt, ap);
    if (n >= (int)sizeof(d->why))
        memcpy(d->why + sizeof(d->why) - 4, "...", 4);
    d->applied = true;
    server_record(s, d);
}

void server_note(struct server *s, enum action_kind kind, enum reason reason, const char *fmt, ...)
{
    struct decision d = {.kind = kind, .reason = reason};
    va_list ap;
    va_start(ap, fmt);
    servers_server_note(s, &d, fmt, ap);
    va_end(ap);
}

void server_note_end(struct server *s, enum reason reason, const struct crash_verdict *v,
                     const char *fmt, ...)
{
    struct decision d = {.kind = ACT_NOTE, .reason = reason};
    va_list ap;
    memcpy(d.signature, v->signature, sizeof(d.signature));
    va_start(ap, fmt);
    servers_server_note(s, &d, fmt, ap);
    va_end(ap);
}

const char *server_asker(const struct server *s)
{
    return s->with->who ? s->with->who : "";
}

void server_arm(struct server *s, double seconds)
{
    s->timer.due_us = seconds < 0 ? 0 : ek_now_us() + (uint64_t)(seconds * 1e6);
    if (seconds < 0) {
        (void)sd_event_source_set_enabled(s->timer.source, SD_EVENT_OFF); /* our own live timer */
        return;
    }
    (void)sd_event_source_set_time(s->timer.source, s->timer.due_us);
    (void)sd_event_source_set_enabled(s->timer.source, SD_EVENT_ONESHOT);
}

void server_arm_probe(struct server *s, double seconds)
{
    (void)sd_event_source_set_time(s->probe.timer, ek_now_us() + (uint64_t)(seconds * 1e6));
    (void)sd_event_source_set_enabled(s->probe.timer, SD_EVENT_ONESHOT);
}

void server_signal(struct server *s, int sig)
{
    if (sig == SIGKILL) {
        s->process.killed_us = s->process.killed_us ? s->process.killed_us : ek_now_us();
        server_arm(s, s->config->kill_wait_s);
    }
    if (s->unit.unit) {
        launch_unit_signal(s, sig);
        return;
    }
    int r = sig == SIGKILL ? child_kill(&s->process.child) : child_signal(&s->process.child, sig);
    if (r < 0 && r != -ESRCH)
        ek_log(EK_LOG_ERR, "%s: could not send signal %d to process %d: %s", s->config->name, sig,
               (int)s->process.child.pid, ek_strerror(r));
}

void server_reread(struct server *s)
{
    if (s->config->dialect->rereads && s->probe.ready && !s->process.attached)
        server_signal(s, SIGHUP);
}

/* Readiness */

static void became_ready(struct server *s)
{
    bool first = !s->probe.ready;
    if (s->state == SRV_DRAINING || s->state == SRV_DRAINED || s->state == SRV_STOPPING)
        return; /* an answer from before it was told to leave */
    s->probe.ready = true;
    if (!first)
        return;
    s->probe.ready_us = ek_now_us();
    uint64_t since_us = s->process.adopted ? s->ends.backoff.ready_us : 0; /* it was ready before */
    backoff_ready(&s->ends.backoff, since_us ? since_us : s->probe.ready_us);
    if (s->state == SRV_STARTING) {
        s->state = SRV_READY;
        server_arm(s, -1);
        if (s->process.adopted || s->process.attached || s->drain.unsure)
            server_note(s, ACT_NOTE, REASON_READY, "Ready at %s", s->address.url);
        else
            server_note(s, ACT_NOTE, REASON_READY, "Ready after %.1f s at %s",
                        (double)(s->probe.ready_us - s->process.started_us) / 1e6, s->address.url);
    }
    watch_ready(s);
    drain_ready(s);
}

/* It judged the request and not the engine: then that is all the proof there will be. */
static bool only_refused(struct server *s, const struct client_result *res)
{
    if (res->error || res->status / 100 != 4 || res->status == 429)
        return false;
    if (!s->address.asked_key && (res->status == 401 || res->status == 403))
        ek_log(EK_LOG_WARNING,
               "%s: it asks for an API key: give it as api_key_file, else readiness and hangs are "
               "judged without a request of one token",
               s->config->name);
    s->address.asked_key = true;
    return true;
}

static void on_first_token(void *ctx, const struct client_result *res)
{
    struct server *s = ctx;
    s->probe.call = NULL;
    if ((res->error == 0 && res->status == 200) || only_refused(s, res))
        became_ready(s);
    if (s->state == SRV_STARTING)
        server_arm_probe(s, 1.0);
}

/* It runs, and refuses new requests because it was told to. */
static bool says_draining(const struct client_result *res)
{
    return res->error == 0 && res->status == 503 && strstr(res->body, "\"draining\"");
}

/* Other machines are not there yet: that is not its start, and bounded by its own flag. */
static bool waits_for_nodes(const struct client_result *res)
{
    return res->error == 0 && res->status == 503 &&
           strstr(res->body, "\"waiting for the other nodes\"");
}

static void on_probe(void *ctx, const struct client_result *res)
{
    struct server *s = ctx;
    s->probe.call = NULL;
    bool good = res->error == 0 && res->status == 200;
    s->probe.misses = good ? 0 : s->probe.misses + 1;
    if (good && s->state == SRV_STARTING && s->config->dialect->proves_ready &&
        watch_one_token(s, FIRST_TOKEN_MS, on_first_token, &s->probe.call) == 0)
        return;
    if (s->process.adopted || s->process.attached || s->drain.unsure)
        drain_answered(s, good, says_draining(res));
    if (good)
        became_ready(s);
    else if (s->state != SRV_STARTING)
        s->probe.ready = false;
    if (s->state == SRV_STARTING && waits_for_nodes(res))
        server_arm(s, s->config->start_deadline_s);
    if (s->state == SRV_STARTING)
        server_arm_probe(s, s->process.attached ? 1.0 : s->process.adopted ? PROBE_S * 4 : PROBE_S);
    if (s->process.attached && s->state == SRV_READY && s->probe.misses >= MISSES_MOST)
        server_detached(s);
}

void server_probe(struct server *s)
{
    const struct dialect *d = s->config->dialect;
    char url[240];
    (void)snprintf(url, sizeof(url), "%s%s",
                   s->address.control_path[0] ? "http://localhost" : s->address.url, d->ready_path);
    struct client_req req = {.unix_path =
                                 s->address.control_path[0] ? s->address.control_path : NULL,
                             .method = "GET",
                             .url = url,
                             .key = s->address.key,
                             .timeout_ms = PROBE_MS,
                             .most_bytes = 65536};
    s->probe.last_us = ek_now_us();
    if (!s->probe.call && client_start(s->with->client, &req, on_probe, s, &s->probe.call) < 0)
        server_arm_probe(s, 1.0);
}

/* The listening socket, either way */

static void on_handed(void *ctx, const struct handoff_result *res)
{
    struct server *s = ctx;
    s->socket.handoff = NULL;
    if (res->error == 0) {
        if (res->fd >= 0)
            server_give_fd(s, res->fd);
        s->socket.handed = true;
        s->socket.taking = false;
    } else if (res->error == -EPROTO) {
        s->socket.taking =
            !s->socket.taking; /* it has none, and gets ours; or it has one already */
    } else {
        ek_log(EK_LOG_DEBUG, "%s: handing the socket over: %s", s->config->name, res->text);
    }
    server_arm_probe(s, res->error == 0 ? 0 : PROBE_S * 4);
}

uint64_t server_gives_socket_by(const struct server *s, uint64_t since_us, uint64_t now_us)
{
    uint64_t takes_us = s->config->dialect->companion ? GIVES_SLOW_US : GIVES_US;
    if (s->socket.fd < 0 || !s->config->dialect->control_socket)
        return 0;
    if (s->state == SRV_STARTING && s->process.child.pid > 0 && !s->socket.handed)
        return s->process.started_us + takes_us;
    if (s->state == SRV_BACKOFF && s->timer.due_us && s->timer.due_us < now_us + GIVES_WAIT_US)
        return (s->timer.due_us > now_us ? s->timer.due_us : now_us) + takes_us;
    if (s->state == SRV_DRAINING && s->want == WANT_RESTART)
        return since_us + GIVES_US;
    if (s->state == SRV_STOPPING && s->want == WANT_RESTART)
        return now_us + GIVES_US;
    return 0;
}

/* Tries once; what fails is tried again by the probe timer. */
static void hand_over(struct server *s)
{
    int r = s->socket.taking ? 0 : server_bind(s);
    struct handoff_ask ask = {.path = s->address.control_path,
                              .verb = s->socket.taking ? HANDOFF_GET : HANDOFF_PUT,
                              .name = "listen",
                              .fd = s->socket.fd,
                              .timeout_ms = HANDOFF_MS};
    if (r == 0)
        r = handoff_start(s->with->event, &ask, on_handed, s, &s->socket.handoff);
    if (r < 0)
        server_arm_probe(s, PROBE_S);
}

static int on_probe_timer(sd_event_source *source, uint64_t usec, void *ctx)
{
    struct server *s = ctx;
    (void)source;
    (void)usec;
    server_bound_log(s); /* it may write a lot without ever becoming ready */
    if (s->process.attached) {
        server_probe(s);
        return 0;
    }
    if (s->unit.unit && (s->process.child.pid == 0 || s->unit.phase == UNIT_ENDING)) {
        launch_unit_look(s);
        return 0;
    }
    if (s->process.child.pid == 0 || s->socket.handoff)
        return 0;
    if (s->config->dialect->control_socket && !s->socket.handed)
        hand_over(s);
    else
        server_probe(s);
    return 0;
}

/* Time is over */

/* It was ready when the evenkeeld before ended, and is silent now: that is no start that failed.
 * It is watched as any server that is ready, and two proofs of a hang end it. */
static void watch_silent(struct server *s)
{
    s->life.was_ready = false;
    s->state = SRV_READY;
    server_arm(s, -1);
    server_note(s, ACT_NOTE, REASON_SIGNAL_DEGRADED,
                "It was ready before and does not answer now: watched for a hang");
    watch_ready(s);
}

/* SIGKILL does not end what a driver holds in the kernel, or what is frozen. It still has the
 * device, so nothing is started beside it; if it ends after all, that goes on as always. */
static void still_there(struct server *s)
{
    char letter = child_run_state(&s->process.child);
    if (!s->process.stuck)
        server_note(
            s, ACT_NOTE, REASON_STUCK_UNKILLABLE,
            "Process %d is still there %.0f s after SIGKILL, in state %c; no other is started "
            "beside it",
            (int)s->process.child.pid, (double)(ek_now_us() - s->process.killed_us) / 1e6,
            letter ? letter : '?');
    s->process.stuck = true;
    s->probe.ready = false;
    if (s->state != SRV_STARTING) /* how a start ended is judged by it */
        s->state = SRV_STOPPING;
    if (s->want == WANT_STOP) { /* the next evenkeeld finds it by its socket or its pid file */
        s->process.exit_io = sd_event_source_disable_unref(s->process.exit_io);
        child_done(&s->process.child);
        s->state = SRV_STOPPED;
        s->with->stopped(s->with->ctx);
        return;
    }
    server_signal(s, SIGKILL);
}

static int server_on_timer(sd_event_source *source, uint64_t usec, void *ctx)
{
    struct server *s = ctx;
    (void)source;
    (void)usec;
    if (s->process.killed_us) {
        still_there(s);
        return 0;
    }
    switch (s->state) {
    case SRV_STARTING:
        if (s->life.was_ready) {
            watch_silent(s);
            break;
        }
        server_note(s, ACT_NOTE, REASON_CRASH, "Not ready within %.0f s; ending it",
                    s->config->start_deadline_s);
        s->process.start_killed = true;
        server_signal(s, SIGKILL);
        break;
    case SRV_BACKOFF:
        if (s->process.cause == RESTART_CAUSES)
            server_begin(s);
        else
            server_launch(s);
        break;
    case SRV_BREAKER: server_launch(s); break;
    case SRV_DRAINING:
        if (s->drain.telling_edge) {
            drain_edge_told(s);
            break;
        }
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
    s->socket.fd = s->upkeep.lease = -1;
    s->address.port = (unsigned)config->port;
    child_init(&s->process.child);
    s->process.attached = config->attach != NULL;
    if (config->control_socket && config->dialect->control_socket) /* its length was checked */
        (void)snprintf(s->address.control_path, sizeof(s->address.control_path), "%s",
                       config->control_socket);
    server_set_urls(s);
    r = add_timer(s, server_on_timer, &s->timer.source);
    if (r >= 0)
        r = add_timer(s, on_probe_timer, &s->probe.timer);
    if (r >= 0 && s->address.control_path[0])
        r = control_new(with->client, s->address.control_path, &s->act.control);
    if (r >= 0 && config->unit)
        r = launch_unit_open(s);
    if (r >= 0)
        r = watch_open(s);
    if (r >= 0 && config->edge)
        r = edge_new(with->event, config->edge_host, config->edge_port, action_edge_line, s,
                     &s->act.edge);
    if (r < 0 && config->edge)
        ek_log(EK_LOG_ERR, "%s: cannot answer the agent-check at %s: %s", config->name,
               config->edge, ek_strerror(r));
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
    client_cancel(s->probe.call);
    client_cancel(s->watch.canary);
    client_cancel(s->upkeep.canary);
    upkeep_release(s);
    reject_listener_free(s->socket.rejects);
    edge_free(s->act.edge);
    handoff_cancel(s->socket.handoff);
    unit_free(s->unit.unit);
    prestart_stop(s);
    prove_free(s); /* its callers are gone already */
    repair_stop(s, "left to the next evenkeeld");
    obstacle_stop(s);
    sd_event_source_disable_unref(s->obstacle.timer);
    engine_lost_stop(s);
    scrape_free(s->watch.scrape);
    record_close(s->record.file);
    control_free(s->act.control);
    while (s->act.operations)
        operation_drop(s->act.operations);
    policy_free(s->law.policy);
    sd_event_source_disable_unref(s->process.exit_io);
    sd_event_source_disable_unref(s->timer.source);
    sd_event_source_disable_unref(s->probe.timer);
    if (s->process.child.pidfd >= 0)
        close(s->process.child.pidfd);
    if (s->process.child.cgroup >= 0)
        close(s->process.child.cgroup);
    if (s->socket.fd >= 0)
        close(s->socket.fd);
    if (s->watch.charts && behind_flush(s->with->behind, CHARTS_MS))
        charts_free(s->watch.charts); /* else the thread that hangs has it */
    free(s->watch.history);
    window_free(s->watch.seen);
    free(s->watch.shares);
    free(s);
}
