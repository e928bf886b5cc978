/*
 * A thread with its own libmicrohttpd daemon and epoll. Its epoll watches: the daemon's epoll, one
 * eventfd (the engine delivered, a socket came, stop), the sockets of requests in progress (for a
 * peer that leaves), and its listener if it has one.
 *
 * Everything about its connections happens in this thread; others only write the eventfd, the inbox
 * (under its lock) and `stop`.
 */
#pragma once

#include "server/net/conn.h"

/* Makes the daemon and starts the thread. The rest of *w is set by the caller. Negative errno. */
int worker_start(struct worker *w);
/* The first of that role; NULL: there is none. */
struct worker *worker_find(struct http *h, enum http_role role);
/* Ends what is in progress, then the thread. Fine when it never started. */
void worker_stop(struct worker *w);
