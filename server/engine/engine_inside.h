/*
 * The engine inside: shared by engine.c (the thread), calls.c (what other threads call) and
 * flights.c (steps on the backend).
 *
 * Sharing: `lock` guards the fields below it in struct engine. A request goes from the submitter to
 * `inbox` (with a reference of its own), from there into the scheduler. A wish to end it goes the
 * same way through `wishes`; orders take both under one hold of the lock, so a wish never overtakes
 * its request. Everything above `lock` belongs to the engine thread after engine_new().
 */
#pragma once

#include <pthread.h>

#include "common/clock.h"
#include "common/err.h"
#include "server/engine/constrain.h"
#include "server/engine/engine.h"
#include "server/engine/record.h"
#include "server/engine/sched.h"
#include "server/engine/verdict.h"

#define ENGINE_WAIT_PIECE_US (3600u * EK_US_PER_S) /* without a deadline: wait in such pieces */

/* What a thread that waits for the engine reads: one of these, until 0 or a negative code says what
 * came of its order. */
enum { ENGINE_ASKED = 2, ENGINE_TRYING = 1 };

struct engine {
    struct engine_params p;
    const struct ek_backend *backend;
    struct ek_device *device;
    struct sched *sched;
    struct ek_step *steps[SCHED_DEPTH]; /* by flight */
    struct ek_result *result;
    size_t result_bytes;
    struct ek_masks *masks;     /* of the one step that has some */
    struct constrain constrain; /* what they may cost */
    struct ek_step *unsampled;  /* started, its sampling waits for the step before; or NULL */
    uint32_t failures;          /* steps failed in a row */
    uint32_t blamed;    /* requests ended in a row for steps that the device had no memory for */
    uint64_t landed_us; /* when the last wait() returned */
    uint64_t plan_us, wait_us, masks_made, mask_us;
    uint64_t revived_us[ENGINE_REVIVALS_MOST]; /* when, the last ones; at revivals % MOST */
    struct engine_revivals revivals;
    char lost_why[400]; /* why no device took the place of a lost one, "" = not tried */
    enum engine_device where;
    bool released;                            /* on purpose, and not there again since */
    enum engine_order order;                  /* that is not done yet */
    bool unchecked;                           /* not yet checked whether it can be done */
    uint64_t away_from_us;                    /* since when there is no device */
    uint64_t loaded_us;                       /* since when there is this one */
    uint64_t losses;                          /* of devices, that were told */
    uint64_t try_us;                          /* when to try again to have one */
    uint32_t away_requests;                   /* that lost what was computed of them */
    struct record_landed landed[SCHED_DEPTH]; /* to be recorded */
    uint32_t landed_count;
    uint64_t recorded_us[3]; /* plan_us, wait_us and mask_us of the last record */
    struct engine_warmth warmth;
    bool kept_void; /* what is being saved or restored is not wanted any more */
    pthread_t thread;
    bool joined; /* it has ended */

    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct request *inbox, **inbox_end;
    struct request *wishes;
    uint32_t queued_reqs; /* never admitted: in the inbox or waiting */
    uint64_t queued_tokens;
    struct limits limits;
    pthread_cond_t resized; /* resize_code has been decided */
    uint32_t resize_to;     /* blocks that a change of limits waits for, 0 = none */
    int resize_code;        /* ENGINE_ASKED, ENGINE_TRYING, or what came of it */
    pthread_cond_t checked; /* check_code has been decided */
    int check_code;         /* of a restart: ENGINE_ASKED, 0, or why it is refused: */
    struct ek_fault check_fault;
    bool limits_new, reset_prefix, stop, dead, shut; /* shut: by a drain */
    enum engine_order ordered;                       /* not taken yet */
    enum engine_drain drain;
    uint64_t drain_deadline_us;
    struct engine_stats shared;
    uint64_t shared_us;
    double prefill_rate;
    uint64_t refused_queue, refused_tokens, refused_deadline, refused_drain, refused_fit;
    uint64_t refused_away;
};

/* flights.c: starts steps until `depth` are in flight or there is nothing to start. 0 when the
 * engine can go on. */
int engine_start_steps(struct engine *e);
/* Waits for the oldest step in flight and takes its result, or until the next one is to be planned.
 * 0 when the engine can go on. */
int engine_land_step(struct engine *e);
/* Copies numbers for others. */
void engine_publish(struct engine *e);
/* revive.c: a step failed for good. 0 when there is a device again and all requests wait for it,
 * else the code with which the engine ends. */
int engine_revive(struct engine *e, int code);
/* revive.c: does what engine_device_order() asked for, when no step is in flight. 0, or the code
 * with which the engine ends. */
int engine_do_order(struct engine *e);
/* revive.c: the host tier is empty, and its memory is the system's. */
void engine_drop_host(struct engine *e);
/* revive.c: no step may be started, for there is no device, or it is to go. */
bool engine_is_away(const struct engine *e);
/* revive.c: longer than requests wait for one. */
bool engine_away_long(const struct engine *e, uint64_t now_us);
/* What goes on beside a device that is loaded: takes what others want and gives out news. False
 * when the engine is to stop. */
bool engine_look_round(struct engine *e);
/* judge.c: a device was lost; `ret_loss` is what is known of it, and evenkeeld is told. */
void engine_tell_loss(struct engine *e, int code, const struct ek_device_end *end,
                      struct engine_loss *ret_loss);
/* judge.c: waits for what is said of it, for params.verdict_wait_us after the loss at most, and
 * sets the limits with which it goes on. */
void engine_take_verdict(struct engine *e, const struct engine_loss *loss,
                         ek_meanwhile_fn meanwhile);
/* The exit code of a server whose engine ends with this code. */
int engine_exit_code(int code);
/* keep.c: cached prefixes go to their file, with no step in flight, for so long at most; and come
 * from it. `meanwhile` is called now and then and ends it when that is not 0. */
void engine_save(struct engine *e, uint64_t most_us, ek_meanwhile_fn meanwhile);
void engine_restore(struct engine *e, uint64_t most_us, ek_meanwhile_fn meanwhile);
/* keep.c: the cache was emptied on purpose, so nothing of before may be kept: the file goes, and
 * what is on its way to it or from it. */
void engine_forget_kept(struct engine *e);
/* When all requests have ended: waits for the steps in flight, whose buffers are the backend's
 * until it is done with them. What it is not done with in time stays in flight. */
void engine_land_rest(struct engine *e);
