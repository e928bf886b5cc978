/*
 * Whether the files that a command line names have changed: one number of all of them, made by a
 * process of its own, because a look at a mount that does not answer blocks for as long as that.
 */
#pragma once

#include <stdint.h>
#include <systemd/sd-event.h>

struct traces_call;

/* The number; another one when a file or a directory's entry came, went or was written. */
typedef void (*traces_fn)(void *ctx, uint64_t sum);

/* Words of argv that are paths, those behind `=` too, but for paths below but_below, which change
 * anyway (NULL = none). 0: cb follows once, however long that takes; or a negative errno. */
int traces_ask(sd_event *event, char *const *argv, const char *but_below, traces_fn cb, void *ctx,
               struct traces_call **ret_call);
void traces_cancel(struct traces_call *c); /* NULL is fine */
