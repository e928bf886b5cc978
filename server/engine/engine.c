/*
 * The engine thread. It plans step n+1 while step n runs:
 *
 *   take orders (limits, drain, new requests, wishes) -> plan and start steps up to `depth` ->
 *   wait for the oldest -> apply its result -> publish numbers -> wake the workers with news
 *
 * All decisions are sched.c's; here are the thread, the clock, the backend and the door.
 *
 * Sharing: `lock` guards the fields below it in struct engine. A request goes from the submitter to
 * `inbox` (with a reference of its own), from there into the scheduler. A wish to end it goes the
 * same way through `wishes`; orders take both under one hold of the lock, so a wish never overtakes
 * its request. Everything above `lock` belongs to the engine thread after engine_new().
 */
#include "server/engine/engine.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/err.h"
#include "server/engine/sched.h"

#define RETRY_MOST_S    60u
#define WAIT_PIECE_US   (3600u * EK_US_PER_S) /* without a step deadline: wait in such pieces */
#define STALL_US        10000u                /* sleep when requests wait but nothing can run */
#define STEP_TRIES      3u /* failed attempts before a request is ended for a step's -ENOMEM */
#define BLAMED_MOST     3u
#define CLOSING_WAIT_US (5u * EK_US_PER_S)

struct engine {
    struct engine_params p;
    const struct ek_backend *backend;
    struct ek_device *device;
    struct sched *sched;
    struct ek_step *steps[SCHED_DEPTH]; /* by flight */
    struct ek_result *result;
    size_t result_bytes;
    uint32_t failures;  /* steps failed in a row */
    uint32_t blamed;    /* requests ended in a row for steps that the device had no memory for */
    uint64_t landed_us; /* when the last wait() returned */
    uint64_t plan_us, wait_us;
    pthread_t thread;

    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct request *inbox, **inbox_end;
    struct request *wishes;
    uint32_t door_reqs; /* never admitted: in the inbox or waiting */
    uint64_t door_tokens;
    struct limits limits;
    bool limits_new, reset_prefix, stop, dead;
    enum engine_drain drain;
    uint64_t drain_deadline_us;
    struct engine_stats shared;
    uint64_t shared_us;
    double prefill_rate;
    uint64_t refused_queue, refused_tokens, refused_deadline, refused_drain, refused_fit;
};

/* What the engine thread took under the lock. */
struct orders {
    struct request *inbox, *wishes;
    bool stop, cut;
};

void engine_ceiling(const struct engine_params *p, struct ek_step_ceiling *ret_ceiling)
{
    sched_ceiling(p, ret_ceiling);
}

/* Requests of a drain's deadline or a dead engine end here, whoever holds them. */
static void end_all(struct engine *e, enum req_finish how, int error)
{
    sched_finish_all(e->sched, how, error, ek_now_us());
}

/* Copies numbers for others. */
static void publish(struct engine *e)
{
    uint64_t now = ek_now_us();
    struct sched *s = e->sched;

    pthread_mutex_lock(&e->lock);
    sched_stats(s, now, &e->shared);
    e->shared.plan_us = e->plan_us;
    e->shared.wait_us = e->wait_us;
    e->shared_us = now;
    e->prefill_rate = s->prefill_rate;
    e->door_reqs = s->waiting_count - s->preempted_count;
    e->door_tokens = s->waiting_tokens;
    for (const struct request *r = e->inbox; r; r = r->next) {
        e->door_reqs++;
        e->door_tokens += r->ask.prompt_tokens;
    }
    if (e->drain == ENGINE_DRAINING && sched_idle(s) && !e->inbox)
        e->drain = ENGINE_DRAINED;
    e->shared.drain = e->drain;
    pthread_mutex_unlock(&e->lock);
}

static void deliver(struct engine *e)
{
    uint32_t news = sched_take_news(e->sched);

    for (uint32_t w = 0; news != 0; w++, news >>= 1)
        if (news & 1 && e->p.deliver)
            e->p.deliver(e->p.ctx, w);
}

static void submit_all(struct engine *e, struct request *inbox, uint64_t now_us)
{
    for (struct request *r = inbox, *next; r; r = next) {
        next = r->next;
        r->next = NULL;
        int code = sched_submit(e->sched, r, now_us);
        assert(code == 0); /* the door lets in no more than there are entries */
    }
}

static void take_wishes(struct engine *e, struct request *wishes, uint64_t now_us)
{
    for (struct request *r = wishes, *next; r; r = next) {
        next = r->next_wish;
        r->next_wish = NULL;
        int how = atomic_load_explicit(&r->wish, memory_order_relaxed);
        sched_finish(e->sched, r, (enum req_finish)how, 0, now_us);
        request_unref(r);
    }
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
        sched_limits(e->sched, &e->limits, now);
        e->limits_new = false;
    }
    if (e->reset_prefix)
        sched_reset_prefix(e->sched);
    e->reset_prefix = false;
    pthread_mutex_unlock(&e->lock);

    submit_all(e, o.inbox, now);
    take_wishes(e, o.wishes, now);
    if (o.cut)
        end_all(e, REQ_FIN_DEADLINE, 0);
    return !o.stop;
}

static int exit_code(int code)
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

/* The end: every request gets an answer, the door stays shut. */
static void die(struct engine *e, int code)
{
    pthread_mutex_lock(&e->lock);
    e->dead = true;
    pthread_mutex_unlock(&e->lock);
    (void)take_orders(e); /* the last ones that came in before the door was shut */
    end_all(e, REQ_FIN_ERROR, code);
    publish(e);
    deliver(e);
    if (e->p.dead)
        e->p.dead(e->p.ctx, exit_code(code), exit_why(code));
}

/* The newest `steps` steps in flight failed. 0 when the engine can go on. */
static int step_failed(struct engine *e, int code, uint32_t steps)
{
    e->failures++;
    bool blame = e->failures >= STEP_TRIES;
    for (uint32_t i = 0; i < steps; i++)
        sched_cancel(e->sched, blame && i + 1 == steps ? code : 0, ek_now_us());
    if (blame)
        e->failures = 0;
    return code == -ENOMEM ? 0 : code;
}

/* A step that the device had no memory for did not begin, so nothing on it is lost: the same as
 * -ENOMEM, unless requests were ended for it and it goes on. */
static int start_failed(struct engine *e, int code)
{
    if (code == EK_EDEVMEM && e->failures + 1 >= STEP_TRIES)
        e->blamed++;
    int r = step_failed(e, code, 1);
    return r == EK_EDEVMEM && e->blamed < BLAMED_MOST ? 0 : r;
}

/* Starts steps until `depth` are in flight or there is nothing to start. */
static int start_steps(struct engine *e)
{
    struct sched *s = e->sched;

    while (s->flying < s->depth) {
        struct ek_step *step = e->steps[(s->flight_first + s->flying) % SCHED_DEPTH];
        uint64_t from = ek_now_us();
        uint32_t rows = sched_plan(s, from, step);
        e->plan_us += ek_now_us() - from;
        if (rows == 0)
            return 0;
        int r = e->backend->forward(e->device, step);
        if (r == 0)
            r = e->backend->sample(e->device, step, NULL);
        if (r != 0)
            return start_failed(e, r);
    }
    return 0;
}

/* Waits for one step's result; -ETIMEDOUT when it is past the step deadline. */
static int wait_step(struct engine *e, const struct flight *f)
{
    uint64_t from = ek_now_us();
    uint64_t begun = f->planned_us > e->landed_us ? f->planned_us : e->landed_us;
    int r;

    do {
        uint64_t timeout = WAIT_PIECE_US, spent = ek_now_us() - begun;
        if (e->p.step_deadline_us != 0)
            timeout = spent < e->p.step_deadline_us ? e->p.step_deadline_us - spent : 1;
        r = e->backend->wait(e->device, f->id, e->result, e->result_bytes, timeout);
    } while (r == -ETIMEDOUT && e->p.step_deadline_us == 0);
    e->landed_us = ek_now_us();
    e->wait_us += e->landed_us - from;
    return r != 0 ? r : e->result->error;
}

/* Waits for the oldest step in flight and takes its result. */
static int land_step(struct engine *e)
{
    struct sched *s = e->sched;
    int r = wait_step(e, &s->flights[s->flight_first]);

    if (r == 0) {
        e->failures = 0;
        e->blamed = 0;
        sched_apply(s, e->result, e->landed_us);
        return 0;
    }
    uint32_t steps = s->flying;
    if (r == -ENOMEM && steps > 1) {
        /* What was planned on top of the failed step is worth nothing. */
        int next = wait_step(e, &s->flights[(s->flight_first + 1) % SCHED_DEPTH]);
        if (next != 0 && next != -ENOMEM)
            r = next;
    }
    return step_failed(e, r, steps);
}

/* Sleeps until there is something to do. */
static void idle(struct engine *e)
{
    uint64_t now = ek_now_us(), until = now + WAIT_PIECE_US;

    pthread_mutex_lock(&e->lock);
    if (e->limits.expires_us != 0 && e->limits.expires_us < until)
        until = e->limits.expires_us;
    if (e->drain == ENGINE_DRAINING && e->drain_deadline_us != 0 && e->drain_deadline_us < until)
        until = e->drain_deadline_us;
    if (!sched_idle(e->sched) && until > now + STALL_US)
        until = now + STALL_US;
    struct timespec t = {.tv_sec = (time_t)(until / EK_US_PER_S),
                         .tv_nsec = (long)(until % EK_US_PER_S) * 1000};
    bool asked = e->inbox || e->wishes || e->stop || e->limits_new || e->reset_prefix ||
                 (e->drain == ENGINE_DRAINING && sched_idle(e->sched));
    if (!asked && until > now)
        (void)pthread_cond_timedwait(&e->wake, &e->lock, &t); /* a timeout is as good as a wake */
    pthread_mutex_unlock(&e->lock);
}

static void *engine_main(void *arg)
{
    struct engine *e = arg;

    while (take_orders(e)) {
        int r = start_steps(e);
        publish(e);
        deliver(e);
        if (r == 0 && e->sched->flying > 0) {
            r = land_step(e);
            publish(e);
            deliver(e);
        } else if (r == 0) {
            idle(e);
        }
        if (r != 0) {
            die(e, r);
            return NULL;
        }
    }
    end_all(e, REQ_FIN_ABORT, 0);
    publish(e);
    deliver(e);
    /* The step buffers are the backend's until it is done with them. */
    while (e->sched->flying > 0) {
        const struct flight *f = &e->sched->flights[e->sched->flight_first];
        if (e->backend->wait(e->device, f->id, e->result, e->result_bytes, CLOSING_WAIT_US) != 0)
            break;
        sched_apply(e->sched, e->result, ek_now_us());
    }
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
        (void)pthread_condattr_destroy(&attr); /* cannot fail on one that was initialised */
    }
    if (r != 0)
        (void)pthread_mutex_destroy(&e->lock);
    return r;
}

static void free_memory(struct engine *e)
{
    /* After a hang the backend may still read the steps: then they are left to the process's end.
     */
    for (uint32_t i = 0; i < SCHED_DEPTH && (!e->sched || e->sched->flying == 0); i++)
        free(e->steps[i]);
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
    *e = (struct engine){.p = *p, .backend = backend, .device = device, .limits = p->limits};
    e->inbox_end = &e->inbox;
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
    e->result_bytes = ek_result_size(p->max_seqs);
    e->result = calloc(1, e->result_bytes);
    for (uint32_t i = 0; bytes > 0 && i < SCHED_DEPTH; i++)
        e->steps[i] = calloc(1, bytes);
    if (!e->result || !e->steps[0] || !e->steps[1])
        goto out;
    sched_stats(e->sched, 0, &e->shared);
    r = init_lock(e);
    if (r != 0)
        goto out;
    r = -pthread_create(&e->thread, NULL, engine_main, e);
    if (r != 0) {
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

void engine_free(struct engine *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    (void)pthread_join(e->thread, NULL); /* our own thread, joined once */

    for (struct request *r = e->wishes, *next; r; r = next) {
        next = r->next_wish;
        request_unref(r);
    }
    for (struct request *r = e->inbox, *next; r; r = next) {
        next = r->next;
        request_unref(r);
    }
    (void)pthread_cond_destroy(&e->wake);
    (void)pthread_mutex_destroy(&e->lock);
    free_memory(e);
}

/* Seconds until what waits at the door has been computed, 0 when that is not known. */
static double predicted_wait_s(const struct engine *e)
{
    return e->prefill_rate > 0 ? (double)e->door_tokens / e->prefill_rate : 0;
}

/* Whether the door is open for one more request; counts a refusal. Under the lock. */
static int check_door(struct engine *e, const struct request *r, struct ek_fault *fault)
{
    const uint64_t *value = e->limits.value;
    uint64_t running = e->shared.running + e->shared.preempted;
    uint64_t spare = value[LIMIT_RUNNING_SEQS] > running ? value[LIMIT_RUNNING_SEQS] - running : 0;
    uint64_t most = e->sched->entry_count - 3 * e->p.max_seqs;

    if (e->dead || e->drain != ENGINE_SERVING || e->stop) {
        e->refused_drain++;
        (void)ek_fault_set(fault, "", "the server is shutting down: try again later");
        return -ESHUTDOWN;
    }
    if (value[LIMIT_QUEUED_REQS] != 0 && value[LIMIT_QUEUED_REQS] < most)
        most = value[LIMIT_QUEUED_REQS];
    if (e->door_reqs >= most + spare) {
        e->refused_queue++;
        (void)ek_fault_set(fault, "",
                           "the queue is full: %u requests wait, max_num_queued_reqs is "
                           "%llu",
                           e->door_reqs, (unsigned long long)most);
        return -EBUSY;
    }
    if (e->door_tokens > 0 && value[LIMIT_QUEUED_TOKENS] != 0 &&
        e->door_tokens + r->ask.prompt_tokens > value[LIMIT_QUEUED_TOKENS]) {
        e->refused_tokens++;
        (void)ek_fault_set(fault, "",
                           "the queue is full: %llu prompt tokens wait, "
                           "max_num_queued_tokens is %llu",
                           (unsigned long long)e->door_tokens,
                           (unsigned long long)value[LIMIT_QUEUED_TOKENS]);
        return -EBUSY;
    }
    /* What waits may be computed at the measured rate; seats and blocks only make it worse. */
    uint64_t deadline = value[LIMIT_QUEUE_DEADLINE];
    if (r->ask.deadline_us != 0) {
        uint64_t left = r->ask.deadline_us > r->queued_us ? r->ask.deadline_us - r->queued_us : 1;
        deadline = deadline == 0 || left < deadline ? left : deadline;
    }
    if (deadline != 0 && predicted_wait_s(e) * 1e6 > (double)deadline) {
        e->refused_deadline++;
        (void)ek_fault_set(fault, "",
                           "the wait would be %.1f s, longer than the queue deadline of "
                           "%.1f s",
                           predicted_wait_s(e), (double)deadline / 1e6);
        return -EBUSY;
    }
    return 0;
}

int engine_submit(struct engine *e, struct request *r, uint32_t *ret_retry_after_s,
                  struct ek_fault *fault)
{
    r->queued_us = ek_now_us();
    pthread_mutex_lock(&e->lock);
    int code = sched_fit(e->sched, &r->ask, fault);
    if (code != 0)
        e->refused_fit++;
    else
        code = check_door(e, r, fault);
    if (code == 0) {
        request_ref(r);
        r->next = NULL;
        *e->inbox_end = r;
        e->inbox_end = &r->next;
        e->door_reqs++;
        e->door_tokens += r->ask.prompt_tokens;
        pthread_cond_signal(&e->wake);
    } else if (ret_retry_after_s) {
        double wait = predicted_wait_s(e) + 1;
        *ret_retry_after_s = wait < RETRY_MOST_S ? (uint32_t)wait : RETRY_MOST_S;
    }
    pthread_mutex_unlock(&e->lock);
    return code;
}

void engine_finish(struct engine *e, struct request *r, enum req_finish how)
{
    int none = REQ_FIN_NONE;

    if (!atomic_compare_exchange_strong(&r->wish, &none, (int)how))
        return; /* one wish is enough */
    request_ref(r);
    pthread_mutex_lock(&e->lock);
    r->next_wish = e->wishes;
    e->wishes = r;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

void engine_reset_prefix_cache(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->reset_prefix = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

void engine_stats(struct engine *e, struct engine_stats *ret_stats)
{
    uint64_t now = ek_now_us();

    pthread_mutex_lock(&e->lock);
    *ret_stats = e->shared;
    ret_stats->refused_queue += e->refused_queue;
    ret_stats->refused_tokens += e->refused_tokens;
    ret_stats->refused_deadline += e->refused_deadline;
    ret_stats->refused_drain += e->refused_drain;
    ret_stats->refused_fit += e->refused_fit;
    ret_stats->drain = e->drain;
    /* The copy may be old: a step runs for long, or there was none for a while. */
    if (ret_stats->oldest_wait_us != 0 && now > e->shared_us)
        ret_stats->oldest_wait_us += now - e->shared_us;
    if (now > ret_stats->last_step_us + 10 * EK_US_PER_S)
        ret_stats->largest_gap_us = 0;
    pthread_mutex_unlock(&e->lock);
}

void engine_limits(struct engine *e, struct limits *ret_limits)
{
    pthread_mutex_lock(&e->lock);
    if (limits_expire(&e->limits, ek_now_us()))
        e->limits_new = true;
    *ret_limits = e->limits;
    pthread_mutex_unlock(&e->lock);
}

int engine_limits_apply(struct engine *e, const struct limits_change *c, struct limits *ret_limits,
                        struct ek_fault *fault)
{
    pthread_mutex_lock(&e->lock);
    uint64_t now = ek_now_us();
    if (limits_expire(&e->limits, now))
        e->limits_new = true;
    int r = limits_apply(&e->limits, c, now, fault);
    if (r == 0) {
        e->limits_new = true;
        if (ret_limits)
            *ret_limits = e->limits;
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->lock);
    return r;
}

void engine_drain(struct engine *e, uint64_t deadline_us)
{
    pthread_mutex_lock(&e->lock);
    if (e->drain == ENGINE_SERVING)
        e->drain = ENGINE_DRAINING;
    e->drain_deadline_us = deadline_us;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

void engine_resume(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->drain = ENGINE_SERVING;
    e->drain_deadline_us = 0;
    pthread_mutex_unlock(&e->lock);
}
