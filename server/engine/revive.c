/*
 * The engine without a device: another one is brought up, and every request goes on with it. Here
 * are whether and how often; what it means for the requests is in lost.c. Engine thread.
 */
#include <stdio.h>

#include "common/clock.h"
#include "common/err.h"
#include "server/engine/engine_inside.h"

/* Whether one more is within the budget: what fails again and again is better ended. */
static bool may_revive(const struct engine *e, uint64_t now_us)
{
    uint64_t before = e->revivals.faults + e->revivals.ends;
    uint64_t most = e->p.revivals < ENGINE_REVIVALS_MOST ? e->p.revivals : ENGINE_REVIVALS_MOST;

    if (!e->backend->revive || most == 0)
        return false;
    return before < most || now_us - e->revived_us[(before - most) % ENGINE_REVIVALS_MOST] >
                                ENGINE_REVIVAL_WINDOW_US;
}

int engine_revive(struct engine *e, int code)
{
    const uint64_t from = ek_now_us();
    struct ek_device_end end = {.fault = code != -ETIMEDOUT};
    struct engine_revivals *r = &e->revivals;
    struct ek_fault fault = {0};

    if (!may_revive(e, from))
        return code;
    e->unsampled = NULL;
    e->failures = e->blamed = 0;
    uint32_t requests = sched_lost(e->sched, from);
    engine_publish(e); /* no step is in flight meanwhile */
    int failed = e->backend->revive(e->device, &end, &fault);
    if (failed < 0) {
        (void)snprintf(e->lost_why, sizeof(e->lost_why),
                       "the engine was lost (%.120s), and another one could not be had: %.200s",
                       end.why, fault.msg[0] ? fault.msg : ek_strerror(failed));
        return code;
    }
    uint64_t now = ek_now_us();
    sched_found(e->sched, end.fault, now);
    e->revived_us[(r->faults + r->ends) % ENGINE_REVIVALS_MOST] = now;
    *(end.fault ? &r->faults : &r->ends) += 1;
    r->requests += requests;
    r->last_pause_us = now - from;
    r->pause_us += r->last_pause_us;
    e->landed_us = now;
    if (e->p.revived)
        e->p.revived(e->p.ctx, end.why, r->last_pause_us, requests);
    return 0;
}
