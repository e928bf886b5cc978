/*
 * The engine: a thread that plans step n+1 while step n runs on the backend. It alone owns
 * sequences, blocks and the device. Others meet it in three places: the submit queue, a request's
 * output, the limits mailbox. It does not know HTTP: after each step it calls `deliver` once for
 * every worker that has news.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "server/engine/limits.h"
#include "server/engine/params.h"
#include "server/engine/request.h"
#include "server/engine/stats.h"

struct ek_fault;
struct engine;

/* Ceilings of the steps that an engine with these parameters makes; `blocks` is not used, so that
 * the plan of memory can ask before it knows them. What main gives to the backend's plan(). */
void engine_ceiling(const struct engine_params *p, struct ek_step_ceiling *ret_ceiling);

/* The device is loaded and its KV pool open. The thread starts at once. */
int engine_new(const struct engine_params *p, const struct ek_backend *backend,
               struct ek_device *device, struct engine **ret_engine, struct ek_fault *fault);
/* Stops at once: what still runs ends with REQ_FIN_ABORT. Once it is called, only engine_keep()
 * and engine_free() may be. NULL is fine. */
void engine_stop(struct engine *e);
/* Of one that has been stopped: its cached prefixes go to the file of engine_params.keep, for some
 * seconds at most. */
void engine_keep(struct engine *e);
/* Stops it if that was not done. NULL is fine. */
void engine_free(struct engine *e);

/* Takes a reference on success. -EBUSY (queue full, predicted wait over the deadline) and
 * -ESHUTDOWN (draining) with *ret_retry_after_s; -EBADMSG when it can never fit. Any thread. */
int engine_submit(struct engine *e, struct request *r, uint32_t *ret_retry_after_s,
                  struct ek_fault *fault);
/* The HTTP side wants it to end: REQ_FIN_STOP or REQ_FIN_ABORT. Its blocks are free at the next
 * step. Any thread, any time before the last unref. */
void engine_finish(struct engine *e, struct request *r, enum req_finish how);

/* Forgets all cached prefixes before the next step is planned. Running requests keep their blocks
 * but not offer them to requests. */
void engine_reset_prefix_cache(struct engine *e);
/* Where the device is in a process of its own: after the steps in flight it is ended, and started
 * again (RESTART), or ended until ACQUIRE. Requests wait meanwhile, and go on with the same text.
 * The newest order counts, and this does not wait for it; engine_stats() tells how far it is.
 * A RESTART after which there would be no engine is refused with a code of its own and a fault, and
 * the one that there is goes on; for that it waits some seconds at most, while the device looks.
 * -ENOTSUP where there is no such process, -ESHUTDOWN when the engine is dead. */
enum engine_order { ENGINE_ORDER_NONE, ENGINE_RESTART, ENGINE_RELEASE, ENGINE_ACQUIRE };
int engine_device_order(struct engine *e, enum engine_order order, struct ek_fault *fault);
void engine_stats(struct engine *e, struct engine_stats *ret_stats);
void engine_limits(struct engine *e, struct limits *ret_limits);
/* As limits_apply(). A larger pool is refused with EK_EDEVMEM when the device has no memory for it;
 * to know, this waits for the steps in flight (-EBUSY when they take too long). */
int engine_limits_apply(struct engine *e, const struct limits_change *c, struct limits *ret_limits,
                        struct ek_fault *fault);
/* Running and queued requests finish; new ones get -ESHUTDOWN if `shut`, else they are taken as
 * before (from connections that are open: no new ones come). At deadline_us (a time of
 * ek_now_us(), 0 = never) the rest ends with REQ_FIN_DEADLINE. What is `further` to a request is
 * taken in either case. */
void engine_drain(struct engine *e, uint64_t deadline_us, bool shut);
void engine_resume(struct engine *e);
