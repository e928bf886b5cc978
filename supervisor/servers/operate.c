/*
 * What an operator changes while a server runs (evenkeelctl limits): a limit, or whether the policy
 * may move it. Called by the API; action.c writes what the policy wants, and keeps both for the
 * next start.
 *
 * A change of a live limit is written with the generation that was read, and counts when it was
 * read back: then it is noted, and the one that asked is called. Where the limit is HAProxy's, or
 * only a pin changes, that is at once.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/err.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/state.h"
#include "supervisor/servers/server_inside.h"

struct operation *operation_new(struct server *s, server_fn cb, void *ctx)
{
    struct operation *o = malloc(sizeof(*o));
    if (!o)
        return NULL;
    *o = (struct operation){
        .server = s, .cb = cb, .ctx = ctx, .next = s->act.operations, .link = &s->act.operations};
    if (o->next)
        o->next->link = &o->next;
    s->act.operations = o;
    return o;
}

void operation_drop(struct operation *o)
{
    *o->link = o->next;
    if (o->next)
        o->next->link = o->link;
    free(o);
}

void operation_end(struct operation *o, int error, const char *text)
{
    server_fn cb = o->cb;
    void *ctx = o->ctx;
    operation_drop(o);
    cb(ctx, error, text);
}

void server_answer_operator(struct server *s)
{
    char text[160];
    (void)snprintf(text, sizeof(text),
                   "%s ended, or was taken out, before it answered: whether it was done is not "
                   "known",
                   s->config->name);
    while (s->act.operations)
        operation_end(s->act.operations, -ECANCELED, text);
}

static void after_change(struct server *s, const struct server_change *c)
{
    unsigned set = 0;
    for (int k = 0; k < KNOB_COUNT; k++) {
        if (!c->named[k] || !s->law.policy)
            continue;
        if (!c->value[k] && c->pin == policy_pinned(s->law.policy, (enum knob)k))
            continue; /* nothing changes */
        if (c->has_pin)
            policy_pin(s->law.policy, (enum knob)k, c->pin);
        set |= c->value[k] ? 1u << k : 0;
        server_note(s, ACT_NOTE, c->has_pin ? REASON_OPERATOR_PIN : REASON_OPERATOR,
                    "Operator%s: %s %u%s%s%.90s", c->who, knob_name((enum knob)k),
                    policy_limit(s->law.policy, (enum knob)k),
                    !c->has_pin ? " set"
                    : c->pin    ? " pinned"
                                : " unpinned",
                    c->reason[0] ? ": " : "", c->reason);
    }
    action_keep(s, set);
}

static void on_operated(void *ctx, const struct control_result *res)
{
    struct operation *o = ctx;
    if (res->error == 0) {
        action_take_limits(o->server, &res->limits);
        after_change(o->server, &o->change);
    }
    operation_end(o, res->error, res->text);
}

/* Names the first limit that is out of its bounds. */
static int check_bounds(const struct server *s, const struct server_change *c, char *text,
                        size_t size)
{
    struct policy_params p = server_params(s);
    const uint32_t max[KNOB_COUNT] = {p.seqs_max, p.tokens_max};
    const struct state_server *row = state_find(s->with->state, s->config->name);
    bool learned = row && row->remedy.until_us > ek_wall_us();
    for (int k = 0; k < KNOB_COUNT; k++) {
        if (!c->value[k] || !max[k] || c->value[k] <= max[k])
            continue;
        (void)snprintf(text, size, "%s %u is above its ceiling %u; choose 1 to %u, or %s",
                       knob_name((enum knob)k), c->value[k], max[k], max[k],
                       max[k] < s->act.limits.knob[k].ceiling && learned
                           ? "end what running out of memory taught (evenkeelctl remedies forget)"
                           : "start the server with a higher one");
        return -EBADMSG;
    }
    return 0;
}

/* An engine without live limits, and HAProxy in front: its maxconn is the limit. */
static int edge_set_limits(struct server *s, const struct server_change *change, char *text,
                           size_t size)
{
    uint32_t seqs = change->value[KNOB_SEQS];
    if (change->named[KNOB_TOKENS]) {
        (void)snprintf(text, size,
                       "%s of %s cannot be set in front of it: HAProxy counts requests; set %s and "
                       "restart it",
                       knob_name(KNOB_TOKENS), s->config->name, s->config->dialect->tokens_flag);
        return -EBADMSG;
    }
    int r = check_bounds(s, change, text, size);
    if (r < 0)
        return r;
    if (seqs) {
        s->act.edge_seqs = seqs;
        policy_limits(s->law.policy, seqs, 0);
    }
    after_change(s, change);
    return 0;
}

/* One sentence that says what to do. */
static void say_why_not(const struct server *s, char *text, size_t size)
{
    bool live = s->config->dialect->live_limits;
    if (!live && !s->act.edge)
        (void)snprintf(
            text, size,
            "the limits of %s cannot be changed while it runs: put HAProxy in front and "
            "name its agent-check with edge, use the companion, or set %s and restart it",
            s->config->name, s->config->dialect->seqs_flag);
    else if (live && !s->act.control)
        (void)snprintf(text, size,
                       "the limits of %s cannot be changed: name its control_socket beside attach",
                       s->config->name);
    else if (live && s->state == SRV_READY)
        (void)snprintf(
            text, size,
            "the limits of %s cannot be changed now: they are being read; try again in a "
            "moment",
            s->config->name);
    else
        (void)snprintf(text, size, "the limits of %s cannot be changed now: it is %s",
                       s->config->name, server_state_name(s->state));
}

int server_set_limits(struct server *s, const struct server_change *change, server_fn cb, void *ctx,
                      char *text, size_t size)
{
    bool live = s->config->dialect->live_limits;
    if (!s->law.policy || (live ? !s->act.control || !s->act.limits_known : !s->act.edge)) {
        say_why_not(s, text, size);
        return -EBUSY;
    }
    int r = live ? check_bounds(s, change, text, size) : edge_set_limits(s, change, text, size);
    if (r < 0)
        return r;
    if (!live) {
        cb(ctx, 0, "");
        return 0;
    }
    struct control_change c = {.origin = "operator", .reason = change->reason};
    bool writes = false;
    for (int k = 0; k < KNOB_COUNT; k++) {
        c.value[k] = change->value[k];
        writes |= change->value[k] != 0;
    }
    if (!writes) { /* only a pin */
        after_change(s, change);
        cb(ctx, 0, "");
        return 0;
    }
    struct operation *o = operation_new(s, cb, ctx);
    if (o) {
        o->change = *change;
        if (control_write(s->act.control, &c, on_operated, o) == 0)
            return 0;
        operation_drop(o);
    }
    (void)snprintf(text, size, "out of memory");
    return -ENOMEM;
}
