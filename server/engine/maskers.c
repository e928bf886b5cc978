/* Masks on threads of their own, see maskers.h. */
#include "server/engine/maskers.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/work.h"
#include "server/engine/request.h"

#define MASKERS_NICE 5 /* above the process's: they give way to the threads that make tokens */

enum mask_job_state { JOB_FREE, JOB_GIVEN, JOB_RUNS, JOB_DONE };

/* What stands in it is the engine's while it is FREE or DONE, and the threads' otherwise. */
struct mask_job {
    atomic_int state; /* enum mask_job_state */
    uint64_t order;   /* in which they were given */
    struct mask_done is;
};

struct maskers {
    pthread_t thread[MASKERS_THREADS];
    uint32_t threads, words;
    uint64_t fuel;
    maskers_fn fn;
    sem_t given; /* told with each that is given: the engine's thread never waits for it */
    struct mask_job job[MASKERS_JOBS];
    uint64_t order;       /* the engine's, */
    uint32_t given_count; /* and this too: jobs that are not free */
    atomic_uint started;  /* threads: each has a number */
    atomic_bool stop;
    pthread_mutex_t lock;                        /* the threads' alone: which of them takes what */
    const struct grammar *form[MASKERS_THREADS]; /* that each works at, NULL = none */
};

/* Under the lock: whether a thread works at a mask of the form. */
static bool form_runs(const struct maskers *m, const struct grammar *g)
{
    for (uint32_t i = 0; i < MASKERS_THREADS; i++)
        if (m->form[i] == g)
            return true;
    return false;
}

/* The first that was given and may run, NULL = none. It is this thread's now. */
static struct mask_job *maskers_take_job(struct maskers *m, uint32_t number)
{
    struct mask_job *best = NULL;

    pthread_mutex_lock(&m->lock);
    m->form[number] = NULL;
    for (uint32_t i = 0; i < MASKERS_JOBS; i++) {
        struct mask_job *p = &m->job[i];
        if (atomic_load_explicit(&p->state, memory_order_acquire) == JOB_GIVEN &&
            (!best || p->order < best->order) && !form_runs(m, p->is.request->ask.grammar))
            best = p;
    }
    if (best) {
        m->form[number] = best->is.request->ask.grammar;
        atomic_store_explicit(&best->state, JOB_RUNS, memory_order_relaxed);
    }
    pthread_mutex_unlock(&m->lock);
    return best;
}

static void work_at(const struct maskers *m, struct mask_done *d)
{
    struct request *r = d->request;
    struct ek_work work = {.fuel = m->fuel, .look = UINT64_MAX};

    if (atomic_load(&r->state) == REQ_DONE || grammar_given_up(r->ask.grammar))
        return; /* its request has ended */
    if (!r->mask_bits)
        r->mask_bits = calloc(m->words, sizeof(*r->mask_bits));
    d->made = r->mask_bits && m->fn(r, &work, m->words, r->mask_bits);
    d->used = d->made ? work.used : m->fuel;
}

static void *maskers_run(void *arg)
{
    struct maskers *m = arg;
    uint32_t number = atomic_fetch_add(&m->started, 1);

    errno = 0;
    int has = getpriority(PRIO_PROCESS, (id_t)gettid());
    if (errno == 0) /* without the right it does not */
        (void)setpriority(PRIO_PROCESS, (id_t)gettid(), has + MASKERS_NICE);
    while (!atomic_load(&m->stop)) {
        struct mask_job *p = maskers_take_job(m, number);
        /* What may not run now is of a form that the other thread has. That one leaves it and looks
         * for the next under the lock, so nothing is left beside threads that sleep. */
        if (!p) {
            (void)sem_wait(&m->given); /* interrupted it looks again, too */
            continue;
        }
        work_at(m, &p->is);
        atomic_store_explicit(&p->state, JOB_DONE, memory_order_release);
    }
    return NULL;
}

int maskers_new(uint32_t words, uint64_t fuel, maskers_fn fn, struct maskers **ret_maskers)
{
    struct maskers *m = calloc(1, sizeof(*m));
    int r = 0;

    if (!m)
        return -ENOMEM;
    m->words = words;
    m->fuel = fuel;
    m->fn = fn;
    pthread_mutex_init(&m->lock, NULL); /* with the default attributes it cannot fail */
    (void)sem_init(&m->given, 0, 0);    /* nor can this */
    while (r == 0 && m->threads < MASKERS_THREADS) {
        r = -pthread_create(&m->thread[m->threads], NULL, maskers_run, m);
        if (r == 0)
            (void)pthread_setname_np(m->thread[m->threads++], "masks"); /* for top and debuggers */
    }
    if (r < 0)
        maskers_free(m);
    else
        *ret_maskers = m;
    return r;
}

void maskers_free(struct maskers *m)
{
    if (!m)
        return;
    atomic_store(&m->stop, true);
    for (uint32_t i = 0; i < m->threads; i++)
        (void)sem_post(&m->given);
    while (m->threads > 0)
        (void)pthread_join(m->thread[--m->threads], NULL);
    for (uint32_t i = 0; i < MASKERS_JOBS; i++) {
        if (atomic_load(&m->job[i].state) == JOB_FREE)
            continue;
        grammar_lend(m->job[i].is.request->ask.grammar, -1);
        request_unref(m->job[i].is.request);
    }
    (void)sem_destroy(&m->given);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

bool maskers_room(const struct maskers *m, uint64_t owner)
{
    uint32_t has = 0;

    if (m->given_count == MASKERS_JOBS)
        return false;
    for (uint32_t i = 0; i < MASKERS_JOBS; i++)
        has += atomic_load_explicit(&m->job[i].state, memory_order_relaxed) != JOB_FREE &&
               m->job[i].is.owner == owner; /* only read by the threads, too */
    return has < MASKERS_JOBS / 2;
}

void maskers_give(struct maskers *m, struct request *r, uint64_t owner)
{
    struct mask_job *free_job = m->job;

    assert(m->given_count < MASKERS_JOBS);
    while (atomic_load_explicit(&free_job->state, memory_order_relaxed) != JOB_FREE)
        free_job++;
    free_job->order = m->order++;
    free_job->is = (struct mask_done){.request = r, .owner = owner};
    request_ref(r);
    grammar_lend(r->ask.grammar, 1);
    m->given_count++;
    atomic_store_explicit(&free_job->state, JOB_GIVEN, memory_order_release);
    (void)sem_post(&m->given);
}

bool maskers_take(struct maskers *m, struct mask_done *ret_done)
{
    for (uint32_t i = 0; i < MASKERS_JOBS && m->given_count > 0; i++) {
        struct mask_job *p = &m->job[i];
        if (atomic_load_explicit(&p->state, memory_order_acquire) != JOB_DONE)
            continue;
        *ret_done = p->is;
        atomic_store_explicit(&p->state, JOB_FREE, memory_order_relaxed);
        m->given_count--;
        grammar_lend(ret_done->request->ask.grammar, -1);
        return true;
    }
    return false;
}

bool maskers_busy(const struct maskers *m)
{
    return m->given_count > 0;
}
