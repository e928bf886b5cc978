/*
 * Orders to drain, to go on and to stop: from the control socket, a signal, the engine, another
 * node; and whether the process that has one may end. State: what is under `lock` in struct
 * instance.
 */
#pragma once

#include "server/instance.h"
#include "server/net/http.h"

/* How this process drains: as asked, else held where evenkeeld keeps the listening socket. */
enum http_drain_mode drain_mode(const struct options *o);
enum http_drain_mode drain_kept_mode(struct instance *s);

/* For struct http_params and struct stack; `ctx` is the instance. Any thread. */
void drain_on_order(void *ctx, double deadline_s, enum http_drain_mode mode, bool leave);
void drain_on_resume(void *ctx);
void drain_on_dead(void *ctx, int code, const char *why);

/* Main thread: reads one signal and does what it asks for. */
void drain_on_signal(struct instance *s);
/* Main thread: another node was asked to stop, and cannot end before this one. */
void drain_on_node(struct instance *s);
/* Main thread: the engine serves from now on, and is told of a drain that was ordered before. */
void drain_on_serving(struct instance *s);
/* Main thread: whether the process may end now: drained and sent, or past the deadline. */
bool drain_may_leave(struct instance *s);
