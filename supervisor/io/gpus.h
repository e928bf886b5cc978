/*
 * What NVIDIA's library says of the devices of this machine. A sick device blocks whoever asks it,
 * so a helper process asks: the unit evenkeel-nvml where systemd listens for it, which alone may
 * open the devices and is killed by its watchdog; else a fork that keeps no descriptor of ours,
 * opens libnvidia-ml.so.1, writes one report into a pipe and ends. A fork that does not answer in
 * time is killed, or left behind when not even that helps. No library is the usual case on machines
 * without such devices.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

#define GPUS_MOST      16
#define GPUS_PROCESSES 8

struct gpu {
    uint64_t total, used; /* bytes; total 0 = not said: it shares the host's memory, or is cut up */
    bool lost;            /* it does not answer: `text` of all says what of the last such one */
    uint32_t processes;   /* that have memory there; the first are below */
    pid_t pid[GPUS_PROCESSES];
    uint64_t bytes[GPUS_PROCESSES]; /* 0 = not said */
    int32_t busy_percent;           /* of its last sample of a second or so; -1 = not said */
    uint64_t ecc_errors;            /* uncorrected, since it was powered; 0 also when not counted */
};

struct gpus {
    int error; /* 0; -ENOENT no library; -ETIMEDOUT; -EIO: text says what */
    uint32_t count;
    struct gpu at[GPUS_MOST];
    char text[120];
};

struct gpus_call;
typedef void (*gpus_fn)(void *ctx, const struct gpus *gpus);

/* 0: cb is called once, from the loop. A negative errno: nothing was begun. */
int gpus_ask(sd_event *event, uint32_t timeout_ms, gpus_fn cb, void *ctx, struct gpus_call **ret);
void gpus_cancel(struct gpus_call *call);
/* The same for a program that has no loop: waits up to timeout_ms. */
void gpus_wait(uint32_t timeout_ms, struct gpus *ret_gpus);

/* "0,2" into a set of bits. -EBADMSG when it is no such list. */
int gpus_parse(const char *list, uint32_t *ret_set);
/* Whether each device of the set answers and has `share` of its memory free, where that is said. If
 * not, why is a sentence. */
bool gpus_are_free(const struct gpus *gpus, uint32_t set, double share, char *why, size_t size);
