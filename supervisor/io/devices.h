/* A report on the devices of this machine: what nvml.c fills and gpus.c hands over. Plain data. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

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
