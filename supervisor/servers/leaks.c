/*
 * Memory of a server's processes that grows for days (law/leak.h): what they have of the host and
 * of each device is read every minute, told when it is a trend, and a restart by plan asked for
 * before nothing is left: of the engine's process alone where it is that which grows. For any
 * engine, attached ones too. Called by memory_line.c and upkeep.c.
 */
#include <math.h>
#include <stdio.h>

#include "common/clock.h"
#include "supervisor/io/figures.h"
#include "supervisor/servers/server_inside.h"

#define ASK_AGAIN_S  3600.0
#define TELL_AGAIN_S 86400.0 /* in modes that only tell */

void leaks_begin(struct server *s)
{
    uint64_t now = ek_now_us();
    double sure_s = s->config->memory_trend_s;
    leak_start(&s->leaks.host, sure_s, now);
    leak_start(&s->leaks.engine, sure_s, now);
    for (uint32_t i = 0; i < GPUS_MOST; i++)
        leak_start(&s->leaks.device[i], sure_s, now);
    s->leaks.left_s = NAN;
    s->leaks.asked_us = 0;
}

/* As long as it is due; what was refused, or taken back by an operator, is asked for again later.
 */
static void ask_restart(struct server *s, const struct leak_verdict *v, bool in_engine,
                        uint64_t now)
{
    const bool acts = upkeep_acts(s);
    const uint64_t apart_us = (uint64_t)((acts ? ASK_AGAIN_S : TELL_AGAIN_S) * 1e6);
    if (s->upkeep.due_us && s->upkeep.reason == REASON_MEMORY_GROWS)
        s->upkeep.urgent = s->upkeep.urgent || v->urgent;
    if (s->upkeep.due_us || s->upkeep.planned || s->upkeep.asked ||
        (s->leaks.asked_us && s->leaks.acted == acts && now < s->leaks.asked_us + apart_us))
        return;
    s->leaks.asked_us = now;
    s->leaks.acted = acts;
    s->leaks.in_engine = in_engine;
    upkeep_due(s, REASON_MEMORY_GROWS, v->urgent, v->why);
}

static void leaks_take(struct server *s, const struct leak_verdict *v, bool in_engine, uint64_t now)
{
    if (v->grows)
        s->leaks.left_s = fmin(s->leaks.left_s, v->left_s); /* NAN is no number */
    if (v->first)
        server_note(s, ACT_NOTE, REASON_MEMORY_GROWS, "%s", v->why);
    if (v->due)
        ask_restart(s, v, in_engine, now);
}

static double of_device(const struct server *s, const struct process_tree *t, const struct gpu *g)
{
    double own = 0;
    for (uint32_t i = 0; i < g->processes && i < GPUS_PROCESSES; i++) {
        if (g->bytes[i] && figures_owns(&s->process.child, t, g->pid[i]))
            own += (double)g->bytes[i];
    }
    return own;
}

void leaks_step(struct server *s, const struct process_tree *t, const struct gpus *g,
                double host_left)
{
    uint64_t now = ek_now_us();
    const struct memory_figures *m = &s->memory.now;
    struct leak_verdict v;
    s->leaks.left_s = NAN;
    if (s->state != SRV_READY)
        return;
    double room =
        isfinite(m->most) && isfinite(m->cgroup) ? fmax(m->most - m->cgroup, 0) : (double)NAN;
    /* Beside the main process there are the launcher, which has next to nothing, and the engine. */
    const bool apart = engine_process_known(s);
    const double left_host = fmin(host_left, room);
    v = leak_step(&s->leaks.host, m->own, left_host, "host memory", now);
    const struct leak_verdict part =
        leak_step(&s->leaks.engine, m->others, left_host, "", now); /* from the same reading on */
    leaks_take(s, &v, apart && leak_is_of(&v, &part), now);
    for (uint32_t i = 0; g->error == 0 && i < g->count; i++) {
        const struct gpu *d = &g->at[i];
        char name[24];
        (void)snprintf(name, sizeof(name), "device %u", i);
        double left = d->total > d->used ? (double)(d->total - d->used) : 0;
        v = leak_step(&s->leaks.device[i], of_device(s, t, d), d->total ? left : (double)NAN, name,
                      now);
        leaks_take(s, &v, apart, now); /* where there is such a process, it has the device */
    }
}
