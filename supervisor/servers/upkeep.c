/*
 * Restarts by plan, in turn with others; and what is done about memory that wears out (chronic.h):
 * trim, cap the prefix cache, and last a restart by plan: within its budget, its hours and the
 * lease, with every peer ready, and never for pressure. Requests finish before it; new ones wait in
 * the kept socket. It is over, and the lease given back, when the new process has served a request
 * of one token.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/client.h"
#include "supervisor/io/lease.h"
#include "supervisor/io/peers.h"
#include "supervisor/io/state.h"
#include "supervisor/servers/server_inside.h"

#define LOST_S      7200.0 /* after the state was lost: the budget is not known */
#define CANARY_MS   30000u
#define TRY_AGAIN_S 2.0
#define TURN_S      1.0 /* how often one that was asked for looks whether it is its turn */
#define PEERS_S     1.0 /* while other machines are asked */

bool upkeep_acts(const struct server *s)
{
    return s->config->policy.mode == MODE_ACT && !s->process.attached;
}

/* A sentence of this kind is said once until the server has restarted or the reason changed. */
static void note_wait(struct server *s, enum reason reason, const char *why)
{
    if (s->upkeep.waits_for == reason)
        return;
    s->upkeep.waits_for = reason;
    server_note(s, ACT_NOTE, reason, "A restart by plan is due but waits: %s", why);
}

static int local_minute(uint64_t wall_us)
{
    time_t seconds = (time_t)(wall_us / 1000000);
    struct tm tm;
    return localtime_r(&seconds, &tm) ? tm.tm_hour * 60 + tm.tm_min : 0;
}

void upkeep_release(struct server *s)
{
    if (s->upkeep.lease < 0)
        return;
    close(s->upkeep.lease);
    s->upkeep.lease = -1;
    if (s->with->peers)
        peers_release(s->with->peers);
}

/* The machine's own lock is held meanwhile: one server of it asks at a time. */
static bool peers_agree(struct server *s)
{
    char why[200] = "";
    double usage =
        sample_has(&s->watch.sample, SIG_KV_USAGE) ? s->watch.sample.value[SIG_KV_USAGE] : 0;
    int r = peers_take(s->with->peers, usage, why, sizeof(why));
    if (r == 0)
        return true;
    if (r == -EAGAIN)
        note_wait(s, REASON_LEASE_WAIT, why);
    return false;
}

/* The lease, if all the others are ready. What it waits for is said once. */
static bool take_turn(struct server *s)
{
    char why[160];
    const char *path = s->with->config->restart_lease;
    if (!s->with->peers_ready(s->with->ctx, s)) {
        upkeep_release(s);
        note_wait(s, REASON_LEASE_WAIT, "another server is not ready");
        return false;
    }
    if (s->upkeep.lease >= 0) /* what is missing are the other machines */
        return peers_agree(s);
    int r = lease_take(path, s->config->name, &s->upkeep.lease, why, sizeof(why));
    if (r < 0) {
        char text[240];
        (void)snprintf(text, sizeof(text), "%.60s has the lease %.120s",
                       r == -EAGAIN ? why : ek_strerror(r), path);
        note_wait(s, REASON_LEASE_WAIT, text);
        return false;
    }
    return peers_agree(s);
}

static bool may_restart(struct server *s, const struct state_server *row)
{
    char why[160];
    uint64_t wall = ek_wall_us();
    const struct server_config *c = s->config;
    const struct state *state = s->with->state;
    struct planned_params p = {.budget = (uint32_t)c->restart_budget,
                               .apart_s = c->restart_apart_s,
                               .hours = c->restart_hours};
    if (state->unsaved)
        server_save(s); /* perhaps it can be written again */
    if (state->unsaved || (state->lost_us && wall - state->lost_us < (uint64_t)(LOST_S * 1e6))) {
        upkeep_release(s);
        note_wait(s, REASON_RESTART_BUDGET, "restarts cannot be counted without the state file");
        return false;
    }
    enum planned_verdict verdict = planned_check(&row->planned, &p, wall, local_minute(wall),
                                                 s->upkeep.urgent, why, sizeof(why));
    if (verdict != PLANNED_OK) {
        upkeep_release(s); /* it may have been held while other machines were asked */
        note_wait(s, verdict == PLANNED_HOURS ? REASON_RESTART_HOURS : REASON_RESTART_BUDGET, why);
        return false;
    }
    return take_turn(s);
}

/* Expandable segments for the next process, where that has PyTorch's allocator. */
static void loosen(struct server *s)
{
    struct state_server *row = state_of(s->with->state, s->config->name);
    if (s->upkeep.reason != REASON_FRAG_CHRONIC || !row ||
        !remedy_worn(&row->remedy, s->config->dialect, s->repair.running.expandable, ek_wall_us()))
        return;
    s->upkeep.loosened = true;
    s->ends.remedies[CRASH_FRAG_OOM][0]++;
    server_save(s);
    server_note(s, ACT_NOTE, REASON_REMEDY,
                "Its memory is in pieces: the next process has expandable_segments:True in "
                "PyTorch's allocator");
}

bool upkeep_tighten(struct server *s)
{
    struct state_server *row = state_of(s->with->state, s->config->name);
    bool had = s->upkeep.loosened && row && remedy_unworn(&row->remedy);
    s->upkeep.loosened = false;
    if (!had)
        return false;
    server_save(s);
    server_note(s, ACT_NOTE, REASON_REMEDY,
                "It did not start with expandable_segments:True: without it again");
    return true;
}

static void restart_server(struct server *s)
{
    loosen(s);
    s->upkeep.planned = true;
    server_note(s, ACT_RESTART, s->upkeep.reason, "Restarting by plan: %s", s->upkeep.why);
    server_restart_by_plan(s);
}

static void try_restart(struct server *s, uint64_t now)
{
    struct state_server *row = state_of(s->with->state, s->config->name);
    if (s->want != WANT_RUN)
        upkeep_release(s);
    if (!row || now < s->upkeep.due_us || s->want != WANT_RUN)
        return;
    s->upkeep.due_us = now + (uint64_t)(TRY_AGAIN_S * 1e6);
    if (engine_process_known(s) && hang_away(&s->watch.sample)) {
        upkeep_release(s); /* an order to release it comes first */
        return;
    }
    if (!may_restart(s, row)) {
        if (s->upkeep.lease >= 0)
            s->upkeep.due_us = now + (uint64_t)(PEERS_S * 1e6);
        return;
    }
    planned_note(&row->planned, ek_wall_us());
    server_save(s);
    if (s->with->state->unsaved) { /* what cannot be counted may not happen (I8, I10) */
        planned_undo(&row->planned);
        upkeep_release(s);
        return;
    }
    s->upkeep.due_us = 0;
    bool engine = planned_of_engine(s->upkeep.reason, engine_process_known(s), s->leaks.in_engine);
    if (!engine || engine_process_by_plan(s) < 0)
        restart_server(s);
}

/* The engine's process alone needs no restart any more: that of the whole server does it, too. */
static void give_up_engine(struct server *s)
{
    struct state_server *row = state_of(s->with->state, s->config->name);

    if (row && s->upkeep.engine_us && s->upkeep.engine_refused) { /* counted, and did not happen */
        planned_undo(&row->planned);
        server_save(s);
    }
    s->upkeep.engine_us = 0;
    s->upkeep.engine_refused = false;
}

/* An operator's: neither budget nor hours count, only the turn. */
static void try_asked(struct server *s, uint64_t now)
{
    if (s->want != WANT_RUN)
        upkeep_release(s);
    if (now < s->upkeep.due_us || s->want != WANT_RUN || !s->probe.ready)
        return;
    s->upkeep.due_us = now + (uint64_t)(TURN_S * 1e6);
    if (!take_turn(s))
        return;
    s->upkeep.due_us = 0;
    s->upkeep.asked = false;
    give_up_engine(s);
    s->upkeep.planned = true;
    s->upkeep.reason = REASON_OPERATOR;
    server_note(s, ACT_RESTART, REASON_OPERATOR, "Operator: restart in its turn, which is now");
    server_restart_by_plan(s);
}

void upkeep_ask(struct server *s)
{
    s->upkeep.asked = true;
    s->upkeep.due_us = 0;
    s->upkeep.waits_for = REASON_NONE;
}

void upkeep_forget(struct server *s)
{
    s->upkeep.asked = s->upkeep.planned = false;
    s->upkeep.due_us = s->upkeep.engine_us = 0;
    s->upkeep.waits_for = REASON_NONE;
    upkeep_release(s);
}

static uint64_t jitter_us(double most_s)
{
    uint32_t v = 0;
    if (getrandom(&v, sizeof(v), 0) != (ssize_t)sizeof(v))
        return 0;
    return (uint64_t)(most_s * 1e6 * ((double)v / 4294967296.0));
}

static void on_trimmed(void *ctx, const struct control_result *res)
{
    struct server *s = ctx;
    if (res->error < 0)
        ek_log(EK_LOG_WARNING, "%s: could not be trimmed: %s", s->config->name, res->text);
}

static void on_capped(void *ctx, const struct control_result *res)
{
    struct server *s = ctx;
    struct decision d = {.kind = ACT_NOTE,
                         .reason = REASON_PREFIX_CAP,
                         .measured = s->upkeep.measured,
                         .limit = s->config->chronic.prefix_hit,
                         .applied = res->error == 0};
    (void)snprintf(d.why, sizeof(d.why), "%.150s%.40s", s->upkeep.why,
                   res->error ? "; it was refused" : "");
    server_record(s, &d);
}

static void cap_prefixes(struct server *s)
{
    struct control_change change = {.set_cached = true,
                                    .cached_share = CHRONIC_CACHE_TO,
                                    .origin = "evenkeeld",
                                    .reason = reason_name(REASON_PREFIX_CAP)};
    if (s->act.control && s->config->dialect->live_limits && upkeep_acts(s)) {
        (void)control_write(s->act.control, &change, on_capped, s); /* out of memory: never mind */
        return;
    }
    struct control_result res = {.error = -EPERM};
    on_capped(s, &res);
}

void upkeep_due(struct server *s, enum reason reason, bool urgent, const char *why)
{
    s->upkeep.reason = reason;
    s->upkeep.urgent = urgent;
    s->upkeep.waits_for = REASON_NONE;
    (void)snprintf(s->upkeep.why, sizeof(s->upkeep.why), "%s", why);
    if (upkeep_acts(s)) {
        s->upkeep.due_us = ek_now_us() + jitter_us(s->config->restart_jitter_s) + 1;
        return;
    }
    struct decision d = {.kind = ACT_NOTE, .reason = reason};
    (void)snprintf(d.why, sizeof(d.why), "%s: %.150s",
                   s->process.attached ? "Somebody else runs it, and should restart it"
                                       : "In mode act it would restart by plan",
                   why);
    server_record(s, &d);
}

static void take_verdict(struct server *s, const struct chronic_verdict *v)
{
    s->upkeep.measured = v->measured;
    switch (v->kind) {
    case CHRONIC_NONE: return;
    case CHRONIC_TRIM:
        server_note(s, ACT_NOTE, REASON_FRAG_TRIM, "%s", v->why);
        if (s->act.control && upkeep_acts(s))
            (void)control_trim(s->act.control, on_trimmed, s); /* else a restart follows */
        return;
    case CHRONIC_RESTART:
    case CHRONIC_LEAK:
        upkeep_due(s, v->kind == CHRONIC_LEAK ? REASON_BLOCK_LEAK : REASON_FRAG_CHRONIC, false,
                   v->why);
        return;
    case CHRONIC_INEFFECTIVE: {
        struct state_server *row = state_of(s->with->state, s->config->name);
        server_note(s, ACT_NOTE, REASON_FRAG_INEFFECTIVE, "%s", v->why);
        if (row)
            row->planned.off_until_us = ek_wall_us() + (uint64_t)(CHRONIC_OFF_S * 1e6);
        server_save(s);
        return;
    }
    case CHRONIC_PREFIX:
        (void)snprintf(s->upkeep.why, sizeof(s->upkeep.why), "%s", v->why);
        cap_prefixes(s);
        return;
    }
}

void upkeep_step(struct server *s, uint64_t now)
{
    if (s->upkeep.asked) {
        try_asked(s, now);
        return;
    }
    if (s->upkeep.engine_us) {
        engine_process_step(s, now);
        return;
    }
    if (s->state != SRV_READY || !s->law.policy || s->config->policy.mode == MODE_OBSERVE)
        return;
    if (policy_state(s->law.policy) == POL_DEGRADED)
        return; /* no restart on signals that cannot be trusted */
    struct chronic_verdict v =
        chronic_step(&s->upkeep.chronic, &s->config->chronic, &s->watch.sample, now);
    take_verdict(s, &v);
    if (s->upkeep.due_us)
        try_restart(s, now);
}

/* The end of a planned restart: a request is really served. */

static void on_served(void *ctx, const struct client_result *res)
{
    struct server *s = ctx;
    s->upkeep.canary = NULL;
    bool ok = res->error == 0 && res->status == 200;
    server_note(s, ACT_NOTE, s->upkeep.reason,
                "The restart by plan is over: a request of one token %s after %.1f s",
                ok ? "was served" : "was not served", res->took_s);
    upkeep_release(s);
}

static void prove_served(struct server *s)
{
    char url[240];
    static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":1}";
    (void)snprintf(url, sizeof(url), "%s/v1/completions", s->address.url);
    struct client_req req = {.unix_path =
                                 s->address.control_path[0] ? s->address.control_path : NULL,
                             .method = "POST",
                             .url = url,
                             .body = body,
                             .key = s->address.key,
                             .timeout_ms = CANARY_MS,
                             .most_bytes = 65536};
    if (client_start(s->with->client, &req, on_served, s, &s->upkeep.canary) < 0)
        upkeep_release(s);
}

void upkeep_ready(struct server *s)
{
    bool planned = s->upkeep.planned;
    if (!planned && s->process.child.pid > 0 && s->upkeep.ready_pid == s->process.child.pid)
        return; /* it was silent or drained for a while: what was worn out still is */
    s->upkeep.ready_pid = s->process.child.pid;
    bool frag = planned && s->upkeep.reason == REASON_FRAG_CHRONIC;
    chronic_start(&s->upkeep.chronic, ek_now_us(), frag);
    if (!s->process.attached) /* memory_line.c sees when that is another process */
        leaks_begin(s);
    if (s->upkeep.engine_us && !planned) /* the server ended meanwhile */
        upkeep_release(s);
    s->upkeep.due_us = s->upkeep.engine_us = 0;
    s->upkeep.waits_for = REASON_NONE;
    s->upkeep.planned = s->upkeep.urgent = s->upkeep.loosened = false;
    if (planned)
        prove_served(s);
}

void upkeep_engine_done(struct server *s, bool done)
{
    s->upkeep.engine_us = 0;
    if (!done) { /* the lease is not needed for what is not under way */
        upkeep_release(s);
        return;
    }
    chronic_start(&s->upkeep.chronic, ek_now_us(), true);
    leaks_begin(s);
    s->upkeep.waits_for = REASON_NONE;
    s->upkeep.urgent = false;
    s->upkeep.reason = REASON_ENGINE_RESTART;
    prove_served(s);
}

/* The restart was counted already, for it was about to happen: now it is of the whole server. */
void upkeep_engine_refused(struct server *s)
{
    struct state_server *row = state_of(s->with->state, s->config->name);
    s->upkeep.engine_us = 0;
    s->upkeep.engine_refused = false;
    if (s->state == SRV_READY && s->want == WANT_RUN) {
        restart_server(s);
        return;
    }
    if (row) {
        planned_undo(&row->planned);
        server_save(s);
    }
    upkeep_release(s);
}

void upkeep_stop(struct server *s)
{
    client_cancel(s->upkeep.canary);
    s->upkeep.canary = NULL;
    if (!s->upkeep.planned) /* an end in the middle keeps the lease until it is ready again */
        upkeep_release(s);
}
