/*
 * What differs between the engines that evenkeeld can supervise: one table. Metric names (old and
 * new, with ':' or '_', with and without _total), endpoints, flags, log lines, exit codes, what can
 * be changed live.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "supervisor/law/signals.h"

#define DIALECT_NAMES 4

struct dialect_signal {
    const char *name[DIALECT_NAMES]; /* tried in order; ':' and '_' are the same character */
    const char *label, *value;       /* only series with this label; NULL = all of them */
    bool sum;                        /* over series (counters, queue lengths); else the maximum */
    double most;                     /* larger is SAMPLE_RANGE; 0 = no bound */
};

/* A flag that an engine once had: its newer versions end with "unrecognized arguments". */
struct dialect_gone {
    const char *flag, *instead; /* since when, and what does the same; a NULL flag ends the list */
};

struct dialect {
    const char *name; /* "evenkeel", "vllm" */
    struct dialect_signal signal[SIG_COUNT];
    const char *ttft[2], *itl[2]; /* histogram families, tried in order */
    const char *health_path;      /* 200 = alive */
    const char *ready_path;
    bool live_limits; /* PATCH /v1/runtime_config on the control socket */
    bool control_socket;
    bool exit_word; /* ours: exit.json, --plan, --control-socket; its output may be the journal */
    bool companion; /* a foreign engine with our package in it (supervisor/companion) */
    bool exit0_is_failure;               /* an exit with status 0 that nobody asked for */
    const char *seqs_flag, *tokens_flag; /* to set limits by restart; NULL = none */
    const char *share_flag, *swap_flag;
    uint32_t seqs_default, tokens_default; /* where no flag says another; 0 = not known */
    double share_default;
    bool torch;   /* its device allocator is PyTorch's: PYTORCH_CUDA_ALLOC_CONF has an effect */
    bool rereads; /* SIGHUP makes it read keys and certificates again */
    const char *drain_path; /* POST, NULL = by SIGTERM only */
    /* How it is started where only a model is given: PROGRAM VERB MODEL, or by a Python of its
     * environment -m MODULE --model MODEL; then --host, --port and how long SIGTERM may take. NULL:
     * it is ours. */
    const char *program, *verb, *module, *drain_flag;
    const struct dialect_gone *gone; /* NULL = it knows all that it ever knew */
    const char *key_env;             /* environment variable that sets its API key; NULL = none */
    bool proves_ready;               /* ready once it has made a token: its health says less */
};

const struct dialect *dialect_find(const char *name); /* NULL if unknown */
const struct dialect *dialect_at(uint32_t i);         /* NULL after the last one */
/* The row of the same engine with a companion in it; NULL where there is none. */
const struct dialect *dialect_companion(const struct dialect *d);
/* The first of these words from `*at` on that the engine's newer versions do not know (moves *at
 * behind it), NULL when there is none. argv may be NULL. */
const struct dialect_gone *dialect_gone(const struct dialect *d, char *const *argv, size_t *at);
