/* Handlers of large bodies on a thread of their own, see encoder.h. */
#include "server/http/encoder.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "server/http/inside.h"
#include "server/http/worker.h"

struct encoder {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t given;
    struct exchange *first, **end; /* under lock: what waits */
    bool stop;                     /* under lock */
    bool started;
};

static void finish(struct exchange *x)
{
    struct worker *w = x->worker; /* x is the worker's from the store on */
    atomic_store_explicit(&x->busy, BUSY_DONE, memory_order_release);
    worker_wake(w);
}

static void *run(void *arg)
{
    struct encoder *e = arg;
    for (;;) {
        pthread_mutex_lock(&e->lock);
        while (!e->first && !e->stop)
            pthread_cond_wait(&e->given, &e->lock);
        struct exchange *x = e->first;
        bool stop = e->stop;
        if (x) {
            e->first = x->next_large;
            if (!e->first)
                e->end = &e->first;
        }
        pthread_mutex_unlock(&e->lock);
        if (!x)
            return NULL;
        x->early = (struct answer){.status = 200, .type = "application/json"};
        x->early_rc = 0;
        if (stop)
            answer_fault(&x->early, 503, "", "The server is ending.");
        else
            x->early_rc = x->route->fn(x, &x->early);
        finish(x);
    }
}

int encoder_new(struct encoder **ret_encoder)
{
    struct encoder *e = calloc(1, sizeof(*e));
    if (!e)
        return -ENOMEM;
    e->end = &e->first;
    pthread_mutex_init(&e->lock, NULL); /* with the default attributes neither can fail */
    pthread_cond_init(&e->given, NULL);
    int r = -pthread_create(&e->thread, NULL, run, e);
    e->started = r == 0;
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
        x->next_large = NULL;
        *e->end = x;
        e->end = &x->next_large;
        pthread_cond_signal(&e->given);
        r = 0;
    }
    pthread_mutex_unlock(&e->lock);
    return r;
}

void encoder_stop(struct encoder *e)
{
    if (!e || !e->started)
        return;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_signal(&e->given);
    pthread_mutex_unlock(&e->lock);
    (void)pthread_join(e->thread, NULL);
    e->started = false;
}

void encoder_free(struct encoder *e)
{
    if (!e)
        return;
    encoder_stop(e);
    pthread_cond_destroy(&e->given);
    pthread_mutex_destroy(&e->lock);
    free(e);
}
