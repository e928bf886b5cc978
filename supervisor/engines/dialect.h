/*
 * What differs between the engines that Evenkeel knows: one table. Metric names (old and new, with
 * ':' or '_', with and without _total), endpoints, flags, command lines, log lines, exit codes,
 * what can be changed live. Some engines are only read: their pages are understood, evenkeeld does
 * not run them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "supervisor/engines/signals.h"

#define DIALECT_NAMES   4
#define DIALECT_SOURCES 3

struct dialect_signal {
    const char *name[DIALECT_NAMES]; /* tried in order; ':' and '_' are the same character */
    const char *label, *value;       /* only series with this label; NULL = all of them */
    bool sum;                        /* over series (counters, queue lengths); else the maximum */
    double most;                     /* larger is SAMPLE_RANGE; 0 = no bound */
};

struct dialect_hist {
    const char *family[2]; /* tried in order */
};

/* A flag that an engine once had: its newer versions end with "unrecognized arguments". */
struct dialect_gone {
    const char *flag, *instead; /* since when, and what does the same; a NULL flag ends the list */
};

/* What `evenkeelctl plan` writes between program, model and limits; '#' = how many machines. NULL:
 * nothing. */
struct dialect_plan {
    const char *before_nodes, *nodes; /* for several machines: in front of the program, a flag */
    const char *gpu, *cpu;
    const char *kv_8_gpu, *kv_8_cpu;   /* a KV cache of 8 bits */
    const char *weights_8, *weights_4; /* weights made smaller while it loads */
};

struct dialect {
    const char *name; /* "evenkeel", "vllm" */
    bool only_read;   /* no evenkeeld runs it: dialect_find() does not know it */
    /* Of each signal the first of these arrays, [SIG_COUNT] each, that has a name for it. */
    const struct dialect_signal *signals[DIALECT_SOURCES];
    const struct dialect_signal *figures; /* [FIG_COUNT]; NULL = none */
    const struct dialect_hist *hists;     /* [HIST_COUNT] */
    const char *info; /* series whose labels are its settings: block_size, num_gpu_blocks, ... */
    const char *ready_path; /* 200 = takes requests */
    const char *drain_path; /* POST, NULL = by SIGTERM only */
    bool live_limits;       /* PATCH /v1/runtime_config on the control socket */
    bool control_socket;
    bool exit_word; /* ours: exit.json, --plan, --control-socket; its output may be the journal */
    bool companion; /* a foreign engine with our package in it (supervisor/companion) */
    bool rereads;   /* SIGHUP makes it read keys and certificates again */
    bool torch;     /* its device allocator is PyTorch's: PYTORCH_CUDA_ALLOC_CONF has an effect */
    bool proves_ready;     /* ready once it has made a token: its health says less */
    bool exit0_is_failure; /* an exit with status 0 that was not asked for */
    /* Its command line. PROGRAM VERB MODEL, or by a Python of its environment -m MODULE --model
     * MODEL, then --host, --port and how long SIGTERM may take; without a verb PROGRAM and the
     * flags that are not NULL. */
    const char *program, *verb, *module, *model_flag, *drain_flag;
    const char *modules;     /* what names of its modules begin with, on a command line */
    bool beside;             /* the program lies beside evenkeeld's, or in PATH */
    const char *prefix_flag; /* the file in which cached prefixes outlive a restart, or NULL */
    const char *control_flag, *listen_flag; /* the control socket; its port comes from there */
    const char *key_env;                    /* variable that sets its API key; NULL = none */
    const char *flags_flag;                 /* names a YAML file of flags, the key too */
    const char *seqs_flag, *tokens_flag;    /* to set limits by restart; NULL = none */
    const char *share_flag, *swap_flag;
    /* The highest defaults of any release on any card: a bound of the law where neither a flag nor
     * the engine says its limit, never taken for that limit. 0 = none is known. */
    uint32_t seqs_default_most, tokens_default_most;
    double share_default;
    const struct dialect_gone *gone; /* NULL = it knows all that it ever knew */
    const struct dialect_plan *plan; /* NULL = no plan is made for it */
    /* Its last words, lists that end with NULL: that its engine's process is gone, that a worker of
     * that was before, and that it was an exception that the log shows. */
    const char *const *dead, *const *lost, *const *fatal;
    const char *error_mark; /* what follows says why it ended; NULL = nothing does */
};

/* Names of those that a configuration may name, with '|' between. */
extern const char dialect_choices[];

const struct dialect *dialect_find(const char *name); /* NULL if unknown, or only read */
const struct dialect *dialect_at(uint32_t i);         /* NULL after the last one */
/* The row of the same engine with a companion in it; NULL where there is none. */
const struct dialect *dialect_companion(const struct dialect *d);
/* The first of these words from `*at` on that the engine's newer versions do not know (moves *at
 * behind it), NULL when there is none. argv may be NULL. */
const struct dialect_gone *dialect_gone(const struct dialect *d, char *const *argv, size_t *at);
/* Never NULL; without a name where the engine has no such signal. */
const struct dialect_signal *dialect_signal(const struct dialect *d, enum signal_id i);
/* Whether a series' name is `want` and the suffix; ':' and '_' are the same. */
bool dialect_same(const char *name, const char *want, const char *suffix);
