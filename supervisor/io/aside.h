/*
 * Work that would hold up the loop, such as reading megabytes from a disk that may hang: each piece
 * runs in a thread of its own, and the loop hears when it is done. At most ASIDE_MOST at once, so
 * that a disk that hangs costs no more than that.
 */
#pragma once

#include <systemd/sd-event.h>

#define ASIDE_MOST 4u

struct aside;

/* In the thread: reads and writes ctx alone, which no other thread touches until `done`. */
typedef void (*aside_fn)(void *ctx);

/* 0 or -ENOMEM. event has to outlive it. */
int aside_new(sd_event *event, struct aside **ret_aside);
/* Waits a moment for what runs and calls its `drop`; what hangs keeps its ctx. NULL is fine. */
void aside_free(struct aside *a);
/* 0, then done(ctx) follows from the loop, or drop(ctx) from aside_free(): both end ctx. -EBUSY
 * when ASIDE_MOST run, or another negative errno: ctx is the caller's. */
int aside_run(struct aside *a, aside_fn work, aside_fn done, aside_fn drop, void *ctx);
