/*
 * `evenkeelctl preflight`: one line for each thing that makes servers fail at start or later, with
 * its remedy. The judging is pure and apart from the asking.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PREFLIGHT_MOST 64

enum preflight_state { PREFLIGHT_OK, PREFLIGHT_NOTE, PREFLIGHT_BAD };

struct preflight_line {
    enum preflight_state state;
    char what[40], is[120], remedy[160];
};

struct preflight {
    struct preflight_line line[PREFLIGHT_MOST];
    uint32_t count;
};

/* What was asked of the machine; pages as the programs and files give them. NULL: not there. */
struct preflight_facts {
    const char *driver;                             /* /proc/driver/nvidia/version */
    const char *gpus;                               /* CSV of preflight_query, one card a line */
    const char *apps;                               /* CSV: pid, used MiB, name */
    const char *links;                              /* nvidia-smi topo -m */
    uint64_t memlock, nofile;                       /* limits; UINT64_MAX = none */
    uint64_t memory_bytes, cgroup_bytes, shm_bytes; /* 0 = not known */
    bool gpu_tool_hung;
    const char *model; /* directory, NULL = not asked */
    int model_error;   /* errno of opening the directory, 0 = none */
    bool config_there, weights_there;
    uint32_t port; /* 0 = not asked */
    bool port_free;
};

extern const char preflight_query[]; /* nvidia-smi --query-gpu= */

void preflight_judge(const struct preflight_facts *f, struct preflight *ret);
