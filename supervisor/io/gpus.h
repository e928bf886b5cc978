/*
 * What NVIDIA's library says of the devices of this machine. A sick device blocks the process that
 * asks it, so a helper process asks: the unit evenkeel-nvml where systemd listens for it, which
 * alone may open the devices and is killed by its watchdog; else a fork that keeps no descriptor of
 * ours, opens libnvidia-ml.so.1, writes one report into a pipe and ends. A fork that does not
 * answer in time is killed, or left behind when not even that helps. No library is the usual case
 * on machines without such devices.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

#include "supervisor/io/devices.h"

struct gpus_call;
typedef void (*gpus_fn)(void *ctx, const struct gpus *gpus);

/* 0: cb is called once, from the loop. A negative errno: nothing was begun. */
int gpus_ask(sd_event *event, uint32_t timeout_ms, gpus_fn cb, void *ctx, struct gpus_call **ret);
void gpus_cancel(struct gpus_call *call);
/* The same for a program that has no loop: waits up to timeout_ms. */
void gpus_wait(uint32_t timeout_ms, struct gpus *ret_gpus);

/* "0,2" into a set of bits. -EBADMSG when it is no such list. */
int gpus_parse(const char *list, uint32_t *ret_set);
/* Whether device i is of the set; an empty one, where nothing is said, has them all. */
static inline bool gpus_has(uint32_t set, uint32_t i)
{
    return set == 0 || (set & 1u << i);
}
/* Whether each device of the set answers and has `share` of its memory free, where that is said. If
 * not, why is a sentence. */
bool gpus_are_free(const struct gpus *gpus, uint32_t set, double share, char *why, size_t size);
