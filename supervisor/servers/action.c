/*
 * Limits: what the server's are, what the policy or an operator wants them to be, and what is kept
 * for the next start. A change counts when it was read back; three failed writes in a row stop
 * writing (the policy only advises) until the limits can be read again.
 *
 * The same limit has a value in four places:
 * - the server's own, which is the truth. It is read when the server becomes ready, every 30 s, and
 *   2 s after anything that makes it doubtful; each write carries the generation that was read, so
 *   that one that was made in ignorance of another's is refused.
 * - the policy's (policy_limit()), set by action_take_limits() from what was read. The policy never
 *   takes its own wish for what is.
 * - state.json's, for the next start: what was learned, for a day; what an operator pinned, until
 *   it is unpinned (action_keep()).
 * - HAProxy's, for an engine without live limits: apply_at_edge() notes it, and HAProxy's next
 *   agent-check reads it (action_edge_line()). Nothing is read back there.
 *
 * After a start (restore()) a pin wins over what was learned, that over the configured start, and
 * the configured bounds over all. A remedy for a lost engine may hold a pinned limit lower for a
 * while (losses.below_pin); pin_again() writes the pin when it does so no more. After a planned
 * restart the limit begins low and is raised in steps, since caches are cold (ramp.c).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/state.h"
#include "supervisor/servers/record.h"
#include "supervisor/servers/server_inside.h"

#define FAILURES_MOST 3u
#define REFRESH_US    30000000u
#define RETRY_US      2000000u

static uint32_t action_bound(uint64_t configured, uint32_t ceiling)
{
    if (!configured || (ceiling && configured > ceiling))
        return ceiling;
    return (uint32_t)configured;
}

static uint32_t at_least(uint64_t configured, uint32_t floor, uint32_t def)
{
    uint32_t least = configured ? (uint32_t)configured : def;
    return least > floor ? least : floor;
}

/* What running out of memory taught holds for what serves, too: a ceiling for the law. */
static void bound_by_learned(const struct server *s, struct policy_params *p)
{
    const struct state_server *row = state_find(s->with->state, s->config->name);
    if (!row || p->mode != MODE_ACT || !s->act.limits_known || !s->config->dialect->live_limits ||
        row->remedy.until_us <= ek_wall_us())
        return;
    const struct remedy_settings *caps = &row->remedy.caps;
    if (caps->seqs && p->seqs_max > caps->seqs)
        p->seqs_max = caps->seqs;
    if (caps->tokens && p->tokens_max > caps->tokens)
        p->tokens_max = caps->tokens;
}

bool server_limits_live(const struct server *s)
{
    return s->config->dialect->live_limits;
}

uint32_t server_ceiling(const struct server *s, enum knob k)
{
    const struct remedy_settings *flags = &s->repair.running, *said = &s->repair.said;
    if (s->act.limits.knob[k].ceiling)
        return s->act.limits.knob[k].ceiling;
    if (k == KNOB_SEQS)
        return flags->seqs ? flags->seqs : said->seqs;
    return flags->tokens ? flags->tokens : said->tokens;
}

struct policy_params server_params(const struct server *s)
{
    const struct server_config *c = s->config;
    const struct control_limits *l = &s->act.limits;
    struct policy_params p = c->policy;
    p.seqs_max = action_bound(c->seqs_max, l->knob[KNOB_SEQS].ceiling);
    p.tokens_max = action_bound(c->tokens_max, l->knob[KNOB_TOKENS].ceiling);
    if (!s->act.limits_known) { /* an engine that does not say its own: its flags, or no more than
                                   any default */
        p.seqs_max = action_bound(c->seqs_max, server_ceiling(s, KNOB_SEQS));
        p.tokens_max = action_bound(c->tokens_max, server_ceiling(s, KNOB_TOKENS));
        p.seqs_max = p.seqs_max ? p.seqs_max : c->dialect->seqs_default_most;
        p.tokens_max = p.tokens_max ? p.tokens_max : c->dialect->tokens_default_most;
    }
    bound_by_learned(s, &p);
    p.seqs_min = at_least(c->seqs_min, l->knob[KNOB_SEQS].floor, 1);
    p.tokens_min = at_least(c->tokens_min, l->knob[KNOB_TOKENS].floor, KNOB_TOKENS_LEAST);
    if (p.seqs_max && p.seqs_min > p.seqs_max)
        p.seqs_min = p.seqs_max;
    if (p.tokens_max && p.tokens_min > p.tokens_max)
        p.tokens_min = p.tokens_max;
    p.queue_start_s = l->deadline_start_s;
    p.reserve_start = l->reserve_start;
    p.queue_outside = c->edge && !c->dialect->live_limits;
    bool can =
        c->dialect->live_limits && s->act.limits_known && s->act.write_failures < FAILURES_MOST;
    if (p.mode == MODE_ACT && !can && !p.queue_outside)
        p.mode = MODE_ADVISE;
    return p;
}

void server_save(struct server *s)
{
    int r = state_save(s->with->config->state_dir, s->with->state);
    if (r < 0)
        ek_log(
            EK_LOG_WARNING,
            "cannot write the state in %s: %s; it is kept in memory, and nothing is restarted by "
            "plan until it can",
            s->with->config->state_dir, ek_strerror(r));
}

/* Where a remedy holds a pinned knob lower for a while, the pin is not forgotten. */
void action_keep(struct server *s, unsigned by_operator)
{
    struct state_server *row = state_of(s->with->state, s->config->name);
    if (!row || !s->law.policy)
        return;
    for (int k = 0; k < KNOB_COUNT; k++) {
        bool pinned = policy_pinned(s->law.policy, (enum knob)k);
        if (!pinned || !row->pinned[k] || !row->value[k] || by_operator & 1u << k)
            row->value[k] = policy_limit(s->law.policy, (enum knob)k);
        row->pinned[k] = pinned;
    }
    row->wall_us = ek_wall_us();
    server_save(s);
}

void action_take_limits(struct server *s, const struct control_limits *l)
{
    s->act.limits = *l;
    s->act.limits_known = true;
    if (!s->law.policy)
        return;
    struct policy_params p = server_params(s);
    (void)policy_set(s->law.policy, &p); /* out of memory: the old constants stay */
    policy_limits(s->law.policy, l->knob[KNOB_SEQS].value, l->knob[KNOB_TOKENS].value);
}

static bool make_policy(struct server *s)
{
    if (s->law.policy)
        return true;
    struct policy_params p = server_params(s);
    return policy_new(&p, &s->law.policy) == 0; /* else again at the next refresh */
}

/* After a start: the configured maximum, pins, and what was learned in the last day. */
static void on_restored(void *ctx, const struct control_result *res)
{
    struct server *s = ctx;
    if (res->error == 0)
        action_take_limits(s, &res->limits);
    else
        ek_log(EK_LOG_WARNING, "%s: its limits could not be restored: %s", s->config->name,
               res->text);
}

/* Whether what was learned still holds: the load that taught it is gone after a day. */
static bool is_recent(const struct state_server *row)
{
    uint64_t wall = ek_wall_us();
    return row && wall >= row->wall_us && wall - row->wall_us < STATE_KEEP_S * EK_US_PER_S;
}

void action_start_limits(const struct server *s, char *text, size_t size)
{
    const struct server_config *c = s->config;
    const struct state_server *row = state_of(s->with->state, c->name);
    const uint64_t max[KNOB_COUNT] = {c->seqs_max, c->tokens_max};
    bool act = c->policy.mode == MODE_ACT;
    size_t at = 0;
    text[0] = '\0';
    for (int k = 0; c->dialect->live_limits && row && k < KNOB_COUNT; k++) {
        bool holds = row->pinned[k] || (act && is_recent(row));
        uint64_t want = holds ? row->value[k] : 0;
        if (max[k] && (want > max[k] || (act && !want))) /* a bound holds from the start, too */
            want = max[k];
        if (k == KNOB_SEQS && act && s->upkeep.planned && !row->pinned[k]) {
            uint32_t all = want ? (uint32_t)want : s->act.limits.knob[k].ceiling;
            want = ramp_first(s, c->seqs_min ? (uint32_t)c->seqs_min : 1, all);
        }
        int n = want ? snprintf(text + at, size - at, "%s%s=%llu", at ? "," : "",
                                knob_name((enum knob)k), (unsigned long long)want)
                     : 0;
        at += n > 0 && (size_t)n < size - at ? (size_t)n : 0;
    }
}

static void restore(struct server *s)
{
    const struct state_server *row = state_of(s->with->state, s->config->name);
    struct policy_params p = server_params(s);
    const uint32_t max[KNOB_COUNT] = {p.seqs_max, p.tokens_max};
    const uint32_t min[KNOB_COUNT] = {p.seqs_min, p.tokens_min};
    struct control_change change = {
        .generation = s->act.limits.generation, .origin = "evenkeeld", .reason = "restored"};
    bool recent = is_recent(row), any = false;
    for (int k = 0; k < KNOB_COUNT; k++) {
        uint32_t live = s->act.limits.knob[k].value, want = live;
        if (row && row->pinned[k])
            policy_pin(s->law.policy, (enum knob)k, true);
        if (row && row->value[k] && (row->pinned[k] || (recent && !s->process.adopted)))
            want = row->value[k];
        if (max[k] && want > max[k])
            want = max[k];
        if (row && row->pinned[k] && row->value[k] > want)
            s->engine.losses.below_pin |= 1u << k; /* by what was learned */
        if (want < min[k])
            want = min[k];
        if (k == KNOB_SEQS && s->ramp.kept)
            ramp_go_on(s);
        else if (k == KNOB_SEQS)
            want = ramp_begin(s, &p, want);
        bool may = p.mode == MODE_ACT || (row && row->pinned[k]); /* a pin is an operator's word */
        if (!s->act.limits.knob[k].known || want == live || !may)
            continue;
        change.value[k] = want;
        any = true;
    }
    if (any && control_write(s->act.control, &change, on_restored, s) < 0)
        ek_log(EK_LOG_WARNING, "%s: out of memory while restoring its limits", s->config->name);
}

/* Pinned limits that a remedy for a lost engine holds lower: once it does so no more, what the
 * operator said is written again. */
static void pin_again(struct server *s)
{
    const struct state_server *row = state_find(s->with->state, s->config->name);
    struct policy_params p = server_params(s);
    const uint32_t max[KNOB_COUNT] = {p.seqs_max, p.tokens_max};
    struct control_change change = {.generation = s->act.limits.generation,
                                    .origin = "evenkeeld",
                                    .reason = "pinned before a remedy"};
    bool any = false;
    for (int k = 0; k < KNOB_COUNT; k++) {
        bool was = row && row->pinned[k] && s->engine.losses.below_pin & 1u << k;
        uint32_t want = was ? row->value[k] : 0;
        if (max[k] && want > max[k])
            want = max[k];
        if (!was || s->act.limits.knob[k].value >= row->value[k])
            s->engine.losses.below_pin &= ~(1u << k);
        else if (want > s->act.limits.knob[k].value) {
            change.value[k] = want;
            any = true;
        }
    }
    if (any && !s->act.writing && control_write(s->act.control, &change, on_restored, s) < 0)
        ek_log(EK_LOG_WARNING, "%s: out of memory while restoring its limits", s->config->name);
}

static void on_read(void *ctx, const struct control_result *res)
{
    struct server *s = ctx;
    if (res->error < 0) {
        ek_log(EK_LOG_DEBUG, "%s: cannot read its limits: %s", s->config->name, res->text);
        return;
    }
    if (s->act.write_failures >= FAILURES_MOST)
        ek_log(EK_LOG_NOTICE, "%s: its limits can be read again; writing them again",
               s->config->name);
    s->act.write_failures = 0;
    s->act.limits = res->limits;
    s->act.limits_known = true;
    if (!make_policy(s))
        return;
    action_take_limits(s, &res->limits);
    if (!s->act.restored) {
        s->act.restored = true;
        restore(s);
    } else if (s->engine.losses.below_pin) {
        pin_again(s);
    }
}

void action_refresh(struct server *s, uint64_t now_us)
{
    uint64_t every = s->act.limits_known && s->law.policy ? REFRESH_US : RETRY_US;
    if (!s->act.control || !s->config->dialect->live_limits || s->state == SRV_STARTING ||
        (s->process.child.pid == 0 && !s->process.attached) || s->act.writing ||
        now_us - s->act.limits_us < every)
        return;
    s->act.limits_us = now_us;
    (void)control_read(s->act.control, on_read, s); /* or at the next refresh */
}

/* What an evenkeeld before told HAProxy: what was learned for a day, what is pinned as long as it
 * is pinned. */
static void edge_restore(struct server *s, const struct state_server *row)
{
    bool pinned = row->pinned[KNOB_SEQS];
    if (!s->act.edge_seqs && (pinned || is_recent(row)))
        s->act.edge_seqs = row->value[KNOB_SEQS];
    if (pinned)
        policy_pin(s->law.policy, KNOB_SEQS, true);
}

void action_ready(struct server *s)
{
    s->act.limits_us = ek_now_us();
    s->act.restored = false;
    s->ramp.target = 0;
    s->ramp.due = s->upkeep.planned;
    if (s->law.policy) {
        policy_restart(s->law.policy, s->act.limits_us);
        s->record.ready_us = s->act.limits_us;
    }
    repair_listen(s);
    if (s->act.control && s->config->dialect->live_limits) {
        (void)control_read(s->act.control, on_read, s); /* or at the next refresh */
    } else if (make_policy(s)) {
        struct policy_params p = server_params(s);
        const struct state_server *row = state_of(s->with->state, s->config->name);
        if (p.queue_outside && row)
            edge_restore(s, row);
        (void)policy_set(s->law.policy,
                         &p); /* this start's flags; out of memory: the old ones stay */
        if (s->act.edge_seqs > p.seqs_max)
            s->act.edge_seqs = p.seqs_max;
        if (p.queue_outside) /* of tokens the edge knows nothing */
            policy_limits(s->law.policy, s->act.edge_seqs ? s->act.edge_seqs : p.seqs_max, 0);
        else
            policy_limits(s->law.policy, p.seqs_max, p.tokens_max);
    }
}

static void on_applied(void *ctx, const struct control_result *res)
{
    struct server *s = ctx;
    struct decision d = s->act.pending;
    s->act.writing = false;
    d.applied = res->error == 0;
    if (d.applied) {
        s->act.write_failures = 0;
        policy_applied(s->law.policy, &d, true);
        action_take_limits(s, &res->limits);
        server_record(s, &d);
        action_keep(s, 0);
        return;
    }
    policy_applied(s->law.policy, &d, false);
    s->record.write_failed = true;
    server_record(s, &d);
    s->act.write_failures++;
    s->act.limits_us = 0; /* read them soon: never assume */
    if (s->act.write_failures == FAILURES_MOST) {
        struct policy_params p = server_params(s);
        (void)policy_set(s->law.policy, &p); /* out of memory: the old constants stay */
        s->act.limits_us = ek_now_us();
        server_note(s, ACT_NOTE, REASON_LIMIT_APPLY_FAILED,
                    "%u writes of limits failed, the last one: %.100s; only advising until they "
                    "can be read again",
                    s->act.write_failures, res->text);
    }
}

/* HAProxy asks for it at its next check; nothing comes back that could be compared. */
static void apply_at_edge(struct server *s, struct decision d)
{
    s->act.edge_seqs = d.to;
    d.applied = true;
    policy_applied(s->law.policy, &d, true);
    server_record(s, &d);
    action_keep(s, 0);
}

/* The limit in percent of its ceiling, so that HAProxy's weight follows it; 100 when not known. */
static unsigned share_of_ceiling(const struct server *s)
{
    uint64_t value = s->act.limits.knob[KNOB_SEQS].value,
             most = s->act.limits.knob[KNOB_SEQS].ceiling;
    if (!s->act.limits_known || !s->config->dialect->live_limits || value == 0 || value >= most)
        return 100;
    return (unsigned)((100 * value + most - 1) / most);
}

/* A process that has just begun has a cold cache: its share of the work grows. */
static unsigned edge_weight(const struct server *s)
{
    double up_s = (double)(ek_now_us() - s->probe.ready_us) / 1e6, ramp_s = s->config->edge_ramp_s;
    unsigned share = share_of_ceiling(s);
    if (s->process.adopted || up_s >= ramp_s)
        return share;
    unsigned begun = 10 + (unsigned)(90 * up_s / ramp_s);
    return begun < share ? begun : share;
}

void action_edge_line(void *ctx, char *line, size_t size)
{
    const struct server *s = ctx;
    bool leaves = s->state == SRV_DRAINING || s->state == SRV_DRAINED ||
                  (s->state == SRV_STOPPING && s->want != WANT_RUN);
    uint32_t now = s->law.policy ? policy_limit(s->law.policy, KNOB_SEQS) : 0;
    if (leaves)
        (void)snprintf(line, size, "drain\n");
    else if (s->state != SRV_READY || !s->probe.ready)
        (void)snprintf(line, size, "down\n");
    else if (now && !s->config->dialect->live_limits)
        (void)snprintf(line, size, "up ready %u%% maxconn:%u\n", edge_weight(s), now);
    else
        (void)snprintf(line, size, "up ready %u%%\n", edge_weight(s));
}

void action_apply(struct server *s, const struct decision *d)
{
    if (!s->act.control && s->act.edge) {
        apply_at_edge(s, *d);
        return;
    }
    struct control_change change = {.generation = s->act.limits.generation,
                                    .origin = "evenkeeld",
                                    .reason = reason_name(d->reason)};
    if (d->knob == KNOB_DEADLINE) {
        change.set_deadline = true;
        change.deadline_s = d->to / 1000.0;
    } else if (d->knob == KNOB_RESERVE) {
        change.set_reserve = true;
        change.reserve = d->to / 1000.0;
    } else {
        change.value[d->knob] = d->to;
    }
    s->act.pending = *d;
    s->act.writing = true;
    if (control_write(s->act.control, &change, on_applied, s) < 0) {
        struct control_result res = {.error = -ENOMEM, .text = "out of memory"};
        on_applied(s, &res);
    }
}

void action_for_next_start(struct server *s, const struct decision *d)
{
    struct state_server *row = state_of(s->with->state, s->config->name);
    uint32_t seqs = d->knob == KNOB_SEQS ? d->to : 0, tokens = d->knob == KNOB_TOKENS ? d->to : 0;
    if (!row || !s->config->next_start || s->config->policy.mode != MODE_ACT ||
        d->kind != ACT_LOWER || !remedy_cap(&row->remedy, seqs, tokens, ek_wall_us()))
        return;
    server_save(s);
    server_note(
        s, ACT_NOTE, REASON_NEXT_START,
        "The next start within a day will have %s %u; a full KV cache itself restarts nothing",
        seqs ? s->config->dialect->seqs_flag : s->config->dialect->tokens_flag, d->to);
}

void action_stop(struct server *s)
{
    if (s->act.writing && s->law.policy) {
        policy_applied(s->law.policy, &s->act.pending, false);
        s->record.write_failed = true;
    }
    s->act.writing = false;
    s->act.limits_known = false;
    s->act.write_failures = 0;
    if (!s->act.control)
        return;
    /* What is under way was for the process that ended. */
    struct control *fresh;
    if (control_new(s->with->client, s->address.control_path, &fresh) == 0) {
        control_free(s->act.control);
        s->act.control = fresh;
        server_answer_operator(s);
    }
}

void server_reconfigure(struct server *s, const struct server_config *fresh)
{
    const char *old = s->config->record ? s->config->record : "";
    const struct server_config *config = companion_plain(s, fresh);
    if (strcmp(old, config->record ? config->record : "") != 0) {
        record_close(s->record.file);
        s->record.file = NULL;
        s->record.failed = false;
    }
    s->config = config;
    scrape_interval(s->watch.scrape, (uint64_t)(config->poll_s * 1e6));
    if (s->state == SRV_BREAKER || s->state == SRV_BACKOFF) {
        backoff_reset(&s->ends.backoff); /* a changed configuration may have cured it */
        server_arm(s, 0);
    }
    if (!s->law.policy)
        return;
    struct policy_params p = server_params(s);
    (void)policy_set(s->law.policy, &p); /* out of memory: the old constants stay */
    s->act.restored = false;             /* new bounds are written at the next reading */
    s->act.limits_us = 0;
}
