/*
 * Judges a lost engine process for servers/engine_lost.c: its status and the cgroup's count of
 * kills become a class (oom.h), the class a step of its ladder (remedy.h). Its own part is what a
 * running server can take: limits are lowered, everything that needs a restart is skipped.
 */
#include "supervisor/law/engine_end.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "supervisor/engines/dialect.h"

#define GIB 1073741824.0

/* The kernel kills for memory by SIGKILL: another end was not its doing, whatever it killed beside.
 */
static uint64_t oom_kills(const struct engine_end *loss, const struct engine_seen *seen)
{
    if (!loss->ended || loss->signal != SIGKILL)
        return 0;
    return loss->oom_kills > seen->oom_kills ? loss->oom_kills : seen->oom_kills;
}

/* The log is no evidence here: the server wrote all of it, most of it long before. */
static struct crash_verdict engine_end_classify(const struct engine_end *loss,
                                                const struct engine_seen *seen)
{
    const struct crash_evidence e = {
        .signaled = loss->ended && loss->signal != 0,
        .status = !loss->ended   ? loss->exit_code
                  : loss->signal ? loss->signal
                                 : loss->status,
        .has_word = true,
        .phase = PHASE_READY,
        .exit0_is_failure = true,
        .uptime_s = loss->served_s,
        .xid = seen->xid,
        .xid_final = seen->xid_final,
        .oom_kills = oom_kills(loss, seen),
    };
    return crash_classify(&e);
}

/* No ladder has a step left for the engine alone. */
static void halve_tokens(const struct remedy_case *c, struct engine_answer *a)
{
    uint32_t least = c->tokens_min > c->now.seqs ? c->tokens_min : c->now.seqs;
    uint32_t to = c->now.tokens / 2 > least ? c->now.tokens / 2 : least;
    if (to >= c->now.tokens || !c->dialect->tokens_flag)
        return;
    a->tokens = to;
    (void)snprintf(a->why, sizeof(a->why), "%s %u instead of %u", c->dialect->tokens_flag, to,
                   c->now.tokens);
}

void engine_end_judge(const struct engine_end *loss, const struct engine_seen *seen,
                      const struct remedy_memory *m, struct remedy_case *c,
                      struct engine_answer *ret_answer)
{
    struct engine_answer a = {.verdict = engine_end_classify(loss, seen)};
    c->cls = a.verdict.cls;
    c->now = (struct remedy_settings){
        .tokens = loss->tokens, .seqs = loss->seqs, .swap_gib = (double)loss->swap_bytes / GIB};
    a.plan = remedy_next(m, c);
    if (a.plan.found) {
        const struct remedy_settings *caps = &a.plan.caps;
        a.tokens = caps->tokens < loss->tokens ? caps->tokens : 0;
        a.seqs = caps->seqs < loss->seqs ? caps->seqs : 0;
        a.set_swap = caps->no_swap || (caps->swap_gib > 0 && caps->swap_gib < c->now.swap_gib);
        a.swap_bytes = a.set_swap && !caps->no_swap ? (uint64_t)(caps->swap_gib * GIB) : 0;
        memcpy(a.why, a.plan.why, sizeof(a.why));
    } else if (c->cls == CRASH_HOST_OOM) {
        halve_tokens(c, &a);
    }
    *ret_answer = a;
}
