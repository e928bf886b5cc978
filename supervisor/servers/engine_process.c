/*
 * A server whose engine is a process of its own (evenkeel-server --engine-process): that process is
 * ended and started without a drain, requests wait meanwhile and lose nothing.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/servers/server_inside.h"

#define LOAD_MOST_S 1800.0 /* for large weights; without progress the server ends itself */

bool engine_process_known(const struct server *s)
{
    return s->act.control && s->watch.sample.good &&
           sample_has(&s->watch.sample, SIG_ENGINE_RELEASED);
}

bool server_engine_figures(const struct server *s, struct engine_figures *ret_figures)
{
    const double *v = s->watch.sample.value;
    if (!s->watch.sample.good || !sample_has(&s->watch.sample, SIG_ENGINE_RELEASED))
        return false;
    struct engine_figures f = {
        .state = v[SIG_ENGINE_RELEASED] > 0   ? "released"
                 : v[SIG_ENGINE_STARTING] > 0 ? "starting"
                                              : "running",
        .planned = v[SIG_ENGINE_PLANNED],
    };
    if (sample_has(&s->watch.sample, SIG_ENGINE_RESTARTS))
        f.lost = v[SIG_ENGINE_RESTARTS] - f.planned;
    if (sample_has(&s->watch.sample, SIG_ENGINE_PAUSE)) /* of an older server it is not known */
        f.pause_s = v[SIG_ENGINE_PAUSE];
    *ret_figures = f;
    return true;
}

/* The operator waits for the server's word: it may refuse, and says why. */
static void on_ordered(void *ctx, const struct control_result *res)
{
    struct operation *o = ctx;
    if (res->error < 0)
        server_note(o->server, ACT_NOTE, REASON_OPERATOR,
                    "What was asked of the engine's process was not done: %.150s", res->text);
    operation_end(o, res->error, res->text);
}

static int engine_process_order(struct server *s, const char *word, server_fn cb, void *ctx)
{
    struct operation *o = operation_new(s, cb, ctx);
    int r = o ? control_engine(s->act.control, word, on_ordered, o) : -ENOMEM;
    if (o && r < 0)
        operation_drop(o);
    return r;
}

static void on_by_plan(void *ctx, const struct control_result *res)
{
    struct server *s = ctx;
    if (res->error == 0 || !s->upkeep.engine_us)
        return;
    /* Done at the next step, not in its answer. 409 is EK_ESTALE here. */
    s->upkeep.engine_refused = res->error == -EBADMSG || res->error == EK_ESTALE;
    server_note(
        s, ACT_NOTE, REASON_ENGINE_RESTART, "The engine's process was not started again%s: %.150s",
        s->upkeep.engine_refused ? ", so the server is restarted as a whole" : "", res->text);
    if (!s->upkeep.engine_refused)
        upkeep_engine_done(s, false);
}

int engine_process_by_plan(struct server *s)
{
    if (control_engine(s->act.control, "restart", on_by_plan, s) < 0)
        return -ENOMEM;
    s->upkeep.engine_us = ek_now_us();
    s->upkeep.engine_refused = false;
    s->upkeep.engine_planned = s->watch.sample.value[SIG_ENGINE_PLANNED];
    server_note(s, ACT_RESTART, REASON_ENGINE_RESTART,
                "Restarting the engine's process alone by plan, which is enough and needs no "
                "drain: %.150s",
                s->upkeep.why);
    return 0;
}

void engine_process_step(struct server *s, uint64_t now_us)
{
    const double *v = s->watch.sample.value;
    double took_s = (double)(now_us - s->upkeep.engine_us) / 1e6;
    if (s->upkeep.engine_refused) {
        upkeep_engine_refused(s);
        return;
    }
    if (engine_process_known(s) && v[SIG_ENGINE_PLANNED] > s->upkeep.engine_planned &&
        v[SIG_ENGINE_STARTING] == 0 && v[SIG_ENGINE_RELEASED] == 0) {
        upkeep_engine_done(s, true);
        return;
    }
    if (took_s < LOAD_MOST_S)
        return;
    server_note(s, ACT_NOTE, REASON_ENGINE_RESTART,
                "The engine's process has not been started again after %.0f s", took_s);
    upkeep_engine_done(s, false);
}

int server_engine(struct server *s, const char *word, server_fn cb, void *ctx, char *text,
                  size_t size)
{
    /* One that was released is not ready, and an evenkeeld that adopts it has no figures of it. */
    bool adopted = s->state == SRV_STARTING && s->process.adopted && s->act.control &&
                   s->config->dialect->exit_word && strcmp(word, "acquire") == 0;
    if (s->state != SRV_READY && !adopted) {
        (void)snprintf(text, size, "%s does not serve now: its engine is left alone",
                       s->config->name);
        return -EBUSY;
    }
    if (!adopted && !engine_process_known(s)) {
        (void)snprintf(text, size,
                       "%s has no process of its own for the engine: start it with "
                       "--engine-process, or use restart",
                       s->config->name);
        return -EINVAL;
    }
    if (engine_process_order(s, word, cb, ctx) < 0) {
        (void)snprintf(text, size, "out of memory");
        return -ENOMEM;
    }
    server_note(s, ACT_NOTE, REASON_OPERATOR, "Operator%s: %s of the engine's process, no drain",
                server_asker(s), word);
    return 1;
}
