/*
 * The HTTP side of evenkeel-server: bytes <-> requests. What main.c sees of it.
 *
 * Threads, all of one kind (worker.h): N for the API, one for health and metrics (it also accepts
 * all TCP connections and looks at their first bytes), one for the control socket. Each has its own
 * libmicrohttpd daemon and epoll; the engine wakes them through http_deliver(). The control thread
 * runs before the model is loaded: then every route but health, livez, metrics, version answers
 * 503.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/net/params.h"

struct ek_fault;
struct http;

/* Starts the control thread. -EBADMSG with a fault when its socket cannot be opened. */
int http_new(const struct http_params *p, struct http **ret_http, struct ek_fault *fault);

/* How far loading is, for /health; any thread. `what` is a string constant. */
void http_progress(struct http *h, const char *what, uint64_t done, uint64_t total);

/* What the process has given away, for metrics; any thread. */
void http_confined(struct http *h, bool files, bool calls, bool memory);

/* Whether any API key is known (it may come from a flag, a file, the environment, a credential). */
bool http_has_keys(const struct http *h);
/* What keeps the caches of keys apart; another one takes its place before http_serve(). */
void http_secret(const struct http *h, uint8_t ret_secret[AUTH_SECRET]);
void http_take_secret(struct http *h, const uint8_t secret[AUTH_SECRET]);

/* Starts the health thread on a listening socket (owned from here on, also on failure): health is
 * answered at once, the rest waits until http_serve(). */
int http_listen(struct http *h, int listen_fd, struct ek_fault *fault);
/* From here on requests are served: starts the API threads. `s` is not copied. */
int http_serve(struct http *h, const struct served *s, struct ek_fault *fault);

/* The listening socket that came over the control socket, the caller's from now on, or -EAGAIN
 * while none came. http_listen_event() is readable when one has come. */
int http_listen_fd(struct http *h);
int http_listen_event(struct http *h);

/* Keys and certificates are read again (SIGHUP). All or nothing: after a fault all is as it was. */
int http_reload(struct http *h, struct ek_fault *fault);

/* For engine_params.deliver; ctx is the struct http. */
void http_deliver(void *ctx, uint32_t worker);
/* The way to evenkeeld, which judges lost engines; the engine thread's, but for what the control
 * socket brings. */
struct losses *http_losses(struct http *h);

/* New requests: answered with 503 (refuse), or left in the listening socket (hold). */
void http_drain(struct http *h, enum http_drain_mode mode);
void http_undrain(struct http *h);
/* The engine cannot go on, or could not be started: requests end with an error, health says why. */
void http_fail(struct http *h, const char *why);
/* Requests in progress, until their last byte was handed to the socket. */
uint32_t http_active(const struct http *h);
/* Connections that wait for the start, or for what the health thread answers them. */
uint32_t http_waiting(struct http *h);
/* Connections of the API whose request has come and is not read before the model is loaded, or
 * before there is room. */
uint32_t http_parked(const struct http *h);
/* Those that run, at most `most`; returns how many. Main thread. */
uint32_t http_watched(struct http *h, struct http_thread *at, uint32_t most);
/* Connections of the API that are open, idle or not, those whose first bytes are awaited too; one
 * more while new ones are taken, for the next may be among them already. */
uint32_t http_open(const struct http *h);
/* Waits, at most so long, until the threads have accepted what waited in the listening socket and
 * read what had come: a thread that got no processor for a while may owe an answer. Whether all of
 * them have. Main thread. */
bool http_settle(struct http *h, uint64_t most_us);
/* Whether another process keeps the listening socket, so that what waits in it outlives this one.
 */
bool http_kept(struct http *h);

/* Ends all threads; what is still open is cut. The engine must still be there. NULL is fine. */
void http_stop(struct http *h);
void http_free(struct http *h);
