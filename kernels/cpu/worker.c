/*
 * The device thread and its jobs. A step is two jobs, forward and sample, done in the order in
 * which they were asked for; two steps may be in flight, in a flight each (id modulo 2):
 *
 *   FREE --forward()--> FORWARD --sample()--> SAMPLE --device thread--> DONE --wait()--> FREE
 *
 * The logits are in one buffer, so a forward is taken only when the step before has its sample job.
 * `lock` guards states, queue and `stop`. A flight's step, masks and result belong to the device
 * thread from forward() until DONE, then to the caller.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/run.h"
#include "kernels/cpu/sample.h"
#include "kernels/cpu/worker.h"

#define JOBS 4 /* two flights, two jobs each */

struct worker_job {
    struct cpu_flight *flight;
    bool sample;
};

struct cpu_worker {
    struct ek_device *d;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t asked, done;
    struct cpu_flight flight[2];
    struct worker_job job[JOBS];
    _Atomic uint32_t asked_jobs; /* jobs ever put in the queue */
    uint32_t taken_jobs;
    bool stop;
};

static void do_forward(struct ek_device *d, struct cpu_flight *f)
{
    uint64_t start = ek_now_us();
    uint32_t seqs = f->step->seqs <= d->plan.ceiling.seqs ? f->step->seqs : 0;

    memset(f->result, 0, ek_result_size(seqs));
    f->result->step = f->step->id;
    f->result->error = cpu_forward(d, f->step, &f->result->copy_us);
    f->result->seqs = f->result->error == 0 ? seqs : 0;
    f->result->forward_us = ek_now_us() - start;
}

static void do_sample(struct ek_device *d, struct cpu_flight *f)
{
    uint64_t start = ek_now_us();

    if (!ek_graph_last(d->graph))
        f->result->seqs = 0; /* another stage has them */
    else if (f->result->error == 0)
        f->result->error = cpu_sample(d, f->step, f->masks, f->result);
    d->samples++;
    if (d->peers && d->peers->stages > 1 && ek_graph_last(d->graph))
        d->peers->ops->tell(d->peers, d->last, d->plan.ceiling.seqs);
    f->result->sample_us = ek_now_us() - start;
    atomic_fetch_add_explicit(&d->steps, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&d->busy_us, f->result->forward_us + f->result->sample_us,
                              memory_order_relaxed);
}

/* The next job, waited for; false when there is none and none will come. */
static bool take_job(struct cpu_worker *w, struct worker_job *ret_job)
{
    bool got = false;

    (void)cpu_pool_spin(w->d->pool, &w->asked_jobs, w->taken_jobs);
    pthread_mutex_lock(&w->lock);
    while (atomic_load_explicit(&w->asked_jobs, memory_order_relaxed) == w->taken_jobs && !w->stop)
        pthread_cond_wait(&w->asked, &w->lock);
    if (atomic_load_explicit(&w->asked_jobs, memory_order_relaxed) != w->taken_jobs) {
        *ret_job = w->job[w->taken_jobs++ % JOBS];
        got = true;
    }
    pthread_mutex_unlock(&w->lock);
    return got;
}

static void *worker_main(void *arg)
{
    struct cpu_worker *w = arg;
    struct worker_job job;

    (void)pthread_setname_np(pthread_self(), "compute"); /* for top and debuggers */
    cpu_pool_pin(w->d->pool);
    while (take_job(w, &job)) {
        if (!job.sample) {
            do_forward(w->d, job.flight);
            continue;
        }
        do_sample(w->d, job.flight);
        pthread_mutex_lock(&w->lock);
        job.flight->state = CPU_DONE;
        pthread_cond_broadcast(&w->done);
        pthread_mutex_unlock(&w->lock);
    }
    return NULL;
}

/* With the lock held. */
static void cpu_worker_ask(struct cpu_worker *w, struct cpu_flight *f, bool sample)
{
    uint32_t n = atomic_load_explicit(&w->asked_jobs, memory_order_relaxed);

    w->job[n % JOBS] = (struct worker_job){f, sample};
    atomic_store_explicit(&w->asked_jobs, n + 1, memory_order_release);
    pthread_cond_signal(&w->asked);
}

int cpu_worker_forward(struct cpu_worker *w, const struct ek_step *step)
{
    struct cpu_flight *f = &w->flight[step->id & 1], *other = &w->flight[~step->id & 1];
    int r = 0;

    pthread_mutex_lock(&w->lock);
    if (!f->result || other->state == CPU_FORWARD)
        r = -EINVAL;
    else if (f->state != CPU_FREE)
        r = -EBUSY;
    else {
        f->state = CPU_FORWARD;
        f->step = step;
        cpu_worker_ask(w, f, false);
    }
    pthread_mutex_unlock(&w->lock);
    return r;
}

int cpu_worker_sample(struct cpu_worker *w, const struct ek_step *step,
                      const struct ek_masks *masks)
{
    struct cpu_flight *f = &w->flight[step->id & 1];
    int r = -EINVAL;

    pthread_mutex_lock(&w->lock);
    if (f->state == CPU_FORWARD && f->step == step) {
        f->state = CPU_SAMPLE;
        f->masks = masks;
        cpu_worker_ask(w, f, true);
        r = 0;
    }
    pthread_mutex_unlock(&w->lock);
    return r;
}

static struct timespec deadline_in(uint64_t timeout_us)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t s = timeout_us / EK_US_PER_S,
             ns = (uint64_t)t.tv_nsec + timeout_us % EK_US_PER_S * 1000;
    t.tv_sec += (time_t)(s < 1000000000ull ? s : 1000000000ull) + (time_t)(ns / 1000000000ull);
    t.tv_nsec = (long)(ns % 1000000000ull);
    return t;
}

int cpu_worker_wait(struct cpu_worker *w, uint64_t id, struct ek_result *ret_result, size_t bytes,
                    uint64_t timeout_us)
{
    struct cpu_flight *f = &w->flight[id & 1];
    struct timespec until = deadline_in(timeout_us);
    int r = 0;

    pthread_mutex_lock(&w->lock);
    if ((f->state != CPU_SAMPLE && f->state != CPU_DONE) || f->step->id != id)
        r = -EINVAL;
    while (r == 0 && f->state != CPU_DONE)
        r = -pthread_cond_timedwait(&w->done, &w->lock, &until);
    if (r == -ETIMEDOUT && f->state == CPU_DONE)
        r = 0;
    if (r == 0 && bytes < ek_result_own_bytes(f->result))
        r = -EINVAL;
    if (r == 0) {
        memcpy(ret_result, f->result, ek_result_own_bytes(f->result));
        f->state = CPU_FREE;
        f->step = NULL;
        f->masks = NULL;
    }
    pthread_mutex_unlock(&w->lock);
    return r;
}

bool cpu_worker_idle(struct cpu_worker *w)
{
    pthread_mutex_lock(&w->lock);
    bool idle = w->flight[0].state == CPU_FREE && w->flight[1].state == CPU_FREE;
    pthread_mutex_unlock(&w->lock);
    return idle;
}

int cpu_worker_ready(struct cpu_worker *w, const struct ek_plan_request *q)
{
    size_t bytes =
        ek_result_bytes(q->ceiling.seqs, q->ceiling.scores, q->ceiling.seqs, q->graph->hidden);
    struct ek_result *result[2] = {calloc(1, bytes), calloc(1, bytes)};

    if (!result[0] || !result[1]) {
        free(result[0]);
        free(result[1]);
        return -ENOMEM;
    }
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < 2; i++) {
        free(w->flight[i].result);
        w->flight[i].result = result[i];
    }
    pthread_mutex_unlock(&w->lock);
    return 0;
}

int cpu_worker_new(struct ek_device *d, struct cpu_worker **ret_worker)
{
    pthread_condattr_t clock;
    pthread_attr_t attr;

    struct cpu_worker *w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->d = d;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->asked, NULL);
    pthread_cond_init(&w->done, &clock);
    pthread_condattr_destroy(&clock);
    pthread_attr_init(&attr);
    (void)pthread_attr_setstacksize(&attr, CPU_STACK_BYTES);
    int r = -pthread_create(&w->thread, &attr, worker_main, w);
    pthread_attr_destroy(&attr);
    if (r < 0) {
        free(w);
        return r;
    }
    *ret_worker = w;
    return 0;
}

void cpu_worker_free(struct cpu_worker *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true; /* after the jobs that are in the queue */
    pthread_cond_signal(&w->asked);
    pthread_mutex_unlock(&w->lock);
    (void)pthread_join(w->thread, NULL);
    for (int i = 0; i < 2; i++)
        free(w->flight[i].result);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->asked);
    pthread_cond_destroy(&w->done);
    free(w);
}
