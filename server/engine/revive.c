/*
 * The engine without a device: it was lost, or an operator wants it ended for a while, and another
 * one is brought up, with which every request goes on. Here are whether, when and how often; what
 * it means for the requests is in lost.c. Engine thread, which takes orders while it waits:
 * requests come, leave, and end when they have waited for too long.
 */
#include <errno.h>
#include <stdio.h>

#include "common/clock.h"
#include "common/err.h"
#include "server/engine/engine_inside.h"

#define TRY_US       (2u * EK_US_PER_S) /* between two tries to have a device again; */
#define TRY_FIRST_US 100000u            /* after a loss it begins with this, and doubles */
#define TRY_LOOK_US  20000u             /* between two looks at what is wanted meanwhile */
/* Of the pause for an engine that is restarted: writing down what its cache has; and reading it. */
#define PAUSE_MOST_US EK_US_PER_S

bool engine_is_away(const struct engine *e)
{
    return e->where != ENGINE_DEVICE_THERE || e->order != ENGINE_ORDER_NONE;
}

bool engine_away_long(const struct engine *e, uint64_t now_us)
{
    return e->where != ENGINE_DEVICE_THERE && e->p.away_most_us != 0 &&
           now_us - e->away_from_us >= e->p.away_most_us;
}

/* Whether one more is within the budget: what fails again and again is better ended. */
static bool may_revive(const struct engine *e, uint64_t now_us)
{
    uint64_t before = engine_losses(&e->revivals);
    uint64_t most = e->p.revivals < ENGINE_REVIVALS_MOST ? e->p.revivals : ENGINE_REVIVALS_MOST;

    if (!e->backend->revive || most == 0)
        return false;
    return before < most || now_us - e->revived_us[(before - most) % ENGINE_REVIVALS_MOST] >
                                ENGINE_REVIVAL_WINDOW_US;
}

void engine_drop_host(struct engine *e)
{
    host_empty(e->sched, ek_now_us());
    if (e->backend->host_drop)
        e->backend->host_drop(e->device);
}

/* There is none from now on, and all requests wait. */
static void go_without(struct engine *e, enum engine_device where, bool host_stays)
{
    const bool stays = host_stays && e->backend->host_drop;
    uint64_t now = ek_now_us();
    if (e->where == ENGINE_DEVICE_THERE) { /* else the one after it could not be had */
        e->away_from_us = now;
        e->away_requests = 0;
    }
    e->unsampled = NULL;
    e->failures = e->blamed = 0;
    e->away_requests += sched_lost(e->sched, stays, now);
    if (!stays)
        engine_drop_host(e);
    e->where = where;
}

static int revive_meanwhile(void *ctx)
{
    struct engine *e = ctx;

    return engine_look_round(e) && e->order != ENGINE_RELEASE ? 0 : -ECANCELED;
}

static int keep_meanwhile(void *ctx)
{
    return engine_look_round(ctx) ? 0 : -ECANCELED;
}

static enum engine_cause cause_of(const struct ek_device_end *end, int code)
{
    if (end->oom_kills > 0)
        return ENGINE_LOST_OOM;
    if (end->ended && end->signal != 0)
        return end->fault ? ENGINE_LOST_FAULT : ENGINE_LOST_ENDED;
    if (code == -ENOMEM || code == EK_EDEVMEM)
        return ENGINE_LOST_OOM;
    if (code == -ETIMEDOUT)
        return ENGINE_LOST_HANG;
    if (!end->ended)
        return ENGINE_LOST_DEVICE;
    return end->fault ? ENGINE_LOST_FAULT : ENGINE_LOST_ENDED;
}

/* Whether the host tier is what it was: nothing wrote where it should not, and memory that is short
 * is not to be had from it. */
static bool spares_host(enum engine_cause cause)
{
    return cause == ENGINE_LOST_ENDED || cause == ENGINE_LOST_HANG;
}

/* One more is of the budget from now on. */
static void count_loss(struct engine *e, const struct ek_device_end *end, int code)
{
    e->revived_us[engine_losses(&e->revivals) % ENGINE_REVIVALS_MOST] = ek_now_us();
    e->revivals.lost[cause_of(end, code)]++;
}

/* A number for how it ended, the same for the same way; 0: not by what it computed. Where that is
 * not sure no two are the same, so that a second one may be chance (lost.c); after count_loss(). */
static uint32_t fault_of(const struct engine *e, const struct ek_device_end *end, int code)
{
    if (end->fault && end->unsure)
        return 1u << 31 | (uint32_t)engine_losses(&e->revivals);
    const uint32_t how = end->ended ? ((uint32_t)end->signal << 8) + (uint32_t)end->status
                                    : 1u << 16 | (uint16_t)-code;

    return end->fault ? how + 1 : 0;
}

/* Whether the next one may be had, where this one could not: it was ended while it was loaded, or
 * what it needs is in use still. Another model or another version stays what it is. */
static bool may_pass(int code)
{
    return code == -ENOMEM || code == -EAGAIN || code == EK_EDEVMEM || code == EK_EDEVICE ||
           code == EK_ECOMM;
}

/* 0 when so long has passed, -ECANCELED when no device is wanted any more. */
static int wait_to_try(struct engine *e, uint64_t us)
{
    for (uint64_t until = ek_now_us() + us; ek_now_us() < until;) {
        uint64_t piece = ek_now_us() + TRY_LOOK_US;
        struct timespec t = {.tv_sec = (time_t)(piece / EK_US_PER_S),
                             .tv_nsec = (long)(piece % EK_US_PER_S) * 1000};
        pthread_mutex_lock(&e->lock);
        (void)pthread_cond_timedwait(&e->wake, &e->lock, &t); /* it is looked anyway */
        pthread_mutex_unlock(&e->lock);
        int r = revive_meanwhile(e);
        if (r < 0)
            return r;
    }
    return 0;
}

/* One that is ended while it is loaded is as lost as one that computes: again within the budget,
 * and as long as requests wait. Nodes that cannot be reached, as while a cable is out, are one loss
 * however often it is tried: without them a server that is started anew would have none, either.
 * Where nothing bounds the wait, the budget does. */
static int revive_again(struct engine *e, struct ek_fault *fault)
{
    uint64_t pause_us = TRY_FIRST_US;
    int r = e->backend->revive(e->device, revive_meanwhile, e, fault);

    while (may_pass(r) && !engine_away_long(e, ek_now_us())) {
        struct ek_device_end end = {0};
        e->backend->how_lost(e->device, &end);
        const bool counts = !end.unsure || e->p.away_most_us == 0;
        if (counts && !may_revive(e, ek_now_us()))
            break;
        if (counts)
            count_loss(e, &end, r);
        if (cause_of(&end, r) == ENGINE_LOST_OOM)
            engine_drop_host(e);
        if (e->p.away)
            e->p.away(e->p.ctx, fault->msg[0] ? fault->msg : ek_strerror(r));
        r = wait_to_try(e, pause_us);
        if (r < 0)
            break;
        pause_us = pause_us * 2 < TRY_US ? pause_us * 2 : TRY_US;
        *fault = (struct ek_fault){0};
        r = e->backend->revive(e->device, revive_meanwhile, e, fault);
    }
    return r;
}

/* Brings one up; after a loss with what is said of it. -ECANCELED when it is not wanted any more.
 */
static int revive_bring(struct engine *e, const struct engine_loss *loss, struct ek_fault *fault)
{
    e->where = ENGINE_DEVICE_STARTING;
    engine_publish(e); /* no step is in flight meanwhile */
    /* Where it was released requests wait anyway: one try, and do_order() tries again. */
    int r = !loss && e->order == ENGINE_ACQUIRE
                ? e->backend->revive(e->device, revive_meanwhile, e, fault)
                : revive_again(e, fault);
    if (loss && (r == 0 || r == -ECANCELED))
        engine_take_verdict(e, loss, revive_meanwhile);
    e->where = r == 0 ? ENGINE_DEVICE_THERE : ENGINE_DEVICE_RELEASED;
    return r;
}

/* It is there. `why` is NULL where it was asked for. */
static void go_on(struct engine *e, const char *why)
{
    struct engine_revivals *r = &e->revivals;
    uint64_t now = ek_now_us();

    e->released = false;
    r->requests += e->away_requests;
    r->last_pause_us = now - e->away_from_us;
    ek_hist_observe(&r->pause, (double)r->last_pause_us / 1e6);
    e->landed_us = e->loaded_us = now;
    if (e->p.revived)
        e->p.revived(e->p.ctx, why, r->last_pause_us, e->away_requests);
}

/* Tells the operator who ordered a restart what came of looking at it. */
static void settle_check(struct engine *e, int code, const struct ek_fault *fault)
{
    pthread_mutex_lock(&e->lock);
    if (e->check_code > 0) {
        e->check_code = code;
        e->check_fault = *fault;
        pthread_cond_broadcast(&e->checked);
    }
    pthread_mutex_unlock(&e->lock);
}

int engine_revive(struct engine *e, int code)
{
    const uint64_t from = ek_now_us();
    struct ek_device_end end = {0};
    struct ek_fault fault = {0};
    struct engine_loss loss;

    if (!may_revive(e, from))
        return code;
    e->backend->how_lost(e->device, &end);
    engine_tell_loss(e, code, &end, &loss);
    count_loss(e, &end, code);
    go_without(e, ENGINE_DEVICE_STARTING, spares_host(cause_of(&end, code)));
    int failed = revive_bring(e, &loss, &fault);
    if (failed < 0 && failed != -ECANCELED) {
        (void)snprintf(e->lost_why, sizeof(e->lost_why),
                       "the engine was lost (%.120s), and another one could not be had: %.200s",
                       end.why, fault.msg[0] ? fault.msg : ek_strerror(failed));
        return code;
    }
    sched_found(e->sched, fault_of(e, &end, code), ek_now_us());
    if (failed == 0) {
        e->order = ENGINE_ORDER_NONE; /* whatever was asked for before, it has just begun */
        e->unchecked = false;
        settle_check(e, 0, &(struct ek_fault){0});
        go_on(e, end.why);
    }
    return 0;
}

/* Another one could not be had. */
static int order_failed(struct engine *e, int code, const struct ek_fault *fault)
{
    const char *why = fault->msg[0] ? fault->msg : ek_strerror(code);

    if (e->order == ENGINE_RESTART) {
        (void)snprintf(e->lost_why, sizeof(e->lost_why),
                       "the engine was ended for a restart, and another one could not be had: "
                       "%.200s",
                       why);
        return EK_EDEVICE;
    }
    e->try_us = ek_now_us() + TRY_US; /* what it needs may be in use still */
    if (e->p.away)
        e->p.away(e->p.ctx, why);
    return 0;
}

/* Ends it on purpose. */
static int let_go(struct engine *e)
{
    engine_save(e, PAUSE_MOST_US, keep_meanwhile);
    if (e->backend->release(e->device) < 0)
        return EK_EDEVICE; /* as if it had been lost */
    go_without(e, ENGINE_DEVICE_RELEASED, e->order == ENGINE_RESTART);
    sched_found(e->sched, 0, e->away_from_us); /* no request is suspected */
    e->try_us = 0;
    return 0;
}

/* Before the device is ended for a restart, whether there would be another one. */
static void check_order(struct engine *e)
{
    struct ek_fault fault = {0};
    int r = 0;

    if (e->where == ENGINE_DEVICE_THERE && e->backend->check)
        r = e->backend->check(e->device, &fault);
    e->unchecked = false;
    if (r < 0) {
        if (!fault.msg[0])
            ek_fault_write(&fault, "", "%s", ek_strerror(r));
        e->order = ENGINE_ORDER_NONE;
        if (e->p.refused)
            e->p.refused(e->p.ctx, fault.msg);
    }
    settle_check(e, r, &fault);
}

int engine_do_order(struct engine *e)
{
    struct ek_fault fault = {0};
    int r = 0;

    if (e->unchecked)
        check_order(e);
    if (e->order == ENGINE_ORDER_NONE || e->sched->flights.count > 0)
        return 0;
    if (e->where == ENGINE_DEVICE_THERE && e->order != ENGINE_ACQUIRE)
        r = let_go(e);
    if (r < 0 || e->where == ENGINE_DEVICE_THERE || e->order == ENGINE_RELEASE) {
        e->released = e->released || (e->order == ENGINE_RELEASE && r == 0);
        if (e->order == ENGINE_RELEASE && r == 0 && e->p.away)
            e->p.away(e->p.ctx, NULL);
        e->order = ENGINE_ORDER_NONE;
        return r;
    }
    if (ek_now_us() < e->try_us)
        return 0;
    r = revive_bring(e, NULL, &fault);
    if (r < 0)
        return r == -ECANCELED ? 0 : order_failed(e, r, &fault);
    const enum engine_order done = e->order;
    engine_restore(e, PAUSE_MOST_US, revive_meanwhile);
    if (e->order == done) /* else another one was given meanwhile */
        e->order = ENGINE_ORDER_NONE;
    e->revivals.planned++;
    go_on(e, NULL);
    return 0;
}
