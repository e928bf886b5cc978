/*
 * The engine thread. It plans step n+1 while step n runs:
 *
 *   take orders (limits, drain, new requests, wishes) -> plan and start steps up to `depth` ->
 *   wait for the oldest -> apply its result -> publish numbers -> wake the workers with news
 *
 * Beside a long step the next one is planned shortly before its end, or after it
 * (sched_plan_after()).
 *
 * A step that fails for good is the engine's end, or where its device is a process of its own the
 * end of that process alone (revive.c).
 *
 * All decisions are sched.c's; here are the thread, the clock, orders and the end. Sharing is
 * described in engine_inside.h.
 */
#include "server/engine/engine.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/err.h"
#include "server/engine/constrain.h"
#include "server/engine/engine_inside.h"
#include "server/engine/kvlog.h"

#define STALL_US      10000u              /* sleep when requests wait but nothing can run */
#define START_MOST_US (10u * EK_US_PER_S) /* of a start: reading back what was kept */
#define MASK_US       500u /* the same when it is masks that they wait for: nobody tells of one */
#define LOOK_US       500000u /* with nothing to do: between two looks at a device that may be lost */

/* Seconds without a device: with a small model in the page cache, to one from a slow disk. */
static const double pause_bounds[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                      2.5,   5,    10,    30,   60,  120,  300, 600};

/* What the engine thread took under the lock. */
struct orders {
    struct request *inbox, *wishes;
    bool stop, cut, away, forget; /* forget: what was kept of the prefix cache */
};

void engine_ceiling(const struct engine_params *p, struct ek_step_ceiling *ret_ceiling)
{
    sched_ceiling(p, ret_ceiling);
}

/* At a drain's deadline, or when the engine is dead, all requests end here, wherever they are. */
static void end_all(struct sched *s, enum req_finish how, int error)
{
    sched_finish_all(s, how, error, ek_now_us());
}

/* Tells the caller that waits for a larger pool what came of it. Under the lock. */
static void settle_resize(struct engine *e)
{
    const struct sched *s = e->sched;

    if (e->resize_to == 0 || e->resize_code <= 0)
        return;
    if (e->dead || e->stop)
        e->resize_code = -ESHUTDOWN;
    else if (e->resize_code == ENGINE_TRYING && s->pool.device >= e->resize_to)
        e->resize_code = 0;
    else if (e->resize_code == ENGINE_TRYING && s->pool.error != 0)
        e->resize_code = s->pool.error;
    if (e->resize_code <= 0)
        pthread_cond_broadcast(&e->resized);
}

/* Copies numbers for others. */
void engine_publish(struct engine *e)
{
    uint64_t now = ek_now_us();
    struct sched *s = e->sched;

    kvlog_commit(e->p.kvlog);
    pthread_mutex_lock(&e->lock);
    sched_stats(s, now, &e->shared);
    e->shared.plan_us = e->plan_us;
    e->shared.wait_us = e->wait_us;
    e->shared.revivals = e->revivals;
    e->shared.warmth = e->warmth;
    e->shared.replaceable = e->backend->release != NULL;
    e->shared.device = e->where;
    e->shared.released = e->released;
    e->shared.away_us = e->where == ENGINE_DEVICE_THERE ? 0 : now - e->away_from_us;
    e->shared.away_long = engine_away_long(e, now);
    e->shared.masks = e->masks_made;
    e->shared.mask_us = e->mask_us;
    e->shared.masks_put_off = e->constrain.put_off;
    e->shared.masks_refused = e->constrain.refused;
    e->shared_us = now;
    e->prefill_rate = e->shared.prefill_rate;
    e->queued_reqs = s->entries.waiting_count - s->entries.preempted_count;
    e->queued_tokens = s->entries.waiting_tokens;
    for (const struct request *r = e->inbox; r; r = r->next) {
        e->queued_reqs++;
        e->queued_tokens += r->ask.prompt_tokens;
    }
    settle_resize(e);
    if (e->check_code > 0 && (e->dead || e->stop)) {
        e->check_code = -ESHUTDOWN;
        pthread_cond_broadcast(&e->checked);
    }
    if (e->drain == ENGINE_DRAINING && sched_idle(s) && !e->inbox)
        e->drain = ENGINE_DRAINED;
    e->shared.drain = e->drain;
    pthread_mutex_unlock(&e->lock);
}

/* Of steps that landed or failed, once others have their numbers; no other thread writes e->shared.
 */
static void engine_record(struct engine *e)
{
    for (uint32_t i = 0; i < e->landed_count; i++)
        record_step(e->p.recorder, e->sched, &e->shared, &e->landed[i], e->recorded_us);
    e->landed_count = 0;
}

static void deliver(struct engine *e)
{
    uint32_t news = sched_take_news(e->sched);

    for (uint32_t w = 0; news != 0; w++, news >>= 1)
        if (news & 1 && e->p.deliver)
            e->p.deliver(e->p.ctx, w);
}

static void submit_all(struct sched *s, struct request *inbox, uint64_t now_us)
{
    for (struct request *r = inbox, *next; r; r = next) {
        next = r->next;
        r->next = NULL;
        int code = sched_submit(s, r, now_us);
        assert(code == 0); /* engine_submit() takes no more than there are entries */
    }
}

static void take_wishes(struct sched *s, struct request *wishes, uint64_t now_us)
{
    for (struct request *r = wishes, *next; r; r = next) {
        next = r->next_wish;
        r->next_wish = NULL;
        int how = atomic_load_explicit(&r->wish, memory_order_relaxed);
        sched_finish(s, r, (enum req_finish)how, 0, now_us);
        request_unref(r);
    }
}

/* Whether the pool is to have another size than the scheduler was told. Under the lock. */
static bool resize_is_new(const struct engine *e)
{
    return e->resize_to != e->sched->pool.floor ||
           (e->resize_to != 0 && e->resize_code == ENGINE_ASKED);
}

/* Under the lock. */
static void take_device_order(struct engine *e)
{
    if (e->ordered != ENGINE_ORDER_NONE) {
        e->order = e->ordered;
        e->unchecked = e->order == ENGINE_RESTART;
        if (!e->unchecked && e->check_code > 0) { /* something else is wanted by now */
            e->check_code = 0;
            pthread_cond_broadcast(&e->checked);
        }
    }
    e->ordered = ENGINE_ORDER_NONE;
}

/* Takes what others want. False when the engine is to stop. */
static bool take_orders(struct engine *e)
{
    uint64_t now = ek_now_us();
    struct orders o = {0};

    pthread_mutex_lock(&e->lock);
    o.inbox = e->inbox;
    o.wishes = e->wishes;
    e->inbox = NULL;
    e->inbox_end = &e->inbox;
    e->wishes = NULL;
    o.stop = e->stop;
    o.cut = e->drain != ENGINE_SERVING && e->drain_deadline_us != 0 && now >= e->drain_deadline_us;
    if (limits_expire(&e->limits, now) || e->limits_new) {
        o.forget = e->sched->value[LIMIT_PREFIX_CACHING] != 0 &&
                   e->limits.value[LIMIT_PREFIX_CACHING] == 0;
        sched_limits(e->sched, &e->limits, now);
        e->limits_new = false;
    }
    if (resize_is_new(e)) {
        sched_pool_floor(e->sched, e->resize_to, now);
        e->resize_code = e->resize_to != 0 ? ENGINE_TRYING : 0;
    }
    if (e->reset_prefix)
        sched_reset_prefix(e->sched);
    o.forget = o.forget || e->reset_prefix;
    e->reset_prefix = false;
    take_device_order(e);
    o.away = engine_away_long(e, now);
    pthread_mutex_unlock(&e->lock);

    if (o.forget)
        engine_forget_kept(e);
    submit_all(e->sched, o.inbox, now);
    take_wishes(e->sched, o.wishes, now);
    if (engine_is_away(e)) /* else a plan does it */
        sched_expire(e->sched, now);
    if (o.cut)
        end_all(e->sched, REQ_FIN_DEADLINE, 0);
    if (o.away) {
        e->revivals.cut += e->sched->entries.running_count + e->sched->entries.waiting_count;
        end_all(e->sched, REQ_FIN_ERROR, -EHOSTDOWN);
    }
    return !o.stop;
}

bool engine_look_round(struct engine *e)
{
    bool on = take_orders(e);

    engine_publish(e);
    deliver(e);
    return on;
}

int engine_exit_code(int code)
{
    switch (code) {
    case EK_EDEVMEM: return EK_EXIT_DEVMEM_RUN;
    case EK_EDEVICE: return EK_EXIT_DEVICE;
    case EK_ECOMM: return EK_EXIT_COMM;
    case -ETIMEDOUT: return EK_EXIT_HANG;
    }
    return EK_EXIT_INTERNAL;
}

static const char *exit_why(int code)
{
    switch (code) {
    case EK_EDEVMEM: return "the device ran out of memory in a step";
    case EK_EDEVICE: return "the device failed in a step";
    case EK_ECOMM: return "a collective operation failed in a step";
    case -ETIMEDOUT: return "a step took longer than its deadline";
    }
    return "a step failed";
}

/* The end: every request gets an answer, and no other is taken. The recording is to say what had
 * not ended when the step failed, so it is told of none of these ends. */
static void die(struct engine *e, int code)
{
    pthread_mutex_lock(&e->lock);
    e->dead = true;
    pthread_mutex_unlock(&e->lock);
    (void)take_orders(e); /* the last ones, from before requests were refused */
    e->sched->recorder = NULL;
    end_all(e->sched, REQ_FIN_ERROR, code);
    engine_publish(e);
    deliver(e);
    if (e->p.dead)
        e->p.dead(e->p.ctx, engine_exit_code(code), e->lost_why[0] ? e->lost_why : exit_why(code));
}

/* Sleeps until there is something to do. */
static void idle(struct engine *e)
{
    uint64_t now = ek_now_us();
    uint64_t until = now + (e->backend->is_lost ? LOOK_US : ENGINE_WAIT_PIECE_US);

    pthread_mutex_lock(&e->lock);
    uint64_t expiry = limits_next_expiry(&e->limits);
    if (expiry != 0 && expiry < until)
        until = expiry;
    if (e->drain == ENGINE_DRAINING && e->drain_deadline_us != 0 && e->drain_deadline_us < until)
        until = e->drain_deadline_us;
    uint64_t stall = constrain_busy(&e->constrain) ? MASK_US : STALL_US;
    if (!sched_idle(e->sched) && !engine_is_away(e) && until > now + stall)
        until = now + stall;
    struct timespec t = {.tv_sec = (time_t)(until / EK_US_PER_S),
                         .tv_nsec = (long)(until % EK_US_PER_S) * 1000};
    bool asked = e->inbox || e->wishes || e->stop || e->limits_new || e->reset_prefix ||
                 resize_is_new(e) || e->ordered != ENGINE_ORDER_NONE ||
                 (e->drain == ENGINE_DRAINING && sched_idle(e->sched));
    if (!asked && until > now)
        (void)pthread_cond_timedwait(&e->wake, &e->lock, &t); /* a timeout is as good as a wake */
    pthread_mutex_unlock(&e->lock);
}

/* In debug and sanitizer builds everything is recounted after each step. */
static void recount(struct engine *e)
{
#ifdef EK_CHECK
    const char *wrong = sched_check(e->sched);
    if (wrong)
        (void)fprintf(stderr, "%s\n", wrong);
    assert(!wrong);
#else
    (void)e;
#endif
}

static void *engine_main(void *arg)
{
    struct engine *e = arg;

    (void)pthread_setname_np(pthread_self(), "engine"); /* for top and debuggers */
    while (take_orders(e)) {
        int r = engine_do_order(e);
        if (r == 0 && !engine_is_away(e))
            r = engine_start_steps(e);
        engine_publish(e);
        deliver(e);
        engine_record(e);
        if (r == 0 && e->sched->flights.count > 0) {
            r = engine_land_step(e);
            recount(e);
            engine_publish(e);
            deliver(e);
            engine_record(e);
        } else if (r == 0) {
            idle(e);
            r = !engine_is_away(e) && e->backend->is_lost && e->backend->is_lost(e->device)
                    ? EK_EDEVICE
                    : 0;
        }
        if (r != 0)
            r = engine_revive(e, r);
        if (r != 0) {
            die(e, r);
            return NULL;
        }
    }
    end_all(e->sched, REQ_FIN_ABORT, 0);
    engine_publish(e);
    deliver(e);
    engine_land_rest(e);
    return NULL;
}

static int init_lock(struct engine *e)
{
    pthread_condattr_t attr;
    int r = -pthread_mutex_init(&e->lock, NULL);

    if (r != 0)
        return r;
    r = -pthread_condattr_init(&attr);
    if (r == 0) {
        r = -pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        if (r == 0)
            r = -pthread_cond_init(&e->wake, &attr);
        if (r == 0) {
            r = -pthread_cond_init(&e->resized, &attr);
            if (r != 0)
                (void)pthread_cond_destroy(&e->wake);
        }
        if (r == 0) {
            r = -pthread_cond_init(&e->checked, &attr);
            if (r != 0) {
                (void)pthread_cond_destroy(&e->resized);
                (void)pthread_cond_destroy(&e->wake);
            }
        }
        (void)pthread_condattr_destroy(&attr); /* cannot fail on one that was initialised */
    }
    if (r != 0)
        (void)pthread_mutex_destroy(&e->lock);
    return r;
}

static void free_memory(struct engine *e)
{
    constrain_done(&e->constrain);
    /* After a hang the backend may still read the steps: then they are left to the process's end.
     */
    for (uint32_t i = 0; i < SCHED_DEPTH && (!e->sched || e->sched->flights.count == 0); i++)
        free(e->steps[i]);
    if (!e->sched || e->sched->flights.count == 0)
        free(e->masks);
    sched_free(e->sched);
    free(e->result);
    free(e);
}

int engine_new(const struct engine_params *p, const struct ek_backend *backend,
               struct ek_device *device, struct engine **ret_engine, struct ek_fault *fault)
{
    struct ek_step_ceiling ceiling;
    struct engine *e = calloc(1, sizeof(*e));

    if (!e)
        return -ENOMEM;
    *e = (struct engine){.p = *p,
                         .backend = backend,
                         .device = device,
                         .limits = p->limits,
                         .constrain = {.credit = CONSTRAIN_MOST}};
    e->inbox_end = &e->inbox;
    ek_hist_init(&e->revivals.pause, pause_bounds, sizeof(pause_bounds) / sizeof(pause_bounds[0]));
    int r = sched_new(p, &e->sched);
    if (r == -EINVAL)
        (void)ek_fault_set(fault, "",
                           "the engine's sizes do not go together: %u sequences, %u "
                           "tokens a step, length %u, %u blocks of %u tokens",
                           p->max_seqs, p->max_batched_tokens, p->max_model_len, p->blocks,
                           p->block_size);
    if (r != 0)
        goto out;

    r = -ENOMEM;
    sched_ceiling(p, &ceiling);
    size_t bytes = ek_step_size(&ceiling);
    e->result_bytes =
        ek_result_bytes(ceiling.seqs, ceiling.scores, p->hidden ? ceiling.seqs : 0, p->hidden);
    e->result = calloc(1, e->result_bytes);
    for (uint32_t i = 0; bytes > 0 && i < SCHED_DEPTH; i++)
        e->steps[i] = calloc(1, bytes);
    e->masks = calloc(1, constrain_bytes(p->max_seqs, p->vocab));
    if (!e->result || !e->masks || !e->steps[0] || !e->steps[1])
        goto out;
    if (p->states == 0 && (r = constrain_init(&e->constrain, p->vocab)) != 0)
        goto out;
    if (backend->kv_resize)
        sched_pool_resizable(e->sched);
    e->loaded_us = ek_now_us();
    engine_restore(e, START_MOST_US, NULL);
    sched_stats(e->sched, 0, &e->shared);
    e->shared.warmth = e->warmth;
    e->shared.revivals = e->revivals;
    r = init_lock(e);
    if (r != 0)
        goto out;
    r = -pthread_create(&e->thread, NULL, engine_main, e);
    if (r != 0) {
        (void)pthread_cond_destroy(&e->checked);
        (void)pthread_cond_destroy(&e->resized);
        (void)pthread_cond_destroy(&e->wake);
        (void)pthread_mutex_destroy(&e->lock);
        goto out;
    }
    *ret_engine = e;
    return 0;
out:
    free_memory(e);
    return r;
}

void engine_stop(struct engine *e)
{
    if (!e || e->joined)
        return;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    (void)pthread_join(e->thread, NULL); /* our own thread, joined once */
    e->joined = true;
}

void engine_free(struct engine *e)
{
    if (!e)
        return;
    engine_stop(e);
    for (struct request *r = e->wishes, *next; r; r = next) {
        next = r->next_wish;
        request_unref(r);
    }
    for (struct request *r = e->inbox, *next; r; r = next) {
        next = r->next;
        request_unref(r);
    }
    (void)pthread_cond_destroy(&e->checked);
    (void)pthread_cond_destroy(&e->resized);
    (void)pthread_cond_destroy(&e->wake);
    (void)pthread_mutex_destroy(&e->lock);
    free_memory(e);
}
