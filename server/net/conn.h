/*
 * Connections and the threads that have them: plain data, and how a thread is handed something. A
 * conn belongs to its worker's thread; no other thread touches it. Shared are the atomics, and the
 * inbox under its lock.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/net/unread.h"

struct MHD_Daemon;
struct http_listener;
struct exchange;
struct http;

enum http_role { HTTP_API, HTTP_HEALTH, HTTP_CONTROL };

/* What an epoll event of a worker is about: the first member of what it points to. */
enum watched { WATCH_EVENT, WATCH_DAEMON, WATCH_LISTENER, WATCH_PEEK, WATCH_CONN };

/* An open connection. */
struct conn {
    enum watched watch;
    int fd;
    bool local;           /* came over the control socket: admin routes are allowed */
    bool checked;         /* its client's certificate is good, or none is asked for */
    bool watched;         /* in the worker's epoll for RDHUP */
    uint64_t deadline_us; /* the request must be complete by then; 0 = it is */
    uint64_t idle_us;     /* since when there is none on it; 0 = there is one */
    struct unread unread; /* while the server drains */
    struct exchange *exchange;
    struct worker *worker;
    struct conn *prev, *next;
};

#define HTTP_INBOX 512u

struct worker {
    struct http *http;
    enum http_role role;
    uint32_t index; /* the engine's number for it */
    pthread_t thread;
    atomic_bool started;
    atomic_ullong rounds; /* of its loop */
    struct MHD_Daemon *daemon;
    enum watched on_event, on_daemon;
    int epoll, event;               /* own epoll; eventfd that the engine and other threads write */
    struct http_listener *listener; /* NULL unless it accepts; freed when all threads have ended */
    struct conn *conns;
    struct exchange *running; /* with a generation, linked */
    uint64_t next_scan_us;    /* deadlines are looked at then */
    uint32_t eventless; /* rounds in a row without an event and without bytes of a body or stream */
    atomic_uint load;   /* connections, those in the inbox included */
    atomic_bool stop;
    pthread_mutex_t lock;
    int inbox[HTTP_INBOX]; /* under lock: accepted sockets to take over */
    uint32_t inbox_count;
};

/* Gives it an accepted socket; any thread. -EAGAIN when its inbox is full (fd stays the caller's).
 */
int worker_give(struct worker *w, int fd);
void worker_wake(struct worker *w);
/* Adds fd to the worker's epoll. what = first member `enum watched`. */
int worker_watch(struct worker *w, int fd, uint32_t events, enum watched *what);
