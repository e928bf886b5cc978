/*
 * A device was lost: evenkeeld is told, and what follows from its answer, or from none, is set
 * (verdict.h). Called by revive.c, on the engine's thread.
 */
#include <errno.h>

#include "common/clock.h"
#include "common/err.h"
#include "server/engine/engine_inside.h"

#define PIECE_US 50000u /* of the wait, between two looks at what requests want */

void engine_tell_loss(struct engine *e, int code, const struct ek_device_end *end,
                      struct engine_loss *ret_loss)
{
    const struct sched *s = e->sched;
    struct engine_loss loss = {
        .number = ++e->losses,
        .at_us = ek_now_us(),
        .wait_us = e->p.verdict_wait_us,
        .code = code,
        .exit_code = engine_exit_code(code),
        .end = *end,
        .steps = s->stats.steps,
        .running = s->entries.running_count,
        .tokens = (uint32_t)s->value[LIMIT_BATCHED_TOKENS],
        .seqs = (uint32_t)s->value[LIMIT_RUNNING_SEQS],
        .swap_bytes = (uint64_t)s->host.swap_most * e->p.block_bytes,
    };

    loss.served_us = loss.at_us - e->loaded_us;
    loss.asked = e->p.lost && e->p.lost(e->p.ctx, &loss);
    *ret_loss = loss;
}

/* False when no answer came in time. */
static bool await_verdict(struct engine *e, const struct engine_loss *loss,
                          ek_meanwhile_fn meanwhile, struct engine_verdict *ret_verdict)
{
    const uint64_t until = loss->at_us + loss->wait_us;
    int r = loss->asked ? 0 : -ENOENT;

    for (uint64_t now = ek_now_us(); r == 0; now = ek_now_us()) {
        uint64_t left = until > now ? until - now : 0;
        r = e->p.verdict(e->p.ctx, loss->number, left < PIECE_US ? left : PIECE_US, ret_verdict);
        if (r == 0 && (left == 0 || meanwhile(e) < 0))
            r = -ETIMEDOUT;
    }
    return r > 0;
}

void engine_take_verdict(struct engine *e, const struct engine_loss *loss,
                         ek_meanwhile_fn meanwhile)
{
    struct engine_judged j = {.loss = loss};
    struct limits_change c;
    struct ek_fault fault = {0};
    int r = 0;

    j.answered = await_verdict(e, loss, meanwhile, &j.with);
    if (!j.answered)
        verdict_own(loss, &j.with);
    const bool memory = j.with.tokens || j.with.seqs || j.with.set_swap; /* may have been short */
    pthread_mutex_lock(&e->lock);
    if (verdict_change(&j.with, &e->limits, j.answered, &c))
        r = limits_apply(&e->limits, &c, ek_now_us(), &fault);
    e->limits_new = e->limits_new || (c.set != 0 && r == 0);
    pthread_mutex_unlock(&e->lock);
    if (j.with.set_swap && e->p.block_bytes > 0)
        j.with.set_swap = host_shrink(e->sched, j.with.swap_bytes / e->p.block_bytes, ek_now_us());
    if (memory)
        engine_drop_host(e);
    *(j.answered ? &e->revivals.judged : &e->revivals.alone) += 1;
    j.refused = r < 0 ? fault.msg : NULL;
    if (e->p.judged)
        e->p.judged(e->p.ctx, &j);
}
