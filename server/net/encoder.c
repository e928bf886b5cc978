/* Threads that read large bodies and compile forms (encoder.h). Called by exchange.c. */
#include "server/net/encoder.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/clock.h"
#include "server/api/complete.h"
#include "server/api/openai.h"
#include "server/grammar/compile.h"
#include "server/net/answer.h"
#include "server/net/arrive.h"
#include "server/net/conn.h"
#include "server/net/params.h"
#include "server/net/render.h"
#include "server/net/request.h"

#define ENCODER_NICE 10
#define TURN_KEYS    256u /* keys that are told apart; others share a place */

/* What a key has had; places are found by its slot. */
struct key_turn {
    uint64_t used_us;          /* a virtual time: see `clock_us` */
    uint32_t waiting, running; /* exchanges */
};

struct encoder {
    pthread_t thread[ENCODER_THREADS];
    uint32_t threads;
    sem_t given; /* told with each that is given, unlike a condition without ever waiting */
    pthread_mutex_t lock;          /* of all that follows */
    struct exchange *first, **end; /* what waits, in the order of arrival */
    struct generation *dropped;    /* to be freed, before anything else is taken */
    struct exchange *running[ENCODER_THREADS];
    uint64_t running_us[ENCODER_THREADS]; /* since when */
    uint64_t rounds[ENCODER_THREADS];
    struct key_turn turn[TURN_KEYS];
    uint64_t clock_us; /* what the key had that was served last */
    bool stop;
};

static struct key_turn *turn_of(struct encoder *e, int key)
{
    return &e->turn[(uint32_t)(key + 1) % TURN_KEYS];
}

static void encoder_finish(struct exchange *x)
{
    struct worker *w = x->worker; /* x is the worker's from the store on */
    atomic_store_explicit(&x->busy, BUSY_DONE, memory_order_release);
    worker_wake(w);
}

/* Under the lock: takes the exchange whose turn it is out of those that wait, NULL = none may run
 * now. What is to be answered at once needs no turn. */
static struct exchange *take_next(struct encoder *e, uint64_t now_us)
{
    struct exchange **best = NULL;

    for (struct exchange **at = &e->first; *at; at = &(*at)->next_large) {
        const struct key_turn *t = turn_of(e, (*at)->key);
        if (e->stop || atomic_load(&(*at)->gone) || now_us >= (*at)->wait_until_us) {
            best = at;
            break;
        }
        if (t->running + 1 < ENCODER_THREADS &&
            (!best || t->used_us < turn_of(e, (*best)->key)->used_us))
            best = at;
    }
    if (!best)
        return NULL;
    struct exchange *x = *best;
    *best = x->next_large;
    if (!*best)
        e->end = best;
    turn_of(e, x->key)->waiting--;
    return x;
}

/* Its client looks like one that has left, but where it closed its own side alone it reads this. */
static void refuse_closed(struct exchange *x)
{
    ek_buf_clear(&x->early.body);
    answer_refuse_fault(x, &x->early, 400,
                        "The connection was closed for sending before the answer was made, as by a "
                        "client that leaves; keep it open until the answer is there.");
}

static bool stopping(struct encoder *e)
{
    pthread_mutex_lock(&e->lock);
    bool stop = e->stop;
    pthread_mutex_unlock(&e->lock);
    return stop;
}

/* Runs the handler, or says why not. */
static void handle(struct encoder *e, struct exchange *x, bool stop, uint64_t now_us)
{
    struct ek_buf own = x->early.body; /* the worker's, which frees it */
    x->early = ANSWER_JSON;
    x->early.body = own;
    x->early_rc = 0;
    x->work = (struct ek_work){.deadline_us = now_us + ENCODER_RUN_S * EK_US_PER_S,
                               .cancelled = &x->gone};
    const bool gone = atomic_load(&x->gone); /* before it asks for the end, which sets it, too */
    if (stop || (gone && stopping(e)))
        answer_refuse_fault(x, &x->early, 503, "The server is ending.");
    else if (gone)
        refuse_closed(x);
    else if (now_us >= x->wait_until_us)
        answer_refuse_fault(x, &x->early, 503,
                            "The server is busy with other requests; try again.");
    else if (x->renders)
        render_whole(x, &x->early);
    else if (arrive_json(x, &x->early)) {
        x->work.fuel = openai_fuel(x->body.len); /* of the body as it is unpacked */
        x->early_rc = x->route->fn(x, &x->early);
        if (x->early_rc != HTTP_WAIT && x->early.status >= 400 && ek_work_stopped(&x->work) &&
            atomic_load(&x->gone) && !stopping(e))
            refuse_closed(x);
    }
}

static void free_counted(struct generation *g)
{
    struct ek_bill bill = g->bill;
    generation_free(g);
    (void)ek_bill_set(&bill, 0); /* it does not fail */
}

/* Under the lock, which is open meanwhile: frees one that was dropped. False: there is none. */
static bool free_one(struct encoder *e)
{
    struct generation *g = e->dropped;
    if (!g)
        return false;
    e->dropped = g->next_dropped;
    pthread_mutex_unlock(&e->lock);
    free_counted(g);
    pthread_mutex_lock(&e->lock);
    return true;
}

static void *encoder_run(void *arg)
{
    struct encoder *e = arg;

    (void)pthread_setname_np(pthread_self(), "encoder"); /* in ps and top */
    /* A large job gives way to the threads that make tokens; without the right it does not. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), ENCODER_NICE);
    pthread_mutex_lock(&e->lock);
    uint32_t self = 0; /* its place in `running` */
    while (self < ENCODER_THREADS && e->thread[self] != pthread_self())
        self++;
    for (;;) {
        if (free_one(e)) {
            e->rounds[self]++;
            continue;
        }
        uint64_t now = ek_now_us();
        struct exchange *x = take_next(e, now);
        bool stop = e->stop;
        if (!x && stop)
            break;
        if (!x) { /* what may not run now is taken by the thread that ends what it waits for */
            pthread_mutex_unlock(&e->lock);
            (void)sem_wait(&e->given); /* interrupted it looks again, too */
            pthread_mutex_lock(&e->lock);
            continue;
        }
        struct key_turn *t = turn_of(e, x->key);
        t->running++;
        e->clock_us = t->used_us > e->clock_us ? t->used_us : e->clock_us;
        e->running[self] = x;
        e->rounds[self]++;
        e->running_us[self] = now;
        pthread_mutex_unlock(&e->lock);
        handle(e, x, stop, now);
        pthread_mutex_lock(&e->lock);
        e->running[self] = NULL;
        e->rounds[self]++;
        t->running--;
        t->used_us += ek_now_us() - now + 1;
        pthread_mutex_unlock(&e->lock); /* the woken thread runs at once, and may want it */
        encoder_finish(x);
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

int encoder_new(struct encoder **ret_encoder)
{
    struct encoder *e = calloc(1, sizeof(*e));
    int r = 0;

    if (!e)
        return -ENOMEM;
    e->end = &e->first;
    pthread_mutex_init(&e->lock, NULL); /* with the default attributes it cannot fail */
    (void)sem_init(&e->given, 0, 0);    /* nor can this */
    pthread_mutex_lock(&e->lock);       /* threads look for their number when all have one */
    while (r == 0 && e->threads < ENCODER_THREADS) {
        r = -pthread_create(&e->thread[e->threads], NULL, encoder_run, e);
        e->threads += r == 0;
    }
    pthread_mutex_unlock(&e->lock);
    if (r < 0)
        encoder_free(e);
    else
        *ret_encoder = e;
    return r;
}

int encoder_give(struct encoder *e, struct exchange *x)
{
    int r = -ESHUTDOWN;
    if (!e)
        return r;
    pthread_mutex_lock(&e->lock);
    if (!e->stop) {
        struct key_turn *t = turn_of(e, x->key);
        if (t->waiting + t->running == 0 && t->used_us < e->clock_us)
            t->used_us = e->clock_us;
        t->waiting++;
        x->wait_until_us = x->renders ? UINT64_MAX /* it is paid for */
                                      : ek_now_us() + ENCODER_WAIT_S * EK_US_PER_S;
        x->next_large = NULL;
        *e->end = x;
        e->end = &x->next_large;
        r = 0;
    }
    pthread_mutex_unlock(&e->lock);
    if (r == 0)
        (void)sem_post(&e->given);
    return r;
}

void encoder_drop(struct encoder *e, struct generation *g, struct ek_bill *bill)
{
    bool given = false;
    g->bill = *bill;
    *bill = (struct ek_bill){0};
    if (e && !g->quick) {
        pthread_mutex_lock(&e->lock);
        given = !e->stop;
        if (given) {
            g->next_dropped = e->dropped;
            e->dropped = g;
        }
        pthread_mutex_unlock(&e->lock);
    }
    if (given)
        (void)sem_post(&e->given);
    else
        free_counted(g);
}

uint32_t encoder_threads(struct encoder *e, struct http_thread *at, uint32_t most)
{
    uint32_t n = 0;

    if (!e)
        return 0;
    pthread_mutex_lock(&e->lock);
    for (; n < e->threads && n < most; n++)
        at[n] = (struct http_thread){
            .thread = e->thread[n],
            .what = "encoder",
            .rounds = e->rounds[n],
            .cpu_most_us = (uint64_t)EK_US_PER_S *
                           (e->running[n] && e->running[n]->renders ? RENDER_CPU_S : ENCODER_CPU_S),
            .still_most_us = e->running[n] ? ENCODER_STILL_S * EK_US_PER_S : 0};
    pthread_mutex_unlock(&e->lock);
    return n;
}

uint64_t encoder_busy_us(struct encoder *e, uint64_t now_us)
{
    uint64_t most = 0;

    if (!e)
        return 0;
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < ENCODER_THREADS; i++)
        if (e->running[i] && !e->running[i]->renders && now_us > e->running_us[i] &&
            now_us - e->running_us[i] > most)
            most = now_us - e->running_us[i];
    pthread_mutex_unlock(&e->lock);
    return most;
}

uint64_t encoder_compile_us(struct grammar_cache *c, uint64_t now_us)
{
    struct grammar_cache_stats g = {0};
    if (c)
        grammar_cache_stats(c, &g);
    return g.oldest_us && now_us > g.oldest_us ? now_us - g.oldest_us : 0;
}

uint64_t encoder_reading_us(struct encoder *e, struct grammar_cache *c, uint64_t now_us)
{
    uint64_t body = encoder_busy_us(e, now_us), form = encoder_compile_us(c, now_us);
    return body > form ? body : form;
}

void encoder_stop(struct encoder *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    for (uint32_t i = 0; i < ENCODER_THREADS; i++)
        if (e->running[i])
            atomic_store(&e->running[i]->gone, true);
    pthread_mutex_unlock(&e->lock);
    for (uint32_t i = 0; i < ENCODER_THREADS; i++)
        (void)sem_post(&e->given);
    while (e->threads > 0)
        (void)pthread_join(e->thread[--e->threads], NULL);
}

void encoder_free(struct encoder *e)
{
    if (!e)
        return;
    encoder_stop(e);
    (void)sem_destroy(&e->given);
    pthread_mutex_destroy(&e->lock);
    free(e);
}
