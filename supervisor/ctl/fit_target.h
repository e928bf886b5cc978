/*
 * The server that `evenkeelctl bench-fit` searches the limit of: one of evenkeeld's, or an
 * evenkeel-server by its control socket. Its limit is put back when the search is over, whatever
 * ends it. Where limits are not live (a vLLM without the companion) each one is tried by a restart.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "supervisor/ctl/api.h"
#include "supervisor/planner/limit_search.h"

struct fit_options {
    char *server, *socket, *control, *url, *trace;
    uint64_t start, step, ceiling, clients, prompt, output;
    double settle_s, measure_s, use_low, use_high, preemptions, gap_s, speed, wait_s;
    bool json, apply, restart;
    char *shares, *tokens, *block_sizes, *dtypes;
};

struct fit_target {
    const struct fit_options *o;
    struct api api;
    bool direct;      /* by the control socket */
    char name[64];    /* of the server; direct: empty */
    char url[300];    /* of its metrics and API */
    uint32_t ceiling; /* of running sequences */
    uint32_t before;  /* the limit that is put back */
    bool pinned, changed;
    bool live;              /* else each limit is a start flag, and each step a restart */
    const json_t *settings; /* that such a restart has besides; borrowed, NULL = none */
    pid_t load;             /* evenkeel-bench serve, 0 = not running */
    int load_says;          /* what it writes on standard error */
    char error[500];        /* one sentence about the last failure */
};

/* Finds the server: `name` NULL means the only one of evenkeeld. 0, or an error with its sentence.
 */
int fit_open(struct fit_target *t, const struct fit_options *o, const char *name);
/* Ends the load and puts the limit back, or leaves `keep` (not 0) as the limit. */
void fit_close(struct fit_target *t, uint32_t keep);
/* Starts the load; a closed loop has enough clients for the ceiling. */
int fit_load(struct fit_target *t);
void fit_unload(struct fit_target *t);
/* Sets the limit, by a restart where it is not live, lets it settle and measures. -EINTR: *stop was
 * set meanwhile; -ETIMEDOUT: it did not start with it. */
int fit_measure(struct fit_target *t, uint32_t limit, const volatile int *stop,
                struct limit_search_step *ret_step);
/* evenkeeld restarts the server with these settings besides its own flags (NULL: with its own
 * alone) and waits until it is ready. */
int fit_restart(struct fit_target *t, const json_t *trial);
