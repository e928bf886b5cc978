/*
 * Steps on the backend: starting them, waiting for the oldest, and what a failed one means. Engine
 * thread.
 */
#include <errno.h>

#include "common/clock.h"
#include "common/err.h"
#include "server/engine/constrain.h"
#include "server/engine/engine_inside.h"

#define CLOSING_WAIT_US (5u * EK_US_PER_S)
#define STEP_TRIES      3u /* failed attempts before a request is ended for a step's -ENOMEM */
#define BLAMED_MOST     3u

static bool lacks_memory(int code)
{
    return code == -ENOMEM || code == EK_EDEVMEM;
}

/* The newest `steps` steps in flight failed. 0 when the engine can go on: what lacked memory is
 * tried again, and the third time in a row one request ends for it. When three ended so and the
 * device still has no memory, it is not their fault. */
static int step_failed(struct engine *e, int code, uint32_t steps)
{
    e->failures++;
    bool blame = e->failures >= STEP_TRIES;
    for (uint32_t i = 0; i < steps; i++)
        sched_cancel(e->sched, blame && i + 1 == steps ? code : 0, ek_now_us());
    if (blame) {
        e->failures = 0;
        e->blamed += code == EK_EDEVMEM;
    }
    return lacks_memory(code) && e->blamed < BLAMED_MOST ? 0 : code;
}

/* Between steps the device takes or gives back memory for the pool, when that is due. */
static void fit_device(struct engine *e)
{
    uint64_t now = ek_now_us();
    uint32_t blocks = e->sched->flying == 0 ? sched_pool_due(e->sched, now) : 0;

    if (blocks != 0)
        sched_pool_done(e->sched, blocks, e->backend->kv_resize(e->device, blocks), now);
}

/* Samples the newest step, with masks if a row needs one. */
static int sample_step(struct engine *e, const struct ek_step *step)
{
    struct sched *s = e->sched;
    struct flight *f = &s->flights[(s->flight_first + s->flying - 1) % SCHED_DEPTH];

    if (!constrain_needed(s, f))
        return e->backend->sample(e->device, step, NULL);
    uint64_t from = ek_now_us();
    e->masks_made += constrain_fill(&e->constrain, s, f, step, e->p.vocab, e->masks);
    e->mask_us += ek_now_us() - from;
    return e->backend->sample(e->device, step, e->masks);
}

void engine_give_up_sampling(struct engine *e)
{
    if (e->unsampled)
        (void)e->backend->sample(e->device, e->unsampled, NULL); /* so that it ends at all */
    e->unsampled = NULL;
}

int engine_start_steps(struct engine *e)
{
    struct sched *s = e->sched;

    fit_device(e);
    while (s->flying < s->depth) {
        struct ek_step *step = e->steps[(s->flight_first + s->flying) % SCHED_DEPTH];
        uint64_t from = ek_now_us();
        uint32_t rows = sched_plan(s, from, step);
        e->plan_us += ek_now_us() - from;
        if (rows == 0)
            return 0;
        int r = e->backend->forward(e->device, step);
        bool waits =
            s->flying > 1 &&
            constrain_needed(s, &s->flights[(s->flight_first + s->flying - 1) % SCHED_DEPTH]);
        if (r == 0 && waits)
            e->unsampled = step;
        else if (r == 0)
            r = sample_step(e, step);
        if (r != 0)
            return step_failed(e, r, 1);
    }
    return 0;
}

/* The step that waited for the one before. */
static int sample_waiting(struct engine *e)
{
    struct ek_step *step = e->unsampled;

    e->unsampled = NULL;
    int r = step ? sample_step(e, step) : 0;
    return r != 0 ? step_failed(e, r, 1) : 0;
}

/* Waits for one step's result; -ETIMEDOUT when it is past the step deadline. */
static int wait_step(struct engine *e, const struct flight *f)
{
    uint64_t from = ek_now_us();
    uint64_t begun = f->planned_us > e->landed_us ? f->planned_us : e->landed_us;
    int r;

    do {
        uint64_t timeout = ENGINE_WAIT_PIECE_US, spent = ek_now_us() - begun;
        if (e->p.step_deadline_us != 0)
            timeout = spent < e->p.step_deadline_us ? e->p.step_deadline_us - spent : 1;
        r = e->backend->wait(e->device, f->id, e->result, e->result_bytes, timeout);
    } while (r == -ETIMEDOUT && e->p.step_deadline_us == 0);
    e->landed_us = ek_now_us();
    e->wait_us += e->landed_us - from;
    return r != 0 ? r : e->result->error;
}

int engine_land_step(struct engine *e)
{
    struct sched *s = e->sched;
    int r = wait_step(e, &s->flights[s->flight_first]);

    if (r == 0) {
        e->failures = 0;
        e->blamed = 0;
        sched_apply(s, e->result, e->landed_us);
        return sample_waiting(e);
    }
    engine_give_up_sampling(e);
    uint32_t steps = s->flying;
    if (lacks_memory(r) && steps > 1) {
        /* What was planned on top of the failed step is worth nothing. */
        int next = wait_step(e, &s->flights[(s->flight_first + 1) % SCHED_DEPTH]);
        if (next != 0 && !lacks_memory(next))
            r = next;
    }
    return step_failed(e, r, steps);
}

void engine_land_rest(struct engine *e)
{
    struct sched *s = e->sched;
    uint32_t landed = 0;

    engine_give_up_sampling(e);
    for (; landed < s->flying; landed++) {
        const struct flight *f = &s->flights[(s->flight_first + landed) % SCHED_DEPTH];
        if (e->backend->wait(e->device, f->id, e->result, e->result_bytes, CLOSING_WAIT_US) != 0)
            return; /* it still reads what it was given */
    }
    while (s->flying > 0)
        sched_cancel(s, 0, ek_now_us()); /* nobody is left to whom a result would matter */
}
