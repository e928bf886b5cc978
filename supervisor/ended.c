/*
 * How a server ends: why, by all the evidence there is, and what comes next.
 */
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "supervisor/client.h"
#include "supervisor/dialect.h"
#include "supervisor/exit_file.h"
#include "supervisor/handoff.h"
#include "supervisor/journal.h"
#include "supervisor/server_inside.h"

#define LOG_TAIL_BYTES 65536u

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

void server_start_failed(struct server *s, enum crash_class cls, bool retry, const char *what,
                         int r)
{
    struct crash_verdict v = {.cls = cls, .retry = retry, .remedy = crash_remedy(cls)};
    (void)snprintf(v.why, sizeof(v.why), "%s: %s", what, ek_strerror(r));
    s->exits[cls]++;
    journal_crash(s->config->name, &v, -r, false);
    forget_process(s);
    plan_restart(s, &v, true);
}
