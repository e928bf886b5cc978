/*
 * What is written of a server's life after each turn of the loop, and how this evenkeeld goes on
 * from what the one before wrote (life.h has the table). What was written is taken once, when it is
 * known what runs; until then it stays in the file, so that an evenkeeld that is killed while it
 * looks leaves it to the next one.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/exit_file.h"
#include "supervisor/io/lease.h"
#include "supervisor/io/state.h"
#include "supervisor/servers/server_inside.h"

/* Writing */

/* What is tried is not kept, and a restart without it is not the one that was asked for. */
static bool waits_plainly(const struct server *s)
{
    return s->drain.restart_waits && trial_is_none(&s->repair.trial);
}

static struct life life_of(const struct server *s)
{
    struct life l = {
        .boot = s->with->boot,
        .state = s->state,
        .want = s->want,
        .pid = (int32_t)s->process.child.pid,
        .ramp = s->ramp.target,
        .planned = s->upkeep.planned,
        .asked = s->upkeep.asked,
        .waits = waits_plainly(s),
        .found = s->drain.found,
        .loosened = s->upkeep.loosened,
    };
    bool drains = s->state == SRV_DRAINING || s->state == SRV_STOPPING;
    if (drains && !s->process.killed_us) /* what was killed is killed again, at any time */
        l.until_us = s->timer.due_us;
    if (l.planned)
        (void)snprintf(l.planned_name, sizeof(l.planned_name), "%s", reason_name(s->upkeep.reason));
    return l;
}

void server_turn(struct server *s)
{
    struct state_server *row = s->life.taken ? state_of(s->with->state, s->config->name) : NULL;
    struct life now = life_of(s);
    if (!row || (life_equal(&row->life, &now) && backoff_equal(&row->backoff, &s->ends.backoff)))
        return;
    row->life = now;
    row->backoff = s->ends.backoff;
    server_save(s);
}

/* Reading */

void life_read(struct server *s)
{
    const struct state_server *row = state_of(s->with->state, s->config->name);
    if (!row || s->life.taken)
        return;
    s->life.was = row->life;
    if (!s->life.begun)
        s->ends.backoff = row->backoff;
    if (!s->life.begun && row->life.boot != s->with->boot) /* times of another boot mean nothing */
        backoff_forget_times(&s->ends.backoff);
    s->life.begun = true;
}

static struct life_next next_of(struct server *s)
{
    const struct server_config *c = s->config;
    struct life_found found = {
        .boot = s->with->boot,
        .now_us = ek_now_us(),
        .pid = (int32_t)s->process.child.pid,
        .age_s = s->process.child.pid > 0 ? child_age_s(&s->process.child) : 0,
        .start_deadline_s = c->start_deadline_s,
        .drain_most_s = c->drain_deadline_s + TERM_GRACE_S + DRAIN_SLACK_S,
        .hang_s = c->hang_s,
    };
    s->life.taken = true;
    s->upkeep.loosened = s->life.was.loosened; /* of any boot: no start with it has been ready */
    return life_go_on(&s->life.was, &found);
}

static enum reason reason_of(const char *name)
{
    enum reason r = reason_find(name);
    return r < REASON_COUNT ? r : REASON_OPERATOR;
}

/* A restart by plan that was under way is one still; another that has the lease now has to wait
 * less for it than if this one began anew. */
static void take_plan(struct server *s)
{
    char who[160];
    if (!s->life.was.planned)
        return;
    s->upkeep.planned = true;
    s->upkeep.reason = reason_of(s->life.was.planned_name);
    if (s->upkeep.lease < 0)
        (void)lease_take(s->with->config->restart_lease, s->config->name, &s->upkeep.lease, who,
                         sizeof(who));
}

/* It ended while no evenkeeld ran: its own word and its log are all there is. */
static void tell_unseen(struct server *s)
{
    struct child_exit e = {.known = false};
    s->process.child.pid = s->life.was.pid;
    s->state = s->life.was.state;
    s->want = s->life.was.want;
    if (s->address.control_path[0])
        exit_file_read(s->address.control_path, s->process.child.pid, &e);
    ended_unseen(s, &e);
    if (s->state == SRV_STARTING)
        (void)upkeep_tighten(s); /* the next start is another one, if it had them */
    s->process.child.pid = 0;
    s->want = WANT_RUN;
    s->state = SRV_ADOPTING;
}

void life_none_runs(struct server *s)
{
    struct life_next n = next_of(s);
    if (n.step == LIFE_REST) {
        ended_rest(s);
        server_note(s, ACT_NOTE, REASON_OPERATOR,
                    "An operator drained it and it has ended since: resume or restart starts it");
        return;
    }
    bool ran = n.known && s->life.was.pid > 0;
    if (ran)
        tell_unseen(s);
    if (ran && s->life.was.want == WANT_RESTART) {
        take_plan(s);
        s->process.cause = s->life.was.planned ? CAUSE_PLANNED : CAUSE_OPERATOR;
    } else if (ran && s->life.was.want == WANT_RUN) {
        s->process.cause = CAUSE_CRASH;
    }
    s->life.was = (struct life){0};
    server_launch(s);
}

void life_adopted(struct server *s)
{
    struct life_next n = next_of(s);
    s->want = n.want;
    s->life.was_ready = n.step == LIFE_ASK_LONG;
    switch (n.step) {
    case LIFE_START: /* it runs, so these are not for it */
    case LIFE_REST:
    case LIFE_STEPS:
    case LIFE_ASK:
    case LIFE_ASK_LONG:
        if (n.known) {
            take_plan(s);
            s->upkeep.asked = s->life.was.asked;
            s->drain.restart_waits = s->life.was.waits;
            s->ramp.kept = s->life.was.ramp;
        }
        server_arm(s, n.left_s);
        break;
    case LIFE_DRAIN:
        take_plan(s);
        s->drain.found = s->life.was.found;
        drain_go_on(s, n.state, n.left_s);
        break;
    case LIFE_END:
        s->state = n.want == WANT_RUN ? SRV_STOPPING : SRV_DRAINING;
        take_plan(s);
        server_arm(s, n.left_s);
        break;
    }
    s->life.was = (struct life){0};
    server_arm_probe(s, 0);
}

void life_attached(struct server *s)
{
    s->life.taken = true;
    bool drained = s->life.was.boot == s->with->boot && s->life.was.want == WANT_DRAINED &&
                   (s->life.was.state == SRV_DRAINING || s->life.was.state == SRV_DRAINED);
    if (drained) {
        s->want = WANT_DRAINED;
        drain_go_on(s, s->life.was.state, -1);
    }
    s->life.was = (struct life){0};
}
