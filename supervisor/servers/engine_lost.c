/*
 * The engine's process of a server ended, and the server goes on: why, by the same classes as for a
 * server's end, and with which limits, by the same ladders. The server waits for the answer for a
 * second at most, beside loading the next one, so nothing here asks anybody else.
 *
 * What a ladder's step taught holds as after a server's end: it is written down, its next start has
 * the flags, and until then the law does not raise the limit above it. What an operator pinned is
 * kept beside it, and written again when the remedy ends.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/loss_line.h"
#include "supervisor/io/state.h"
#include "supervisor/law/engine_end.h"
#include "supervisor/servers/server_inside.h"

static void engine_lost_look(struct server *s, struct engine_seen *ret_seen)
{
    struct xid xid = figures_xid(s->with->figures);
    *ret_seen = (struct engine_seen){0};
    uint64_t kills = server_oom_kills(s);
    ret_seen->oom_kills = ek_oom_window_kills(&s->ends.ooms, kills);
    /* Those are told: they say nothing of the server's own end. */
    ek_oom_window_begin(&s->ends.ooms, kills, ek_now_us());
    if (xid.at_us && (double)(ek_now_us() - xid.at_us) / 1e6 < FIGURES_XID_S) {
        ret_seen->xid = xid.number;
        ret_seen->xid_final = figures_is_final(xid.number);
    }
}

/* Writes down what the answer teaches. */
static void learn(struct server *s, struct remedy_memory *m, const struct remedy_case *c,
                  const struct engine_answer *a)
{
    enum crash_class cls = a->verdict.cls;
    if (a->plan.found) {
        remedy_take(m, c, &a->plan);
        s->ends.remedies[cls][a->plan.step]++;
    } else if (a->tokens) {
        (void)remedy_cap(m, 0, a->tokens, c->wall_us);
    }
    if (!a->plan.found && remedy_exists(cls))
        s->ends.remedies[cls][REMEDY_STEPS]++;
    if (a->plan.found || a->tokens)
        server_save(s);
}

/* A pin keeps the law away, not a lack of memory; it is not forgotten for that. */
static void say_pins(struct server *s, const struct engine_answer *a)
{
    const uint32_t to[KNOB_COUNT] = {a->seqs, a->tokens};
    const struct state_server *row = state_find(s->with->state, s->config->name);
    for (int k = 0; k < KNOB_COUNT; k++) {
        if (!to[k] || !row || !row->pinned[k] || row->value[k] <= to[k])
            continue;
        s->engine.losses.below_pin |= 1u << k;
        server_note(s, ACT_NOTE, REASON_ENGINE_LOST,
                    "%s is pinned to %llu: that is written again when what this taught ends "
                    "(evenkeelctl remedies)",
                    knob_name((enum knob)k), (unsigned long long)row->value[k]);
    }
}

static void keep_loss(struct server *s, enum crash_class cls, const char *said)
{
    struct engine_losses *l = &s->engine.losses;
    struct engine_lost *one = &l->at[l->count % ENGINE_LOSSES_KEPT];
    l->count++;
    one->wall_us = ek_wall_us();
    one->cls = cls;
    (void)snprintf(one->said, sizeof(one->said), "%s", said);
}

static void on_loss(void *ctx, const struct engine_end *end)
{
    struct server *s = ctx;
    struct state_server *row = state_of(s->with->state, s->config->name);
    struct remedy_memory none = {0}, *m = row ? &row->remedy : &none;
    struct remedy_case c = {.dialect = s->config->dialect,
                            .tokens_min = server_params(s).tokens_min,
                            .seqs_min = (uint32_t)s->config->seqs_min,
                            .wall_us = ek_wall_us()};
    struct engine_seen seen;
    struct engine_answer a;
    char said[200];
    bool act = s->config->policy.mode == MODE_ACT;

    engine_lost_look(s, &seen);
    (void)remedy_expire(m, c.wall_us);
    engine_end_judge(end, &seen, m, &c, &a);
    int r = end->until_us && ek_now_us() >= end->until_us
                ? -ETIMEDOUT
                : loss_line_answer(s->engine.line, end, &a, act); /* before all else: it waits */
    bool lowers = a.why[0] != '\0';
    if (lowers && act && r == 0)
        learn(s, m, &c, &a);
    s->engine.exits[a.verdict.cls]++;
    s->act.limits_us = 0; /* read again soon */
    size_t len = strlen(a.verdict.why);
    int why = (int)(len > 0 && a.verdict.why[len - 1] == '.' ? len - 1 : len);
    (void)snprintf(said, sizeof(said), "%s: %.*s; %s%.80s", crash_name(a.verdict.cls),
                   why < 90 ? why : 90, a.verdict.why,
                   r < 0     ? "the answer was too late, so it goes on by a rule of its own"
                   : !lowers ? "it goes on with the same limits"
                   : act     ? "it goes on with "
                             : "in mode act it would go on with ",
                   r == 0 ? a.why : "");
    keep_loss(s, a.verdict.cls, said);
    server_note(s, ACT_NOTE, REASON_ENGINE_LOST, "Its engine's process: %s", said);
    if (lowers && act && r == 0)
        say_pins(s, &a);
}

void engine_lost_listen(struct server *s)
{
    engine_lost_stop(s);
    if (!s->config->dialect->exit_word || !s->address.control_path[0])
        return;
    int r = loss_line_open(s->with->event, s->address.control_path, on_loss, s, &s->engine.line);
    if (r < 0)
        ek_log(EK_LOG_WARNING,
               "%s: it cannot be heard when its engine's process is lost: %s; it goes on by a rule "
               "of its own then",
               s->config->name, ek_strerror(r));
}

void engine_lost_stop(struct server *s)
{
    loss_line_close(s->engine.line);
    s->engine.line = NULL;
}
