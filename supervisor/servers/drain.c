/*
 * How a server is emptied and ended. A drain lets running and queued requests finish; at its
 * deadline SIGTERM follows, and 15 s later SIGKILL. An operator's drain keeps the process, so that
 * resume is immediate. Called by the control socket's verbs (server_drain, _resume, _restart,
 * _roll), by upkeep.c for planned restarts, by the loop when evenkeeld ends (server_stop), and by
 * server.c with what the server answers to probes.
 *
 * Two fields say where a server is: `want`, what is to become of it, and `state`, where its process
 * is on the way there. From READY:
 *
 *   drain     want DRAINED   READY -> DRAINING -> DRAINED, and stays so until resume
 *   restart   want RESTART   READY -> DRAINING -> STOPPING -> (ended.c) STARTING
 *   stop      want STOP      READY -> DRAINING -> STOPPING -> STOPPED
 *   resume    want RUN       DRAINING or DRAINED -> READY; of a restart only before STOPPING
 *
 * Three kinds of engines drain in three ways (end_process()):
 * - One with a path for it is told by the control socket. If that fails, a drain of the operator's
 *   is given up, and one before an end is tried again: drain.unsure, a probe a second later, and
 *   drain_answered() begins it with the first answer. After DRAIN_TRIES it is SIGTERM.
 * - One without, behind HAProxy: HAProxy is told first and SIGTERM follows EDGE_S later
 *   (drain.telling_edge), since after it such an engine answers what still comes with 500.
 * - Else SIGTERM is the drain, with the deadline of one.
 *
 * A restart is not begun before the next start was proved (prove.c): the process that there is goes
 * on when the next one would not come up. Until then `want` stays RUN, and can_restart() asks again
 * when the proof is there. A restart of a server that still starts waits until it is ready
 * (drain.restart_waits), unless its flags differ.
 *
 * All of this is written to state.json by the loop after each turn, so another evenkeeld may begin
 * at any line above: drain_go_on() takes up what is written, and drain_answered() compares it with
 * what the server says of itself, which may be a drain that was asked for and never written
 * (drain.found), or the other way round.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/handoff.h"
#include "supervisor/io/reject_listener.h"
#include "supervisor/law/changes.h"
#include "supervisor/servers/server_inside.h"

/* evenkeeld may lack a descriptor for a moment; SIGTERM would refuse what still comes. */
#define DRAIN_TRIES 5u

#define EDGE_S 3.0 /* HAProxy asks its agent every second or two */

static void tell_edge(struct server *s, const char *why);

static void terminate(struct server *s)
{
    const struct dialect *d = s->config->dialect;
    s->drain.telling_edge = s->drain.early = false;
    s->state = SRV_STOPPING;
    server_signal(s, SIGTERM);
    /* Without a drain of its own, SIGTERM is the drain. */
    server_arm(s, TERM_GRACE_S + (d->drain_path ? 0 : s->config->drain_deadline_s));
}

static void on_drain(void *ctx, const struct control_result *res)
{
    struct server *s = ctx;
    if (res->error == 0 || s->state != SRV_DRAINING)
        return;
    ek_log(EK_LOG_WARNING, "%s: could not be told to drain: %s", s->config->name, res->text);
    if (s->want == WANT_DRAINED) {
        s->want = WANT_RUN;
        s->state = SRV_READY;
        server_arm(s, -1);
    } else if (s->drain.early) { /* an older one takes no order before it is ready */
        terminate(s);
    } else if (s->drain.tries++ < DRAIN_TRIES) {
        s->drain.unsure = true; /* its next answer begins the drain, see drain_answered() */
        server_arm_probe(s, 1.0);
    } else {
        terminate(s);
    }
}

static void begin_drain(struct server *s, bool hold, bool leave, const char *why)
{
    const struct server_config *c = s->config;
    s->state = SRV_DRAINING;
    s->probe.ready = false;
    s->drain.tries = 0;
    server_note(s, ACT_DRAIN, REASON_DRAIN_START, "Draining %s, deadline %.0f s", why,
                c->drain_deadline_s);
    /* An operator's drain has no deadline of ours: it waits for resume. */
    server_arm(s, leave ? c->drain_deadline_s + DRAIN_SLACK_S : -1);
    if (control_drain(s->act.control, c->drain_deadline_s, hold, leave, on_drain, s) < 0)
        terminate(s);
}

void drain_go_on(struct server *s, enum server_state state, double left_s)
{
    s->state = state;
    s->probe.ready = false;
    watch_drain(s);
    server_arm(s, left_s);
    if (s->config->dialect->drain_path && s->act.control)
        s->drain.unsure = true;
    else if (s->want == WANT_RESTART) /* SIGTERM is its drain, and HAProxy may not know yet */
        tell_edge(s, "to restart");
}

void drain_answered(struct server *s, bool serves, bool drains)
{
    bool going = s->state == SRV_DRAINING || s->state == SRV_DRAINED;
    double left_s = s->config->drain_deadline_s;
    if (s->state == SRV_STARTING && drains &&
        !s->process.attached) { /* an operator's, before anything was written of it */
        s->drain.found = true;
        s->want = WANT_RESTART;
        server_note(s, ACT_NOTE, REASON_DRAIN_START,
                    "It drains, and nobody has written why: resume ends that; if it ends, it is "
                    "started again");
        drain_go_on(s, SRV_DRAINING, -1);
        s->drain.unsure = false;
        return;
    }
    if (!going || !s->drain.unsure)
        return;
    if (!serves && !drains) {
        server_arm_probe(s, 1.0);
        return;
    }
    s->drain.unsure = false;
    if (drains)
        return;
    if (s->drain.found) { /* it was resumed since */
        s->drain.found = false;
        s->want = WANT_RUN;
        s->state = SRV_STARTING;
        server_arm_probe(s, 0);
        return;
    }
    /* The evenkeeld before was killed between writing it and saying it. */
    bool leave = s->want == WANT_RESTART;
    uint64_t now = ek_now_us();
    if (leave && s->timer.due_us)
        left_s = s->timer.due_us > now ? (double)(s->timer.due_us - now) / 1e6 : 0;
    s->state = SRV_DRAINING;
    if (control_drain(s->act.control, left_s, leave, leave, on_drain, s) < 0)
        s->drain.unsure = true; /* out of memory: at the next answer */
}

/* After SIGTERM it refuses what still comes, some engines with 500: clients must stop before.
 */
static void tell_edge(struct server *s, const char *why)
{
    s->state = SRV_DRAINING;
    s->probe.ready = false;
    s->drain.telling_edge = true;
    server_note(s, ACT_DRAIN, REASON_DRAIN_START,
                "Draining %s, deadline %.0f s; SIGTERM in %.0f s, when HAProxy knows", why,
                s->config->drain_deadline_s, EDGE_S);
    server_arm(s, EDGE_S);
}

/* Or is about to have it. */
static bool has_socket(const struct server *s)
{
    return s->socket.handed || s->socket.taking || s->socket.handoff || s->process.adopted;
}

/* Ends the process, gently if it serves; `hold` keeps new connections waiting for the next one. */
static void end_process(struct server *s, bool hold, const char *why)
{
    bool serves = s->state == SRV_READY || s->state == SRV_DRAINING || s->state == SRV_DRAINED;
    if (s->state == SRV_STOPPING)
        return;
    s->drain.found = false; /* now it is known why */
    /* What it has taken it answers when it is ready; without any it ends at once. */
    s->drain.early =
        (s->drain.early && s->state == SRV_DRAINING) ||
        (hold && s->state == SRV_STARTING && s->config->dialect->exit_word && has_socket(s));
    if ((serves || s->drain.early) && s->config->dialect->drain_path && s->act.control)
        begin_drain(s, hold, true, why);
    else if (serves && s->act.edge && s->state != SRV_DRAINING)
        tell_edge(s, why);
    else
        terminate(s);
}

void drain_edge_told(struct server *s)
{
    terminate(s);
}

void server_stop(struct server *s)
{
    if (s->want == WANT_STOP)
        return;
    s->want = WANT_STOP;
    if (s->process.child.pid > 0) {
        end_process(s, false, "to stop");
        return;
    }
    prestart_stop(s);
    prove_stop(s);
    repair_stop(s, "not started again: evenkeeld was ending it");
    obstacle_stop(s);
    if (s->unit.unit)
        launch_unit_stop(s);
    handoff_cancel(s->socket.handoff); /* what would be adopted goes on without us */
    s->socket.handoff = NULL;
    server_arm(s, -1);
    reject_listener_free(s->socket.rejects);
    s->socket.rejects = NULL;
    s->state = SRV_STOPPED;
    s->with->stopped(s->with->ctx);
}

static int drain_refuse(const struct server *s, const char *what, char *text, size_t size)
{
    (void)snprintf(text, size, "%s is %s; %s", s->config->name, server_state_name(s->state), what);
    return -EBUSY;
}

/* For what is done later, when it is proved or the server has answered. */
static void note_asker(struct server *s)
{
    (void)snprintf(s->drain.asked_by, sizeof(s->drain.asked_by), "%s", server_asker(s));
}

int server_drain(struct server *s, char *text, size_t size)
{
    if (s->want == WANT_DRAINED)
        return 0;
    if (s->state != SRV_READY)
        return drain_refuse(s, "only a ready server can be drained", text, size);
    if (!s->act.control || !s->config->dialect->drain_path) {
        (void)snprintf(text, size, "the engine of %s cannot drain and go on; use restart",
                       s->config->name);
        return -EINVAL;
    }
    char why[WHO_BYTES + 24];
    (void)snprintf(why, sizeof(why), "for the operator%s", server_asker(s));
    s->want = WANT_DRAINED;
    s->drain.resuming = false;
    begin_drain(s, false, false, why);
    return 0;
}

static void go_on(struct server *s)
{
    bool restart = s->want == WANT_RESTART, early = s->drain.early;
    s->want = WANT_RUN;
    s->state = early ? SRV_STARTING : SRV_READY;
    s->drain.early = false;
    s->drain.unsure = s->drain.found = s->drain.resuming = s->drain.restart_waits = false;
    if (restart) /* what it was to try */
        memset(&s->repair.trial, 0, sizeof(s->repair.trial));
    upkeep_forget(s);
    server_arm(s, early ? s->config->start_deadline_s : -1);
    server_note(s, ACT_NOTE, REASON_OPERATOR, "Operator%s: resumed%s", s->drain.asked_by,
                restart ? "; the restart is taken back" : "");
    server_probe(s);
}

static void on_resume(void *ctx, const struct control_result *res)
{
    struct server *s = ctx;
    if (res->error < 0) {
        ek_log(EK_LOG_WARNING, "%s: could not resume: %s", s->config->name, res->text);
        return;
    }
    if (s->state != SRV_DRAINING && s->state != SRV_DRAINED)
        return;
    go_on(s);
}

/* A restart that was promised does not come: its client reads that in the API. */
static void refuse_later(struct server *s, const char *why)
{
    (void)snprintf(s->drain.refused, sizeof(s->drain.refused), "%s", why);
}

/* A restart that has not ended anything yet is taken back, and one that waits for its turn. */
static int take_back(struct server *s, char *text, size_t size)
{
    if (s->upkeep.asked && s->state == SRV_READY) {
        upkeep_forget(s);
        refuse_later(s, "an operator took it back");
        server_note(s, ACT_NOTE, REASON_OPERATOR, "Operator%s: no restart in its turn",
                    server_asker(s));
        return 0;
    }
    note_asker(s);
    if (s->drain.telling_edge) { /* it has not been told yet */
        s->drain.telling_edge = false;
        go_on(s);
        return 0;
    }
    if (control_resume(s->act.control, on_resume, s) == 0)
        return 0;
    (void)snprintf(text, size, "out of memory");
    return -ENOMEM;
}

int server_resume(struct server *s, char *text, size_t size)
{
    bool drained = s->want == WANT_DRAINED || s->drain.found;
    if (drained && (s->process.child.pid > 0 || s->process.attached)) {
        note_asker(s);
        s->drain.resuming = true; /* also if it ends before it answers, see server_ended() */
        if (control_resume(s->act.control, on_resume, s) == 0)
            return 0;
        (void)snprintf(text, size, "out of memory");
        return -ENOMEM;
    }
    if (s->drain.restart_waits) {
        s->drain.restart_waits = false;
        refuse_later(s, "an operator took it back");
        s->repair.trial = s->prove.before;
        server_note(s, ACT_NOTE, REASON_OPERATOR, "Operator%s: no restart when it is ready",
                    server_asker(s));
        return 0;
    }
    bool drains = s->state == SRV_DRAINING && s->want == WANT_RESTART && s->process.child.pid > 0;
    if ((drains && (s->drain.telling_edge || (s->act.control && s->config->dialect->drain_path))) ||
        (s->upkeep.asked && s->state == SRV_READY))
        return take_back(s, text, size);
    if (s->state == SRV_STOPPED || s->state == SRV_BREAKER || s->state == SRV_BACKOFF) {
        s->want = WANT_RUN;
        s->process.cause = CAUSE_OPERATOR;
        backoff_reset(&s->ends.backoff);
        prestart_stop(s);
        server_note(s, ACT_RESTART, REASON_OPERATOR, "Operator%s: start now", server_asker(s));
        server_launch(s);
        return 0;
    }
    return drain_refuse(s, "there is nothing to resume", text, size);
}

/* Whether a restart can still begin: it was asked a moment ago. */
static bool can_restart(const struct server *s)
{
    bool serves = s->state == SRV_READY || s->state == SRV_DRAINING || s->state == SRV_DRAINED;
    return serves && s->process.child.pid > 0 && s->want != WANT_STOP;
}

static void on_plan_proved(struct server *s, const struct prove_for *whom, int error,
                           const char *text)
{
    (void)whom; /* no caller waits */
    if (error == 0 && can_restart(s)) {
        s->want = WANT_RESTART;
        end_process(s, true, "to restart by plan");
        return;
    }
    s->upkeep.planned = false;
    upkeep_release(s);
    refuse_later(s, error ? text : "it is no longer ready");
    server_note(s, ACT_NOTE, s->upkeep.reason, "Not restarted by plan: %.200s", s->drain.refused);
}

void server_restart_by_plan(struct server *s)
{
    const struct prove_for nobody = {0};
    char text[320] = "";
    int r = prove_next(s, on_plan_proved, &nobody, text, sizeof(text));
    if (r <= 0)
        on_plan_proved(s, &nobody, r, text);
}

/* The operator that asked for a restart hears how it ended. */
static void drain_tell(const struct prove_for *whom, int error, const char *text)
{
    if (whom->done)
        whom->done(whom->ctx, error, text);
}

static void roll_now(struct server *s)
{
    s->drain.refused[0] = '\0';
    upkeep_ask(s);
    server_note(s, ACT_NOTE, REASON_OPERATOR, "Operator%s: restart in its turn", s->drain.asked_by);
}

static void on_roll_proved(struct server *s, const struct prove_for *whom, int error,
                           const char *text)
{
    if (error == 0)
        roll_now(s);
    drain_tell(whom, error, text);
}

int server_roll(struct server *s, server_fn cb, void *ctx, char *text, size_t size)
{
    if (s->process.attached)
        return drain_refuse(s, "somebody else runs it, so somebody else restarts it", text, size);
    if (s->state != SRV_READY || s->want != WANT_RUN)
        return drain_refuse(s, "only a ready server can wait for its turn", text, size);
    note_asker(s);
    const struct prove_for whom = {.done = cb, .ctx = ctx};
    int r = prove_next(s, on_roll_proved, &whom, text, size);
    if (r == 0)
        roll_now(s);
    return r;
}

static void restart_now(struct server *s)
{
    char text[CHANGES_TEXT];
    bool differs = server_changes(s, text, sizeof(text));
    s->want = WANT_RESTART;
    s->drain.refused[0] = '\0';
    backoff_reset(&s->ends.backoff);
    server_note(s, ACT_RESTART, REASON_OPERATOR, "Operator%s: restart%s%.150s", s->drain.asked_by,
                differs ? " with " : "", text);
    end_process(s, true, "to restart");
}

/* A process that starts has taken connections, which its end would cut, and an adopted one may
 * serve already: then the restart waits until it is ready. What has other flags than the next one
 * would have is drained at once: it loads on only for requests that it holds. */
static bool waits_until_ready(const struct server *s)
{
    char text[CHANGES_TEXT];
    return s->state == SRV_STARTING && has_socket(s) && s->act.control &&
           s->config->dialect->drain_path &&
           (s->process.adopted || !server_changes(s, text, sizeof(text)));
}

static void on_ready_proved(struct server *s, const struct prove_for *whom, int error,
                            const char *text)
{
    (void)whom; /* it was told that it waits */
    if (error == 0 && can_restart(s)) {
        restart_now(s);
        return;
    }
    s->repair.trial = s->prove.before;
    refuse_later(s, error ? text : "it is no longer ready");
    server_note(s, ACT_NOTE, REASON_OPERATOR, "Not restarted as asked: %.200s", s->drain.refused);
}

void drain_ready(struct server *s)
{
    const struct prove_for nobody = {0};
    char text[320] = "";
    if (!s->drain.restart_waits)
        return;
    s->drain.restart_waits = false;
    int r = prove_next(s, on_ready_proved, &nobody, text, sizeof(text));
    if (r <= 0)
        on_ready_proved(s, &nobody, r, text);
}

static void on_restart_proved(struct server *s, const struct prove_for *whom, int error,
                              const char *text)
{
    bool can = can_restart(s);
    if (error == 0 && can)
        restart_now(s);
    else
        s->repair.trial = s->prove.before;
    drain_tell(whom, error == 0 && !can ? -EBUSY : error,
               error == 0 && !can ? "it is no longer ready; try again" : text);
}

int server_restart(struct server *s, const struct trial *trial, server_fn cb, void *ctx, char *text,
                   size_t size)
{
    if (s->process.attached)
        return drain_refuse(s, "somebody else runs it, so somebody else restarts it", text, size);
    if (s->want == WANT_STOP)
        return drain_refuse(s, "evenkeeld is ending", text, size);
    prove_stop(s);
    if (s->drain.restart_waits) /* this one replaces it */
        s->repair.trial = s->prove.before;
    s->drain.restart_waits = false;
    s->prove.before = s->repair.trial;
    s->repair.trial =
        trial_is_none(&s->repair.trial) ? trial_within(trial, &s->repair.said) : *trial;
    if (s->process.child.pid == 0)
        return server_resume(s, text, size);
    note_asker(s);
    if (waits_until_ready(s)) {
        s->drain.restart_waits = true;
        s->drain.refused[0] = '\0';
        server_note(s, ACT_NOTE, REASON_OPERATOR, "Operator%s: restart when it is ready",
                    s->drain.asked_by);
        return 0;
    }
    const struct prove_for whom = {.done = cb, .ctx = ctx};
    int r = can_restart(s) ? prove_next(s, on_restart_proved, &whom, text, size) : 0;
    if (r == 0)
        restart_now(s);
    else if (r < 0)
        s->repair.trial = s->prove.before;
    return r;
}
