/*
 * The listener: accepts connections of one listening socket and looks at their first bytes before
 * any HTTP parser does.
 *
 * On TCP it sends "GET /health" and its like to the reserved health thread and the rest to the API
 * thread with the fewest connections. When the API's connections are all in use, further ones are
 * parked unread; when too many are parked, the listener is left alone and new ones wait in the
 * kernel's backlog. On the control socket it checks the peer's credentials and takes the verbs that
 * pass descriptors (common/fdpass.h).
 *
 * Owner: the thread of its worker; listener_waits() from any thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/net/conn.h"

/* listen_fd is owned from here on. `local` = the control socket. */
int listener_new(struct worker *w, int listen_fd, bool local, struct http_listener **ret_listener);
int listener_open(struct http_listener *d); /* the worker's epoll is there: start to accept */
void listener_accept(struct http_listener *d);
void listener_peek(struct http_listener *d,
                   enum watched *what); /* a peeked socket has bytes, or ended */
/* Deadlines, parked connections, drains. */
void listener_tick(struct http_listener *d, uint64_t now_us);
bool listener_waits(struct http_listener *d); /* for a connection to end; false of NULL */
void listener_free(struct http_listener *d);
