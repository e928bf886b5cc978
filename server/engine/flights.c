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
#define WAIT_PLAN       1 /* no result yet, but the next step is to be planned */

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
    if (blame) {
        e->failures = 0;
        e->blamed += code == EK_EDEVMEM;
    }
    bool fatal = !lacks_memory(code) || e->blamed >= BLAMED_MOST; /* then all end, not one alone */
    if (fatal)
        sched_failing(e->sched);
    for (uint32_t i = 0; i < steps; i++)
        sched_cancel(e->sched, blame && !fatal && i + 1 == steps ? code : 0, ek_now_us());
    return fatal ? code : 0;
}

/* The flight is to be recorded with what came of it; it is gone when that is done. */
static void note_landing(struct engine *e, const struct flight *f, uint64_t begun_us,
                         uint64_t now_us, int error)
{
    struct record_landed *l = &e->landed[e->landed_count++];

    *l = record_landing(f);
    l->at_us = now_us;
    l->took_us = now_us > begun_us ? now_us - begun_us : 0;
    l->error = error;
}

/* The newest step in flight could not be begun, or not be sampled. */
static int newest_failed(struct engine *e, int code)
{
    const struct sched *s = e->sched;
    const struct flight *f = &s->flights.at[flights_newest(&s->flights)];

    note_landing(e, f, f->planned_us, ek_now_us(), code);
    return step_failed(e, code, 1);
}

/* Between steps the device takes or gives back memory for the pool, when that is due. */
static int fit_device(struct engine *e)
{
    uint64_t now = ek_now_us();
    uint32_t blocks = e->sched->flights.count == 0 ? sched_pool_due(e->sched, now) : 0;

    if (blocks == 0)
        return 0;
    int r = e->backend->kv_resize(e->device, blocks);
    if (r == EK_EDEVICE && e->backend->revive)
        return r; /* it is due again when there is another one */
    sched_pool_done(e->sched, blocks, r, now);
    return 0;
}

/* Samples the newest step, with masks if a row needs one. */
static int sample_step(struct engine *e, const struct ek_step *step)
{
    struct sched *s = e->sched;
    struct flight *f = &s->flights.at[flights_newest(&s->flights)];

    if (!constrain_needed(&s->entries, f))
        return e->backend->sample(e->device, step, NULL);
    uint64_t from = ek_now_us();
    e->masks_made += constrain_fill(&e->constrain, s, f, step, e->p.vocab, e->masks);
    e->mask_us += ek_now_us() - from;
    return e->backend->sample(e->device, step, e->masks);
}

/* Samples the step that waits for it, whatever comes out: it is not wanted any more. */
static void engine_give_up_sampling(struct engine *e)
{
    if (e->unsampled)
        (void)e->backend->sample(e->device, e->unsampled, NULL); /* so that it ends at all */
    e->unsampled = NULL;
}

int engine_start_steps(struct engine *e)
{
    struct sched *s = e->sched;

    int lost = fit_device(e);
    if (lost != 0)
        return lost;
    while (s->flights.count < s->fixed.depth) {
        struct ek_step *step = e->steps[flights_place(&s->flights, s->flights.count)];
        uint64_t from = ek_now_us();
        if (sched_plan_after(s) > from)
            return 0;
        constrain_look(&e->constrain, s);
        uint32_t rows = sched_plan(s, from, step);
        e->plan_us += ek_now_us() - from;
        if (rows == 0)
            return 0;
        record_begin(e->p.recorder, s, ek_now_us());
        int r = e->backend->forward(e->device, step);
        bool waits = s->flights.count > 1 &&
                     constrain_needed(&s->entries, &s->flights.at[flights_newest(&s->flights)]);
        if (r == 0 && waits)
            e->unsampled = step;
        else if (r == 0)
            r = sample_step(e, step);
        if (r != 0)
            return newest_failed(e, r);
    }
    return 0;
}

/* The step that waited for the one before. */
static int sample_waiting(struct engine *e)
{
    struct ek_step *step = e->unsampled;

    e->unsampled = NULL;
    int r = step ? sample_step(e, step) : 0;
    return r != 0 ? newest_failed(e, r) : 0;
}

/* Waits for one step's result, until the step deadline: -ETIMEDOUT; or until the next one is to be
 * planned, where that is sooner: WAIT_PLAN. */
static int wait_step(struct engine *e, const struct flight *f, uint64_t until_us)
{
    uint64_t from = ek_now_us(), now = from, end = UINT64_MAX;

    if (e->p.step_deadline_us != 0) /* from now: what this thread is late is not the device's */
        end = from + e->p.step_deadline_us;
    uint64_t stop = until_us < end ? until_us : end;
    int r = e->backend->wait(e->device, f->id, e->result, e->result_bytes, 0);
    if (r == 0)
        sched_untimed(e->sched);
    if (r != -ETIMEDOUT) /* else it is waited for once, however late it is after the look */
        now = ek_now_us();
    while (r == -ETIMEDOUT && now < stop) {
        uint64_t left = stop > now ? stop - now : 1;
        r = e->backend->wait(e->device, f->id, e->result, e->result_bytes,
                             left < ENGINE_WAIT_PIECE_US ? left : ENGINE_WAIT_PIECE_US);
        now = ek_now_us();
    }
    e->wait_us += now - from;
    if (r == -ETIMEDOUT && now < end)
        return WAIT_PLAN;
    e->landed_us = now;
    return r != 0 ? r : e->result->error;
}

int engine_land_step(struct engine *e)
{
    struct sched *s = e->sched;
    const struct flight *f = &s->flights.at[s->flights.first];
    uint64_t before = e->landed_us; /* the one before it had the device until then */
    uint64_t plan_us = s->flights.count < s->fixed.depth ? sched_plan_after(s) : 0;
    int r = wait_step(e, f, plan_us > ek_now_us() ? plan_us : UINT64_MAX);

    if (r == WAIT_PLAN)
        return 0;
    if (r != -ETIMEDOUT) /* a step that hangs is on the device still, and so it is recorded */
        note_landing(e, f, f->planned_us > before ? f->planned_us : before, e->landed_us, r);
    if (r == 0) {
        e->failures = 0;
        e->blamed = 0;
        sched_apply(s, e->result, e->landed_us);
        return sample_waiting(e);
    }
    engine_give_up_sampling(e);
    uint32_t steps = s->flights.count;
    const struct flight *behind = &s->flights.at[flights_place(&s->flights, 1)];
    if (steps > 1) { /* what was planned on top of the failed step is worth nothing */
        int next = lacks_memory(r) ? wait_step(e, behind, UINT64_MAX) : 0;
        bool worse = next != 0 && !lacks_memory(next);
        r = worse ? next : r;
        if (r != -ETIMEDOUT)
            note_landing(e, behind, e->landed_us, e->landed_us, worse ? next : -ECANCELED);
    }
    return step_failed(e, r, steps);
}

void engine_land_rest(struct engine *e)
{
    struct sched *s = e->sched;
    uint32_t landed = 0;

    engine_give_up_sampling(e);
    for (; landed < s->flights.count; landed++) {
        const struct flight *f = &s->flights.at[flights_place(&s->flights, landed)];
        if (e->backend->wait(e->device, f->id, e->result, e->result_bytes, CLOSING_WAIT_US) != 0)
            return; /* it still reads what it was given */
    }
    while (s->flights.count > 0)
        sched_cancel(s, 0, ek_now_us()); /* no request is left that waits for a result */
}
