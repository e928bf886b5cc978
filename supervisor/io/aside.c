/*
 * A job belongs to the loop but for `ctx`, which is the thread's until it has written to the job's
 * eventfd, the last thing that it does.
 */
#include "supervisor/io/aside.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define END_MS 500 /* for all that run when evenkeeld ends */

struct aside_job {
    struct aside_job *next, **link;
    struct aside *aside;
    pthread_t thread;
    int fd;
    sd_event_source *io;
    aside_fn work, done, drop;
    void *ctx;
};

struct aside {
    sd_event *event;
    struct aside_job *jobs;
    unsigned count;
};

int aside_new(sd_event *event, struct aside **ret_aside)
{
    struct aside *a = calloc(1, sizeof(*a));
    if (!a)
        return -ENOMEM;
    a->event = event;
    *ret_aside = a;
    return 0;
}

static void *aside_thread(void *ctx)
{
    struct aside_job *j = ctx;
    const uint64_t one = 1;
    j->work(j->ctx);
    ssize_t n = write(j->fd, &one, sizeof(one)); /* cannot fail: it counts to one */
    (void)n;
    return NULL;
}

static void job_free(struct aside_job *j)
{
    sd_event_source_disable_unref(j->io);
    if (j->link)
        *j->link = j->next;
    if (j->next)
        j->next->link = j->link;
    if (j->fd >= 0)
        close(j->fd);
    free(j);
}

static int on_done(sd_event_source *source, int fd, uint32_t revents, void *ctx)
{
    struct aside_job *j = ctx;
    aside_fn done = j->done;
    void *theirs = j->ctx;
    (void)source;
    (void)fd;
    (void)revents;
    (void)pthread_join(j->thread, NULL); /* it has nothing left to do */
    j->aside->count--;
    job_free(j);
    done(theirs);
    return 0;
}

int aside_run(struct aside *a, aside_fn work, aside_fn done, aside_fn drop, void *ctx)
{
    if (a->count >= ASIDE_MOST)
        return -EBUSY;
    struct aside_job *j = calloc(1, sizeof(*j));
    if (!j)
        return -ENOMEM;
    *j = (struct aside_job){.aside = a, .work = work, .done = done, .drop = drop, .ctx = ctx};
    j->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = j->fd < 0 ? -errno : sd_event_add_io(a->event, &j->io, j->fd, EPOLLIN, on_done, j);
    if (r >= 0)
        r = -pthread_create(&j->thread, NULL, aside_thread, j); /* signals are the loop's: held */
    if (r < 0) {
        job_free(j);
        return r;
    }
    j->next = a->jobs;
    j->link = &a->jobs;
    if (j->next)
        j->next->link = &j->next;
    a->jobs = j;
    a->count++;
    return 0;
}

void aside_free(struct aside *a)
{
    struct timespec until;
    if (!a)
        return;
    (void)clock_gettime(CLOCK_REALTIME, &until); /* the only clock that it takes */
    until.tv_nsec += END_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    for (struct aside_job *j = a->jobs, *next; j; j = next) {
        next = j->next;
        if (pthread_timedjoin_np(j->thread, NULL, &until) != 0) {
            j->io = sd_event_source_disable_unref(j->io); /* the thread has the rest */
            continue;
        }
        j->drop(j->ctx);
        job_free(j);
    }
    free(a);
}
