/*
 * Handing a worker's thread what it is to look at: a socket, a wake-up, one more descriptor in its
 * epoll. The listener (listen.c) and the encoders call this; what comes of it is in worker.c.
 */
#include "server/net/conn.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

void worker_wake(struct worker *w)
{
    (void)eventfd_write(w->event, 1); /* a full counter is awake enough */
}

int worker_watch(struct worker *w, int fd, uint32_t events, enum watched *what)
{
    struct epoll_event e = {.events = events, .data.ptr = what};
    return epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &e) < 0 ? -errno : 0;
}

int worker_give(struct worker *w, int fd)
{
    int r = -EAGAIN;
    pthread_mutex_lock(&w->lock);
    if (w->inbox_count < HTTP_INBOX && w->started) {
        w->inbox[w->inbox_count++] = fd;
        atomic_fetch_add(&w->load, 1);
        r = 0;
    }
    pthread_mutex_unlock(&w->lock);
    if (r == 0)
        worker_wake(w);
    return r;
}
