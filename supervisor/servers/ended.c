/*
 * How a server ends: why, by all the evidence there is, and what comes next.
 */
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/client.h"
#include "supervisor/io/exit_file.h"
#include "supervisor/io/handoff.h"
#include "supervisor/io/journal.h"
#include "supervisor/io/log_class.h"
#include "supervisor/io/reject_listener.h"
#include "supervisor/io/state.h"
#include "supervisor/servers/postmortem_keep.h"
#include "supervisor/servers/server_inside.h"
#include "supervisor/servers/server_past.h"

#define LOG_READ_BYTES (4u << 20) /* traces of 500 requests may stand below the cause */
#define LOG_TAIL_BYTES (256u << 10)
#define OWN_FIRST      48u        /* bytes by which a sentence is known again */
#define RETRY_S        60u        /* what clients are told while the breaker is open */
#define SOON_US        120000000u /* memory of the process before may not be given back yet */

static void forget_process(struct server *s)
{
    watch_stop(s);
    action_stop(s);
    handoff_cancel(s->socket.handoff);
    s->socket.handoff = NULL;
    client_cancel(s->probe.call);
    s->probe.call = NULL;
    s->process.exit_io = sd_event_source_disable_unref(s->process.exit_io);
    (void)sd_event_source_set_enabled(s->probe.timer, SD_EVENT_OFF);
    server_arm(s, -1);
    prove_stop(s);
    child_done(&s->process.child);
    s->probe.ready = s->socket.handed = s->socket.taking = s->process.adopted =
        s->drain.telling_edge = s->drain.early = false;
    s->engine.losses.count = 0;
    s->life.was_ready = s->drain.unsure = s->drain.found = s->drain.resuming = false;
}

/* "Exit code 78: configuration or model files." becomes "... files: config.json: there is no ..."
 */
static void add_own_word(struct crash_verdict *v, const char *own)
{
    char said[sizeof(v->why)], first[OWN_FIRST + 1];
    memcpy(said, v->why, sizeof(said));
    (void)snprintf(first, sizeof(first), "%s", own);
    char *quoted = strstr(said, first); /* its log has the same sentence, maybe less of it */
    size_t len = quoted ? (size_t)(quoted - said) : strlen(said);
    while (quoted && len > 0 && strchr(": ", said[len - 1]))
        len--;
    while (len > 0 && said[len - 1] == '.')
        len--;
    (void)snprintf(v->why, sizeof(v->why), "%.*s: %s", (int)len, said, own);
}

static struct crash_verdict ended_judge(struct server *s, const struct child_exit *e)
{
    char own[600] = "";
    bool clean = e->code == EK_EXIT_OK || e->code == EK_EXIT_RESTART; /* nothing to add to that */
    if (e->known && !e->signaled && !clean && s->address.control_path[0])
        exit_file_why(s->address.control_path, s->process.child.pid, own, sizeof(own));
    struct ek_buf tail = {.limit = LOG_READ_BYTES * 2};
    s->companion.blamed = false;
    struct crash_evidence ev = {
        .signaled = e->known && e->signaled,
        .status = e->code,
        .unseen = !e->known,
        .has_word = s->config->dialect->exit_word,
        .phase = s->state == SRV_STARTING                              ? PHASE_STARTING
                 : s->state == SRV_DRAINING || s->state == SRV_DRAINED ? PHASE_DRAINING
                                                                       : PHASE_READY,
        .asked = s->want != WANT_RUN,
        .killed = s->process.killed_us || s->unit.unit,
        .killed_for_hang = s->watch.hang_killed,
        .killed_for_loop = s->watch.reading,
        .killed_unready = s->process.start_killed,
        .exit0_is_failure = true, /* it was not asked for */
        .uptime_s = s->process.started_us ? (double)(ek_now_us() - s->process.started_us) / 1e6 : 0,
        .oom_kills = !s->unit.unit       ? ek_oom_window_kills(&s->ends.ooms, server_oom_kills(s))
                     : s->unit.kills > 0 ? s->unit.kills
                                         : s->unit.oom,
    };
    if (s->process.log.path[0] && logtail_read(&s->process.log, LOG_READ_BYTES, &tail) == 0 &&
        tail.data) {
        logtail_squeeze(&tail, LOG_TAIL_BYTES);
        ev.log = tail.data;
        ev.log_len = tail.len;
        s->companion.blamed = companion_blamed(tail.data, tail.len);
    } else if (own[0]) { /* its output went to the journal */
        ev.log = own;
        ev.log_len = strlen(own);
    }
    struct crash_found found;
    if (log_class_find(LOOK_SITE_FILE, ev.phase, ev.log, ev.log_len, &found))
        ev.found = &found;
    struct xid xid = figures_xid(s->with->figures);
    if (xid.at_us && (double)(ek_now_us() - xid.at_us) / 1e6 < FIGURES_XID_S) {
        ev.xid = xid.number;
        ev.xid_final = figures_is_final(xid.number);
    }
    struct crash_verdict v = crash_classify(&ev);
    if (own[0])
        add_own_word(&v, own);
    ek_text_clean(v.why);
    ek_buf_done(&tail);
    return v;
}

/* With the guides' flowchart and the answers found. What the prefix cache did is known from the
 * last sample of the process that ended, so this comes before it is forgotten. */
static struct failure failure_of(const struct server *s, const struct crash_verdict *v,
                                 bool starting)
{
    const double *seen = s->watch.view.value;
    struct crash_cache cache = {
        .hit_frac = seen[VIEW_PREFIX_HIT_RATE],
        .cached_frac = seen[VIEW_BLOCKS_CACHED] / seen[VIEW_BLOCKS_TOTAL], /* NAN without them */
    };
    struct failure f = {
        .wall_us = ek_wall_us(),
        .cls = v->cls,
        .starting = starting,
        .uptime_s = s->process.started_us ? (double)(ek_now_us() - s->process.started_us) / 1e6 : 0,
        .remedy = v->remedy,
    };
    memcpy(f.why, v->why, sizeof(f.why));
    f.asked = crash_questions(v, starting ? PHASE_STARTING : PHASE_READY, &cache, f.steps);
    return f;
}

/* "20 s", "30 min" */
static const char *wait_text(double wait_s, char *text, size_t size)
{
    bool minutes = wait_s >= 120;
    (void)snprintf(text, size, "%.0f %s", minutes ? wait_s / 60 : wait_s, minutes ? "min" : "s");
    return text;
}

/* Clients wait or are answered, and are not refused, also where it was adopted and died before it
 * had handed over its socket. */
static void ended_listen(struct server *s)
{
    int r = server_bind(s);
    if (r < 0)
        ek_log(EK_LOG_WARNING, "%s: cannot listen on port %u while it is stopped: %s",
               s->config->name, s->address.port, ek_strerror(r));
}

static void ended_shut(struct server *s, const char *why)
{
    if (s->socket.fd >= 0 && !s->socket.rejects) /* out of memory: clients wait, as before */
        (void)reject_listener_new(s->with->event, s->socket.fd, RETRY_S, why, &s->socket.rejects);
}

void ended_rest(struct server *s)
{
    ended_listen(s);
    s->state = SRV_STOPPED;
    s->want = WANT_DRAINED;
    ended_shut(s,
               "An operator drained the server and it has ended since; it is started by resume.");
}

void ended_keep(struct server *s, const struct failure *failure)
{
    failures_push(&s->ends.failures, failure);
    past_failure(s, failure);
}

/* What was done, for the page and evenkeelctl; the class and the evidence stand beside it there. */
static void say_next(const struct server *s, const struct backoff_plan *plan,
                     const struct remedy_plan *remedy, struct failure *failure)
{
    const char *with = remedy->found ? " with " : "", *what = remedy->found ? remedy->why : "";
    char wait[48];
    if (plan->open)
        (void)snprintf(
            failure->next, sizeof(failure->next),
            "not started again for %.20s, or until evenkeelctl -s %.32s restart%s%s%.110s",
            wait_text(plan->wait_s, wait, sizeof(wait)), s->config->name,
            remedy->found ? "; then" : "", with, what);
    else
        (void)snprintf(failure->next, sizeof(failure->next), "starting again in %.1f s%s%s",
                       plan->wait_s, with, what);
}

void ended_say(struct server *s, const struct crash_verdict *v, const struct failure *failure)
{
    size_t len = strlen(v->why);
    int why = (int)(len > 0 && v->why[len - 1] == '.' ? len - 1 : len); /* more of it follows */
    server_note_end(s, v->cls == CRASH_CLEAN_EXIT ? REASON_DRAIN_DONE : REASON_CRASH, v, "%s: %.*s",
                    crash_name(v->cls), why, v->why);
    if (failure->asked) {
        char text[200];
        crash_questions_text(failure->steps, text);
        server_note(s, ACT_NOTE, REASON_OOM_QUESTIONS, "%s", text);
    }
}

void ended_restart(struct server *s, const struct crash_verdict *v,
                   const struct remedy_plan *remedy, struct failure *failure)
{
    bool starting = failure->starting;
    size_t len = strlen(v->why);
    int why = (int)(len > 0 && v->why[len - 1] == '.' ? len - 1 : len); /* more of it follows */
    char wait[48];
    enum obstacle obstacle = starting ? obstacle_of(v) : OBSTACLE_NONE;
    struct backoff_plan plan = backoff_exit(&s->ends.backoff, v, starting, ek_now_us());
    if (plan.wait_s < remedy->wait_s)
        plan.wait_s = remedy->wait_s;
    s->process.cause = v->cls == CRASH_CLEAN_EXIT    ? CAUSE_PLANNED
                       : starting                    ? CAUSE_START
                       : v->cls == CRASH_HANG_KILLED ? CAUSE_HANG
                       : v->cls == CRASH_LOOP        ? CAUSE_HANG
                                                     : CAUSE_CRASH;
    s->state = plan.open ? SRV_BREAKER : SRV_BACKOFF;
    if (plan.open) {
        s->upkeep.planned = false; /* others need not wait for it */
        upkeep_release(s);
        ended_shut(s, "The server failed repeatedly and is not started again for now; evenkeelctl "
                      "explain says why.");
    }
    if (plan.open) /* the last word for a while: it says the cause, too */
        server_note(s, plan.opened ? ACT_NOTE : ACT_RESTART, REASON_BREAKER_OPEN,
                    "%s: not started again for %s unless %san operator says restart%s%s: %.*s",
                    crash_name(v->cls), wait_text(plan.wait_s, wait, sizeof(wait)),
                    obstacle ? "what it lacks is there, or " : "",
                    remedy->found ? "; then with " : "", remedy->why, why, v->why);
    else if (remedy->found)
        server_note(s, ACT_RESTART, REASON_REMEDY, "%s: starting again in %.1f s with %s",
                    crash_name(v->cls), plan.wait_s, remedy->why);
    else
        server_note(s, ACT_RESTART, REASON_BACKOFF, "%s: starting again in %.1f s",
                    crash_name(v->cls), plan.wait_s);
    say_next(s, &plan, remedy, failure);
    if (v->cls != CRASH_CLEAN_EXIT)
        ended_keep(s, failure);
    server_arm(s, plan.wait_s);
    obstacle_watch(s, obstacle);
}

void server_ended(struct server *s, struct child_exit e)
{
    if (!e.known) /* adopted: its own word is all there is */
        exit_file_read(s->address.control_path, s->process.child.pid, &e);
    bool starting = s->state == SRV_STARTING;
    if (s->want == WANT_DRAINED && s->drain.resuming) /* it died before it heard of that */
        s->want = WANT_RUN;
    struct crash_verdict v = ended_judge(s, &e);
    v.vanishes = starting && crash_vanishes(v.cls, e.known && !e.signaled ? e.code : 0, &v.numbers);
    struct failure failure = failure_of(s, &v, starting);
    postmortem_keep(s, &v, starting, false);
    past_ended(s);
    s->ends.exits[v.cls]++;
    journal_crash(s->config->name, &v, e.code, e.signaled);
    unsigned left = s->unit.unit ? 0 : child_clear(&s->process.child);
    if (left)
        ek_log(EK_LOG_NOTICE, "%s: ended %u process%s that process %d left behind", s->config->name,
               left, left == 1 ? "" : "es", (int)s->process.child.pid);
    forget_process(s);
    s->ends.soon = s->ends.last_us && s->process.started_us > s->ends.last_us &&
                   s->process.started_us - s->ends.last_us < SOON_US;
    s->ends.last_us = ek_now_us();
    s->watch.hang_killed = s->watch.reading = false;
    s->process.start_killed = s->process.stuck = false;
    s->process.killed_us = 0;
    if (starting && s->companion.blamed && s->config->dialect->companion &&
        (v.cls == CRASH_UNKNOWN || v.cls == CRASH_CONFIG)) {
        companion_drop(s);
        v.retry = true; /* it is another start */
    }
    if (starting && upkeep_tighten(s))
        v.retry = true; /* so is that */
    switch (s->want) {
    case WANT_RUN:
        ended_listen(s);
        repair_begin(s, &v, &failure);
        break;
    case WANT_RESTART:
        if (v.cls !=
            CRASH_CLEAN_EXIT) { /* what it had not finished is lost, and that has a cause */
            ended_say(s, &v, &failure);
            (void)snprintf(failure.next, sizeof(failure.next), "started again at once, as asked");
            ended_keep(s, &failure);
        }
        s->want = WANT_RUN;
        s->process.cause = s->upkeep.planned ? CAUSE_PLANNED : CAUSE_OPERATOR;
        server_launch(s);
        break;
    case WANT_DRAINED:
        ended_rest(s);
        server_note_end(s, v.cls == CRASH_CLEAN_EXIT ? REASON_OPERATOR : REASON_CRASH, &v,
                        "Ended while it was drained; resume or restart starts it: %s: %.200s",
                        crash_name(v.cls), v.why);
        break;
    case WANT_STOP:
        s->state = SRV_STOPPED;
        s->with->stopped(s->with->ctx);
        break;
    case SERVER_WANTS: break;
    }
}

void ended_unseen(struct server *s, const struct child_exit *e)
{
    struct crash_verdict v = ended_judge(s, e);
    struct failure failure = failure_of(s, &v, s->state == SRV_STARTING);
    bool clean = v.cls == CRASH_CLEAN_EXIT;
    postmortem_keep(s, &v, s->state == SRV_STARTING, true);
    s->ends.exits[v.cls]++;
    journal_crash(s->config->name, &v, e->code, e->signaled);
    (void)snprintf(failure.next, sizeof(failure.next), "started again by the next evenkeeld");
    server_note_end(s, clean ? REASON_DRAIN_DONE : REASON_CRASH, &v,
                    "Ended while no evenkeeld watched: %s: %.200s", crash_name(v.cls), v.why);
    past_ended(s);
    if (clean)
        return;
    ended_keep(s, &failure);
}

void server_check_exit(struct server *s)
{
    struct child_exit e;
    if (s->process.child.pid <= 0 || child_reap(&s->process.child, &e) != 1)
        return;
    if (s->unit.unit)
        launch_unit_ended(s);
    else
        server_ended(s, e);
}

void server_start_failed(struct server *s, enum crash_class cls, bool retry, const char *what,
                         int r)
{
    struct crash_verdict v = {.cls = cls, .retry = retry, .remedy = crash_remedy(cls)};
    /* A start that gave up waiting for memory: another process has it. */
    v.vanishes = crash_vanishes(cls, 0, NULL) || cls == CRASH_DEVICE || cls == CRASH_HOST_OOM;
    (void)snprintf(v.why, sizeof(v.why), "%s%s%s", what, r ? ": " : "", r ? ek_strerror(r) : "");
    struct failure failure = failure_of(s, &v, true);
    s->ends.exits[cls]++;
    journal_crash(s->config->name, &v, -r, false);
    forget_process(s);
    repair_begin(s, &v, &failure);
}

void server_start_waits(struct server *s, enum crash_class cls, const char *what)
{
    struct crash_verdict v = {.cls = cls, .retry = true, .remedy = crash_remedy(cls)};
    (void)snprintf(v.why, sizeof(v.why), "%s", what);
    struct failure failure = failure_of(s, &v, true);
    (void)snprintf(failure.next, sizeof(failure.next), "tried again until the cause is gone");
    s->ends.exits[cls]++;
    journal_crash(s->config->name, &v, 0, false);
    server_note(s, ACT_NOTE, REASON_CRASH, "%s: %s", crash_name(cls), what);
    ended_keep(s, &failure);
}
